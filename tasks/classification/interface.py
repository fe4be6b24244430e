"""What evaluation and the command line know of a classifier."""

import logging
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foveal.tasks.modes import eval_mode
from foveal.zoo.create import RANDOM
from foveal.zoo.transforms import transforms_for

DEFAULT_MODEL = "biformer_nano.fashion_mnist"
log = logging.getLogger("foveal")
_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(frozen=True)
class Prediction:
    """One answer.

    Attributes:
        index: output of the model.
        label: its name, or the index as text when the weights came without names.
        probability: softmax of the logits, 0..1.
    """

    index: int
    label: str
    probability: float


def classify(model: nn.Module, image: Any, *, topk: int = 5) -> list[Prediction]:
    """The most probable classes of a picture, best first.

    Args:
        model: from `create_model`; run in eval mode on its own device and in its own dtype, its mode is put back
            afterwards. One with random weights warns the first time.
        image: anything `read_image` takes: path, bytes, PIL picture, numpy array.
        topk: how many answers; all classes when there are fewer.
    Raises:
        ImageError: when the picture can't be read.
        ValueError: when the model has no classes, its answer is not finite, or topk is below 1.
    """
    if topk < 1:
        raise ValueError(f"classify: topk has to be 1 or more, got {topk}")
    x = transforms_for(model)(image)[None].to(next(model.parameters()))
    with eval_mode(model), torch.inference_mode():
        logits = model(x)
    if getattr(model, "num_classes", None) == 0 or getattr(logits, "ndim", None) != 2:
        raise ValueError("classify: the model has no classes (num_classes=0 or features_only)")
    if not logits.isfinite().all():
        raise ValueError("classify: the model's answer is not finite; its weights may be damaged")
    info = getattr(model, "foveal", None)
    if info is not None and info.weights == RANDOM and model not in _warned:
        _warned.add(model)
        log.warning("%s has random weights: its answers mean nothing", info.name)
    probabilities = logits.float().softmax(-1)[0].cpu()
    best = probabilities.topk(min(topk, len(probabilities)))
    labels = info.labels if info is not None else ()
    return [
        Prediction(i, labels[i] if i < len(labels) else str(i), p)
        for i, p in zip(best.indices.tolist(), best.values.tolist())
    ]
