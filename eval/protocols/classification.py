"""Image classification: logits of every picture go to the store; top-k, mean per class and calibration come from it."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from foveal.eval.benchmark import Benchmark, OnBad
from foveal.eval.data.pictures import Pictures
from foveal.eval.metrics.accepted import accepted_rank
from foveal.eval.metrics.bootstrap import bootstrap_interval
from foveal.eval.metrics.calibration import brier_rows, ece_from_confidence, nll_rows, softmax, top_label
from foveal.eval.metrics.classification import mean_per_class, target_rank
from foveal.eval.timeouts import at_most
from foveal.zoo.images import ImageError, read_or
from foveal.zoo.transforms import EvalTransform, preprocessing_of

Block = tuple[list[int], torch.Tensor, dict[int, str]]


class _Loaded(Dataset):
    """Blocks of items as tensors; a picture that can't be read leaves its reason instead.

    With on_bad="error" the error is what a block gives: raised in a worker process, it would lose its sentence.
    """

    def __init__(
        self,
        data: Pictures,
        blocks: list[list[int]],
        transform: EvalTransform,
        exif: bool,
        on_bad: OnBad,
        timeout: float | None,
    ):
        self.data, self.blocks, self.transform, self.exif = data, blocks, transform, exif
        self.on_bad, self.timeout = on_bad, timeout

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, block: int) -> Block | ImageError:
        try:
            return self._read(block)
        except ImageError as error:
            return error

    def _read(self, block: int) -> Block:
        good, tensors, bad = [], [], {}
        for i in self.blocks[block]:
            try:
                with at_most(self.timeout):
                    picture, reason = read_or(
                        self.data.sources[i], on_bad=self.on_bad, mode=self.transform.mode, exif=self.exif
                    )
            except TimeoutError:
                picture, reason = None, f"{self.data.ids[i]}: reading took more than {self.timeout:g} seconds"
            if reason is not None:
                bad[i] = reason
            if picture is not None:
                good.append(i)
                tensors.append(self.transform(picture))
        spec = self.transform.spec
        empty = torch.empty(0, len(spec.mean), *spec.shape)
        return good, torch.stack(tensors) if tensors else empty, bad


def batches(
    model: nn.Module,
    bench: Benchmark,
    data: Pictures,
    blocks: list[list[int]],
    *,
    workers: int,
    on_bad: OnBad,
    timeout: float | None = None,
) -> Iterator[Block]:
    """Indices, inputs and reasons of unreadable pictures, block by block.

    Raises:
        ImageError: with on_bad="error", for the first picture that can't be read.
    """
    loaded = _Loaded(data, blocks, EvalTransform(preprocessing_of(model)), bench.exif, on_bad, timeout)
    for block in DataLoader(loaded, batch_size=None, num_workers=workers, persistent_workers=False):
        if isinstance(block, ImageError):
            raise block
        yield block


def check(model: nn.Module, bench: Benchmark, data: Pictures) -> None:
    """Refuses a model whose outputs can't be these classes.

    Raises:
        ValueError: when the counts differ.
    """
    outputs = getattr(model, "num_classes", None)
    if outputs is not None and outputs != data.width:
        raise ValueError(
            f"the model gives {outputs} classes but {bench.name} has {data.width} "
            f"({', '.join(list(data.classes)[:3])}, …); create it with num_classes={data.width}"
        )


def predict(model: nn.Module, data: Pictures, inputs: torch.Tensor) -> dict[str, np.ndarray]:
    """One batch of predictions, a row a picture: logits in float32.

    Raises:
        ValueError: when the model gives anything but one logit a class.
    """
    logits, expected = model(inputs), (len(inputs), data.width)
    if not isinstance(logits, torch.Tensor) or logits.shape != expected:
        given = tuple(logits.shape) if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        raise ValueError(f"{type(model).__name__} gives {given}, expected {expected} logits: pictures and classes")
    if data.columns is not None:  # the other outputs are no answers here
        logits = logits[:, list(data.columns)]
    return {"logits": logits.float().cpu().numpy()}


def metrics(
    bench: Benchmark, data: Pictures, order: list[int], items: dict[str, dict[str, Any]], arrays: dict[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """Every declared metric with its 95 % bootstrap interval over pictures; fractions, null where not applicable.

    A picture without prediction has logits that are not finite: the worst score in every metric.
    """
    target = np.asarray([data.targets[i] for i in order])
    logits = np.full((len(order), len(data.classes)), np.nan)
    for place, i in enumerate(order):
        row = items[data.ids[i]]["row"]
        if row is not None:
            logits[place] = arrays["logits"][row]
    rank = target_rank(logits, target)
    if data.accepted is not None:
        rank = accepted_rank(logits, [data.accepted[i] for i in order])
    probs = softmax(logits)
    confidence, right = top_label(probs, target)
    per_item = {
        "top1": rank <= 1,
        "top5": rank <= 5,
        "brier": brier_rows(probs, target),
        "nll": nll_rows(logits, target),
    }
    joint: dict[str, tuple[dict[str, np.ndarray], Callable[[dict[str, np.ndarray]], float]]] = {
        "ece": (
            {"confidence": confidence, "right": right},
            lambda drawn: ece_from_confidence(drawn["confidence"], drawn["right"]),
        ),
        "mean_per_class": (
            {"right": rank <= 1, "target": target},
            lambda drawn: mean_per_class(drawn["right"], drawn["target"]),
        ),
    }
    found: dict[str, dict[str, Any]] = {}
    for name in bench.metrics:
        if name == "top5" and len(data.classes) < 5:  # not applicable: it would always be 1
            found[name] = {"value": None, "interval": [None, None]}
        elif name in per_item:
            scores = per_item[name].astype(np.float64)
            value = scores.mean() if scores.size else np.nan
            found[name] = _entry(value, bootstrap_interval(scores, "mean"))
        else:
            columns, statistic = joint[name]
            found[name] = _entry(statistic(columns), bootstrap_interval(columns, statistic))
    return found


def _entry(value: float, interval: tuple[float, float]) -> dict[str, Any]:
    return {"value": _json(value), "interval": [_json(x) for x in interval]}


def _json(x: float) -> float | str | None:
    """JSON has no infinity: the protocol book writes it as a string."""
    if np.isnan(x):
        return None
    return float(x) if np.isfinite(x) else ("inf" if x > 0 else "-inf")
