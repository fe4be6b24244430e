"""From a picture to the input a model expects, as the weights' row says."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from foveal.weights.catalogue import Preprocessing
from foveal.zoo.images import Mode, read_image


@dataclass(frozen=True)
class EvalTransform:
    """Resize, centre crop, scale to 0..1, normalise. Two are equal when they do the same.

    Raises:
        ValueError: when the input has another number of channels than pictures have.

    >>> from PIL import Image
    >>> t = EvalTransform(Preprocessing(size=8, mean=(0.5,), std=(0.5,), crop_pct=1.0))
    >>> t(Image.new("L", (16, 12), 255)).shape, float(t(Image.new("L", (8, 8), 255)).max())
    (torch.Size([1, 8, 8]), 1.0)
    """

    spec: Preprocessing

    def __post_init__(self) -> None:
        _mode(self.spec)

    @property
    def mode(self) -> Mode:
        """Picture mode of the input: "L" for one channel, "RGB" for three."""
        return _mode(self.spec)

    def __call__(self, image: Any) -> Tensor:
        """(C, height, width) float32 from anything `read_image` takes."""
        spec = self.spec
        picture = read_image(image, mode=self.mode)
        goal = _resized(spec, picture.height, picture.width)
        if (picture.height, picture.width) != goal:
            # PIL's resize: antialiased
            picture = tv.resize(picture, list(goal), interpolation=InterpolationMode(spec.interpolation))
        if spec.crop_mode == "border":
            down, across = (max(0, want - have) for want, have in zip(spec.shape, goal))
            around = [across // 2, down // 2, across - across // 2, down - down // 2]
            picture = tv.pad(picture, around, fill=[round(255 * m) for m in spec.mean])
        x = tv.to_dtype(tv.pil_to_tensor(tv.center_crop(picture, list(spec.shape))), torch.float32, scale=True)
        return tv.normalize(x, list(spec.mean), list(spec.std), inplace=True)


def _mode(spec: Preprocessing) -> Mode:
    if len(spec.mean) not in (1, 3):
        raise ValueError(f"a picture gives 1 or 3 channels, the model takes {len(spec.mean)}; make its input yourself")
    return "L" if len(spec.mean) == 1 else "RGB"


def _resized(spec: Preprocessing, height: int, width: int) -> tuple[int, int]:
    """The size of a picture before the crop, rounded as timm does it."""
    down, across = (math.floor(side / spec.crop_pct) for side in spec.shape)
    if spec.crop_mode == "squash":
        return down, across
    if spec.crop_mode == "shorter" and down == across:
        short = min(height, width)
        return max(1, down * height // short), max(1, across * width // short)
    ratio = (max if spec.crop_mode == "border" else min)(height / down, width / across)
    return max(1, round(height / ratio)), max(1, round(width / ratio))


class TrainTransform:
    """timm's random augmentation for training, on anything `read_image` takes."""

    def __init__(self, spec: Preprocessing):
        from timm.data import create_transform

        self.spec = spec
        self.mode = _mode(spec)
        self.augment = create_transform(
            input_size=(len(spec.mean), *spec.shape),
            is_training=True,
            mean=spec.mean,
            std=spec.std,
            interpolation=spec.interpolation,
        )

    def __call__(self, image: Any) -> Tensor:
        """(C, height, width) float32, another one at each call."""
        return self.augment(read_image(image, mode=self.mode))


def transforms_for(model: nn.Module, train: bool = False) -> Callable[[Any], Tensor]:
    """The transform that belongs to a model's weights: picture -> (C, H, W) tensor.

    Args:
        model: from `create_model`; of a model made elsewhere timm's pretrained_cfg is read.
        train: timm's random augmentation for training at the same size and normalisation.
    Raises:
        ValueError: when the model takes another number of channels than pictures have.
    """
    spec = preprocessing_of(model)
    return TrainTransform(spec) if train else EvalTransform(spec)


def preprocessing_of(model: nn.Module) -> Preprocessing:
    """The preprocessing recorded with a model, or read from timm's pretrained_cfg."""
    info = getattr(model, "foveal", None)
    return info.preprocessing if info is not None else from_timm(getattr(model, "pretrained_cfg", {}))


def from_timm(cfg: dict[str, Any]) -> Preprocessing:
    """Preprocessing from timm's pretrained_cfg; its defaults where a field is missing."""
    channels, *shape = cfg.get("input_size") or (3, 224, 224)
    mean, std = (tuple(cfg.get(k) or d) for k, d in (("mean", (0.485, 0.456, 0.406)), ("std", (0.229, 0.224, 0.225))))
    spec = Preprocessing(
        size=shape[0],
        mean=mean,
        std=std,
        interpolation=cfg.get("interpolation") or "bicubic",
        crop_pct=cfg.get("crop_pct") or 0.875,
        crop_mode={"center": "shorter"}.get(cfg.get("crop_mode") or "center", cfg.get("crop_mode", "")),
    )
    return at(spec, channels, (shape[0], shape[1]))


def to_timm(spec: Preprocessing) -> dict[str, Any]:
    """The fields of timm's pretrained_cfg that say the same.

    >>> from_timm(to_timm(Preprocessing(28, (0.5,), (0.25,), "bilinear", 1.0, "squash"))).mean
    (0.5,)
    """
    return {
        "input_size": (len(spec.mean), *spec.shape),
        "mean": spec.mean,
        "std": spec.std,
        "interpolation": spec.interpolation,
        "crop_pct": spec.crop_pct,
        "crop_mode": "center" if spec.crop_mode == "shorter" else spec.crop_mode,
    }


def at(spec: Preprocessing, channels: int, size: int | tuple[int, int]) -> Preprocessing:
    """The same preprocessing for another number of channels and another size.

    One channel takes the average of mean and std; more repeat them in a circle, as the kernels of the first
    convolution are adapted.

    >>> grey = at(Preprocessing(size=224, mean=(0.25, 0.5, 0.75), std=(1.0, 1.0, 1.0)), 1, (32, 64))
    >>> grey.mean, grey.shape
    ((0.5,), (32, 64))
    """
    height, width = (size, size) if isinstance(size, int) else size
    spec = replace(spec, size=height, width=None if width == height else width)
    given = len(spec.mean)
    if channels == given:
        return spec
    if channels == 1:
        return replace(spec, mean=(sum(spec.mean) / given,), std=(sum(spec.std) / given,))
    circle = [i % given for i in range(channels)]
    return replace(spec, mean=tuple(spec.mean[i] for i in circle), std=tuple(spec.std[i] for i in circle))
