"""Routed attention in the arrangement of the original code, as the fact sheet describes it: the rival to beat.

Keys and values are gathered once for every query region, then copied into head order, then two matrix products with
a stored softmax between them. Same signature and result as `foveal.kernels.bilevel_routing.bilevel_routing`.
"""

from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor, nn

from foveal.kernels.bilevel_routing import join_regions, route, split_regions
from foveal.zoo.families.biformer import BiFormer


def bilevel_routing(
    q: Tensor, k: Tensor, v: Tensor, *, num_heads: int, regions: tuple[int, int], topk: int, mask=None, scale=None
) -> Tensor:
    """(B, H, W, C) maps -> (B, H, W, C); masks do not exist in this arrangement."""
    assert mask is None
    b, height, width, c = q.shape
    scale = c**-0.5 if scale is None else scale
    table, _ = route(q, k, regions, topk)
    count, kept = regions[0] * regions[1], table.shape[-1]
    q, kv = split_regions(q, *regions), split_regions(torch.cat([k, v], -1), *regions)
    tokens = kv.shape[2]
    spread = kv[:, None].expand(b, count, count, tokens, kv.shape[-1])
    index = table[..., None, None].expand(b, count, kept, tokens, kv.shape[-1])
    picked = torch.gather(spread, 2, index).reshape(b * count, kept * tokens, kv.shape[-1])
    k, v = picked.split([c, kv.shape[-1] - c], -1)
    k = k.reshape(b * count, kept * tokens, num_heads, -1).permute(0, 2, 3, 1).contiguous()
    v = v.reshape(b * count, kept * tokens, num_heads, -1).transpose(1, 2).contiguous()
    q = q.reshape(b * count, q.shape[2], num_heads, -1).transpose(1, 2).contiguous()
    out = ((q * scale) @ k).softmax(-1) @ v
    out = out.transpose(1, 2).reshape(b, count, -1, out.shape[1] * out.shape[-1])
    return join_regions(out, *regions, height, width)


def softmax(q: Tensor, k: Tensor, v: Tensor, *, mask=None) -> Tensor:
    """Attention with a stored matrix, as the last stage of the original has it."""
    assert mask is None
    return ((q * q.shape[-1] ** -0.5) @ k.mT).softmax(-1) @ v


def depthwise_on_map(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolutions of the original see NCHW copies of NHWC data."""
    return conv(x.permute(0, 3, 1, 2).contiguous()).permute(0, 2, 3, 1)


def stage(self: BiFormer, i: int, x: Tensor) -> Tensor:
    """Stages hand on NCHW maps; inside a block the residual stream is a view of them."""
    x = self.downsample_layers[i](x.contiguous()).permute(0, 2, 3, 1)
    for block in self._blocks(i):
        x = block(x)
    return x.permute(0, 3, 1, 2)


@contextmanager
def original_arrangement():
    """Within the block our BiFormer runs in the arrangement above."""
    with ExitStack() as stack:
        for module in ("attention.bilevel_routing", "attention.softmax", "families.biformer"):
            stack.enter_context(mock.patch(f"foveal.zoo.{module}.depthwise_on_map", depthwise_on_map))
        stack.enter_context(mock.patch("foveal.zoo.attention.bilevel_routing.bilevel_routing", bilevel_routing))
        stack.enter_context(mock.patch("foveal.zoo.attention.softmax.softmax", softmax))
        stack.enter_context(mock.patch.object(BiFormer, "_stage", stage))
        yield
