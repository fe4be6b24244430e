"""`foveal weights convert`: any readable checkpoint becomes safetensors, with a model's names, and no value is lost."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

import foveal
from foveal.weights import converting
from foveal.weights.catalogue import parse, rows
from foveal.weights.key_maps import KEY_MAPS, efficientnet_pytorch
from foveal.weights.reading import read_checkpoint
from foveal.weights.saving import state_hash
from foveal.weights_commands import convert, parse_options
from tests.weights import lite0

ROW = "tf_efficientnet_lite0.package"
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
TINY_TEXT = [f"{key}={value}" for key, value in TINY.items()]


def vit(**options):
    return timm.create_model("vit_tiny_patch16_224", **(TINY | options)).eval()


def saved(path, obj):
    torch.save(obj, path)
    return path


# Key maps and their rows


def test_the_key_map_is_the_order_of_the_original_file():
    theirs, own = lite0.names(), timm.create_model("tf_efficientnet_lite0").state_dict()
    assert len(theirs) - sum(name.endswith("num_batches_tracked") for name in theirs) == 247
    assert list(efficientnet_pytorch(dict.fromkeys(theirs))) == list(own)
    assert efficientnet_pytorch(dict(own)).keys() == own.keys()  # a file with timm's names stays as it is
    for odd in ("_blocks", "_blocks.16._bn0.bias", "_blocks.x.y", "blocks.0"):
        assert list(efficientnet_pytorch({odd: 0})) == [odd]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("remap", "no_such", f"remap is one of {', '.join(KEY_MAPS)}; got 'no_such'"),
        ("addresses", ["ftp://host/a"], "'ftp://host/a' has to begin with https://, pypi:"),
        ("addresses", ["pypi:name#a"], r"has to be pypi:NAME==VERSION"),
        ("addresses", ["pypi:name==1#../a"], "the member has to be a path inside the package"),
        ("addresses", [5], "address '5' has to begin with"),
        ("size", "big", "size has to be a int, got 'big'"),
    ],
)
def test_fields_of_a_row_that_can_not_be(field, value, sentence):
    facts = {
        "arch": "net", "file": "net.pth", "page": "", "licences": dict.fromkeys(("code", "weights", "data"), "MIT"),
        "preprocessing": {"size": 8, "mean": [0.5], "std": [0.5]}, field: value,
    }  # fmt: skip
    with pytest.raises(ValueError, match=rf"^a\.toml: weights row 'net\.tag': .*{sentence}"):
        parse("net.tag", facts, Path("a.toml"))


# Names kept


def test_names_are_kept_without_a_model(tmp_path):
    state = {"a.weight": torch.randn(2, 3).half(), "nan": torch.tensor([float("nan"), 1.0]), "count": torch.tensor(3)}
    state["tied"] = state["a.weight"]
    path = saved(tmp_path / "w.pth", {"epoch": 3, "state_dict": {f"module.{n}": t for n, t in state.items()}})
    said = convert(path, tmp_path / "out.safetensors")
    assert said == f"{tmp_path / 'out.safetensors'}: 4 tensors of {path}, names kept, read back and equal"
    found, metadata = read_checkpoint(tmp_path / "out.safetensors")
    assert found.keys() == state.keys()
    assert all(
        torch.equal(found[n].nan_to_num(), t.nan_to_num()) and found[n].dtype == t.dtype for n, t in state.items()
    )
    assert metadata == {converting.CONVERTED: f"w.pth sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"}


def test_what_foveal_saved_stays_what_it_is(tmp_path):
    model = foveal.create_model("biformer_nano", num_classes=4)
    foveal.save(model, tmp_path / "a.safetensors")
    convert(tmp_path / "a.safetensors", tmp_path / "new" / "b.safetensors")
    assert state_hash(foveal.load(tmp_path / "new" / "b.safetensors")) == state_hash(model)


def test_ema_weights_are_taken_when_asked_for_and_missed_when_absent(tmp_path):
    plain, mean = {"x": torch.zeros(3)}, {"x": torch.ones(3)}
    path = saved(tmp_path / "w.pth", {"model": plain, "extra": {"state_dict_ema": mean}, "model_ema": mean})
    convert(path, tmp_path / "a.safetensors")
    convert(path, tmp_path / "b.safetensors", ema=True)
    assert [read_checkpoint(tmp_path / f"{n}.safetensors")[0]["x"].sum() for n in "ab"] == [0, 3]
    for absent in ({"model": plain}, {"model": plain, "model_ema": None}, plain):
        with pytest.raises(foveal.WeightsError, match="holds no EMA weights"):
            convert(saved(path, absent), tmp_path / "c.safetensors", ema=True)


@pytest.mark.parametrize(
    ("out", "options", "sentence"),
    [
        ("out.pth", (), r"what is written is a safetensors file; name it out\.safetensors"),
        ("w.safetensors", (), "is the file to convert; give another name"),
        ("folder.safetensors", (), "is a folder; give the path of the file"),
        ("out.safetensors", ("depth=3",), "options are for a model, name it too"),
    ],
)
def test_what_can_not_be_asked_for(tmp_path, out, options, sentence):
    (tmp_path / "folder.safetensors").mkdir()
    saved(tmp_path / "w.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(ValueError, match=sentence):
        convert(tmp_path / "w.safetensors", tmp_path / out, options=options)
    assert sorted(os.listdir(tmp_path)) == ["folder.safetensors", "w.safetensors"]


@pytest.mark.parametrize("text", ["depth", "=3", "a b=3"])
def test_options_that_are_none(text):
    with pytest.raises(ValueError, match=f"an option has to be KEY=VALUE, got '{text}'"):
        parse_options([text])


# With a model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_model_gives_names_and_metadata_and_takes_the_file_s_counts(tmp_path, dtype, caplog):
    model = vit(num_classes=5, in_chans=1).to(dtype)
    path = saved(tmp_path / "w.pth", {"model": {f"module.{n}": t for n, t in model.state_dict().items()}})
    said = convert(path, tmp_path / "w.safetensors", model="timm:vit_tiny_patch16_224", options=TINY_TEXT)
    assert f"{len(model.state_dict())} tensors from {path}" in said
    assert "timm:vit_tiny_patch16_224, num_classes=5 as the file has it, in_chans=1 as the file has it" in said
    again = foveal.load(tmp_path / "w.safetensors")
    assert again.foveal.name == "timm:vit_tiny_patch16_224"
    assert (again.num_classes, again.foveal.options["img_size"]) == (5, 32)
    assert state_hash(again.to(dtype)) == state_hash(model)
    assert not [r for r in caplog.records if "tensors skipped" in r.message]


def test_what_the_model_would_change_is_refused(tmp_path):
    path = saved(tmp_path / "w.pth", vit().state_dict())
    options = [text for text in TINY_TEXT if not text.startswith("img_size")]
    with pytest.raises(foveal.WeightsError, match=r"pos_embed is \(1, 17, 24\) there and .* build the model as it was"):
        convert(path, tmp_path / "out.safetensors", model="vit_tiny_patch16_224", options=[*options, "img_size=64"])
    with pytest.raises(foveal.WeightsError, match=r"head\.weight is \(1000, 24\) there and \(3, 24\) in the model"):
        convert(path, tmp_path / "out.safetensors", model="vit_tiny_patch16_224", options=[*TINY_TEXT, "num_classes=3"])
    assert os.listdir(tmp_path) == ["w.pth"]


def test_a_value_that_the_new_file_would_not_hold_is_refused(tmp_path):
    state = vit().state_dict()
    state["norm.weight"] = state["norm.weight"].double() + 1e-12  # beside float32 the model is float32
    (tmp_path / "out.safetensors").write_bytes(b"old")
    with pytest.raises(
        foveal.WeightsError, match=r"norm\.weight \(torch\.float64\) would lose values; nothing was written"
    ):
        convert(
            saved(tmp_path / "w.pth", state),
            tmp_path / "out.safetensors",
            model="vit_tiny_patch16_224",
            options=TINY_TEXT,
        )
    assert (tmp_path / "out.safetensors").read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 2


def test_linear_weights_of_a_1x1_convolution_are_reshaped(tmp_path):
    state = timm.create_model("tf_efficientnet_lite0").state_dict()
    flat = {n: t.flatten(1) if n == "conv_head.weight" else t for n, t in state.items()}
    said = convert(saved(tmp_path / "w.pth", flat), tmp_path / "out.safetensors", model="tf_efficientnet_lite0")
    assert "1 adapted: conv_head.weight (1280, 320) -> (1280, 320, 1, 1)" in said


def test_the_model_of_a_known_file_needs_no_name_and_the_key_map_of_a_row_serves_others(tmp_path, monkeypatch):
    state = lite0.state()
    path = saved(tmp_path / "w.pth", state)
    said = convert(path, tmp_path / "a.safetensors", model="tf_efficientnet_lite0")  # of another training
    assert "tf_efficientnet_lite0; read back and equal" in said
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(rows(), ROW, replace(rows()[ROW], sha256=sha256))
    convert(path, tmp_path / "b.safetensors")
    model = foveal.load(tmp_path / "b.safetensors")
    assert (model.foveal.labels[967], model.foveal.preprocessing) == ("espresso", rows()[ROW].preprocessing)
    own = dict(zip(model.state_dict(), state.values(), strict=True))
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
