import hashlib
import logging

import pytest
import timm
import torch
from torch import nn

from foveal.weights.adapting import adapt, adapt_channels
from foveal.weights.errors import WeightsError
from foveal.weights.loading import load_weights
from foveal.weights.saving import save, state_hash


class Net(nn.Module):
    """Smallest model with what loading has to care for: a stem, a norm with a counter, a derived table, a head."""

    def __init__(self, num_classes=5, in_chans=3, dim=4):
        super().__init__()
        self.num_classes = num_classes
        self.stem = nn.Conv2d(in_chans, dim, 3, padding=1)
        self.norm = nn.BatchNorm2d(dim)
        self.register_buffer("attn_mask", torch.zeros(dim))
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    def forward(self, x):
        return self.head(self.norm(self.stem(x)).mean((2, 3)))


def tiny_vit(**options):
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 10}
    return timm.create_model("vit_tiny_patch16_224", **(settings | options)).eval()


def saved(tmp_path, obj, name="w.pth"):
    torch.save(obj, tmp_path / name)
    return tmp_path / name


@pytest.fixture
def image():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model."])
@pytest.mark.parametrize("keys", [(), ("model",), ("state_dict",), ("model_ema",), ("state_dict", "model")])
def test_bc28_wrapped_checkpoints_load(tmp_path, image, prefix, keys):
    model, other = Net().eval(), Net().eval()
    obj = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    for key in reversed(keys):
        obj = {"epoch": 3, key: obj}
    report = load_weights(other, saved(tmp_path, obj))
    assert torch.equal(model(image), other(image))
    assert [*report.missing, *report.unexpected, *report.skipped, *report.adapted] == []


def test_bc28_ema(tmp_path):
    model, ema, other = Net(), Net(), Net()
    path = saved(tmp_path, {"model": model.state_dict(), "state_dict_ema": ema.state_dict()})
    load_weights(other, path, ema=True)
    assert state_hash(other) == state_hash(ema)
    load_weights(other, path)
    assert state_hash(other) == state_hash(model)


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, lambda m: torch.compile(nn.DataParallel(m))])
def test_wrapped_models_load(tmp_path, wrap):
    model, other = Net(), Net()
    report = load_weights(wrap(other), saved(tmp_path, {"state_dict": model.state_dict()}))
    assert state_hash(other) == state_hash(model)
    assert report.loaded == len(model.state_dict()) - 1  # all but the derived table


def test_bc32_own_checkpoint_at_another_size_class_count_and_channels(tmp_path, caplog):
    small, large = tiny_vit(), tiny_vit(img_size=64, num_classes=5, in_chans=1)
    save(small, tmp_path / "w.safetensors")
    fresh = large.head.weight.clone()
    with caplog.at_level(logging.INFO, "foveal"):
        report = load_weights(large, tmp_path / "w.safetensors")
    assert large(torch.randn(1, 1, 64, 64)).shape == (1, 5)
    assert report.adapted == {
        "pos_embed": ((1, 17, 24), (1, 65, 24)),
        "patch_embed.proj.weight": ((24, 3, 8, 8), (24, 1, 8, 8)),
    }
    assert report.skipped == {"head.weight": ((10, 24), (5, 24)), "head.bias": ((10,), (5,))}
    assert torch.equal(large.head.weight, fresh)
    assert torch.equal(large.blocks[0].attn.qkv.weight, small.blocks[0].attn.qkv.weight)
    for name in ("pos_embed", "patch_embed.proj.weight", "head.weight"):
        assert sum(name in record.message for record in caplog.records) == 1
    same = tiny_vit(in_chans=1)
    load_weights(same, tmp_path / "w.safetensors")
    grey = torch.randn(1, 1, 32, 32)
    torch.testing.assert_close(same(grey), small(grey.expand(1, 3, 32, 32)), rtol=1e-4, atol=1e-5)


def test_bc33_shape_mismatch_with_strict_off(tmp_path, caplog):
    model = nn.Sequential()
    model.body, model.head = nn.Linear(3, 64), nn.Linear(64, 5)
    bad = model.state_dict() | {"head.weight": torch.zeros(10, 64)}
    report = load_weights(model, saved(tmp_path, bad), strict=False)
    assert report.skipped == {"head.weight": ((10, 64), (5, 64))}
    assert "head.weight" in caplog.text
    assert "1 skipped: head.weight (10, 64) -> (5, 64)" in str(report)


