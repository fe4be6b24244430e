"""Bi-level routing attention: each region of a map attends to the tokens of the few regions nearest to it."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.kernels._operator import Path, never, one_dtype, operator
from foveal.kernels.cost import Cost

OPERATOR = {
    "computes": "softmax attention of each region's queries over the tokens of its topk most similar regions",
    "cost": "N·k",
    "limits": "self attention on a map; heads share one routing; no prefix tokens",
    "source": "Zhu et al., BiFormer, CVPR 2023, arXiv:2303.08810",
}

GATHER_BUDGET = 24 << 20  # bytes of gathered keys and values held at once: near a last-level cache


class Call(NamedTuple):
    """Checked arguments of `bilevel_routing`."""

    q: Tensor  # (B, H, W, C)
    k: Tensor  # (B, h, w, C)
    v: Tensor  # (B, h, w, E)
    heads: int
    rows: int
    cols: int
    table: Tensor | None  # (B, R, K) kept regions; None: every region is kept
    gains: Tensor | None  # (B, R, K)
    mask: Tensor | None  # (B or 1, h, w), True = may be attended
    scale: float


def split_regions(x: Tensor, rows: int, cols: int) -> Tensor:
    """(B, H, W, C) map -> (B, rows * cols, tokens of a region, C), regions and tokens in row-major order."""
    b, h, w, c = x.shape
    x = x.reshape(b, rows, h // rows, cols, w // cols, c)
    return x.transpose(2, 3).reshape(b, rows * cols, (h // rows) * (w // cols), c)


def join_regions(x: Tensor, rows: int, cols: int, height: int, width: int) -> Tensor:
    """The inverse of `split_regions`: (B, R, T, C) -> (B, height, width, C)."""
    b, c = x.shape[0], x.shape[-1]
    x = x.reshape(b, rows, cols, height // rows, width // cols, c)
    return x.transpose(2, 3).reshape(b, height, width, c)


def route(
    q: Tensor, k: Tensor, regions: tuple[int, int], topk: int, *, mask: Tensor | None = None, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The regions that each region keeps, and their logits.

    A region's descriptor is the mean of its tokens over all channels; kept are the ``topk`` regions with the largest
    inner product (all of them when there are fewer). Computed in float32 or wider.

    Args:
        q, k: (B, H, W, C) maps whose sides divide by ``regions``.
        regions: rows and columns of the grid of regions.
        topk: regions kept by each region.
        mask: (B or 1, H, W); tokens that are False do not count in means, and regions without any True come last.
        scale: factor on the logits.
    Returns:
        table (B, R, K) int64 and logits (B, R, K), K = min(topk, R).
    """
    rows, cols = regions
    wide = torch.promote_types(q.dtype, torch.float32)
    if mask is None:
        counts = None
        q_mean, k_mean = (_pool(x, rows, cols, wide) for x in (q, k))
    else:
        tokens = split_regions(mask[..., None], rows, cols)
        counts = tokens.sum(2)
        q_mean, k_mean = (
            split_regions(x, rows, cols).masked_fill(~tokens, 0).sum(2, dtype=wide) / counts.clamp(min=1)
            for x in (q, k)
        )
    logits = q_mean * scale @ k_mean.mT
    if counts is not None:
        logits = logits.masked_fill((counts == 0).mT, float("-inf"))
    kept, table = logits.topk(min(topk, rows * cols), dim=-1)
    return table, kept


