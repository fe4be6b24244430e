"""Softmax attention with its projections, optionally with a depthwise convolution beside it."""

import torch
from torch import Tensor, nn

from foveal.kernels.softmax import softmax
from foveal.zoo.attention._common import check_grid, check_mask, depthwise_on_map, head_size, hide

ATTENTION = {
    "class": "SoftmaxAttention",
    "operator": "softmax",
    "cost": "N²",
    "needs_grid": False,
    "prefix": True,
    "mask": True,
    "cross": True,
    "source": "Vaswani et al., NeurIPS 2017, arXiv:1706.03762",
}


class SoftmaxAttention(nn.Module):
    """Multi-head softmax attention with the parameter names of timm's ViT (qkv, proj).

    Args:
        dim: channels of the tokens; divisible by ``num_heads``.
        side_dwconv: kernel size of a depthwise convolution over the map added before ``proj`` (local enhancement);
            0 for none. Needs ``grid``.
        enhance: what that convolution reads, "input" or "value".
        linear: class of the projections.
    Raises:
        ValueError: when dim and num_heads do not fit.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qkv_bias: bool = True,
        side_dwconv: int = 0,
        enhance: str = "input",
        linear: type[nn.Module] = nn.Linear,
    ):
        super().__init__()
        head_size(dim, num_heads, type(self).__name__)
        self.num_heads = num_heads
        self.enhance = enhance
        self.qkv = linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = linear(dim, dim)
        self.lepe = nn.Conv2d(dim, dim, side_dwconv, padding=side_dwconv // 2, groups=dim) if side_dwconv else None

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
        """(B, N, C) tokens -> (B, N, C).

        Args:
            context: (B, M, C) tokens that give keys and values; x itself when None.
            grid: (height, width) of the tokens behind the prefix; needed with ``side_dwconv``.
            context_grid: not used by this attention.
            prefix: tokens in front that are not part of the map.
            mask: (B, M) bool, True = may be attended; nothing else depends on a token that is False, even when it
                holds NaN, and the convolution sees zeros in its place. Or any four-dimensional mask of
                `kernels.softmax`, which the convolution does not heed.
        Raises:
            ValueError: on a context with ``side_dwconv``, or a grid or mask that does not fit.
        """
        if self.lepe is not None and context is not None:
            raise ValueError("SoftmaxAttention: side_dwconv is a convolution of the map itself, it has no context form")
        seen = None
        if mask is not None and mask.dim() != 4:
            check_mask(x if context is None else context, mask, type(self).__name__)
            seen, mask = mask, mask[:, None, None]
            if context is None:
                x = hide(x, seen)
            else:
                context = hide(context, seen)
        if context is None:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            q, (k, v) = self.qkv(x).chunk(3, -1)[0], self.qkv(context).chunk(3, -1)[1:]
        heads = (t.unflatten(-1, (self.num_heads, t.shape[-1] // self.num_heads)).transpose(1, 2) for t in (q, k, v))
        out = softmax(*heads, mask=mask).transpose(1, 2).flatten(2)
        if self.lepe is not None:
            height, width = check_grid(x, grid, prefix, type(self).__name__)
            source = x if self.enhance == "input" else v
            source = (source if seen is None else hide(source, seen))[:, prefix:]
            side = depthwise_on_map(self.lepe, source.unflatten(1, (height, width))).flatten(1, 2)
            out = out + (side if not prefix else torch.cat([torch.zeros_like(out[:, :prefix]), side], 1))
        return self.proj(out)
