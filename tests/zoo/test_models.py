"""What every registered backbone has to do, whatever its family; a new one is tested by being registered."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import pickle
import re
import shutil
import subprocess
import sys

import pytest
import timm
import torch
from timm.models import group_parameters
from timm.optim import param_groups_layer_decay
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import foveal
from foveal.weights.saving import save
from foveal.zoo import registry
from foveal.zoo.features import FeatureNet, take_indices

NAMES = foveal.list_models()
ROUTED = [n for n in foveal.list_models(attention="bilevel_routing") if not n.endswith("nchw")]  # padding is masked
COMPILED = ["biformer_nano", "biformer_tiny"]  # small ones; compiling takes seconds
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # of the largest value

each_model = pytest.mark.parametrize("name", NAMES)


def shallow(name, **options):
    """A new model with all the settings of this name but a depth of one or two blocks a stage."""
    depths = registry.variant(name).get("depths", ())
    if depths:
        options["depths"] = tuple(2 if i == len(depths) - 2 else 1 for i in range(len(depths)))
    return foveal.create_model(name, num_classes=7, **options)


@functools.cache
def shared(name):
    """A model in eval mode that no test may change; its biases, norms and statistics are not the initial ones."""
    torch.manual_seed(0)
    model = shallow(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            elif buffer_name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    return model


def own(name):
    return copy.deepcopy(shared(name))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of the shared models, written once."""
    folder = tmp_path_factory.mktemp("models")

    def file_of(name):
        path = folder / f"{name}.safetensors"
        if not path.exists():
            save(shared(name), path)
        return path

    yield file_of
    shutil.rmtree(folder)


def pictures(batch=2, height=64, width=64, channels=3):
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(2))


def near(found, expected, dtype=torch.float32):
    scale = expected.abs().max().item()
    assert scale > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


def reductions(model):
    return [info["reduction"] for info in model.feature_info]


def without_gradient(model):
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def prefix_of_head(model):
    (name,) = (name for name, module in model.named_modules() if module is model.get_classifier())
    return name + "."


# Sizes


@each_model
@torch.inference_mode()
def test_forward_is_finite_and_num_classes_is_honoured(name):
    logits = shared(name)(pictures())
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()
    assert not torch.allclose(logits[0], logits[1], atol=1e-4)  # it looks at the picture


@each_model
@torch.inference_mode()
def test_the_whole_variant_runs(name):
    model = foveal.create_model(name).eval()
    logits = model(pictures(1, 32, 48))
    assert logits.shape == (1, 1000)
    assert logits.isfinite().all()


@each_model
@torch.inference_mode()
def test_bc01_declared_features_are_the_real_ones_on_a_rectangle(name):
    net = FeatureNet(own(name))
    maps = net(pictures(1, 224, 320))
    assert len(maps) == len(net.feature_info) > 1
    for found, channels, r in zip(maps, net.feature_info.channels(), net.feature_info.reduction(), strict=True):
        assert found.shape == (1, channels, math.ceil(224 / r), math.ceil(320 / r))
        assert found.isfinite().all()


@each_model
@torch.inference_mode()
def test_bc02_sizes_that_do_not_divide(name):
    model = shared(name)
    last = reductions(model)[-1]
    for height, width in ((97, 131), (131, 97)):
        features = model.forward_features(pictures(1, height, width))
        assert features.shape == (1, model.num_features, math.ceil(height / last), math.ceil(width / last))
        assert features.isfinite().all()