def _pool(x: Tensor, rows: int, cols: int, wide: torch.dtype) -> Tensor:
    b, h, w, c = x.shape
    return x.reshape(b, rows, h // rows, cols, w // cols, c).mean((2, 4), dtype=wide).flatten(1, 2)


def _to_heads(x: Tensor, heads: int) -> Tensor:
    """(..., tokens, C) -> (..., heads, tokens, C / heads), a view."""
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(-3, -2)


def _hide(call: Call) -> tuple[Tensor, Tensor]:
    """Keys and values with zeros at masked tokens: 0 * NaN would still be NaN."""
    if call.mask is None:
        return call.k, call.v
    unseen = ~call.mask[..., None]
    return call.k.masked_fill(unseen, 0), call.v.masked_fill(unseen, 0)


def _region_count(call: Call) -> int:
    return call.rows * call.cols if call.table is None else call.table.shape[-1]


def _reference(call: Call) -> Tensor:
    b, height, width, _ = call.q.shape
    wide = torch.promote_types(call.q.dtype, torch.float32)
    grid = (call.rows, call.cols)
    k, v = (split_regions(x, *grid) for x in _hide(call))
    q = split_regions(call.q, *grid)
    regions = q.shape[1]
    every = torch.arange(regions, device=q.device).expand(b, regions, regions)
    table = every if call.table is None else call.table
    batch = torch.arange(b, device=q.device)[:, None, None]
    k, v = k.to(wide)[batch, table], v.to(wide)[batch, table]  # (B, R, K, t, C)
    if call.gains is not None:
        k, v = k * call.gains[..., None, None], v * call.gains[..., None, None]

    q, k, v = (_to_heads(x, call.heads) for x in (q.to(wide), k.flatten(2, 3), v.flatten(2, 3)))
    logits = q * call.scale @ k.mT  # (B, R, heads, T, K t)
    if call.mask is None:
        weights = logits.softmax(-1)
    else:
        tokens = split_regions(call.mask[..., None].expand(b, -1, -1, -1), *grid)
        allowed = tokens[batch, table].flatten(2)[:, :, None, None]
        rows = allowed.any(-1, keepdim=True)
        weights = logits.masked_fill(~allowed & rows, float("-inf")).softmax(-1).masked_fill(~rows, 0)
    out = (weights @ v).transpose(2, 3).flatten(3)
    return join_regions(out, *grid, height, width).to(call.q.dtype)


def _token_regions(size: tuple[int, int], rows: int, cols: int, device: torch.device) -> Tensor:
    """The region of each token of a map in raster order, (tokens,)."""
    down = torch.arange(size[0], device=device) // (size[0] // rows)
    across = torch.arange(size[1], device=device) // (size[1] // cols)
    return (down[:, None] * cols + across).flatten()


def _dense(call: Call) -> Tensor:
    """Every query sees every key of the map, what routing dropped is masked: no rearrangement at all."""
    b, height, width, _ = call.q.shape
    k, v = _hide(call)
    bias = None
    if call.table is not None:
        regions = call.rows * call.cols
        # a region that a table holds twice counts twice, as its gathered copies would: log 2 on its logits
        once = torch.ones((), dtype=call.q.dtype, device=call.q.device).expand(call.table.shape)
        bias = call.q.new_zeros((b, regions, regions)).scatter_add(-1, call.table, once).log()
        of_query = _token_regions((height, width), call.rows, call.cols, bias.device)
        of_key = _token_regions((k.shape[1], k.shape[2]), call.rows, call.cols, bias.device)
        bias = bias.index_select(2, of_key).index_select(1, of_query).unsqueeze(1)  # (B, 1, N, M)
    if call.mask is not None:
        hidden = ~call.mask.flatten(1)[:, None, None]
        shape = (b, 1, height * width, hidden.shape[-1])
        bias = (call.q.new_zeros(shape) if bias is None else bias).masked_fill(hidden, float("-inf"))

    q, k, v = (_to_heads(x.flatten(1, 2), call.heads) for x in (call.q, k, v))
    return _sdpa(q, k, v, bias, call).transpose(1, 2).flatten(2).unflatten(1, (height, width))


def _sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, call: Call) -> Tensor:
    if bias is None or call.mask is None:  # without a mask every query keeps at least one region
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=call.scale)
    blind = (bias == float("-inf")).all(-1, keepdim=True)
    bias = bias.masked_fill(blind, 0)
    return torch.where(blind, 0.0, F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=call.scale))


