"""What evaluation and the command line know of a classifier."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foveal.zoo.transforms import transforms_for

DEFAULT_MODEL = "biformer_nano.fashion_mnist"
log = logging.getLogger("foveal")


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
        model: from `create_model`; run in eval mode on its own device, its mode is put back afterwards.
        image: anything `read_image` takes: path, bytes, PIL picture, numpy array.
        topk: how many answers; all classes when there are fewer.
    Raises:
        ImageError: when the picture can't be read.
        ValueError: when the model has no classes or topk is below 1.
    """
    if topk < 1:
        raise ValueError(f"classify: topk has to be 1 or more, got {topk}")
    if not getattr(model, "num_classes", 0):
        raise ValueError("classify: the model has no classes (num_classes=0)")
    info = getattr(model, "foveal", None)
    if info is not None and info.weights == "random weights":
        log.warning("%s has random weights: its answers mean nothing", info.name)
    x = transforms_for(model)(image)[None].to(next(model.parameters()).device)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        probabilities = model(x).float().softmax(-1)[0].cpu()
    model.train(was_training)
    best = probabilities.topk(min(topk, len(probabilities)))
    labels = info.labels if info is not None else ()
    return [
        Prediction(i, labels[i] if i < len(labels) else str(i), p)
        for i, p in zip(best.indices.tolist(), best.values.tolist())
    ]
