"""Exported files: every size and batch that they promise, the facts they carry, and what is refused instead."""

import json
import sys
from itertools import product
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

import foveal
from foveal.exporting import OUTPUT, SUFFIXES, TOLERANCE, export, export_by_name
from foveal.kernels._operator import forced
from foveal.weights.saving import state_hash
from foveal.zoo.attention.bilevel_routing import BilevelRoutingAttention

# three stages, routed to few and to many regions and not routed; a stem that makes 224 cheap
SMALL = {
    "depths": (1, 1, 1), "dims": (16, 32, 32), "num_heads": (2, 2, 2), "topk": (4, 16, None), "stem_stride": 4,
    "num_classes": 10,
}  # fmt: skip
NARROW = {"depths": (1, 1), "dims": (16, 16), "num_heads": (2, 2), "topk": (4, 16)}


def _model(name="biformer_nano", **options):
    torch.manual_seed(0)
    return foveal.create_model(name, **(SMALL | options if name == "biformer_nano" else options)).eval()


def _reader(path):
    """What another program does with the file."""
    if path.suffix == ".pt2":
        program = torch.export.load(path).module()
        return lambda x: [program(x)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: [torch.from_numpy(y) for y in session.run(None, {"image": x.numpy()})]


def _assert_equal(path, model, sizes, batches, channels=3):
    read = _reader(path)
    for (height, width), batch in product(sizes, batches):
        x = torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(height + batch))
        with torch.no_grad():
            (found,), want = read(x), model(x)
        assert found.shape == want.shape
        assert (found - want).abs().max() <= TOLERANCE * want.std(), (batch, height, width)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small routed model and its file in each format."""
    folder, model = tmp_path_factory.mktemp("exported"), _model()
    return model, {format: export(model, folder / f"m{SUFFIXES[format]}", format=format) for format in SUFFIXES}


@pytest.mark.parametrize("format", SUFFIXES)
def test_bc37_other_sizes_after_export(small, format):
    model, files = small
    _assert_equal(files[format], model, [(224, 224), (256, 256), (320, 320), (256, 320)], [2])


@pytest.mark.parametrize("format", SUFFIXES)
def test_bc37_sizes_that_leave_padding_and_empty_regions(small, format):
    """28 leaves maps smaller than the 7 regions a side; 61x83 divides nowhere."""
    model, files = small
    _assert_equal(files[format], model, [(61, 83), (28, 28), (17, 100)], [1, 2])


@pytest.mark.parametrize("format", SUFFIXES)
def test_bc38_other_batches_after_export(small, format):
    model, files = small
    _assert_equal(files[format], model, [(64, 96)], [1, 3, 8])


@pytest.mark.slow
def test_an_exported_biformer_tiny(tmp_path):
    model = _model("biformer_tiny")
    path = export(model, tmp_path / "tiny.onnx")
    _assert_equal(path, model, [(224, 224), (256, 320)], [1, 3])


@pytest.mark.parametrize(
    ("name", "options", "format"),
    [
        ("biformer_stl", NARROW | {"topk": (1, 4)}, "onnx"),
        ("biformer_nano", NARROW | {"auto_pad": True}, "onnx"),
        ("resnet18", {}, "onnx"),
        ("resnet18", {}, "torch"),
    ],
)
def test_other_families(tmp_path, name, options, format):
    model = _model(name, num_classes=10, **options)
    path = export(model, tmp_path / f"m{SUFFIXES[format]}", format=format)
    _assert_equal(path, model, [(224, 224), (256, 320), (75, 94)], [1, 3])


@pytest.mark.parametrize(("down", "across"), [(7, 5), (3, 3), (2, 4), (1, 1), (9, 12), (13, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_arrangement_for_varying_sizes_is_the_definition(down, across, masked):
    """Run eagerly on plain sizes: what a traced program does, beside what the module does."""
    torch.manual_seed(down)
    attention = BilevelRoutingAttention(12, 2, n_win=3, topk=2)
    q, k, v = torch.randn(3, 2, down, across, 12)
    mask = torch.rand(2, down, across) > 0.4 if masked else None
    region = (-(-down // 3), -(-across // 3))
    want = attention._attend(q, k, v, region, mask)
    got = attention._attend_any_size(q, k, v, region, mask)
    real = slice(None) if mask is None else mask  # a region without any real token may be routed anywhere
    torch.testing.assert_close(got[real], want[real], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format", SUFFIXES)
def test_the_file_says_what_it_holds(small, format):
    model, files = small
    if format == "onnx":
        session = onnxruntime.InferenceSession(files[format], providers=["CPUExecutionProvider"])
        notes = session.get_modelmeta().custom_metadata_map
        facts = {k.removeprefix("foveal."): v for k, v in notes.items()}
        facts |= {k: json.loads(facts[k]) for k in ("preprocessing", "dynamic", "smallest", "labels")}
        assert [(i.name, i.shape) for i in session.get_inputs()] == [("image", ["batch", 3, "height", "width"])]
        assert [(o.name, o.shape) for o in session.get_outputs()] == [(OUTPUT, ["batch", 10])]
    else:
        extra = {"foveal.json": ""}
        torch.export.load(files[format], extra_files=extra)
        facts = json.loads(extra["foveal.json"])
    assert facts["model"] == "biformer_nano"
    assert facts["weights"] == "random weights"
    assert facts["weights_hash"] == state_hash(model)
    assert facts["preprocessing"]["size"] == 28
    assert facts["preprocessing"]["mean"] == list(model.foveal.preprocessing.mean)
    assert facts["dynamic"] == ["batch", "height", "width"]
    assert 1 <= facts["smallest"]["height"] <= 28
    assert facts["labels"] == []


@pytest.mark.parametrize("format", SUFFIXES)
def test_the_file_holds_no_paths_of_this_machine(small, format):
    data = small[1][format].read_bytes()
    for path in (Path(foveal.__file__).parent, Path(torch.__file__).parents[1]):
        assert str(path).encode() not in data


def test_the_model_stays_as_it_was(tmp_path):
    model = _model().train()
    before = state_hash(model)
    export(model, tmp_path / "m.pt2", format="torch")
    assert state_hash(model) == before
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())
    assert [p.name for p in tmp_path.iterdir()] == ["m.pt2"]


def test_a_path_asked_for_elsewhere_does_not_reach_the_file(tmp_path):
    model = _model(**NARROW)
    with forced(bilevel_routing="dense"):
        path = export(model, tmp_path / "m.pt2", format="torch")
    _assert_equal(path, model, [(64, 96)], [3])


class _Net(nn.Module):
    """Grey 12x10 pictures to two numbers, so small that a format costs little."""

    pretrained_cfg = {"input_size": (1, 12, 10), "mean": (0.5,), "std": (0.5,)}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


class _Noisy(_Net):
    def forward(self, x):
        return super().forward(x) + torch.rand(())


class _Branching(_Net):
    def __init__(self, question):
        super().__init__()
        self.question = question

    def forward(self, x):
        return super().forward(x) * (2 if self.question(x.shape[3]) else 1)


class _Pair(_Net):
    def forward(self, x):
        y = self.conv(x)
        return {"map": y, "mean": y.mean((2, 3))}


def test_some_axes_only(tmp_path):
    model = _Net()
    session = onnxruntime.InferenceSession(export(model, tmp_path / "a.onnx", dynamic=("height",)))
    assert session.get_inputs()[0].shape == [1, 1, "height", 10]
    _assert_equal(export(model, tmp_path / "b.pt2", format="torch", dynamic=()), model, [(12, 10)], [1], channels=1)


def test_several_outputs(tmp_path):
    model = _Pair()
    session = onnxruntime.InferenceSession(export(model, tmp_path / "m.onnx"))
    assert [o.name for o in session.get_outputs()] == ["output_0", "output_1"]
    x = torch.randn(2, 1, 20, 30)
    want = model(x)
    for found, name in zip(session.run(None, {"image": x.numpy()}), ("map", "mean"), strict=True):
        torch.testing.assert_close(torch.from_numpy(found), want[name])


@pytest.mark.parametrize("format", SUFFIXES)
def test_what_differs_is_not_written(tmp_path, format):
    old = tmp_path / "m"
    old.write_bytes(b"old")
    with pytest.raises(ValueError, match=r"_Noisy: at 1x1x12x10 the exported file differs .* by \d"):
        export(_Noisy(), old, format=format)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda n: n % 2 == 0, "at 3x1x14x15 the exported file differs"),
        (lambda n: n != 7, "at 2x1x9x7 the exported file differs"),
        (lambda n: n > 300, "above a width of 300 its code takes another way"),
        (lambda n: n > 11, "at 1x1x12x10 the exported file differs"),
    ],
)
def test_a_branch_on_the_size_is_refused(tmp_path, question, message):
    with pytest.raises(ValueError, match=f"_Branching: .*{message}"):
        export(_Branching(question), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_fixed_position_table_exports_for_any_batch_only(tmp_path):
    model = _model("vit_tiny_patch16_224", depth=1, num_classes=10)
    with pytest.raises(ValueError, match=r"runs at 224x224 but not at other sizes .*dynamic=\('batch',\)"):
        export(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    _assert_equal(export(model, tmp_path / "m.onnx", dynamic=("batch",)), model, [(224, 224)], [1, 3])


def test_a_branch_on_values_is_refused(tmp_path):
    class Peeking(_Net):
        def forward(self, x):
            return super().forward(x) * (2 if x.sum() > 0 else 1)

    with pytest.raises(ValueError, match=r"can't follow it with any batch, height, width .*; dynamic=\('batch',\) may"):
        export(Peeking(), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_regions_that_can_not_vary_are_refused(tmp_path):
    model = _model("biformer_stl_nchw", **NARROW, num_classes=10)
    with pytest.raises(ValueError, match="how many regions it has depends on the size"):
        export(model, tmp_path / "m.pt2", format="torch")
    path = export(model, tmp_path / "m.pt2", format="torch", dynamic=("batch",))
    _assert_equal(path, model, [(224, 224)], [1, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "tflite"}, "format is one of onnx, torch; got 'tflite'"),
        ({"dynamic": ("batch", "depth")}, "dynamic names some of batch, height, width"),
        ({"dynamic": "batch"}, "dynamic names some of batch, height, width"),
        ({"path": "."}, "this is a folder"),
    ],
)
def test_refusals(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        export(_Net(), **({"path": "m.onnx"} | arguments))


def test_half_precision_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"torch.float16; call .float\(\) first"):
        export(_Net().half(), tmp_path / "m.onnx")


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnxruntime: pip install 'foveal\[export\]'"):
        export(_Net(), tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"pip install 'foveal\[export\]'"):
        export_by_name("resnet18", format="onnx", weights="random", dynamic="batch")
    assert export(_Net(), tmp_path / "m.pt2", format="torch").is_file()


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = export_by_name("biformer_nano", format="torch", weights="random", dynamic="none")
    assert path == Path("biformer_nano.pt2")
    assert path.is_file()
    model = _model(**NARROW)
    foveal.save(model, tmp_path / "mine.safetensors")
    path = export_by_name(str(tmp_path / "mine.safetensors"), format="torch", dynamic="batch, width")
    assert path == Path("mine.pt2")
    _assert_equal(path, model, [(28, 90)], [1, 3])
    with pytest.raises(ValueError, match="--format is one of onnx, torch"):
        export_by_name("biformer_nano", format="pt2", dynamic="none")


def test_the_front_door(tmp_path):
    assert foveal.export(_Net(), tmp_path / "m.pt2", format="torch").is_file()