def _gather(call: Call) -> Tensor:
    """Kept regions copied as whole contiguous blocks, a few query regions at a time; heads stay strided views."""
    b, height, width, _ = call.q.shape
    grid = (call.rows, call.cols)
    regions = call.rows * call.cols
    q, k, v = (split_regions(x, *grid).flatten(0, 1) for x in (call.q, *_hide(call)))  # (B R, T, C)
    if call.table is None:
        table = torch.arange(regions, device=q.device).expand(b, regions, regions)
    else:
        table = call.table
    kept = table.shape[-1]
    index = (table + torch.arange(b, device=q.device)[:, None, None] * regions).flatten(0, 1)
    tokens = None
    if call.mask is not None:
        tokens = split_regions(call.mask[..., None].expand(b, -1, -1, -1), *grid).flatten(0, 1).squeeze(-1)
    gains = None if call.gains is None else call.gains.flatten(0, 1)[..., None, None]

    def some(chunk: slice) -> Tensor:
        rows = index[chunk].flatten()
        n = rows.shape[0] // kept

        def block(x: Tensor) -> Tensor:  # -> (n, heads, kept * t, d)
            picked = x.index_select(0, rows).reshape(n, kept, *x.shape[1:])
            if gains is not None:
                picked = picked * gains[chunk].to(x.dtype)
            return _to_heads(picked.flatten(1, 2), call.heads)

        bias = None
        if tokens is not None:
            seen = tokens.index_select(0, rows).reshape(n, 1, 1, kept * tokens.shape[1])
            bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, float("-inf"))
            bias = bias.expand(-1, -1, q.shape[1], -1)
        queries = _to_heads(q[chunk], call.heads)
        return _sdpa(queries, block(k), block(v), bias, call).transpose(1, 2).flatten(2)

    # a size that is known only when an exported program runs can't decide how many chunks there are
    size = b * regions if any(isinstance(n, torch.SymInt) for n in call.k.shape) else _chunk(call)
    if size >= b * regions:
        out = some(slice(None))
    else:
        out = torch.cat([some(slice(i, i + size)) for i in range(0, b * regions, size)])
    return join_regions(out.unflatten(0, (b, regions)), *grid, height, width)