@pytest.mark.parametrize("filling", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("name", ROUTED)
@torch.inference_mode()
def test_bc02_padding_leaves_no_trace(name, filling, monkeypatch):
    module = importlib.import_module("foveal.zoo.attention.bilevel_routing")
    model, x, filled = shared(name), pictures(2, 97, 131), []

    def pad_with_garbage(t, down, across):
        filled.append(t)
        return nn.functional.pad(t, (0, 0, 0, across, 0, down), value=filling)

    expected = model.forward_features(x)
    monkeypatch.setattr(module, "_pad", pad_with_garbage)
    assert torch.equal(model.forward_features(x), expected)
    assert filled


@each_model
@pytest.mark.parametrize("size", [(32, 32), (17, 40), (5, 3), (1, 1)])
@torch.inference_mode()
def test_bc03_maps_smaller_than_the_window(name, size):
    logits = shared(name)(pictures(2, *size))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


@each_model
def test_bc06_heads_that_do_not_divide(name):
    heads = (*registry.variant(name)["num_heads"][:-1], 5)
    sentence = r"dim \d+ is not divisible by num_heads 5; the nearest that fit are \d+ or \d+"
    with pytest.raises(ValueError, match=sentence):
        foveal.create_model(name, num_heads=heads)


def test_bc06_the_nearest_head_counts():
    with pytest.raises(ValueError, match="dim 128 is not divisible by num_heads 5; the nearest that fit are 2 or 4"):
        foveal.create_model("biformer_tiny", num_heads=(2, 5, 8, 8))
    with pytest.raises(ValueError, match="dim 64 is not divisible by num_heads 0; the nearest that fit are 1 or 2"):
        foveal.create_model("biformer_tiny", num_heads=(0, 4, 8, 8))


@each_model
def test_bc08_batch_of_one_in_training_on_a_1x1_map(name):
    model = own(name).train()
    side = reductions(model)[-1]
    one = pictures(1, side, side)
    norms = [layer for layer, m in model.named_modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    if norms:
        with pytest.raises(ValueError, match="batch of 2 or more") as error:
            model(one)
        assert any(f" {layer} " in str(error.value) for layer in norms)
    else:
        assert model(one).isfinite().all()
    assert model(pictures(2, side, side)).isfinite().all()
    assert model.eval()(one).isfinite().all()


@pytest.mark.parametrize(
    ("name", "side", "layer"),
    [
        ("biformer_nano", 8, "downsample_layers.2.1"),
        ("biformer_nano", 1, "downsample_layers.0.1"),
        ("biformer_stl", 16, "downsample_layers.3.0"),
        ("biformer_stl", 32, "norm"),
    ],
)
def test_bc08_the_first_layer_at_fault_is_named(name, side, layer):
    with pytest.raises(ValueError, match=rf"BiFormer: {re.escape(layer)} \(BatchNorm2d\)"):
        own(name).train()(pictures(1, side, side))


def test_bc08_layers_that_do_not_run_or_are_frozen_do_not_count():
    first = FeatureNet(own("biformer_nano"), (0,)).train()
    assert first(pictures(1, 8, 8))[0].shape == (1, 32, 4, 4)
    early = own("biformer_nano").train()
    assert len(early.forward_intermediates(pictures(1, 8, 8), [0], stop_early=True, intermediates_only=True)) == 1
    frozen = own("biformer_nano").train()
    for module in frozen.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    assert frozen(pictures(1, 8, 8)).isfinite().all()


@each_model
@torch.inference_mode()
def test_bc09_empty_batch(name):
    model = shared(name)
    assert model(torch.empty(0, 3, 64, 64)).shape == (0, 7)
    assert model.forward_features(torch.empty(0, 3, 97, 131)).shape[:2] == (0, model.num_features)


# Head, channels, features


@each_model
@torch.inference_mode()
def test_bc10_num_classes_0_is_a_value(name, files):
    depths = {k: v for k, v in shared(name).foveal.options.items() if k == "depths"}
    a, b = (foveal.create_model(name, num_classes=0, weights=files(name), **depths).eval() for _ in "ab")
    x = pictures()
    assert a.num_classes == 0
    assert a(x).shape == (2, a.head_hidden_size)
    assert torch.equal(a(x), b(x))
    assert torch.equal(a(x), shared(name).forward_head(shared(name).forward_features(x), pre_logits=True))
    assert isinstance(a.get_classifier(), nn.Identity)
    head = prefix_of_head(shared(name))
    assert {*shared(name).state_dict()} - {*a.state_dict()} == {head + "weight", head + "bias"}
    assert not [key for key in a.state_dict() if key.startswith(head)]


@each_model
def test_bc11_reset_classifier_keeps_dtype_and_device(name):
    model = own(name)
    x = pictures(2, 32, 32)
    for dtype in (torch.float64, torch.bfloat16):
        model.to(dtype).reset_classifier(3)
        assert model.num_classes == 3
        assert model.get_classifier().weight.dtype == dtype
        with torch.inference_mode():
            assert model(x.to(dtype)).shape == (2, 3)
    model.reset_classifier(0)
    assert model.num_classes == 0
    assert not [*model.get_classifier().parameters()]
    model.reset_classifier(5)
    assert model.get_classifier().weight.dtype == torch.bfloat16
    model.to("meta").reset_classifier(4, "avg")
    assert model.get_classifier().weight.device.type == "meta"
    with pytest.raises(ValueError, match="pooling is avg, got 'max'"):
        model.reset_classifier(4, "max")


@each_model
@torch.inference_mode()
def test_bc12_one_and_four_channels_from_rgb_weights(name, files):
    grey = pictures(2, 32, 32, channels=1)
    one = shallow(name, in_chans=1, weights=files(name)).eval()
    expected = shared(name)(grey.expand(-1, 3, -1, -1))
    near(one(grey), expected)
    four = shallow(name, in_chans=4, weights=files(name)).eval()
    (stem,) = (key for key, p in four.named_parameters() if p.dim() == 4 and p.shape[1] == 4 and p.shape[2] > 1)
    rgb = shared(name).get_parameter(stem)
    torch.testing.assert_close(four.get_parameter(stem), rgb[:, [0, 1, 2, 0]] * 0.75)
    assert four(pictures(2, 32, 32, channels=4)).shape == (2, 7)
    with pytest.raises(ValueError, match=r"built for 1 input channels, got \(2, 3, 64, 64\)"):
        one(pictures())


@each_model
@torch.inference_mode()
def test_bc13_out_indices(name):
    x = pictures(1, 64, 96)
    count = len(shared(name).feature_info)
    every = shared(name).forward_intermediates(x, intermediates_only=True)
    for indices, places in (((-1,), [count - 1]), ((0, -2), [0, count - 2]), ((-1, 0), [count - 1, 0])):
        net = FeatureNet(own(name), indices)
        maps = net(x)
        assert [m.shape[1] for m in maps] == net.feature_info.channels()
        assert [math.ceil(96 / m.shape[3]) for m in maps] == net.feature_info.reduction()
        assert all(torch.equal(m, every[i]) for m, i in zip(maps, places, strict=True))
    for wrong in ((count,), (0, -count - 1), ()):
        with pytest.raises(ValueError, match=f"{count} outputs, so {-count} to {count - 1} are allowed"):
            FeatureNet(own(name), wrong)


def test_bc13_by_name():
    net = foveal.create_model("biformer_nano", features_only=True, out_indices=(1, -1))
    assert net.out_indices == [1, 2]
    assert net.feature_info.channels() == [64, 128]
    with pytest.raises(ValueError, match="3 outputs, so -3 to 2 are allowed"):
        foveal.create_model("biformer_nano", features_only=True, out_indices=(3,))
    with pytest.raises(ValueError, match="the last 4 of 3 outputs do not exist; ask for 1 to 3"):
        take_indices(3, 4)


@each_model
@torch.inference_mode()
def test_forward_intermediates(name):
    model, x = shared(name), pictures(1, 97, 131)
    count = len(model.feature_info)
    final, every = model.forward_intermediates(x)
    assert torch.equal(final, model.forward_features(x))
    for map_, info in zip(every, model.feature_info, strict=True):
        assert map_.shape[1] == info["num_chs"]
    for indices, places in ((2, [count - 2, count - 1]), ([0], [0]), ((-1, 1), [count - 1, 1])):
        found = model.forward_intermediates(x, indices, intermediates_only=True)
        assert all(torch.equal(f, every[i]) for f, i in zip(found, places, strict=True))
    _, normed = model.forward_intermediates(x, norm=True)
    assert torch.equal(normed[-1], final)
    assert torch.equal(normed[0], every[0])
    _, last = model.forward_intermediates(x, output_fmt="NHWC")
    assert all(torch.equal(a.permute(0, 3, 1, 2), b) for a, b in zip(last, every, strict=True))
    with pytest.raises(ValueError, match="output_fmt is NCHW or NHWC, got 'NLC'"):
        model.forward_intermediates(x, output_fmt="NLC")
    with pytest.raises(ValueError, match=f"{-count} to {count - 1} are allowed"):
        model.forward_intermediates(x, [count])


@each_model
@torch.inference_mode()
def test_stop_early_runs_nothing_behind_the_last_index(name):
    model, x, ran = own(name), pictures(1), []
    for layer, module in model.named_modules():
        module.register_forward_hook(lambda *_, layer=layer: ran.append(layer))
    found, (first,) = model.forward_intermediates(x, [0], stop_early=True)
    stopped = len(ran)
    assert torch.equal(found, first)
    ran.clear()
    _, (same,) = model.forward_intermediates(x, [0])
    assert torch.equal(first, same)
    assert 0 < stopped < len(ran)


@each_model
@torch.inference_mode()
def test_forward_is_features_and_head(name):
    model, x = shared(name), pictures()
    features = model.forward_features(x)
    assert features.shape[1] == model.num_features
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.head_hidden_size)
    assert torch.equal(model.get_classifier()(pooled), model(x))
    assert torch.equal(model.forward_head(features), model(x))


# Training


@each_model
def test_bc18_every_parameter_gets_a_gradient(name):
    model = own(name).train()
    model(pictures()).square().sum().backward()
    assert without_gradient(model) == []
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@each_model
def test_bc18_every_parameter_of_a_pyramid_gets_a_gradient(name):
    for indices in (None, (0, -1), (1,)):
        net = FeatureNet(own(name), indices).train()
        sum(m.square().mean() for m in net(pictures())).backward()
        assert without_gradient(net) == []


@each_model
def test_bc16_gradient_checkpointing_changes_nothing(name):
    torch.manual_seed(0)
    model = shallow(name, drop_path_rate=0.3).train()
    calls = []
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: calls.append(1))

    def run(enable):
        model.set_grad_checkpointing(enable)
        model.zero_grad(set_to_none=True)
        calls.clear()
        torch.manual_seed(3)
        loss = model(pictures()).square().sum()
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}, len(calls)

    plain, plain_grads, plain_calls = run(False)
    loss, grads, more_calls = run(True)
    assert more_calls > plain_calls  # blocks ran a second time
    near(loss, plain)
    for key, grad in plain_grads.items():
        torch.testing.assert_close(grads[key], grad, rtol=1e-4, atol=1e-5 * grad.abs().max().item() + 1e-9)


