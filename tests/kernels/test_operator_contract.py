"""Choosing a path: by cost, by name, by environment; and saying why."""

import os
import subprocess
import sys

import pytest
import torch

import foveal
from foveal.kernels._operator import Operator, Path, _forced, forced, never, operator
from foveal.kernels.bilevel_routing import bilevel_routing
from foveal.kernels.cost import Cost
from foveal.kernels.softmax import softmax


def _maps(size, channels=32):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(1, size, size, channels, generator=draw) for _ in "qkv"]


def _toy(first: Cost, second: Cost, refusal: str | None = None) -> Operator:
    paths = (
        Path("first", lambda x: x[0] + 1, lambda x: refusal, lambda x: first),
        Path("second", lambda x: x[0] + 2, never, lambda x: second),
    )

    @operator(reference=lambda x: x[0], cost=lambda x: first, paths=paths, examples=list)
    def toy(x):
        """A toy."""
        return (x,)

    return toy


def test_cheapest_path_runs_and_is_counted():
    cheap, dear = Cost(1, 1), Cost(10**12, 1)
    x = torch.zeros(1)
    toy = _toy(cheap, dear)
    assert toy(x) == 1
    assert _toy(dear, cheap)(x) == 2
    assert dict(toy.taken) == {"first": 1}


def test_refusing_path_is_passed_over_and_says_why():
    toy = _toy(Cost(1, 1), Cost(9, 9), refusal="it never works here")
    assert toy(torch.zeros(1)) == 2
    assert "toy.first: can't: it never works here" in foveal.why(toy, torch.zeros(1))
    with forced(toy="first"), pytest.raises(ValueError, match="'first' was asked for but it never works here"):
        toy(torch.zeros(1))


def test_forced_path_unknown_name_and_restoration():
    q, k, v = _maps(14)
    arguments = {"num_heads": 2, "regions": (7, 7), "topk": 4}
    with pytest.raises(foveal.UnknownName, match="did you mean gather"), forced(bilevel_routing="gathr"):
        bilevel_routing(q, k, v, **arguments)
    assert "bilevel_routing" not in _forced
    with forced(bilevel_routing="reference"):
        before = bilevel_routing.taken["reference"]
        bilevel_routing(q, k, v, **arguments)
        assert bilevel_routing.taken["reference"] == before + 1
        assert "reference: taken (asked for by name)" in bilevel_routing.why(q, k, v, **arguments)


def test_environment_variable_forces_a_path_and_a_bad_one_is_refused():
    code = (
        "import torch; from foveal.kernels.softmax import softmax; q = torch.zeros(1, 1, 2, 4); softmax(q, q, q);"
        "print(dict(softmax.taken))"
    )
    run = {"args": [sys.executable, "-c", code], "capture_output": True, "text": True}
    done = subprocess.run(env=os.environ | {"FOVEAL_PATH": "softmax=reference"}, check=True, **run)
    assert done.stdout.strip() == "{'reference': 1}"
    failed = subprocess.run(env=os.environ | {"FOVEAL_PATH": "softmax"}, check=False, **run)
    assert "has to look like operator=path" in failed.stderr


def test_choice_goes_by_cost():
    """Small maps take the dense arrangement, one kept region the permutation, large maps the gather."""
    small = bilevel_routing.why(*_maps(14), num_heads=2, regions=(7, 7), topk=16)
    one = bilevel_routing.why(*_maps(56), num_heads=2, regions=(7, 7), topk=1)
    large = bilevel_routing.why(*_maps(112), num_heads=2, regions=(7, 7), topk=4)
    assert "bilevel_routing.dense: taken" in small
    assert "bilevel_routing.permutation: taken" in one
    assert "bilevel_routing.gather: taken" in large


def test_names_and_signature():
    assert foveal.operator("softmax") is softmax
    assert "bilevel_routing" in foveal.list_operators()
    with pytest.raises(foveal.UnknownName, match="did you mean softmax"):
        foveal.operator("softmx")
    assert "(B, heads, N, D)" in softmax.__doc__


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 3, 4)}, "are \\(B, heads, tokens, dim\\)"),
        ({"k": torch.zeros(1, 2, 5, 3)}, "agree in batch, heads and head size"),
        ({"mask": torch.zeros(5, 5, dtype=torch.bool)}, "has to broadcast"),
        ({"mask": torch.zeros(1, 1, 5, 4, dtype=torch.bool)}, "has to broadcast"),
    ],
)
def test_softmax_refuses_shapes(change, message):
    arguments = {name: torch.zeros(1, 2, 5, 4) for name in "qkv"} | change
    with pytest.raises(ValueError, match=message):
        softmax(**arguments)


def test_softmax_refuses_integer_masks():
    q = torch.zeros(1, 2, 5, 4)
    with pytest.raises(TypeError, match="boolean"):
        softmax(q, q, q, mask=torch.zeros(1, 1, 5, 5, dtype=torch.int64))


@pytest.mark.parametrize("d", [1, 7, 8, 24, 31, 80, 96])
def test_bc05_head_sizes(d):
    q, k, v = torch.randn(3, 1, 2, 65, d, generator=torch.Generator().manual_seed(d)).unbind(0)
    torch.testing.assert_close(softmax(q, k, v), softmax.reference(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", list(softmax.paths))
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_bc22_row_without_visible_key(path, kind):
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, 2, 9, 8).unbind(0))
    mask = torch.ones(1, 1, 9, 9, dtype=torch.bool)
    mask[0, 0, 3] = False
    if kind == "float":
        mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    with forced(softmax=path):
        out = softmax(q, k, v, mask=mask)
    assert (out[:, :, 3] == 0).all()
    assert (out[:, :, 2] != 0).any()
    out.sum().backward()
    assert (q.grad[:, :, 3] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("path", list(softmax.paths))
def test_padded_keys_never_influence_anything_even_as_nan(path):
    q, k, v = torch.randn(3, 2, 2, 9, 8).unbind(0)
    mask = (torch.arange(9) < 6).expand(2, 1, 1, 9)
    with forced(softmax=path):
        want = softmax(q, k, v, mask=mask)
        k, v = k.clone(), v.clone()
        k[:, :, 6:], v[:, :, 6:] = float("nan"), float("inf")
        assert torch.equal(softmax(q, k, v, mask=mask), want)


def test_bc26_float32_gradients_are_the_reference_s():
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 33, 16).unbind(0))
    fast = torch.autograd.grad(softmax(q, k, v).square().sum(), (q, k, v))
    slow = torch.autograd.grad(softmax.reference(q, k, v).square().sum(), (q, k, v))
    for a, b in zip(fast, slow):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", list(softmax.paths))
def test_float_masks_wider_than_the_queries_stay_finite(path):
    q, k, v = torch.randn(3, 1, 1, 3, 4, generator=torch.Generator().manual_seed(0)).half().unbind(0)
    mask = torch.zeros(1, 1, 3, 3)
    v = v.abs() + 1.25
    mask[..., 1, :] = -1e9  # beyond half precision, yet not -inf: the row still attends to everything
    with forced(softmax=path):
        got = softmax(q, k, v, mask=mask)
    assert (got[0, 0, 1] > 1).all()  # a mean of values above 1, as zeros are not
    assert (got[0, 0, 1] < v.max()).all()
