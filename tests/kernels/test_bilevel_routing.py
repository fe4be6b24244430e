"""What the conformance test over examples does not say about routed attention."""

import pytest
import torch

from foveal.kernels._operator import forced
from foveal.kernels.bilevel_routing import GATHER_BUDGET, _chunk, bilevel_routing, join_regions, route, split_regions
from foveal.kernels.softmax import softmax

PATHS = ("dense", "gather", "reference")


def _maps(b, h, w, c, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(b, h, w, c, generator=draw) for _ in "qkv"]


def test_regions_split_and_join():
    x = torch.arange(2 * 6 * 4 * 3).reshape(2, 6, 4, 3)
    parts = split_regions(x, 3, 2)
    assert parts.shape == (2, 6, 4, 3)
    assert torch.equal(parts[0, 1], x[0, :2, 2:].reshape(-1, 3))
    assert torch.equal(join_regions(parts, 3, 2, 6, 4), x)


def test_route_is_the_formula_in_a_loop():
    q, k, _ = _maps(2, 6, 4, 5)
    table, logits = route(q, k, (3, 2), 2, scale=0.5)
    for b in range(2):
        for r in range(6):
            row, col = divmod(r, 2)
            mine = q[b, 2 * row : 2 * row + 2, 2 * col : 2 * col + 2].mean((0, 1))
            scores = torch.stack(
                [
                    0.5 * mine @ k[b, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((0, 1))
                    for i in range(3)
                    for j in range(2)
                ]
            )
            best = scores.topk(2)
            assert table[b, r].tolist() == best.indices.tolist()
            torch.testing.assert_close(logits[b, r], best.values)


def test_every_region_kept_is_plain_attention():
    q, k, v = _maps(2, 6, 10, 12)
    heads = [x.flatten(1, 2).unflatten(-1, (3, 4)).transpose(1, 2) for x in (q, k, v)]
    want = softmax(*heads, scale=12**-0.5).transpose(1, 2).flatten(2).unflatten(1, (6, 10))
    for path in PATHS:
        with forced(bilevel_routing=path):
            got = bilevel_routing(q, k, v, num_heads=3, regions=(3, 5), topk=15)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_routing_drops_something(path):
    """The kept regions matter: with fewer of them the answer is another one."""
    q, k, v = _maps(1, 14, 14, 16)
    with forced(bilevel_routing=path):
        few = bilevel_routing(q, k, v, num_heads=2, regions=(7, 7), topk=4)
        many = bilevel_routing(q, k, v, num_heads=2, regions=(7, 7), topk=30)
    assert (few - many).abs().max() > 0.1


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("path", ["permutation", *PATHS])
def test_bc02_masked_tokens_do_not_move_others_by_a_bit(path, topk):
    if path == "permutation" and topk != 1:
        topk = 1
    q, k, v = _maps(2, 9, 10, 8)
    inside = torch.zeros(1, 9, 10, dtype=torch.bool)
    inside[:, :7, :8] = True
    options = {"num_heads": 2, "regions": (3, 5), "topk": topk, "mask": inside}
    outside = ~inside.expand(2, -1, -1)
    with forced(bilevel_routing=path):
        want = bilevel_routing(q, k, v, **options)
        for garbage in (1e4, float("nan"), float("inf")):
            changed = [x.masked_fill(outside[..., None], garbage) for x in (q, k, v)]
            got = bilevel_routing(*changed, **options)
            assert torch.equal(got[:, :7, :8], want[:, :7, :8])


def test_long_maps_are_gathered_in_chunks():
    q, k, v = _maps(1, 112, 112, 64)
    arguments = {"num_heads": 2, "regions": (7, 7), "topk": 16}
    call = bilevel_routing._prepare(q, k, v, **arguments)
    assert 1 <= _chunk(call) < 49
    assert _chunk(call) * 2 * 16 * 256 * 64 * 4 <= GATHER_BUDGET
    with forced(bilevel_routing="gather"):
        got = bilevel_routing(q, k, v, **arguments)
    with forced(bilevel_routing="dense"):
        torch.testing.assert_close(got, bilevel_routing(q, k, v, **arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 6, 8)}, "are \\(B, H, W, C\\)"),
        ({"k": torch.zeros(1, 6, 6, 8)}, "agree in batch and channels"),
        ({"num_heads": 3}, "3 heads do not divide"),
        ({"regions": (4, 3)}, "4x3 regions do not divide a 6x6 map"),
        ({"topk": None}, "either topk or table"),
        ({"topk": 0}, "topk has to be 1 or more"),
        ({"mask": torch.ones(2, 5, 6, dtype=torch.bool)}, "mask has to be boolean"),
        ({"topk": None, "table": torch.zeros(2, 4, 1, dtype=torch.int64)}, "table has to be"),
        ({"gains": torch.ones(2, 9, 3)}, "gains need a table"),
        ({"k": torch.zeros(2, 3, 3, 8), "v": torch.zeros(2, 3, 3, 8)}, "maps of one size"),
    ],
)
def test_refusals(change, message):
    arguments = {name: torch.zeros(2, 6, 6, 8) for name in "qkv"} | {"num_heads": 2, "regions": (3, 3), "topk": 9}
    with pytest.raises(ValueError, match=message):
        bilevel_routing(**(arguments | change))


@pytest.mark.parametrize("path", PATHS)
def test_a_region_named_twice_counts_twice(path):
    q, k, v = _maps(1, 4, 4, 8)
    table = torch.tensor([[[0, 0, 1]] * 4])
    arguments = {"num_heads": 2, "regions": (2, 2), "table": table}
    once = bilevel_routing(q, k, v, **(arguments | {"table": table[..., 1:]}))
    with forced(bilevel_routing=path):
        got = bilevel_routing(q, k, v, **arguments)
    torch.testing.assert_close(got, bilevel_routing.reference(q, k, v, **arguments), rtol=1e-5, atol=1e-6)
    assert (got - once).abs().max() > 1e-3
