"""Frozen features of a model on pictures, what k-NN and linear probes start from."""

import time
from dataclasses import asdict
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from foveal.eval.benchmark import Benchmark, OnBad
from foveal.eval.data.pictures import Pictures
from foveal.eval.feature_cache import FeatureCache, Features
from foveal.eval.identity import structure_hash
from foveal.eval.measures import versions
from foveal.eval.predicting import Progress, check_precision, forward
from foveal.eval.protocols.classification import batches
from foveal.eval.runner import pick_device
from foveal.tasks.modes import eval_mode
from foveal.weights.saving import state_hash
from foveal.zoo.transforms import preprocessing_of

PART_BYTES = 16 << 20
PART_SECONDS = 10.0  # a killed run loses at most what came after the last part


def feature_key(
    model: nn.Module, data: Pictures, *, precision: str = "fp32", exif: bool = True, on_bad: OnBad = "error"
) -> dict[str, Any]:
    """All that decides the features of a model on data, and nothing that does not, such as names of files and folders.

    Returns:
        "state_sha256" of the weights, "structure_sha256" of how they are used, "preprocessing", "precision",
        "data_sha256" over the bytes of every picture, "exif", "on_bad", and "code": versions of what computes them.
    Raises:
        ValueError: when the precision is unknown.

    >>> from foveal.zoo.create import create_model
    >>> data = Pictures(["dark"], [np.zeros((8, 8), np.uint8)], [0], ["a"])
    >>> [*feature_key(create_model("biformer_nano"), data)][1:5]
    ['state_sha256', 'structure_sha256', 'preprocessing', 'precision']
    """
    check_precision(precision)
    code = versions()
    return {
        "features": "forward_head(forward_features(x), pre_logits=True)",
        "state_sha256": state_hash(model),
        "structure_sha256": structure_hash(model),
        "preprocessing": asdict(preprocessing_of(model)),
        "precision": precision,
        "data_sha256": data.fingerprint(),
        "exif": exif,
        "on_bad": on_bad,
        "code": {name: code[name] for name in ("foveal", "torch", "timm")},
    }


def pre_logits(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """(B, D) what the classifier of a model is given, for (B, C, H, W) inputs.

    Raises:
        ValueError: when the model does not say, or gives anything but one vector an input.

    >>> from timm.models import create_model
    >>> pre_logits(create_model("test_vit").eval(), torch.zeros(2, 3, 160, 160)).shape
    torch.Size([2, 64])
    """
    features, head = getattr(model, "forward_features", None), getattr(model, "forward_head", None)
    if features is None or head is None:
        raise ValueError(
            f"{type(model).__name__} has no forward_features and forward_head, so its features can't be taken; "
            "make it with create_model"
        )
    out = head(features(inputs), pre_logits=True)
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != len(inputs):
        given = tuple(out.shape) if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise ValueError(f"{type(model).__name__} gives {given} before its logits, expected ({len(inputs)}, D)")
    return out


def features_of(
    model: nn.Module,
    data: Pictures,
    *,
    cache: FeatureCache | None = None,
    device: str = "auto",
    precision: str = "fp32",
    batch_size: int = 250,
    workers: int = 0,
    exif: bool = True,
    on_bad: OnBad = "error",
    progress: Progress | None = None,
) -> Features:
    """What a model makes of each picture before its classifier, in eval mode; only what the cache lacks is computed.

    Args:
        model: with timm's ``forward_features`` and ``forward_head``; its mode is put back afterwards.
        data: pictures in a fixed order.
        cache: where features are kept, part by part, so that a killed run goes on where it stopped. Without one
            everything is computed. At one batch size and thread count a resumed run gives the same bits.
        device: "auto", "cpu", "cuda", "cuda:n" or "mps"; the model is moved there. It is not part of the key.
        precision: "fp32", "bf16" or "fp16" (autocast).
        batch_size: halved on out-of-memory. workers: processes that read pictures.
        exif: apply the orientation stored in photographs.
        on_bad: what an unreadable picture does: "error" raises; "skip" leaves a row of NaN, which every probe counts
            as wrong; "substitute" takes what could be decoded. Such rows are not cached.
        progress: called with the counts of finished and of all pictures.
    Returns:
        (N, D) float32.
    Raises:
        ValueError: when there are no pictures, an option is not one of its choices, or the model gives no features.
        ImageError: with on_bad="error", for the first picture that can't be read.

    >>> from foveal.zoo.create import create_model
    >>> data = Pictures(["dark", "light"], [np.full((8, 8), shade, np.uint8) for shade in (0, 255)], [0, 1], ["a", "b"])
    >>> features_of(create_model("biformer_nano"), data, device="cpu").shape
    (2, 128)
    """
    if not len(data):
        raise ValueError("features_of: there are no pictures in the data")
    if on_bad not in get_args(OnBad):
        raise ValueError(f"on_bad is one of {', '.join(get_args(OnBad))}, got {on_bad!r}")
    check_precision(precision)
    if batch_size < 1 or workers < 0:
        raise ValueError(f"batch_size has to be 1 or more and workers 0 or more, got {batch_size} and {workers}")
    place = pick_device(device)
    key = feature_key(model, data, precision=precision, exif=exif, on_bad=on_bad) if cache else {}
    ids, known = cache.read(key) if cache else ([], np.zeros((0, 0), np.float32))
    row_of = {name: row for row, name in enumerate(ids)}
    done = np.asarray([name in row_of for name in data.ids])
    said = getattr(model, "head_hidden_size", getattr(model, "num_features", 0))
    width = known.shape[1] or (said if isinstance(said, int) else 0)
    out = np.full((len(data), width), np.nan, np.float32)
    if done.any():
        out[done] = known[[row_of[name] for name in data.ids if name in row_of]]
    blocks = [
        missing
        for start in range(0, len(data), batch_size)
        if (missing := [i for i in range(start, min(start + batch_size, len(data))) if not done[i]])
    ]
    fresh: list[int] = []
    stored, finished = time.perf_counter(), int(done.sum())

    def store() -> None:
        if cache and fresh:
            cache.store(key, [data.ids[i] for i in fresh], out[fresh])
        fresh.clear()

    def predict(inputs: torch.Tensor) -> dict[str, np.ndarray]:
        return {"features": pre_logits(model, inputs).float().cpu().numpy()}

    bench = Benchmark("features", "classification", "", (), "", 1, "", exif=exif)  # all that `batches` reads is exif
    model.to(place)
    try:
        with eval_mode(model):
            for good, inputs, bad in batches(model, bench, data, blocks, workers=workers, on_bad=on_bad):
                if good:
                    rows = forward(predict, inputs, place, precision)["features"]
                    if rows.shape[1] != out.shape[1]:
                        out = _of_width(out, rows.shape[1])
                    out[good] = rows
                fresh += [i for i in good if i not in bad]
                finished += len({*good, *bad})
                if progress:
                    progress(finished, len(data))
                if len(fresh) * out.shape[1] * 4 > PART_BYTES or time.perf_counter() - stored > PART_SECONDS:
                    store()
                    stored = time.perf_counter()
    finally:
        store()
    return out


def _of_width(out: Features, width: int) -> Features:
    """The same number of rows for features of the length that the model really gives; nothing was written yet."""
    if not np.isnan(out).all():
        raise ValueError(f"features of one model differ in length: {out.shape[1]} and {width}")
    return np.full((len(out), width), np.nan, np.float32)
