"""Scaled dot-product attention, the operator that all others are measured against."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.kernels._operator import Path, never, one_dtype, operator
from foveal.kernels.cost import Cost

OPERATOR = {
    "computes": "softmax(scale q k^T + mask) v",
    "cost": "N²",
    "limits": "time grows with queries times keys",
    "source": "Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762",
}


class Call(NamedTuple):
    """Checked arguments of `softmax`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scale: float


def visible(mask: Tensor) -> Tensor:
    """Boolean form of a mask: True where attention is allowed."""
    return mask if mask.dtype == torch.bool else mask != float("-inf")


def hide_unseen(k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with zeros where no query may look: 0 * NaN would still be NaN inside a product.

    ``seen`` broadcasts to (B, heads, 1, keys).
    """
    unseen = ~seen.mT
    return k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)


def _reference(call: Call) -> Tensor:
    q, k, v, mask, scale = call
    wide = torch.promote_types(q.dtype, torch.float32)
    if mask is None:
        return ((q.to(wide) * scale @ k.to(wide).mT).softmax(-1) @ v.to(wide)).to(q.dtype)
    allowed = visible(mask)
    k, v = hide_unseen(k, v, allowed.any(-2, keepdim=True))
    logits = q.to(wide) * scale @ k.to(wide).mT
    if mask.dtype != torch.bool:
        logits = logits + mask.to(wide).masked_fill(~allowed, 0)
    rows = allowed.any(-1, keepdim=True)
    weights = logits.masked_fill(~allowed & rows, float("-inf")).softmax(-1)
    return (weights @ v.to(wide)).masked_fill(~rows, 0).to(q.dtype)


def _sdpa(call: Call) -> Tensor:
    q, k, v, mask, scale = call
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    allowed = visible(mask)
    k, v = hide_unseen(k, v, allowed.any(-2, keepdim=True))
    rows = allowed.any(-1, keepdim=True)
    # a row with nothing to attend to would be 0/0: let it see everything, then drop what it saw
    if mask.dtype == torch.bool:
        safe = mask | ~rows
    else:
        lowest = torch.finfo(q.dtype).min / 2  # a bias below that would overflow into "may not be attended"
        safe = mask.clamp(lowest, -lowest).to(q.dtype).masked_fill(~allowed, float("-inf")).masked_fill(~rows, 0)
    safe = safe.expand(*safe.shape[:-2], q.shape[-2], k.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=safe, scale=scale).masked_fill(~rows, 0)


def _cost(call: Call) -> Cost:
    q, _, v, mask, _ = call
    b, h, n, d = q.shape
    m, e = v.shape[-2:]
    operands = b * h * (n * d + m * d + m * e + n * e) * q.element_size()
    return Cost(
        flops=2 * b * h * n * m * (d + e),
        bytes=operands + (0 if mask is None else mask.numel() * mask.element_size()),
        problems=b * h,
    )


def _reference_cost(call: Call) -> Cost:
    b, h, n, _ = call.q.shape
    logits = b * h * n * call.k.shape[-2] * max(call.q.element_size(), 4)
    fused = _cost(call)
    return Cost(fused.flops, fused.bytes + 4 * logits, 2 * logits, fused.problems)


def _examples() -> list[dict[str, Any]]:
    """Argument sets of the conformance test: odd sizes, cross attention, every kind of mask."""
    draw = torch.Generator().manual_seed(0)

    def qkv(b: int, h: int, n: int, m: int, d: int, e: int) -> dict[str, Tensor]:
        shapes = {"q": (b, h, n, d), "k": (b, h, m, d), "v": (b, h, m, e)}
        return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}

    pairwise = torch.rand(1, 1, 7, 65, generator=draw) > 0.5
    pairwise[..., 3, :] = False  # a query that may look at nothing
    padding = torch.arange(63) < torch.tensor([63, 40])[:, None, None, None]
    bias = torch.randn(2, 3, 63, 63, generator=draw).masked_fill(~padding, float("-inf"))
    return [
        qkv(1, 1, 1, 1, 1, 1),
        qkv(2, 3, 65, 65, 24, 24),
        qkv(2, 1, 7, 63, 80, 80) | {"scale": 0.3},
        qkv(1, 2, 9, 5, 8, 7),
        qkv(0, 2, 5, 5, 8, 8),
        qkv(2, 2, 7, 65, 31, 31) | {"mask": pairwise},
        qkv(2, 3, 63, 63, 7, 7) | {"mask": padding},
        qkv(2, 3, 63, 63, 16, 16) | {"mask": bias},
    ]


@operator(
    reference=_reference,
    cost=_reference_cost,
    paths=(Path("sdpa", _sdpa, never, _cost),),
    examples=_examples,
)
def softmax(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None) -> Call:
    """Scaled dot-product attention, not causal.

    Args:
        q: (B, heads, N, D) queries.
        k: (B, heads, M, D) keys.
        v: (B, heads, M, E) values.
        mask: broadcastable to (B, heads, N, M), same number of dimensions. Boolean: True = may be attended;
            floating: added to the logits. A query that may attend to nothing gives zeros. A key that no query
            may see never influences anything, even when it holds NaN.
        scale: factor on the logits; D ** -0.5 when None.
    Returns:
        (B, heads, N, E) in the dtype of q.
    Raises:
        ValueError: when shapes do not fit.
        TypeError: when dtypes differ outside autocast.
    Source: Vaswani et al., NeurIPS 2017, arXiv:1706.03762.
    """
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ValueError(
            f"softmax: q, k and v are (B, heads, tokens, dim), got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:2] != k.shape[:2]:
        raise ValueError(
            "softmax: q and k have to agree in batch, heads and head size, k and v in all but head size, "
            f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if mask is not None:
        full = (*q.shape[:3], k.shape[2])
        if mask.dim() != 4 or any(m not in (1, f) for m, f in zip(mask.shape, full)):
            raise ValueError(f"softmax: mask has to broadcast to {full} with four dimensions, got {tuple(mask.shape)}")
        if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
            raise TypeError(f"softmax: a mask is boolean (True = may be attended) or floating, got {mask.dtype}")
    q, k, v = one_dtype("softmax", q, k, v)
    return Call(q, k, v, mask, q.shape[-1] ** -0.5 if scale is None else scale)
