"""BiFormer: a hierarchical backbone on bi-level routing attention.

Paper: Zhu et al., BiFormer: Vision Transformer with Bi-Level Routing Attention, CVPR 2023, arXiv:2303.08810.
Parameter names, sizes and padding follow the authors' code (rayleizhu/BiFormer, MIT); the code here is our own.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foveal.zoo.attention._common import PointwiseLinear, depthwise_on_map, varies
from foveal.zoo.attention.bilevel_routing import BilevelRoutingAttention, BilevelRoutingAttentionNCHW
from foveal.zoo.attention.softmax import SoftmaxAttention
from foveal.zoo.features import take_indices

FAMILY = {
    "class": "BiFormer",
    "attention": "bilevel_routing",
    "tasks": ["classification", "features"],
    "any_size": True,
    "source": "Zhu et al., BiFormer, CVPR 2023, arXiv:2303.08810",
}

VARIANTS = {
    "biformer_tiny": {"depths": (2, 2, 8, 2), "dims": (64, 128, 256, 512), "num_heads": (2, 4, 8, 8)},
    "biformer_small": {"depths": (4, 4, 18, 4), "dims": (64, 128, 256, 512), "num_heads": (2, 4, 8, 8)},
    "biformer_base": {"depths": (4, 4, 18, 4), "dims": (96, 192, 384, 768), "num_heads": (3, 6, 12, 8)},
    "biformer_stl": {
        "layout": "swin", "depths": (2, 2, 6, 2), "dims": (96, 192, 384, 768), "num_heads": (3, 6, 12, 8),
        "mlp_ratio": 4.0,
    },
    "biformer_stl_nchw": {
        "layout": "swin_nchw", "depths": (2, 2, 6, 2), "dims": (96, 192, 384, 768), "num_heads": (3, 6, 12, 8),
        "mlp_ratio": 4.0,
    },
    # ours, for pictures of 28x28: half the stem stride, three stages
    "biformer_nano": {
        "depths": (1, 2, 2), "dims": (32, 64, 128), "num_heads": (2, 4, 8), "mlp_ratio": 2.0, "topk": (8, 16, None),
        "stem_stride": 2, "img_size": 28,
    },
}  # fmt: skip


@dataclass(frozen=True)
class BiFormerCfg:
    """Everything that makes a variant.

    Attributes:
        topk: regions kept in each stage; None is full attention (which needs no routing), an int as large as the
            number of regions is routed attention that keeps all.
        layout: "conv" (overlapping convolutional stem, positional convolution in each block), "swin" (patches and
            patch merging as Swin's), "swin_nchw" (the same from 1x1 convolutions, with the NCHW padding rule).
        n_win: regions a side in routed stages.
        auto_pad: pad uneven maps as the original's auto_pad does, unmasked; default is masked padding.
        out_norms: a LayerNorm for each output of a feature pyramid, as the dense variants have.
        stem_stride: stride of the first stage's map, 4 or 2 ("conv" layout only).
    """

    depths: tuple[int, ...]
    dims: tuple[int, ...]
    num_heads: tuple[int, ...]
    mlp_ratio: float = 3.0
    topk: tuple[int | None, ...] = (1, 4, 16, None)
    layout: str = "conv"
    n_win: int = 7
    auto_pad: bool = False
    out_norms: bool = False
    stem_stride: int = 4
    img_size: int = 224

    def __post_init__(self) -> None:
        for name in ("depths", "dims", "num_heads", "topk"):
            if not isinstance(getattr(self, name), Sequence):
                raise TypeError(f"BiFormer: {name} needs one entry a stage, got {getattr(self, name)!r}")
        stages = {len(self.depths), len(self.dims), len(self.num_heads), len(self.topk)}
        if len(stages) != 1:
            raise ValueError(
                "BiFormer: depths, dims, num_heads and topk need one entry a stage, "
                f"got {len(self.depths)}, {len(self.dims)}, {len(self.num_heads)} and {len(self.topk)}"
            )
        if self.layout not in ("conv", "swin", "swin_nchw"):
            raise ValueError(f"BiFormer: layout is conv, swin or swin_nchw, got {self.layout!r}")
        if self.stem_stride not in ((2, 4) if self.layout == "conv" else (4,)):
            raise ValueError(f"BiFormer: stem_stride {self.stem_stride} does not exist for the {self.layout} layout")
        if self.auto_pad and self.layout == "swin_nchw":
            raise ValueError("BiFormer: the NCHW layout has its own padding rule, auto_pad does not apply")


class BatchNorm2d(nn.BatchNorm2d):
    """Batch norm that says which layer it is where a training batch leaves it a single value a channel."""

    name = "BatchNorm2d"  # its place in the model

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] * x.shape[2] * x.shape[3] == 1:
            raise ValueError(
                f"BiFormer: {self.name} (BatchNorm2d) can't train on one value a channel, which is all that is left of "
                "one small picture; use a batch of 2 or more (drop_last=True in the loader) or a larger picture"
            )
        return super().forward(x)


def _check_count(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"BiFormer: {name} is a whole number of at least {least}, got {value!r}")


class PatchConv2d(nn.Conv2d):
    """A convolution with stride = kernel that covers any size: zeros are added below and right."""

    def forward(self, x: Tensor) -> Tensor:
        down, across = (-n % s for n, s in zip(x.shape[-2:], self.stride))
        return super().forward(F.pad(x, (0, across, 0, down)) if varies(down, across) or down or across else x)


class Block(nn.Module):
    """Positional convolution (conv layout), attention, MLP, each with a residual; on (B, H, W, C) maps."""

    def __init__(self, cfg: BiFormerCfg, stage: int, drop_path: float):
        super().__init__()
        dim, heads, topk = cfg.dims[stage], cfg.num_heads[stage], cfg.topk[stage]
        nchw = cfg.layout == "swin_nchw"
        linear: type[nn.Module] = PointwiseLinear if nchw else nn.Linear
        self.pos_embed = nn.Conv2d(dim, dim, 3, padding=1, groups=dim) if cfg.layout == "conv" else None
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn: nn.Module
        if topk is None:
            self.attn = SoftmaxAttention(
                dim, heads, qkv_bias=False, side_dwconv=5, enhance="value" if nchw else "input", linear=linear
            )
        elif nchw:
            self.attn = BilevelRoutingAttentionNCHW(dim, heads, n_win=cfg.n_win, topk=topk)
        else:
            self.attn = BilevelRoutingAttention(dim, heads, n_win=cfg.n_win, topk=topk, auto_pad=cfg.auto_pad)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        hidden = int(cfg.mlp_ratio * dim)
        # index 1 held an optional depthwise convolution in the authors' conv layout: released keys are mlp.0, mlp.3
        between = [nn.Identity()] if cfg.layout == "conv" else []
        self.mlp = nn.Sequential(linear(dim, hidden), *between, nn.GELU(), linear(hidden, dim))
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        grid = (x.shape[1], x.shape[2])
        if self.pos_embed is not None:
            x = x + depthwise_on_map(self.pos_embed, x)
        mixed = self.attn(self.norm1(x).flatten(1, 2), grid=grid)
        x = x + self.drop_path(mixed.unflatten(1, grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class MergedStage(nn.Module):
    """A stage of the swin layouts, whose blocks are named stages.i.blocks.j."""

    def __init__(self, blocks: list[Block]):
        super().__init__()
        self.blocks = nn.Sequential(*blocks)


def _stem(cfg: BiFormerCfg, in_chans: int) -> nn.Sequential:
    dim = cfg.dims[0]
    if cfg.layout != "conv":
        return nn.Sequential(PatchConv2d(in_chans, dim, 4, stride=4), BatchNorm2d(dim))
    return nn.Sequential(
        nn.Conv2d(in_chans, dim // 2, 3, stride=2, padding=1),
        BatchNorm2d(dim // 2),
        nn.GELU(),
        nn.Conv2d(dim // 2, dim, 3, stride=cfg.stem_stride // 2, padding=1),
        BatchNorm2d(dim),
    )


def _downsample(cfg: BiFormerCfg, stage: int) -> nn.Sequential:
    before, after = cfg.dims[stage - 1], cfg.dims[stage]
    if cfg.layout != "conv":
        return nn.Sequential(BatchNorm2d(before), PatchConv2d(before, after, 2, stride=2))
    return nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1), BatchNorm2d(after))


class BiFormer(nn.Module):
    """The backbone with timm's surface. Any input size from 1x1 up, rectangles included; NCHW in, NCHW features out."""

    def __init__(
        self,
        cfg: BiFormerCfg,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        self.cfg = cfg
        _check_count("in_chans", in_chans, 1)
        _check_count("num_classes", num_classes, 0)
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = self.embed_dim = cfg.dims[-1]
        self.grad_checkpointing = False
        stages = range(len(cfg.depths))
        self.downsample_layers = nn.ModuleList(
            _stem(cfg, in_chans) if i == 0 else _downsample(cfg, i) for i in stages
        )
        rates = iter(torch.linspace(0, drop_path_rate, sum(cfg.depths), device="cpu").tolist())
        self.stages = nn.ModuleList()
        for i in stages:
            blocks = [Block(cfg, i, rate) for rate in itertools.islice(rates, cfg.depths[i])]
            self.stages.append(nn.Sequential(*blocks) if cfg.layout == "conv" else MergedStage(blocks))
        self.norm: nn.Module = BatchNorm2d(self.num_features)
        self.drop = nn.Dropout(drop_rate)
        self.head: nn.Module = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.extra_norms = nn.ModuleList(nn.LayerNorm(d, eps=1e-6) for d in cfg.dims) if cfg.out_norms else None
        self.feature_info = [
            {"num_chs": d, "reduction": cfg.stem_stride * 2**i, "module": f"stages.{i}"} for i, d in enumerate(cfg.dims)
        ]
        self.apply(_init)
        for name, module in self.named_modules():
            if isinstance(module, BatchNorm2d):
                module.name = name

    def _blocks(self, stage: int) -> nn.Sequential:
        found = self.stages[stage]
        return found if isinstance(found, nn.Sequential) else found.blocks  # type: ignore[return-value]

    def _stage(self, i: int, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W'), both channels last in memory."""
        x = self.downsample_layers[i](x).permute(0, 2, 3, 1)
        for block in self._blocks(i):
            if self.grad_checkpointing and self.training and not torch.jit.is_scripting():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x.permute(0, 3, 1, 2)

    def _enter(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError(f"BiFormer: input is (B, C, H, W), got {tuple(x.shape)}")
        expected = self.downsample_layers[0][0].in_channels  # type: ignore[index]
        if x.shape[1] != expected:
            raise ValueError(f"BiFormer: built for {expected} input channels, got {tuple(x.shape)}")
        return x.contiguous(memory_format=torch.channels_last)

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, in_chans, H, W) -> (B, C, ceil(H / 32), ceil(W / 32)), normed; the divisor is the last reduction."""
        x = self._enter(x)
        for i in range(len(self.stages)):
            x = self._stage(i, x)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """(B, C, h, w) features -> (B, num_classes) logits, or the pooled (B, C) with ``pre_logits``."""
        x = self.drop(x.mean((2, 3)))
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | tuple[int, ...] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Outputs of stages, (B, C, H, W) each, and the final normed map unless ``intermediates_only``.

        Args:
            indices: which stages, negative ones counted from the end; an int takes the last so many; None all.
            norm: apply each output's own norm (``out_norms``), or the final norm to the last stage without them.
            stop_early: do not run stages after the last one asked for.
            output_fmt: "NCHW" or "NHWC".
        Raises:
            ValueError: on an index out of range or an unknown format.
        """
        if output_fmt not in ("NCHW", "NHWC"):
            raise ValueError(f"BiFormer: output_fmt is NCHW or NHWC, got {output_fmt!r}")
        wanted = take_indices(len(self.stages), indices)
        last = max(wanted) if stop_early else len(self.stages) - 1
        x = self._enter(x)
        found: dict[int, Tensor] = {}
        for i in range(last + 1):
            x = self._stage(i, x)
            if i in wanted:
                y = self._output_norm(i, x) if norm else x
                found[i] = y if output_fmt == "NCHW" else y.permute(0, 2, 3, 1)
        maps = [found[i] for i in wanted]
        if intermediates_only:
            return maps
        return (self.norm(x) if last == len(self.stages) - 1 else x), maps

    def _output_norm(self, stage: int, x: Tensor) -> Tensor:
        if self.extra_norms is not None:
            return self.extra_norms[stage](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.norm(x) if stage == len(self.stages) - 1 else x

    def prune_intermediate_layers(
        self, indices: int | list[int] | tuple[int, ...] | None = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops what a feature extractor does not need: stages after the last index, final norm, head."""
        wanted = take_indices(len(self.stages), indices)
        keep = max(wanted) + 1
        self.downsample_layers = self.downsample_layers[:keep]
        self.stages = self.stages[:keep]
        if self.extra_norms is not None:
            used = (norm if i in wanted else nn.Identity() for i, norm in enumerate(self.extra_norms[:keep]))
            self.extra_norms = nn.ModuleList(used)
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return wanted

    def get_classifier(self) -> nn.Module:
        """The last layer; Identity when there are no classes."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh head of ``num_classes`` (0: none), on the device and in the dtype of the model."""
        if global_pool not in (None, "avg"):
            raise ValueError(f"BiFormer: pooling is avg, got {global_pool!r}")
        _check_count("num_classes", num_classes, 0)
        like = self.downsample_layers[0][0].weight  # type: ignore[index]
        self.num_classes = num_classes
        self.head = nn.Identity()
        if num_classes:
            self.head = nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            _init(self.head)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks in the backward pass instead of keeping what they need."""
        self.grad_checkpointing = enable

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Nothing in the model depends on the input size; only checks that the size is one."""
        if min((img_size, img_size) if isinstance(img_size, int) else img_size) < 1:
            raise ValueError(f"BiFormer: img_size has to be positive, got {img_size}")

    def no_weight_decay(self) -> set[str]:
        """Names of parameters to keep out of weight decay beyond norms and biases: none."""
        return set()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns that order parameters by depth, as timm's layer-wise decay reads them."""
        return {
            "stem": r"^downsample_layers\.0",
            "blocks": (
                r"^(?:stages|downsample_layers)\.(\d+)"
                if coarse
                else [
                    (r"^downsample_layers\.(\d+)", (0,)),
                    (r"^stages\.(\d+)\.(?:blocks\.)?(\d+)", None),
                    (r"^(?:norm|extra_norms)", (99999,)),
                ]
            ),
        }


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | PointwiseLinear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build(name: str, **options: Any) -> BiFormer:
    """A variant by name; options are fields of `BiFormerCfg` or arguments of `BiFormer`.

    Raises:
        TypeError: on an unknown option, or one number where each stage needs its own.
        ValueError: on a setting that can't be.
    """
    cfg = BiFormerCfg(**VARIANTS[name])  # type: ignore[arg-type]
    fields = {k: options.pop(k) for k in list(options) if k in BiFormerCfg.__dataclass_fields__}
    return BiFormer(replace(cfg, **fields), **options)