def test_a_pyramid_passes_gradient_checkpointing_on():
    net = FeatureNet(own("biformer_nano"))
    net.set_grad_checkpointing()
    assert net.model.grad_checkpointing
    net.set_grad_checkpointing(False)
    assert not net.model.grad_checkpointing


@each_model
def test_parameters_are_ordered_by_depth(name):
    model, ran = own(name), []
    for layer, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_hook(lambda *_, layer=layer: ran.append(layer))
    with torch.inference_mode():
        model(pictures(1))
    names = {n for n, _ in model.named_parameters()}
    head = prefix_of_head(model)
    for coarse in (False, True):
        matcher = model.group_matcher(coarse=coarse)
        layer_of = group_parameters(model, matcher, reverse=True)
        assert {*layer_of} == names
        in_order = [layer_of[n] for layer in ran for n in names if n.rpartition(".")[0] == layer]
        assert in_order == sorted(in_order)
        assert in_order[0] == 0
        assert layer_of[head + "weight"] == max(layer_of.values()) > 1
    specs = [spec if isinstance(spec, list) else [(spec,)] for spec in model.group_matcher().values()]
    patterns = [re.compile(pattern) for spec in specs for pattern, *_ in spec]
    assert {n for n in names if not any(p.match(n) for p in patterns)} == {head + "weight", head + "bias"}

    groups = param_groups_layer_decay(model, layer_decay=0.5)
    assert sum(len(group["params"]) for group in groups) == len(names)
    first = next(group["lr_scale"] for group in groups if any(p is next(model.parameters()) for p in group["params"]))
    assert first == min(group["lr_scale"] for group in groups) < 0.5
    assert model.no_weight_decay() <= names


