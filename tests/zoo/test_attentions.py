"""What every registered attention module has to do: one constructor, one forward, and what its entry says of it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import foveal
from foveal.kernels.softmax import softmax
from foveal.zoo.attention import bilevel_routing as routing
from foveal.zoo.attention._common import PointwiseLinear
from foveal.zoo.attention.bilevel_routing import BilevelRoutingAttention, BilevelRoutingAttentionNCHW
from foveal.zoo.attention.softmax import SoftmaxAttention
from foveal.zoo.registry import describe_attentions, get_attention

FACTS = describe_attentions()
WITH = {capability: [name for name in FACTS if FACTS[name][capability]] for capability in ("prefix", "mask", "cross")}
DIM, HEADS = 24, 3
GRIDS = [(14, 14), (7, 21), (9, 10), (1, 1), (3, 50)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}  # of the largest value

each_attention = pytest.mark.parametrize("name", FACTS)

# Settings of the modules beside their defaults: (class, options); each has to be as good as the default.
MODULES = [(get_attention(name), {}) for name in FACTS] + [
    (SoftmaxAttention, {"qkv_bias": False, "side_dwconv": 3}),
    (SoftmaxAttention, {"side_dwconv": 5, "enhance": "value"}),
    (SoftmaxAttention, {"linear": PointwiseLinear}),
    (BilevelRoutingAttention, {"n_win": 3, "topk": 2, "side_dwconv": 0, "qkv_bias": False}),
    (BilevelRoutingAttention, {"n_win": 4, "topk": 1}),
    (BilevelRoutingAttention, {"topk": 49, "qk_dim": 12}),
    (BilevelRoutingAttention, {"n_win": 3, "topk": 4, "soft_routing": True}),
    (BilevelRoutingAttention, {"n_win": 3, "topk": 2, "soft_routing": True, "param_routing": True}),
    (BilevelRoutingAttention, {"n_win": 2, "topk": 3, "param_routing": True, "qk_dim": 6}),
    (BilevelRoutingAttention, {"n_win": 4, "auto_pad": True}),
    (BilevelRoutingAttentionNCHW, {"n_win": 4, "topk": 3}),
]


def facts_of(make):
    return next(FACTS[name] for name in FACTS if issubclass(make, get_attention(name)))


def over(modules):
    ids = [f"{make.__name__}-{'-'.join(options) or 'default'}" for make, options in modules]
    return pytest.mark.parametrize(("make", "options"), modules, ids=ids)


each_module = over(MODULES)
each_masked_module = over([(make, options) for make, options in MODULES if facts_of(make)["mask"]])


def built(make, options=None, dim=DIM, heads=HEADS):
    torch.manual_seed(0)
    module = make(dim, heads, **(options or {}))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module.eval()


def tokens(grid, batch=2, prefix=0, dim=DIM):
    draw = torch.Generator().manual_seed(3)
    return torch.randn(batch, grid[0] * grid[1] + prefix, dim, generator=draw)


def near(found, expected, dtype=torch.float32):
    scale = expected.abs().max().item()
    assert scale > 0
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=TOLERANCE[dtype] * scale)


def some_mask(grid, batch=2):
    """A rectangle of the map for the first picture, scattered tokens for the others."""
    draw = torch.Generator().manual_seed(4)
    mask = torch.rand(batch, *grid, generator=draw) > 0.4
    mask[0] = False
    mask[0, : (grid[0] + 1) // 2, : (grid[1] + 2) // 3] = True
    assert mask.flatten(1).any(1).all()
    assert not mask.all()
    return mask.flatten(1)


# The common contract


@each_module
@pytest.mark.parametrize("grid", GRIDS)
@torch.inference_mode()
def test_any_rectangle(make, options, grid):
    x = tokens(grid)
    out = built(make, options)(x, grid=grid)
    assert out.shape == x.shape
    assert out.isfinite().all()
    assert (out[0] - out[1]).abs().max() > 1e-3


@each_module
@torch.inference_mode()
def test_turning_the_map_is_seen_by_what_needs_a_grid(make, options):
    """(6, 4) and (4, 6) are different maps of the same tokens: only an attention without a map may not tell."""
    module, x = built(make, options), tokens((6, 4))
    on_map = facts_of(make)["needs_grid"] or options.get("side_dwconv", 0) > 0
    assert torch.equal(module(x, grid=(6, 4)), module(x, grid=(4, 6))) != on_map


@each_attention
def test_a_grid_is_asked_for_where_it_is_needed(name):
    module, x = built(get_attention(name)), tokens((4, 6))
    if not FACTS[name]["needs_grid"]:
        assert torch.equal(module(x), module(x, grid=(4, 6)))
        return
    owner = type(module).__name__
    with pytest.raises(ValueError, match=rf"{owner}: needs grid=\(height, width\) of its tokens"):
        module(x)
    with pytest.raises(ValueError, match=rf"{owner}: grid \(5, 5\) and 0 prefix tokens do not make 24 tokens"):
        module(x, grid=(5, 5))


def test_side_convolution_needs_the_grid():
    module = built(SoftmaxAttention, {"side_dwconv": 3})
    with pytest.raises(ValueError, match="SoftmaxAttention: needs grid"):
        module(tokens((4, 6)))
    with pytest.raises(ValueError, match=r"grid \(4, 6\) and 1 prefix tokens do not make 24 tokens"):
        module(tokens((4, 6)), grid=(4, 6), prefix=1)
    with pytest.raises(ValueError, match="side_dwconv is a convolution of the map itself, it has no context form"):
        module(tokens((4, 6)), tokens((2, 2)), grid=(4, 6))


@pytest.mark.parametrize("name", WITH["prefix"])
def test_prefix_tokens_take_part(name):
    for options in ({}, {"side_dwconv": 3}) if name == "softmax" else ({},):
        module, x = built(get_attention(name), options), tokens((4, 6), prefix=2)
        out = module(x, grid=(4, 6), prefix=2)
        assert out.shape == x.shape
        other = x.clone()
        other[:, 0] += 1
        moved = (module(other, grid=(4, 6), prefix=2) - out).abs().amax((0, 2))
        assert (moved > 1e-6).all()  # every token, the map's too


@torch.inference_mode()
def test_prefix_tokens_are_not_part_of_the_convolution():
    """The attention itself is the same function of all tokens, so what the convolution adds shows as a difference."""
    module, x = built(SoftmaxAttention, {"side_dwconv": 3}), tokens((4, 6), prefix=2)
    plain = built(SoftmaxAttention)
    plain.load_state_dict(module.state_dict(), strict=False)
    side = module(x, grid=(4, 6), prefix=2) - plain(x)
    assert side[:, :2].abs().max() < 1e-6
    other = x.clone()
    other[:, :2] = 7.0
    near(module(other, grid=(4, 6), prefix=2) - plain(other), side)


@each_attention
def test_what_an_attention_can_not_do_is_refused(name):
    module, x = built(get_attention(name)), tokens((4, 6))
    longer, mask = tokens((4, 6), prefix=1), torch.ones(2, 24, dtype=torch.bool)
    calls = {
        "prefix": ("prefix tokens", [lambda: module(longer, grid=(4, 6), prefix=1)]),
        "mask": ("mask", [lambda: module(x, grid=(4, 6), mask=mask)]),
        "cross": (
            "context",
            [lambda: module(x, x, grid=(4, 6)), lambda: module(x, grid=(4, 6), context_grid=(4, 6))],
        ),
    }
    for capability, (word, refused) in calls.items():
        for call in refused:
            if FACTS[name][capability]:
                assert call().isfinite().all()
            else:
                with pytest.raises(ValueError, match=rf"{type(module).__name__}: .*{word}"):
                    call()


@pytest.mark.parametrize("name", WITH["cross"])
@torch.inference_mode()
def test_cross_attention(name):
    module, x, context = built(get_attention(name)), tokens((4, 6)), tokens((3, 5))
    out = module(x, context, grid=(4, 6), context_grid=(3, 5))
    assert out.shape == x.shape
    near(module(x, x, grid=(4, 6)), module(x, grid=(4, 6)))
    assert ((module(x, context + 1, grid=(4, 6)) - out).abs().amax(2) > 1e-6).all()
    mask = some_mask((3, 5))
    hidden = context.masked_fill(~mask[..., None], float("nan"))
    near(module(x, hidden, mask=mask), module(x, context, mask=mask))
    short = torch.stack([context[:, i] for i in range(15) if mask[0, i]], 1)
    near(module(x, context, mask=mask)[0], module(x, short)[0])


@pytest.mark.parametrize("name", [name for name in WITH["cross"] if FACTS[name]["mask"]])
def test_masked_tokens_of_a_context_get_and_give_no_gradient(name):
    module, x, mask = built(get_attention(name)), tokens((4, 6)), some_mask((3, 5))
    context = tokens((3, 5)).masked_fill(~mask[..., None], float("nan")).requires_grad_()
    module(x, context, grid=(4, 6), context_grid=(3, 5), mask=mask).square().sum().backward()
    assert (context.grad[~mask] == 0).all()
    assert (context.grad[mask] != 0).any()
    assert all(p.grad.isfinite().all() for p in module.parameters())


# Masks


@each_masked_module
@pytest.mark.parametrize("grid", [(14, 14), (9, 10), (3, 7)])
@pytest.mark.parametrize("filling", [float("nan"), float("inf"), -1e4])
@torch.inference_mode()
def test_masked_tokens_influence_nothing(make, options, grid, filling):
    module, x, mask = built(make, options), tokens(grid), some_mask(grid)
    expected = module(x, grid=grid, mask=mask)
    hidden = module(x.masked_fill(~mask[..., None], filling), grid=grid, mask=mask)
    assert torch.equal(hidden[mask], expected[mask])
    assert not torch.allclose(expected[mask], module(x, grid=grid)[mask], atol=1e-3)  # the mask does something


@each_masked_module
def test_masked_tokens_get_and_give_no_gradient(make, options):
    module, mask = built(make, options), some_mask((9, 10))
    x = tokens((9, 10)).masked_fill(~mask[..., None], float("nan")).requires_grad_()
    module(x, grid=(9, 10), mask=mask)[mask].square().sum().backward()
    assert (x.grad[~mask] == 0).all()
    assert (x.grad[mask] != 0).any()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


@each_masked_module
@torch.inference_mode()
def test_a_mask_of_all_equals_no_mask(make, options):
    grid = (12, 12)  # divides by every n_win: where a map does not, some paddings differ by design
    module, x = built(make, {**options, "n_win": 4} if "n_win" in options else options), tokens(grid)
    all_of_it = torch.ones(2, 144, dtype=torch.bool)
    near(module(x, grid=grid, mask=all_of_it), module(x, grid=grid))
    assert torch.equal(module(x, grid=grid, mask=all_of_it[:1]), module(x, grid=grid, mask=all_of_it))


@each_masked_module
def test_a_picture_with_nothing_to_attend_to(make, options):
    module, x, mask = built(make, options), tokens((9, 10)).requires_grad_(), some_mask((9, 10))
    mask[1] = False
    out = module(x, grid=(9, 10), mask=mask)
    assert out.isfinite().all()
    near(out[1], out[1, :1].expand_as(out[1]))  # biases are all that is left
    out.square().sum().backward()
    assert (x.grad[1] == 0).all()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


@torch.inference_mode()
def test_a_masked_rim_equals_the_smaller_map():
    """What is masked behaves as if it were not there, in the convolution too."""
    whole = tokens((6, 8)).unflatten(1, (6, 8))
    inside = torch.zeros(1, 6, 8, dtype=torch.bool)
    inside[:, :4, :5] = True
    small = whole[:, :4, :5].flatten(1, 2)
    for options in ({}, {"side_dwconv": 3}, {"side_dwconv": 3, "enhance": "value"}):
        module = built(SoftmaxAttention, options)
        found = module(whole.flatten(1, 2), grid=(6, 8), mask=inside.flatten(1))
        near(found.unflatten(1, (6, 8))[:, :4, :5].flatten(1, 2), module(small, grid=(4, 5)))


@torch.inference_mode()
def test_masks_of_the_kernel_are_passed_on():
    module, x = built(SoftmaxAttention), tokens((2, 5))
    pairs = torch.rand(2, HEADS, 10, 10) > 0.5
    assert not pairs.any(-1).logical_not().all()
    assert not torch.allclose(module(x, mask=pairs), module(x), atol=1e-3)
    bias = torch.zeros(1, 1, 1, 10).masked_fill(~some_mask((2, 5))[:1, None, None], float("-inf"))
    near(module(x, mask=bias), module(x, mask=bias == 0))


@pytest.mark.parametrize("name", WITH["mask"])
def test_masks_that_do_not_fit(name):
    module, x = built(get_attention(name)), tokens((4, 6))
    for wrong in (torch.ones(2, 23).bool(), torch.ones(3, 24).bool(), torch.ones(2, 24), torch.ones(2, 4, 6).bool()):
        with pytest.raises(ValueError, match=r"mask has to be boolean of shape \(2, 24\)"):
            module(x, grid=(4, 6), mask=wrong)


@pytest.mark.parametrize("filling", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("grid", [(9, 10), (3, 50), (2, 2)])
@pytest.mark.parametrize("masked", [False, True])
@torch.inference_mode()
def test_bc02_padding_inside_leaves_no_trace(grid, masked, filling, monkeypatch):
    filled = []

    def pad_with_garbage(t, down, across):
        filled.append((down, across))
        return nn.functional.pad(t, (0, 0, 0, across, 0, down), value=filling)

    x, mask = tokens(grid), some_mask(grid) if masked else None
    for make, options in MODULES:
        if not issubclass(make, BilevelRoutingAttention) or options.get("auto_pad"):
            continue
        if make is BilevelRoutingAttentionNCHW and not masked:
            continue  # its padding is part of the original's arithmetic
        module = built(make, {**options, "n_win": 4})
        expected = module(x, grid=grid, mask=mask)
        with monkeypatch.context() as patch:
            patch.setattr(routing, "_pad", pad_with_garbage)
            assert torch.equal(module(x, grid=grid, mask=mask), expected)
    assert all(down or across for down, across in filled)
    assert bool(filled) == (grid != (2, 2))


@pytest.mark.parametrize("path", foveal.operator("bilevel_routing").paths)
@torch.inference_mode()
def test_bc02_padding_leaves_no_trace_in_the_kernel(path):
    operator = foveal.operator("bilevel_routing")
    q, k, v = torch.randn(3, 2, 8, 12, 16).unbind(0)
    real = torch.zeros(1, 8, 12, dtype=torch.bool)
    real[:, :7, :9] = True
    garbage = [t.masked_fill(~real[..., None], float("nan")) for t in (q, k, v)]
    options = {"num_heads": 2, "regions": (4, 4), "topk": 1 if path == "permutation" else 3, "mask": real}
    with foveal.forced(bilevel_routing=path):
        found, expected = operator(*garbage, **options), operator(q, k, v, **options)
    assert torch.equal(found[:, :7, :9], expected[:, :7, :9])


# Training and numbers


@each_module
def test_bc18_every_parameter_gets_a_gradient(make, options):
    module = built(make, options).train()
    module(tokens((9, 10)), grid=(9, 10)).square().sum().backward()
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert {name for name, p in module.named_parameters() if p.grad is not None} == trained
    frozen = {name for name, _ in module.named_parameters()} - trained
    assert bool(frozen) == (options.get("param_routing", False) and not options.get("soft_routing", False))
    assert all(name.startswith("router.") for name in frozen)
    assert all(p.grad.abs().max() > 0 for name, p in module.named_parameters() if p.grad is not None and p.dim() > 1)


@each_module
@torch.inference_mode()
def test_copies_and_state_dict(make, options):
    module, x = built(make, options), tokens((9, 10))
    expected = module(x, grid=(9, 10))
    fresh = make(DIM, HEADS, **options).eval()
    fresh.load_state_dict(module.state_dict())
    for same in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(same(x, grid=(9, 10)), expected)


@each_module
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_is_finite(make, options, dtype):
    module, x = built(make, options), tokens((9, 10))
    half = copy.deepcopy(module).to(dtype)
    out = half(x.to(dtype), grid=(9, 10))
    assert out.dtype == dtype
    assert out.isfinite().all()
    if facts_of(make)["operator"] != "bilevel_routing":  # routing is a choice: half precision may choose another region
        near(out, module(x, grid=(9, 10)), dtype)
    assert half(20 * x.to(dtype), grid=(9, 10)).isfinite().all()


@each_module
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_bc24_mixed_dtypes_under_autocast(make, options, given):
    module, x, mask = built(make, options).train(), tokens((9, 10)), None
    if facts_of(make)["mask"]:
        mask = some_mask((9, 10))
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x.to(given), grid=(9, 10), mask=mask)
    out = out if mask is None else out[mask]
    assert out.isfinite().all()
    out.float().square().sum().backward()
    grads = [p.grad for p in module.parameters() if p.requires_grad]
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in grads)


def test_bc24_context_of_another_dtype():
    module, x, context = built(SoftmaxAttention), tokens((4, 6)), tokens((3, 5))
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        near(module(x.bfloat16(), context), module(x, context).float(), torch.bfloat16)
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(TypeError, match=r"softmax: q, k and v need one .*float16, torch.float32 and torch.float32"):
        softmax(q.half(), q, q)
    routed = foveal.operator("bilevel_routing")
    maps = torch.randn(1, 4, 4, 8)
    with pytest.raises(TypeError, match=r"bilevel_routing: q, k and v need one .*float16, torch.float32"):
        routed(maps.half(), maps, maps, num_heads=2, regions=(2, 2), topk=1)


# Construction


@each_attention
def test_bc06_heads_that_do_not_divide(name):
    make = get_attention(name)
    for heads, near_ones in ((5, "4 or 6"), (7, "6 or 8"), (0, "1 or 2"), (99, "12 or 24")):
        sentence = f"{make.__name__}: dim 24 is not divisible by num_heads {heads}; the nearest .* are {near_ones}"
        with pytest.raises(ValueError, match=sentence):
            make(24, heads)


@each_attention
def test_unknown_option(name):
    with pytest.raises(TypeError, match="colour"):
        get_attention(name)(DIM, HEADS, colour="red")


@each_attention
def test_qkv_bias_is_an_option_of_all(name):
    with_bias, without = (get_attention(name)(DIM, HEADS, qkv_bias=bias) for bias in (True, False))
    gone = {*with_bias.state_dict()} - {*without.state_dict()}
    assert len(gone) == 1
    assert gone.pop().endswith("bias")


@each_attention
def test_the_entry_names_an_operator(name):
    assert FACTS[name]["operator"] in foveal.list_operators()
    assert FACTS[name]["cost"] in ("N²", "N·k", "N")
    assert FACTS[name]["source"]


@pytest.mark.parametrize("make", [BilevelRoutingAttention, BilevelRoutingAttentionNCHW])
@torch.inference_mode()
def test_bc04_topk_is_clipped_to_the_number_of_regions(make):
    for grid in ((8, 8), (9, 7), (1, 1)):
        a, b = (built(make, {"n_win": 2, "topk": k}) for k in (16, 9 if grid == (9, 7) else 4))
        assert torch.equal(a(tokens(grid), grid=grid), b(tokens(grid), grid=grid))
    for topk in (0, -1):
        sentence = f"{make.__name__}: topk and n_win have to be 1 or more, got topk={topk}, n_win=2"
        with pytest.raises(ValueError, match=sentence):
            make(DIM, HEADS, n_win=2, topk=topk)
    with pytest.raises(ValueError, match="got topk=4, n_win=0"):
        make(DIM, HEADS, n_win=0)


# Routing


def copied_to_softmax(routed, heads):
    """Full attention with the weights of a routed module, whose logits have the scale dim ** -0.5 for any heads."""
    linear = PointwiseLinear if isinstance(routed, BilevelRoutingAttentionNCHW) else nn.Linear
    kernel = routed.lepe.kernel_size[0] if routed.lepe else 0
    full = SoftmaxAttention(DIM, heads, side_dwconv=kernel, enhance="value", linear=linear).eval()
    names = {"qkv.qkv": "qkv", "wo": "proj", "qkv_linear": "qkv", "output_linear": "proj", "lepe": "lepe"}
    state = {}
    for key, tensor in routed.state_dict().items():
        owner, _, leaf = key.rpartition(".")
        state[f"{names[owner]}.{leaf}"] = tensor.clone()
    for leaf in ("weight", "bias"):
        state[f"qkv.{leaf}"][:DIM] *= heads**-0.5  # dim ** -0.5 instead of (dim / heads) ** -0.5
    full.load_state_dict(state)
    return full


@pytest.mark.parametrize("make", [BilevelRoutingAttention, BilevelRoutingAttentionNCHW])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("grid", [(14, 14), (9, 10), (3, 50), (2, 3)])
@torch.inference_mode()
def test_routing_to_all_regions_equals_softmax_attention(make, heads, grid):
    for side in (0, 5):
        routed = built(make, {"topk": 10_000, "n_win": 7, "side_dwconv": side}, heads=heads)
        full, x = copied_to_softmax(routed, heads), tokens(grid)
        masks = [some_mask(grid)]
        if make is BilevelRoutingAttention or grid in ((14, 14), (2, 3)):
            masks.append(None)  # on other maps the NCHW code attends to its own zero padding
        for mask in masks:
            found, expected = (m(x, grid=grid, mask=mask) for m in (routed, full))
            seen = torch.ones(2, x.shape[1], dtype=torch.bool) if mask is None else mask
            near(found[seen], expected[seen])


@torch.inference_mode()
def test_auto_pad_agrees_with_masked_padding_only_where_maps_divide():
    masked, original = (built(BilevelRoutingAttention, {"n_win": 4, "auto_pad": pad}) for pad in (False, True))
    assert torch.equal(masked(tokens((8, 12)), grid=(8, 12)), original(tokens((8, 12)), grid=(8, 12)))
    assert not torch.allclose(masked(tokens((9, 10)), grid=(9, 10)), original(tokens((9, 10)), grid=(9, 10)), atol=1e-3)


@torch.inference_mode()
def test_pooled_keys_and_values():
    one_each = built(BilevelRoutingAttention, {"n_win": 4, "topk": 3, "kv_per_win": 2})
    plain = built(BilevelRoutingAttention, {"n_win": 4, "topk": 3})
    x = tokens((8, 8))  # regions of 2x2: pooling to 2x2 is nothing
    near(one_each(x, grid=(8, 8)), plain(x, grid=(8, 8)))
    x = tokens((12, 20))
    assert not torch.allclose(one_each(x, grid=(12, 20)), plain(x, grid=(12, 20)), atol=1e-3)
    sentence = "kv_per_win pools whole regions, it can't honour a mask or the padding of .* not divide by n_win=4"
    with pytest.raises(ValueError, match=sentence):
        one_each(tokens((9, 10)), grid=(9, 10))
    with pytest.raises(ValueError, match=sentence):
        one_each(x, grid=(12, 20), mask=torch.ones(2, 240, dtype=torch.bool))
    padded = built(BilevelRoutingAttention, {"n_win": 4, "topk": 3, "kv_per_win": 2, "auto_pad": True})
    assert padded(tokens((9, 10)), grid=(9, 10)).isfinite().all()


def test_pooled_keys_and_values_train():
    module = built(BilevelRoutingAttention, {"n_win": 4, "topk": 3, "kv_per_win": 1}).train()
    module(tokens((8, 12)), grid=(8, 12)).square().sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@torch.inference_mode()
def test_soft_routing_weights_what_it_gathers():
    soft, plain = (
        built(BilevelRoutingAttention, {"n_win": 1, "side_dwconv": 0, "soft_routing": s}) for s in (True, False)
    )
    near(soft(tokens((3, 4)), grid=(3, 4)), plain(tokens((3, 4)), grid=(3, 4)))  # one region: its weight is 1
    soft, plain = (built(BilevelRoutingAttention, {"n_win": 2, "topk": 4, "soft_routing": s}) for s in (True, False))
    assert not torch.allclose(soft(tokens((4, 4)), grid=(4, 4)), plain(tokens((4, 4)), grid=(4, 4)), atol=1e-3)


@torch.inference_mode()
def test_parametrised_routing_changes_the_choice():
    module = built(BilevelRoutingAttention, {"n_win": 4, "topk": 1, "param_routing": True})
    plain = built(BilevelRoutingAttention, {"n_win": 4, "topk": 1})
    plain.load_state_dict(module.state_dict(), strict=False)
    x = tokens((8, 8))
    assert not torch.allclose(module(x, grid=(8, 8)), plain(x, grid=(8, 8)), atol=1e-3)
    nn.init.eye_(module.router.emb.weight)
    nn.init.zeros_(module.router.emb.bias)
    near(module(x, grid=(8, 8)), plain(x, grid=(8, 8)))
