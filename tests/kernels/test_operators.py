"""Every operator of the registry against its own reference: a new one joins by registering."""

import pytest
import torch

from foveal.kernels._operator import forced
from foveal.kernels.registry import get_operator, list_operators

# largest |got - want| over (|want| + spread of want), by dtype; never raised to make a test pass
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def _cases():
    for name in list_operators():
        op = get_operator(name)
        for number, example in enumerate(op.examples()):
            for path in op.paths:
                if op.paths[path].refuses(op._prepare(**example)) is None:
                    yield pytest.param(name, number, path, id=f"{name}-{number}-{path}")


CASES = list(_cases())


def _to(arguments, dtype, transform=lambda x: x):
    return {
        name: transform(x.to(dtype)) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in arguments.items()
    }


def _close(got, want, dtype):
    assert got.shape == want.shape
    assert got.dtype == dtype
    if got.numel():
        spread = want.double().abs().mean()
        error = ((got.double() - want.double()).abs() / (want.double().abs() + spread + 1e-12)).max().item()
        assert error <= TOLERANCE[dtype], error


def _example(name, number):
    op = get_operator(name)
    return op, op.pinned(op.examples()[number])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("name", "number", "path"), CASES)
def test_path_equals_float64_reference(name, number, path, dtype):
    op, example = _example(name, number)
    rounded = _to(_to(example, dtype), torch.float64)  # the same numbers, wide
    with forced(**{name: path}):
        got = op(**_to(example, dtype))
    assert got.isfinite().all()
    _close(got, op.reference(**rounded), dtype)


@pytest.mark.parametrize(("name", "number", "path"), CASES)
def test_gradients_equal_float64_reference(name, number, path):
    op, example = _example(name, number)

    def gradients(arguments, run):
        leaves = {
            k: v.clone().requires_grad_() if k in ("q", "k", "v", "gains") else v for k, v in arguments.items()
        }
        out = run(**leaves)
        weight = torch.linspace(-1, 1, max(out.numel(), 1))[: out.numel()].reshape(out.shape)
        (out * weight.to(out.dtype)).sum().backward()
        return {k: v.grad for k, v in leaves.items() if isinstance(v, torch.Tensor) and v.requires_grad}

    want = gradients(_to(example, torch.float64), op.reference)
    with forced(**{name: path}):
        got = gradients(example, op)
    assert got.keys() == want.keys()
    for leaf, gradient in got.items():
        _close(gradient, want[leaf], torch.float32)


@pytest.mark.parametrize(("name", "number", "path"), CASES)
def test_strided_inputs(name, number, path):
    op, example = _example(name, number)
    with forced(**{name: path}):
        want = op(**example)
        for view in (
            lambda x: x.repeat_interleave(2, -2)[..., ::2, :],
            lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
            lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
        ):
            got = op(**{k: view(v) if k in ("q", "k", "v") else v for k, v in example.items()})
            _close(got, want, torch.float32)


@pytest.mark.parametrize(("name", "number", "path"), CASES)
def test_compiled_equals_eager(name, number, path):
    op, example = _example(name, number)
    torch._dynamo.reset()
    with forced(**{name: path}), torch.no_grad():
        compiled = torch.compile(lambda **kw: op(**kw), backend="aot_eager", fullgraph=True)
        _close(compiled(**example), op(**example), torch.float32)


@pytest.mark.parametrize("name", list_operators())
def test_gradcheck(name):
    op = get_operator(name)
    for example in op.examples():
        example = op.pinned(_to(example, torch.float64))
        shapes = [example[k].numel() for k in "qkv"]
        if not 0 < max(shapes) <= 700:
            continue
        rest = {k: v for k, v in example.items() if k not in ("q", "k", "v")}
        leaves = [example[k].clone().requires_grad_() for k in "qkv"]
        for path in op.paths:
            if op.paths[path].refuses(op._prepare(**example)) is None:
                with forced(**{name: path}):
                    assert torch.autograd.gradcheck(lambda q, k, v, rest=rest: op(q, k, v, **rest), leaves)


@pytest.mark.parametrize("name", list_operators())
def test_examples_reach_every_path_and_refusal_is_a_sentence(name):
    op = get_operator(name)
    reached, refused = set(), {}
    for example in op.examples():
        call = op._prepare(**example)
        for path in op.paths.values():
            reason = path.refuses(call)
            if reason is None:
                reached.add(path.name)
            else:
                refused[path.name] = reason
                with (
                    forced(**{name: path.name}),
                    pytest.raises(ValueError, match="was asked for but"),
                ):
                    op(**example)
    assert reached == set(op.paths)
    assert all(len(reason) > 10 for reason in refused.values())


@pytest.mark.parametrize("name", list_operators())
def test_bc24_mixed_dtypes(name):
    op = get_operator(name)
    example = op.examples()[1]
    mixed = example | {"q": example["q"].half()}
    with pytest.raises(TypeError, match=r"torch\.float16, torch\.float32 and torch\.float32"):
        op(**mixed)
    with torch.autocast("cpu", torch.bfloat16):
        assert op(**mixed).dtype == torch.bfloat16


@pytest.mark.parametrize("name", list_operators())
def test_cost_from_meta_tensors_and_problem_free_of_values(name):
    op = get_operator(name)
    example = op.pinned(op.examples()[1])
    on_meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in example.items()}
    cost = op.cost(**on_meta)
    assert cost == op.cost(**example)
    assert cost.flops > 0
    assert cost.bytes > 0


@pytest.mark.parametrize("name", list_operators())
def test_cost_is_what_torch_counts(name):
    from torch.utils.flop_counter import FlopCounterMode

    op = get_operator(name)
    example = op.examples()[1]
    with FlopCounterMode(display=False) as counter:
        op.reference(**example)
    routing = 0
    if "regions" in example:
        regions = example["regions"][0] * example["regions"][1]
        routing = 2 * example["q"].shape[0] * regions**2 * example["q"].shape[-1]
    assert counter.get_total_flops() - routing == op.cost(**example).flops