def test_strict_off_lists_everything_and_loads_the_rest(tmp_path, caplog):
    model, other = Net(), Net()
    state = model.state_dict()
    del state["norm.weight"]
    state |= {"extra": torch.zeros(2), "stem.bias": torch.zeros(9)}
    before = other.stem.bias.clone()
    report = load_weights(other, saved(tmp_path, state), strict=False)
    assert (report.missing, report.unexpected) == (["norm.weight"], ["extra"])
    assert report.skipped == {"stem.bias": ((9,), (4,))}
    assert report.dropped == ["attn_mask"]
    assert torch.equal(other.stem.bias, before)
    assert torch.equal(other.head.weight, model.head.weight)
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 3
    assert all(any(name in line for line in warned) for name in ("norm.weight", "extra", "stem.bias"))


def test_strict_failure_is_short_and_changes_nothing(tmp_path):
    model = Net()
    state = Net().state_dict()
    state["norm.wieght"] = state.pop("norm.weight")
    state["stem.bias"] = torch.zeros(9)
    before = state_hash(model)
    with pytest.raises(WeightsError) as caught:
        load_weights(model, saved(tmp_path, state))
    text = str(caught.value)
    assert "1 are missing, 1 are unexpected, 1 have another shape" in text
    assert "missing: norm.weight (near: norm.wieght)" in text
    assert "another shape: stem.bias, (9,) in the file, (4,) here" in text
    assert "another model" not in text
    assert state_hash(model) == before


def test_checkpoint_of_another_model(tmp_path):
    other = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=12, embed_dim=24, num_heads=2)
    state = {f"encoder.{'long_' * 60}{name}": tensor for name, tensor in other.state_dict().items()}
    folder = tmp_path / ("deep" * 40)
    folder.mkdir()
    with pytest.raises(WeightsError, match="looks like the checkpoint of another model") as caught:
        load_weights(tiny_vit(), saved(folder, state))
    assert len(str(caught.value)) < 1500
    assert str(caught.value).count("\n") <= 10


def test_checkpoint_filter_that_fails(tmp_path):
    swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=32, embed_dim=8, depths=(1,), num_heads=(1,))
    state = {"other.attn.relative_position_bias_table": torch.zeros(3, 1)}
    with pytest.raises(WeightsError, match=r"w\.pth: checkpoint_filter_fn failed.*another model"):
        load_weights(swin, saved(tmp_path, state))


def test_derived_tables_are_ignored_and_counters_may_be_missing(tmp_path):
    model, other = Net(), Net()
    state = model.state_dict() | {"attn_mask": torch.ones(9), "body.0.relative_position_index": torch.ones(3)}
    del state["norm.num_batches_tracked"]
    report = load_weights(other, saved(tmp_path, state))
    assert report.dropped == ["attn_mask", "body.0.relative_position_index"]
    assert (report.missing, report.unexpected) == ([], [])
    assert other.attn_mask.shape == (4,)


def test_model_without_head_drops_the_files(tmp_path, caplog):
    report = load_weights(Net(num_classes=0), saved(tmp_path, Net(num_classes=7).state_dict()))
    assert report.dropped == ["attn_mask", "head.weight", "head.bias"]
    assert not caplog.records
    with pytest.raises(WeightsError, match="head"):
        load_weights(Net(), saved(tmp_path, Net(num_classes=0).state_dict()))


@pytest.mark.parametrize("name", ["vit", "resnet18", "convnext_atto"])
def test_feature_extractor_takes_the_part_it_uses(tmp_path, name):
    make = tiny_vit if name == "vit" else lambda **options: timm.create_model(name, **options)
    whole, part = make(), make(features_only=True, out_indices=(0,))
    report = load_weights(part, saved(tmp_path, whole.state_dict()))
    assert not report.missing
    assert not report.unexpected
    first = next(iter(whole.state_dict()))
    for name, tensor in part.state_dict().items():  # convnext's extractor has "stages_0" for "stages.0"
        source = name.removeprefix("model.").replace("stages_", "stages.").replace("stem_", "stem.")
        assert torch.equal(tensor, whole.state_dict()[source])
    with pytest.raises(WeightsError, match="missing"):
        load_weights(part, saved(tmp_path, {first: whole.state_dict()[first]}))


