"""From what a person types to a model that can be evaluated."""

from pathlib import Path

import torch
from torch import nn

from foveal.weights.catalogue import rows
from foveal.zoo.create import create_model, load


def model_for(name: str, weights: str = "", *, classes: int | None = None, seed: int = 0) -> nn.Module:
    """The model of an evaluation.

    Args:
        name: a model name with or without tag, or a file or folder that `foveal.save` wrote.
        weights: "" for the name's own, "random" for fresh ones (seeded), else a tag, a file or a folder.
        classes: outputs to build where neither a row nor a saved file says how many.
    Raises:
        UnknownName, WeightsError: as `create_model`.
    """
    if not weights and ("/" in name or name.endswith(".safetensors")) and Path(name).expanduser().exists():
        return load(name)
    if not weights:
        return create_model(name, pretrained=True)
    row = rows().get(name)
    options = dict(row.options) if row else ({"num_classes": classes} if classes else {})
    arch = row.arch if row else name
    if weights != "random":
        return create_model(arch, weights=weights, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create_model(arch, **options)
