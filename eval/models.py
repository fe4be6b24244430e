"""From what a person types to a model that can be evaluated."""

import re
from pathlib import Path

import torch
from torch import nn

from foveal.weights.catalogue import rows
from foveal.zoo.create import create_model, load
from foveal.zoo.foreign import accepts

PREFIX = re.compile(r"[\w-]{2,}:")  # of a name that another library knows, as hf-hub:timm/resnet18
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")


def is_path(name: str) -> bool:
    """Whether a name means a file or folder, there or not.

    >>> [is_path(name) for name in ("runs/nano", "nano.safetensors", "biformer_tiny.in1k", "hf-hub:timm/resnet18")]
    [True, True, False, False]
    """
    if PREFIX.match(name):
        return False
    return bool({"/", "\\"} & {*name}) or name.endswith(SUFFIXES) or Path(name, "model.safetensors").is_file()


def model_for(name: str, weights: str = "", *, classes: int | None = None, seed: int = 0) -> nn.Module:
    """The model of an evaluation.

    Args:
        name: a model name with or without tag, or a file or folder that `foveal.save` wrote.
        weights: "" for the name's own, "random" for fresh ones (seeded), else a tag, a file or a folder.
        classes: outputs to build where neither a row nor a saved file says how many.
    Raises:
        UnknownName, WeightsError: as `create_model`.
    """
    if not weights:
        return load(Path(name).expanduser()) if is_path(name) else create_model(name, pretrained=True)
    row = rows().get(name)
    told = {"num_classes": classes} if classes and accepts(name, "num_classes") else {}
    options = dict(row.options) if row else told
    arch = row.arch if row else name
    if weights != "random":
        return create_model(arch, weights=weights, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create_model(arch, **options)