def _chunk(call: Call) -> int:
    """Query regions whose gathered keys and values fit the budget."""
    each = call.k[0].numel() // (call.rows * call.cols) * _region_count(call) if call.k.shape[0] else 1
    return max(1, GATHER_BUDGET // max(1, 2 * each * call.k.element_size()))


def _permutation(call: Call) -> Tensor:
    """One kept region each: its tokens are read straight from the map, nothing is stored twice."""
    assert call.table is not None
    b, height, width, _ = call.q.shape
    rows, cols = call.rows, call.cols
    picked = call.table[..., 0]
    batch = torch.arange(b, device=picked.device)[:, None]
    down, across = picked // cols, picked % cols
    k, v = _hide(call)

    def block(x: Tensor) -> Tensor:  # -> (B R, heads, t, d)
        x = x.reshape(b, rows, x.shape[1] // rows, cols, x.shape[2] // cols, x.shape[3]).transpose(2, 3)
        return _to_heads(x[batch, down, across].flatten(0, 1).flatten(1, 2), call.heads)

    q = _to_heads(split_regions(call.q, rows, cols).flatten(0, 1), call.heads)
    bias = None
    if call.mask is not None:
        tokens = split_regions(call.mask[..., None].expand(b, -1, -1, -1), rows, cols).squeeze(-1)
        seen = tokens[batch, picked].flatten(0, 1)[:, None, None]
        bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, float("-inf"))
        bias = bias.expand(-1, -1, q.shape[2], -1)
    out = _sdpa(q, block(k), block(v), bias, call).transpose(1, 2).flatten(2)
    return join_regions(out.unflatten(0, (b, rows * cols)), rows, cols, height, width)


def _permutation_refuses(call: Call) -> str | None:
    if call.table is None or call.table.shape[-1] != 1:
        return f"it serves one kept region a query region, got {_region_count(call)}"
    if call.gains is not None:
        return "it can't weight kept regions"
    return None


def _dense_refuses(call: Call) -> str | None:
    return None if call.gains is None else "it can't weight kept regions"


def _sizes(call: Call) -> tuple[int, int, int, int, int]:
    """Bytes of the query map and of keys and values; queries a region, keys each query sees, regions in all."""
    size = call.q.element_size()
    kv = (call.k.numel() + call.v.numel()) * size
    regions = call.rows * call.cols
    tokens = call.q.shape[1] * call.q.shape[2] // regions
    keys = call.k.shape[1] * call.k.shape[2] // regions * _region_count(call)
    return call.q.numel() * size, kv, tokens, keys, call.q.shape[0] * regions


def _arithmetic(call: Call, keys: int) -> int:
    return 2 * call.q.shape[0] * call.q.shape[1] * call.q.shape[2] * keys * (call.q.shape[3] + call.v.shape[3])


def _cost(call: Call) -> Cost:
    """The definition: gathered keys and values and the attention matrix are written and read."""
    q, kv, tokens, keys, regions = _sizes(call)
    gathered = kv * _region_count(call)
    logits = regions * call.heads * tokens * keys * max(call.q.element_size(), 4)
    return Cost(_arithmetic(call, keys), 2 * q + kv + 4 * gathered + 4 * logits, 2 * gathered + 2 * logits, regions)


def _gather_cost(call: Call) -> Cost:
    q, kv, _, keys, regions = _sizes(call)
    gathered = kv * _region_count(call)
    peak = q * 2 + kv + min(gathered, GATHER_BUDGET)
    return Cost(_arithmetic(call, keys), 4 * q + 2 * kv + 2 * gathered, peak, regions * call.heads)


def _permutation_cost(call: Call) -> Cost:
    q, kv, _, keys, regions = _sizes(call)
    return Cost(_arithmetic(call, keys), 4 * q + 2 * kv, q * 2 + kv, regions * call.heads)


def _dense_cost(call: Call) -> Cost:
    q, kv, *_ = _sizes(call)
    b, height, width, _ = call.q.shape
    keys = call.k.shape[1] * call.k.shape[2]
    bias = 0 if call.table is None and call.mask is None else b * height * width * keys * call.q.element_size()
    return Cost(_arithmetic(call, keys), 2 * q + kv + (2 + call.heads) * bias, q + 2 * bias, b * call.heads)


def _examples() -> list[dict[str, Any]]:
    """Argument sets of the conformance test: uneven region shapes, top-1, all, pooled keys, masks, gains."""
    draw = torch.Generator().manual_seed(0)

    def maps(b: int, h: int, w: int, c: int, **more: Any) -> dict[str, Any]:
        return {name: torch.randn(b, h, w, c, generator=draw) for name in "qkv"} | more

    inside = torch.zeros(1, 9, 10, dtype=torch.bool)
    inside[:, :7, :8] = True
    corner = torch.zeros(2, 6, 6, dtype=torch.bool)
    corner[0, 4:, 4:] = True  # the second image has nothing to attend to
    table = torch.randint(0, 6, (2, 6, 2), generator=draw)
    pooled = maps(2, 6, 9, 12, num_heads=3, regions=(2, 3), table=table)
    pooled |= {name: torch.randn(2, 2, 3, 12, generator=draw) for name in "kv"}
    narrow = maps(1, 14, 7, 24, num_heads=3, regions=(7, 7), topk=5)
    narrow["v"] = torch.randn(1, 14, 7, 6, generator=draw)
    return [
        maps(1, 1, 1, 1, num_heads=1, regions=(1, 1), topk=1),
        maps(2, 14, 21, 14, num_heads=2, regions=(7, 7), topk=1),
        maps(2, 14, 14, 32, num_heads=4, regions=(7, 7), topk=16),
        maps(1, 6, 10, 80, num_heads=1, regions=(3, 5), topk=99, scale=0.2),
        maps(0, 4, 4, 8, num_heads=2, regions=(2, 2), topk=2),
        narrow,
        pooled,
        maps(2, 6, 9, 12, num_heads=3, regions=(2, 3), table=table, gains=torch.rand(2, 6, 2, generator=draw)),
        maps(2, 9, 10, 14, num_heads=2, regions=(3, 5), topk=4, mask=inside),
        maps(2, 6, 6, 8, num_heads=1, regions=(3, 3), topk=1, mask=corner),
    ]


def _pinned(arguments: dict[str, Any]) -> dict[str, Any]:
    """The routing as a table; the top region alone stays as ``topk``, which the permutation path needs."""
    if "topk" not in arguments:
        return arguments
    table = bilevel_routing._prepare(**arguments).table
    rest = {name: value for name, value in arguments.items() if name != "topk"}
    return rest | ({"topk": arguments["topk"]} if table is None else {"table": table})


@operator(
    reference=_reference,
    cost=_cost,
    paths=(
        Path("permutation", _permutation, _permutation_refuses, _permutation_cost),
        Path("dense", _dense, _dense_refuses, _dense_cost),
        Path("gather", _gather, never, _gather_cost),
    ),
    examples=_examples,
    pinned=_pinned,
)
def bilevel_routing(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_heads: int,
    regions: tuple[int, int],
    topk: int | None = None,
    table: Tensor | None = None,
    gains: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Call:
    """Attention within a map where each region sees the tokens of few regions, the same ones for all heads.

    Args:
        q: (B, H, W, C) queries; head h takes channels h * C / heads to (h + 1) * C / heads.
        k: (B, h, w, C) keys; v: (B, h, w, E) values. h, w may be smaller (pooled) when ``table`` is given.
        num_heads: divides C and E.
        regions: rows and columns of regions; they divide H and h, W and w.
        topk: regions to keep, found by `route` on q and k (no gradient flows through the choice); more than there
            are means all. Either this or ``table``.
        table: (B, R, K) int64, kept regions of each region, row-major, from `route` or from anywhere.
        gains: (B, R, K) factors on the keys and the values of each kept region (soft routing).
        mask: (B or 1, h, w) bool, True = may be attended. A masked token never influences anything, even when it
            holds NaN; a query left with nothing gives zeros.
        scale: factor on the logits; C ** -0.5 when None, with C the width of all heads as in the original code.
    Returns:
        (B, H, W, E).
    Raises:
        ValueError: when shapes do not fit, or not exactly one of topk and table is given.
        TypeError: when dtypes differ outside autocast.
    Source: Zhu et al., BiFormer, CVPR 2023, arXiv:2303.08810.
    """
    rows, cols = regions
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ValueError(
            f"bilevel_routing: q, k, v are (B, H, W, C), got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if q.shape[-1] != k.shape[-1] or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise ValueError(
            "bilevel_routing: q and k have to agree in batch and channels, k and v in all but channels, "
            f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if num_heads < 1 or rows < 1 or cols < 1:
        raise ValueError(f"bilevel_routing: num_heads and regions have to be 1 or more, got {num_heads} and {regions}")
    if q.shape[-1] % num_heads or v.shape[-1] % num_heads:
        raise ValueError(f"bilevel_routing: {num_heads} heads do not divide {q.shape[-1]} or {v.shape[-1]} channels")
    for x in (q, k):
        if x.shape[1] % rows or x.shape[2] % cols:
            raise ValueError(f"bilevel_routing: {rows}x{cols} regions do not divide a {x.shape[1]}x{x.shape[2]} map")
    if (topk is None) == (table is None):
        raise ValueError("bilevel_routing: give either topk or table")
    if topk is not None and topk < 1:
        raise ValueError(f"bilevel_routing: topk has to be 1 or more, got {topk}")
    if mask is not None and (
        mask.dtype != torch.bool or mask.shape[1:] != k.shape[1:3] or mask.shape[0] not in (1, k.shape[0])
    ):
        raise ValueError(
            f"bilevel_routing: mask has to be boolean of shape {tuple(k.shape[:3])}, "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    q, k, v = one_dtype("bilevel_routing", q, k, v)
    count = rows * cols
    if topk is not None:
        if q.shape[1:3] != k.shape[1:3]:
            raise ValueError(
                f"bilevel_routing: topk needs q and k maps of one size, got {tuple(q.shape)} and {tuple(k.shape)}"
            )
        if topk < count:
            table, _ = route(q.detach(), k.detach(), regions, topk, mask=mask)
    elif table is not None and (table.dim() != 3 or table.shape[:2] != (q.shape[0], count)):
        raise ValueError(f"bilevel_routing: table has to be ({q.shape[0]}, {count}, K), got {tuple(table.shape)}")
    if gains is not None and (table is None or gains.shape != table.shape):
        raise ValueError("bilevel_routing: gains need a table of the same shape")
    return Call(
        q, k, v, num_heads, rows, cols, table, gains, mask, q.shape[-1] ** -0.5 if scale is None else scale
    )
