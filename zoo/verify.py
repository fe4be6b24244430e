"""Checks a row of the catalogue against its file: hash, strict loading, and the model's answer to a fixed input."""

import math
from pathlib import Path

import torch
from torch import nn

from foveal.weights.catalogue import Row
from foveal.weights.errors import WeightsError
from foveal.weights.loading import load_weights
from foveal.weights.places import checked_file_of, key_map_for
from foveal.zoo.create import create_model

TOLERANCE = 1e-4  # of the probe; float32 on different processors differs by less


def probe(model: nn.Module, row: Row, count: int = 4) -> list[float]:
    """The first outputs for a ramp from -1 to 1 over the input, in eval mode."""
    spec = row.preprocessing
    shape = (1, len(spec.mean), *spec.shape)
    ramp = torch.linspace(-1, 1, math.prod(shape)).reshape(shape)
    with torch.inference_mode():
        return model.eval()(ramp)[0, :count].tolist()


def verify(row: Row) -> str:
    """What was checked of a row's file, in one sentence.

    Raises:
        WeightsError: when the file is not there, has another hash, does not load strictly, or the model answers
            differently from the row's probe.
    """
    return verify_file(row, checked_file_of(row))


def verify_file(row: Row, path: Path) -> str:
    """As `verify`, for a file that lies elsewhere and whose hash is not looked at."""
    model = create_model(row.arch, **row.options)
    report = load_weights(model, path, key_map=key_map_for(row.arch, row))
    if changed := {**report.skipped, **report.adapted}:
        name, (there, here) = next(iter(changed.items()))
        raise WeightsError(f"{row.name}: {name} is {there} in {path}, the model of the row has {here}")
    answer = probe(model, row)
    if not row.probe:
        return f"loads strictly; sha256 {report.sha256}, no probe recorded"
    worst = max(abs(a - b) for a, b in zip(answer, row.probe, strict=True))
    if not worst <= TOLERANCE * max(map(abs, row.probe)):
        raise WeightsError(f"{row.name}: the model answers {answer} to the probe, the row says {list(row.probe)}")
    known = "as recorded" if report.sha256 == row.sha256 else report.sha256
    return f"sha256 {known}, loads strictly, probe agrees to {worst:.1e}"
