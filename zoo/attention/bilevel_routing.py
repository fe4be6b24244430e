"""Bi-level routing attention (BiFormer) with the parameter names of the original code, in its two layouts."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.kernels.bilevel_routing import bilevel_routing, route
from foveal.zoo.attention._common import (
    PointwiseLinear,
    check_grid,
    check_mask,
    depthwise_on_map,
    head_size,
    hide,
    varies,
)

ATTENTION = {
    "class": "BilevelRoutingAttention",
    "operator": "bilevel_routing",
    "cost": "N·k",
    "needs_grid": True,
    "prefix": False,
    "mask": True,
    "cross": False,
    "source": "Zhu et al., BiFormer, CVPR 2023, arXiv:2303.08810",
}


class _QKV(nn.Module):
    """One linear for q, k, v; a module of its own because released checkpoints name it qkv.qkv."""

    def __init__(self, dim: int, qk_dim: int, bias: bool):
        super().__init__()
        self.qkv = nn.Linear(dim, 2 * qk_dim + dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.qkv(x)


class _Router(nn.Module):
    """The linear of parametrised routing, shared by region queries and keys."""

    def __init__(self, dim: int):
        super().__init__()
        self.emb = nn.Linear(dim, dim)


class BilevelRoutingAttention(nn.Module):
    """Routed attention on a token map, for any map size.

    Args:
        dim: channels of the tokens; divisible by ``num_heads``.
        qk_dim: width of queries and keys; ``dim`` when None. The softmax scale is qk_dim ** -0.5.
        n_win: regions a side; a map that does not divide is padded inside.
        topk: regions that each region attends to; all when there are fewer.
        side_dwconv: kernel size of the depthwise convolution on v that is added before ``wo``; 0 for none.
        auto_pad: pad like the original's auto_pad, where padding takes part in everything; otherwise padding is
            masked and no real position depends on it. Both agree on maps that divide.
        kv_per_win: pool keys and values to this many a side in each region before they are gathered.
        soft_routing: weight kept keys and values by the softmax of their routing logits.
        param_routing: a linear on region queries and keys; without soft_routing no gradient reaches it, so it is
            frozen then.
    Raises:
        ValueError: when dim, num_heads, topk or n_win do not fit.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qkv_bias: bool = True,
        qk_dim: int | None = None,
        n_win: int = 7,
        topk: int = 4,
        side_dwconv: int = 5,
        auto_pad: bool = False,
        kv_per_win: int | None = None,
        soft_routing: bool = False,
        param_routing: bool = False,
    ):
        super().__init__()
        owner = type(self).__name__
        self.qk_dim = dim if qk_dim is None else qk_dim
        for width in (dim, self.qk_dim):
            head_size(width, num_heads, owner)
        if topk < 1 or n_win < 1:
            raise ValueError(f"{owner}: topk and n_win have to be 1 or more, got topk={topk}, n_win={n_win}")
        self.dim, self.num_heads, self.n_win, self.topk = dim, num_heads, n_win, topk
        self.auto_pad, self.kv_per_win, self.soft_routing = auto_pad, kv_per_win, soft_routing
        self.scale = self.qk_dim**-0.5
        self.lepe = nn.Conv2d(dim, dim, side_dwconv, padding=side_dwconv // 2, groups=dim) if side_dwconv else None
        self.router = _Router(self.qk_dim).requires_grad_(soft_routing) if param_routing else None
        self._build_projections(qkv_bias)

    def _build_projections(self, bias: bool) -> None:
        self.qkv = _QKV(self.dim, self.qk_dim, bias)
        self.wo = nn.Linear(self.dim, self.dim)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        grid: tuple[int, int] | None = None,
        context_grid: tuple[int, int] | None = None,
        prefix: int = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C) tokens of a map -> (B, N, C).

        Args:
            context, context_grid, prefix: not supported; an error when given.
            grid: (height, width), row-major.
            mask: (B, N) bool, True = may be attended; nothing else depends on a token that is False, even when it
                holds NaN, and the convolution sees zeros in its place.
        Raises:
            ValueError: on an unsupported argument, or a grid or mask that does not fit.
        """
        owner = type(self).__name__
        if context is not None or context_grid is not None or prefix:
            raise ValueError(f"{owner}: routes within one map, it takes neither context nor prefix tokens")
        height, width = check_grid(x, grid, 0, owner)
        if mask is not None:
            check_mask(x, mask, owner)
            x, mask = hide(x, mask), mask.unflatten(1, (height, width))
        return self._on_map(x.unflatten(1, (height, width)), mask).flatten(1, 2)

    def _on_map(self, x: Tensor, mask: Tensor | None) -> Tensor:
        height, width = x.shape[1:3]
        if self.auto_pad:
            x = _pad(x, -height % self.n_win, -width % self.n_win)
            if mask is not None:
                mask = _pad_mask(mask, x.shape[1], x.shape[2])
        q, k, v = self.qkv(x).split([self.qk_dim, self.qk_dim, self.dim], -1)
        # the fewest regions of this size that cover the map: regions that are all padding do not exist
        # (no -(-n // m): ONNX divides towards zero)
        sides = [(n + self.n_win - 1) // self.n_win for n in x.shape[1:3]]
        out = self._attend(q, k, v, (sides[0], sides[1]), mask)
        return self.wo(self._enhance(out, v, mask))[:, :height, :width]

    def _enhance(self, out: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if self.lepe is None:
            return out
        return out + depthwise_on_map(self.lepe, v if mask is None else hide(v, mask))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, region: tuple[int, int], mask: Tensor | None) -> Tensor:
        """Routed attention over regions of ``region`` tokens, padding masked."""
        height, width = q.shape[1:3]
        if varies(height, width):
            return self._attend_any_size(q, k, v, region, mask)
        down, across = -height % region[0], -width % region[1]
        if down or across:
            q, k, v = (_pad(t, down, across) for t in (q, k, v))
            if mask is None:
                mask = torch.ones((1, height, width), dtype=torch.bool, device=q.device)
            mask = _pad_mask(mask, height + down, width + across)
        regions = (q.shape[1] // region[0], q.shape[2] // region[1])
        return self._route(q, k, v, regions, mask)[:, :height, :width]

    def _attend_any_size(self, q: Tensor, k: Tensor, v: Tensor, region: tuple[int, int], mask: Tensor | None) -> Tensor:
        """`_attend` for sizes that vary: always n_win regions a side, all of the last ones may be padding.

        The map is laid out as one row a region, so that the shape of a region is a matter of indices.
        """
        height, width = q.shape[1:3]
        (down, across), n, device = region, self.n_win, q.device
        count, tokens = torch.arange(n, device=device), down * across
        row = torch.arange(n * down, device=device).view(n, 1, down, 1)
        col = torch.arange(n * across, device=device).view(1, n, 1, across)
        inside = ((row < height) & (col < width)).flatten()
        source = (row * width + col).flatten() * inside
        q, k, v = (t.flatten(1, 2).index_select(1, source).unflatten(1, (n * n, tokens)) for t in (q, k, v))
        seen = inside.repeat(q.shape[0], 1)
        if mask is not None:
            seen = mask.flatten(1).index_select(1, source) & seen
        out = self._route(q, k, v, (n * n, 1), seen.unflatten(1, (n * n, tokens)))
        # where each row and each column of the map lies in that layout
        down_to = (count[:, None] * (n * tokens) + torch.arange(down, device=device) * across).flatten()
        across_to = (count[:, None] * tokens + torch.arange(across, device=device)).flatten()
        down_to = down_to.index_select(0, torch.arange(height, device=device))
        across_to = across_to.index_select(0, torch.arange(width, device=device))
        back = (down_to[:, None] + across_to).flatten()
        return out.flatten(1, 2).index_select(1, back).unflatten(1, (height, width))

    def _route(self, q: Tensor, k: Tensor, v: Tensor, regions: tuple[int, int], mask: Tensor | None) -> Tensor:
        plain = self.kv_per_win is None and not self.soft_routing and self.router is None
        options: dict[str, Any] = {"num_heads": self.num_heads, "regions": regions, "mask": mask, "scale": self.scale}
        if plain:
            return bilevel_routing(q, k, v, topk=self.topk, **options)
        return self._with_ablations(q, k, v, options)

    def _with_ablations(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
        """The variants of the paper's ablations: pooled keys and values, soft and parametrised routing."""
        regions, mask = options["regions"], options["mask"]
        # the mean of linear outputs is the linear of the mean, so `route` may average afterwards
        route_q, route_k = (q, k) if self.router is None else (self.router.emb(q), self.router.emb(k))
        table, logits = route(route_q, route_k, regions, self.topk, mask=mask, scale=self.scale)
        if self.soft_routing:
            blind = logits.amax(-1, keepdim=True) == float("-inf")  # everything is masked: 0/0
            options["gains"] = logits.masked_fill(blind, 0).softmax(-1).to(q.dtype)
        if self.kv_per_win is not None:
            if mask is not None:
                raise ValueError(
                    "BilevelRoutingAttention: kv_per_win pools whole regions, it can't honour a mask or the padding "
                    f"of a map that does not divide by n_win={self.n_win} (auto_pad=True pads without a mask)"
                )
            k, v = (_pool_regions(t, regions, self.kv_per_win) for t in (k, v))
        return bilevel_routing(q, k, v, table=table, **options)