# Numbers


@each_model
def test_bc14_eval_returns_the_module_and_prints_nothing(name, capsys):
    model = own(name).train()
    assert all(module.eval() is module for module in model.modules())
    assert model.train() is model
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@each_model
@torch.inference_mode()
def test_bc15_copies_are_equal_and_independent(name):
    model, x = own(name), pictures(2, 32, 32)
    before = pickle.loads(pickle.dumps(model))
    expected = model(x)
    copies = [before, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for parameter in model.parameters():
        parameter.zero_()
    for copied in copies:
        assert torch.equal(copied(x), expected)
        assert copied.foveal == model.foveal
    assert not torch.equal(model(x), expected)


@each_model
@torch.inference_mode()
def test_bc17_memory_layout_of_the_input_does_not_matter(name):
    model, x = shared(name), pictures(2, 48, 64)
    expected = model(x)
    assert torch.equal(model(x.contiguous(memory_format=torch.channels_last)), expected)
    assert torch.equal(model(x.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1)), expected)
    assert torch.equal(model(x.repeat_interleave(2, 3)[..., ::2]), expected)
    near(model(x[:1].expand(2, -1, -1, -1)), model(x[:1]).expand(2, -1))
    near(copy.deepcopy(model).to(memory_format=torch.channels_last)(x), expected)


