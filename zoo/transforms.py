"""From a picture to the input a model expects, as the weights' row says."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from foveal.weights.catalogue import Preprocessing
from foveal.zoo.images import read_image


@dataclass(frozen=True)
class EvalTransform:
    """Resize, centre crop, scale to 0..1, normalise. Two are equal when they do the same.

    >>> t = EvalTransform(Preprocessing(size=8, mean=(0.5,), std=(0.5,), crop_pct=1.0))
    >>> t(Image.new("L", (16, 12), 255)).shape, float(t(Image.new("L", (8, 8), 255)).max())
    (torch.Size([1, 8, 8]), 1.0)
    """

    spec: Preprocessing

    @property
    def mode(self) -> str:
        """Picture mode of the input: "L" for one channel, else "RGB"."""
        return "L" if len(self.spec.mean) == 1 else "RGB"

    def __call__(self, image: Any) -> Tensor:
        """(C, size, size) float32 from anything `read_image` takes."""
        picture = read_image(image, mode=self.mode)
        spec, how = self.spec, InterpolationMode(self.spec.interpolation)
        target = math.floor(spec.size / spec.crop_pct)
        if spec.crop_mode == "squash":
            goal = [target, target]
        else:
            short = min(picture.size)
            goal = [max(1, target * side // short) if side != short else target for side in reversed(picture.size)]
        if [picture.height, picture.width] != goal:
            picture = tv.resize(picture, goal, interpolation=how)  # PIL's resize: antialiased
        x = tv.to_dtype(tv.pil_to_tensor(tv.center_crop(picture, [spec.size, spec.size])), torch.float32, scale=True)
        return tv.normalize(x, list(spec.mean), list(spec.std), inplace=True)


def transforms_for(model: nn.Module, train: bool = False) -> Callable[[Any], Tensor]:
    """The transform that belongs to a model's weights: picture -> (C, H, W) tensor.

    Args:
        model: from `create_model`; of a model made elsewhere timm's pretrained_cfg is read.
        train: timm's random augmentation for training at the same size and normalisation.
    """
    spec = preprocessing_of(model)
    if not train:
        return EvalTransform(spec)
    from timm.data import create_transform

    return create_transform(
        input_size=(len(spec.mean), spec.size, spec.size),
        is_training=True,
        mean=spec.mean,
        std=spec.std,
        interpolation=spec.interpolation,
    )


def preprocessing_of(model: nn.Module) -> Preprocessing:
    """The preprocessing recorded with a model, or read from timm's pretrained_cfg."""
    info = getattr(model, "foveal", None)
    return info.preprocessing if info is not None else from_timm(getattr(model, "pretrained_cfg", {}))


def from_timm(cfg: dict[str, Any]) -> Preprocessing:
    """Preprocessing from timm's pretrained_cfg; its defaults where a field is missing."""
    size = cfg.get("input_size") or (3, 224, 224)
    mean, std = (tuple(cfg.get(k) or d) for k, d in (("mean", (0.485, 0.456, 0.406)), ("std", (0.229, 0.224, 0.225))))
    if size[0] == 1 and len(mean) == 3:
        mean, std = (sum(mean) / 3,), (sum(std) / 3,)
    return Preprocessing(
        size=size[-1],
        mean=mean,
        std=std,
        interpolation=cfg.get("interpolation") or "bicubic",
        crop_pct=cfg.get("crop_pct") or 0.875,
        crop_mode={"center": "shorter", None: "shorter"}.get(cfg.get("crop_mode"), cfg.get("crop_mode")),
    )
