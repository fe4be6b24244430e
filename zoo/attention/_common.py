"""What attention modules share: head checks, and linear layers whose weights are stored as 1x1 convolutions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def head_size(dim: int, num_heads: int, owner: str) -> int:
    """Channels of one head.

    Raises:
        ValueError: naming the nearest head counts that divide ``dim``.
    """
    if num_heads > 0 and dim % num_heads == 0:
        return dim // num_heads
    divisors = sorted((n for n in range(1, dim + 1) if dim % n == 0), key=lambda n: (abs(n - num_heads), n))
    near = " or ".join(str(n) for n in sorted(divisors[:2]))
    raise ValueError(f"{owner}: dim {dim} is not divisible by num_heads {num_heads}; the nearest that fit are {near}")


def varies(*sizes: int) -> bool:
    """Whether any of these sizes is known only when an exported program runs, so that no code may branch on them."""
    return any(isinstance(size, torch.SymInt) for size in sizes)


class PointwiseLinear(nn.Conv2d):
    """A linear layer on the last axis whose weight is (out, in, 1, 1), as checkpoints of NCHW code have it."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__(in_features, out_features, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight[:, :, 0, 0], self.bias)


def hide(x: Tensor, mask: Tensor) -> Tensor:
    """(B, N, C) tokens, or a (B, H, W, C) map, with zeros where the boolean ``mask`` is False."""
    return x.masked_fill(~mask[..., None], 0)


def depthwise_on_map(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """A depthwise convolution applied to a (B, H, W, C) map, channels last throughout."""
    return conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def check_grid(x: Tensor, grid: tuple[int, int] | None, prefix: int, owner: str) -> tuple[int, int]:
    """The (height, width) of the token map behind ``prefix`` tokens.

    Raises:
        ValueError: when it is missing or does not fit the token count.
    """
    if grid is None:
        raise ValueError(f"{owner}: needs grid=(height, width) of its tokens")
    if grid[0] * grid[1] + prefix != x.shape[1]:
        raise ValueError(f"{owner}: grid {grid} and {prefix} prefix tokens do not make {x.shape[1]} tokens")
    return grid


def check_mask(x: Tensor, mask: Tensor, owner: str) -> None:
    """Refuses what is not one boolean a token.

    Raises:
        ValueError: when dtype or shape do not fit the (B, N, C) tokens.
    """
    if mask.dtype != torch.bool or mask.dim() != 2 or mask.shape[1] != x.shape[1] or mask.shape[0] not in (1, len(x)):
        raise ValueError(
            f"{owner}: mask has to be boolean of shape {tuple(x.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}"
        )