@each_model
@torch.inference_mode()
def test_bc27_batch_size_does_not_change_the_answer(name):
    model, x = shared(name), pictures(5, 64, 48)
    near(model(x), torch.cat([model(picture[None]) for picture in x]))


@each_model
@torch.inference_mode()
def test_half_precision_and_autocast_stay_near(name):
    x = pictures(2, 64, 64)
    expected = shared(name)(x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = shared(name)(x)
    assert (mixed.float() - expected).abs().max() < 0.1 * expected.abs().max()
    half = own(name).bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert (half.float() - expected).abs().max() < 0.1 * expected.abs().max()


@each_model
@torch.inference_mode()
def test_state_dict_round_trip(name):
    fresh = shallow(name).eval()
    x = pictures(2, 32, 32)
    assert not torch.equal(fresh(x), shared(name)(x))
    fresh.load_state_dict(shared(name).state_dict())
    assert torch.equal(fresh(x), shared(name)(x))


@each_model
@torch.inference_mode()
def test_set_input_size(name):
    model = own(name)
    for size in (48, (32, 80)):
        model.set_input_size(size)
        height, width = (size, size) if isinstance(size, int) else size
        assert model(pictures(1, height, width)).isfinite().all()
    with pytest.raises(ValueError, match="img_size has to be positive, got 0"):
        model.set_input_size(0)


class _OnlyMeta(TorchDispatchMode):
    """Refuses every operation that gives a tensor on another device than meta."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(out):
            assert not isinstance(leaf, torch.Tensor) or leaf.device.type == "meta", func
        return out


@each_model
@pytest.mark.parametrize("size", [(64, 64), (97, 131)])
def test_forward_makes_no_tensor_on_another_device(name, size):
    torch.set_default_device("meta")
    try:
        model = foveal.create_model(name)
        assert {t.device.type for t in model.state_dict().values()} == {"meta"}
        assert model(torch.empty(2, 3, *size)).shape == (2, 1000)
    finally:
        torch.set_default_device(None)
    with _OnlyMeta():  # the default device is the CPU again: a tensor made without a device would show
        out = model(torch.empty(2, 3, *size, device="meta"))
        out.sum().backward()
    assert without_gradient(model) == []


@pytest.mark.parametrize("name", COMPILED)
@torch.inference_mode()
def test_bc25_compiled_equals_eager_in_one_graph(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model, x = shared(name), pictures(2, 64, 64)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    near(compiled(x), model(x))
    assert counter.frame_count == 1
    assert counter.op_count > 10


@pytest.mark.parametrize("name", COMPILED[:1])
def test_bc25_explain_finds_no_break_in_training_at_an_uneven_size(name):
    torch._dynamo.reset()
    found = torch._dynamo.explain(own(name).train())(pictures(2, 61, 47))
    assert (found.graph_count, found.graph_break_count) == (1, 0)


# Arguments


@each_model
def test_wrong_inputs(name):
    with pytest.raises(ValueError, match=r"input is \(B, C, H, W\), got \(3, 64, 64\)"):
        shared(name)(torch.zeros(3, 64, 64))
    with pytest.raises(ValueError, match=r"built for 3 input channels, got \(1, 1, 64, 64\)"):
        shared(name)(torch.zeros(1, 1, 64, 64))


@each_model
def test_unknown_option(name):
    with pytest.raises(TypeError, match="colour"):
        foveal.create_model(name, colour="red")


@each_model
def test_bc19_misspelt_name(name):
    wrong = name[:3] + name[4:]
    with pytest.raises(foveal.UnknownName, match=rf"no model '{wrong}'; did you mean .*\b{name}\b"):
        foveal.create_model(wrong)
    with pytest.raises(foveal.UnknownName, match=name):
        registry.build(wrong)


def test_unknown_attention():
    with pytest.raises(foveal.UnknownName, match="did you mean softmax"):
        registry.get_attention("sofmax")
    with pytest.raises(foveal.UnknownName, match="no attention 'sofmax'"):
        foveal.list_models(attention="sofmax")


def test_filters_of_the_list():
    assert foveal.list_models("*_tiny") == ["biformer_tiny"]
    assert foveal.list_models(task="matching", attention="bilevel_routing") == []
    assert foveal.list_models(attention="softmax") == [n for n in NAMES if registry.models()[n].attention == "softmax"]
    assert {*foveal.list_models(commercial=True)} <= {*foveal.list_models(pretrained=True)} <= {*NAMES}
    assert "biformer_tiny" in foveal.list_models(pretrained=True)
    assert "biformer_tiny" not in foveal.list_models(commercial=True)


@each_model
def test_the_entry_tells_the_truth(name):
    entry = registry.models()[name]
    attention = registry.get_attention(entry.attention)
    assert entry.name == name
    assert entry.any_size  # else the tests above need sizes of its own
    assert any(isinstance(module, attention) for module in shared(name).modules())


def test_a_name_of_two_families_is_an_error(monkeypatch):
    facts = {"attention": "softmax", "tasks": [], "any_size": True, "source": ""}
    both = {"VARIANTS": {"one": {"twin": {}}, "two": {"twin": {}}}, "FAMILY": {"one": facts, "two": facts}}
    monkeypatch.setattr(registry, "declarations", lambda folder, variable: both[variable])
    registry.models.cache_clear()
    try:
        with pytest.raises(ValueError, match="model 'twin' is defined by both one and two"):
            registry.models()
    finally:
        registry.models.cache_clear()


# BiFormer's own settings


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depths": (1, 2)}, "need one entry a stage, got 2, 3, 3 and 3"),
        ({"topk": 4}, "topk needs one entry a stage, got 4"),
        ({"topk": (8, 0, None)}, "topk and n_win have to be 1 or more, got topk=0, n_win=7"),
        ({"n_win": 0}, "topk and n_win have to be 1 or more, got topk=8, n_win=0"),
        ({"layout": "vit"}, "layout is conv, swin or swin_nchw, got 'vit'"),
        ({"stem_stride": 3}, "stem_stride 3 does not exist for the conv layout"),
        ({"layout": "swin"}, "stem_stride 2 does not exist for the swin layout"),
        ({"layout": "swin_nchw", "stem_stride": 4, "auto_pad": True}, "auto_pad does not apply"),
    ],
)
def test_biformer_settings_that_can_not_be(options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        foveal.create_model("biformer_nano", **options)


def test_out_norms_belong_to_the_outputs_of_a_pyramid(files):
    options = {"out_norms": True, "num_classes": 7}
    model = foveal.create_model("biformer_nano", **options)
    net = foveal.create_model("biformer_nano", features_only=True, out_indices=(0, 2), **options)
    net.load_state_dict({f"model.{k}": v for k, v in model.state_dict().items()}, strict=False)
    for norm in model.extra_norms:
        nn.init.normal_(norm.bias)
    net.eval().load_state_dict({f"model.{k}": v for k, v in model.state_dict().items()}, strict=False)
    x = pictures()
    _, expected = model.eval().forward_intermediates(x, norm=True)
    for found, i in zip(net(x), (0, 2), strict=True):
        assert torch.equal(found, expected[i])
        near(found.mean(), model.extra_norms[i].bias.mean())
    sum(m.square().mean() for m in net(x)).backward()
    assert without_gradient(net) == []


# timm


def test_our_names_through_timm():
    torch.manual_seed(0)
    ours = foveal.create_model("biformer_nano", num_classes=4, in_chans=1)
    torch.manual_seed(0)
    theirs = timm.create_model("biformer_nano", num_classes=4, in_chans=1)
    assert type(theirs) is type(ours)
    assert theirs.foveal == ours.foveal
    x = pictures(2, 28, 28, channels=1)
    assert torch.equal(theirs.eval()(x), ours.eval()(x))
    pyramid = timm.create_model("biformer_nano", features_only=True, out_indices=(0, -1))
    assert pyramid.feature_info.channels() == [32, 128]
    assert {*NAMES} <= {*timm.list_models()}
    assert {*NAMES} <= {*timm.list_modules()} or all(timm.is_model(n) for n in NAMES)


def test_timm_names_through_ours():
    model = foveal.create_model("vit_tiny_patch16_224", num_classes=3, img_size=(32, 48), depth=1, in_chans=1)
    assert model(pictures(1, 32, 48, channels=1)).shape == (1, 3)
    assert model.foveal.name == "vit_tiny_patch16_224"
    assert model.foveal.preprocessing.shape == (32, 48)
    assert len(model.foveal.preprocessing.mean) == 1
    assert foveal.transforms_for(model)(torch.zeros(40, 60, dtype=torch.uint8).numpy()).shape == (1, 32, 48)
    tagged = foveal.create_model("resnet18.a1_in1k")
    assert tagged.foveal.preprocessing.crop_pct == 0.95
    for indices, channels in ((None, [64, 64, 128, 256, 512]), ((-1,), [512])):
        net = foveal.create_model("resnet18", features_only=True, out_indices=indices)
        assert [m.shape[1] for m in net(pictures())] == channels
        assert net.foveal.preprocessing.size == 224
    with pytest.raises(TypeError, match="colour"):
        foveal.create_model("vit_tiny_patch16_224", colour="red")
    with pytest.raises(foveal.UnknownName, match="did you mean resnet18"):
        foveal.create_model("resnet_18")


@pytest.mark.parametrize("order", ["import timm, foveal", "import foveal, timm"])
def test_importing_timm_before_or_after_us(order):
    code = f"""{order}, sys
assert timm.is_model("biformer_nano")
assert type(timm.create_model("biformer_nano")).__module__ == "foveal.zoo.families.biformer"
assert not any("_AfterImport" in type(f).__name__ for f in sys.meta_path)
print(timm.__spec__.name, timm.__loader__ is timm.__spec__.loader)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "timm True\n"), done.stderr


def test_a_name_that_timm_has_too_is_an_error(monkeypatch):
    from timm.models import _registry

    from foveal.zoo.timm_bridge import register

    register()  # again: our own are no clash

    def biformer_nano():
        raise NotImplementedError

    monkeypatch.setitem(_registry._model_entrypoints, "biformer_nano", biformer_nano)
    with pytest.raises(ValueError, match=f"model 'biformer_nano' is defined by both foveal and {__name__}"):
        register()


@pytest.mark.parametrize("options", [{"num_classes": -1}, {"in_chans": 0}, {"num_classes": "10"}, {"in_chans": -3}])
def test_counts_that_cannot_be(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"BiFormer: {name} is a whole number of at least"):
        foveal.create_model("biformer_nano", **options)
    with pytest.raises(ValueError, match="num_classes is a whole number"):
        foveal.create_model("biformer_nano").reset_classifier(-1)