class BilevelRoutingAttentionNCHW(BilevelRoutingAttention):
    """The variant behind ``biformer_stl_nchw``: 1x1 convolutions for weights and another rule for uneven maps.

    A region has floor(size / n_win) tokens a side, so an uneven map has more than n_win regions. Padding comes after
    the projection and takes part in attention as zero keys and values, but not in the region means.
    Arguments are those of `BilevelRoutingAttention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qkv_bias: bool = True,
        n_win: int = 7,
        topk: int = 4,
        side_dwconv: int = 5,
    ):
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, n_win=n_win, topk=topk, side_dwconv=side_dwconv)

    def _build_projections(self, bias: bool) -> None:
        self.qkv_linear = PointwiseLinear(self.dim, 2 * self.qk_dim + self.dim, bias=bias)
        self.output_linear = PointwiseLinear(self.dim, self.dim)

    def _on_map(self, x: Tensor, mask: Tensor | None) -> Tensor:
        height, width = x.shape[1:3]
        if varies(height, width):
            raise ValueError(
                f"{type(self).__name__}: how many regions it has depends on the size of the map, no exported program "
                "can vary that"
            )
        q, k, v = self.qkv_linear(x).split([self.qk_dim, self.qk_dim, self.dim], -1)
        region = (max(1, height // self.n_win), max(1, width // self.n_win))
        down, across = -height % region[0], -width % region[1]
        if (down or across) and mask is None:
            out = self._attend_unmasked([_pad(t, down, across) for t in (q, k, v)], region, (height, width))
        else:
            out = self._attend(q, k, v, region, mask)
        return self.output_linear(self._enhance(out, v, mask))

    def _attend_unmasked(self, qkv: list[Tensor], region: tuple[int, int], size: tuple[int, int]) -> Tensor:
        """Routed attention over a map that is padded already and is ``size`` without its padding."""
        q, k, v = qkv
        real = _pad_mask(torch.ones((1, *size), dtype=torch.bool, device=q.device), q.shape[1], q.shape[2])
        regions = (q.shape[1] // region[0], q.shape[2] // region[1])
        with torch.no_grad():
            table, _ = route(q, k, regions, self.topk, mask=real)
        out = bilevel_routing(q, k, v, num_heads=self.num_heads, regions=regions, table=table, scale=self.scale)
        return out[:, : size[0], : size[1]]


def _pad(x: Tensor, down: int, across: int) -> Tensor:
    """Zeros below and right of a (B, H, W, C) map."""
    return F.pad(x, (0, 0, 0, across, 0, down)) if varies(down, across) or down or across else x


def _pad_mask(mask: Tensor, height: int, width: int) -> Tensor:
    return F.pad(mask, (0, width - mask.shape[2], 0, height - mask.shape[1]))


def _pool_regions(x: Tensor, regions: tuple[int, int], size: int) -> Tensor:
    """Adaptive mean pooling of each region to size x size, cells overlapping where its sides do not divide."""
    b, height, width, c = x.shape
    x = x.reshape(b, regions[0], height // regions[0], regions[1], width // regions[1], c)
    x = x.permute(0, 1, 3, 5, 2, 4).flatten(0, 2)
    x = F.adaptive_avg_pool2d(x, size).unflatten(0, (b, *regions))  # (B, rows, cols, C, size, size)
    return x.permute(0, 1, 4, 2, 5, 3).reshape(b, regions[0] * size, regions[1] * size, c)