def test_dtype_and_report(tmp_path):
    model, other = Net(), Net().to(torch.bfloat16)
    save(model, tmp_path / "model.safetensors", {"arch": "net"})
    report = load_weights(other, tmp_path)
    assert other.stem.weight.dtype == torch.bfloat16
    assert torch.equal(other.stem.weight, model.stem.weight.to(torch.bfloat16))
    content = (tmp_path / "model.safetensors").read_bytes()
    assert report.sha256 == hashlib.sha256(content).hexdigest()
    assert report.source == str(tmp_path / "model.safetensors")
    assert report.metadata == {"arch": "net"}
    assert report.sha256[:12] in str(report)


def test_tied_parameter_may_be_missing(tmp_path):
    def tied():
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    state = tied().state_dict()
    del state["1.weight"]
    report = load_weights(tied(), saved(tmp_path, state))
    assert report.missing == []
    with pytest.raises(WeightsError, match=r"missing: 1\.weight"):
        load_weights(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), saved(tmp_path, state))


def test_remap_keys_of_the_class_goes_first(tmp_path):
    class Renamed(Net):
        @staticmethod
        def remap_keys(state):
            return {name.replace("conv1", "stem"): tensor for name, tensor in state.items()}

    model, other = Net(), Renamed()
    state = {name.replace("stem", "conv1"): tensor for name, tensor in model.state_dict().items()}
    load_weights(other, saved(tmp_path, state))
    assert state_hash(other) == state_hash(model)


def test_adapt_channels_keeps_what_a_repeated_picture_gives():
    conv = nn.Conv2d(3, 4, 3, bias=False)
    grey = torch.randn(1, 1, 9, 9)
    expected = conv(grey.expand(1, 3, 9, 9))
    for chans in (1, 3, 6, 9):
        weight = adapt_channels(conv.weight, chans)
        got = nn.functional.conv2d(grey.expand(1, chans, 9, 9), weight)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    four = adapt_channels(conv.weight, 4)
    torch.testing.assert_close(four, conv.weight[:, [0, 1, 2, 0]] * 0.75)
    assert adapt_channels(conv.weight.half(), 4).dtype == torch.float16


def test_adapt_touches_the_first_convolution_only_and_not_its_arguments():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 1))
    state = {"0.weight": torch.randn(8, 3, 3, 3), "1.weight": torch.randn(8, 4, 1, 1)}
    kept = dict(state)
    result = adapt(state, model)
    assert result.adapted == {"0.weight": ((8, 3, 3, 3), (8, 4, 3, 3))}
    assert result.unfit == {"1.weight": ((8, 4, 1, 1), (8, 8, 1, 1))}
    assert state == kept


@pytest.mark.parametrize("declared", ["1", ("1",)])
def test_adapt_believes_the_declared_names(declared):
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(1, 8, 3), nn.Linear(8, 5))
    model.pretrained_cfg = {"first_conv": declared, "classifier": ("2",)}  # type: ignore[assignment]
    state = {"0.weight": torch.randn(3, 3, 1, 1), "1.weight": torch.randn(8, 3, 3, 3), "2.weight": torch.zeros(7, 8)}
    result = adapt(state, model)
    torch.testing.assert_close(result.state["1.weight"], state["1.weight"].sum(1, keepdim=True))
    assert result.skipped == {"2.weight": ((7, 8), (5, 8))}


def test_linear_and_1x1_convolution_take_each_others_weights(tmp_path):
    linear, conv = nn.Sequential(nn.Linear(3, 4)), nn.Sequential(nn.Conv2d(3, 4, 1))
    report = load_weights(conv, saved(tmp_path, linear.state_dict()))
    assert report.adapted == {"0.weight": ((4, 3), (4, 3, 1, 1))}
    assert torch.equal(conv[0].weight.flatten(1), linear[0].weight)
    report = load_weights(linear, saved(tmp_path, conv.state_dict()))
    assert report.adapted == {"0.weight": ((4, 3, 1, 1), (4, 3))}


def test_whole_numbers_are_not_taken_for_weights(tmp_path):
    model = torch.nn.Linear(3, 2)
    before = model.weight.clone()
    torch.save({name: tensor.to(torch.int8) for name, tensor in model.state_dict().items()}, tmp_path / "q.pth")
    with pytest.raises(WeightsError, match=r"weight holds torch.int8, the model needs floating numbers"):
        load_weights(model, tmp_path / "q.pth")
    assert torch.equal(model.weight, before)
