"""The loop that fills a store: predicts what it lacks, in fixed blocks of the item order."""

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from foveal.eval.benchmark import Benchmark
from foveal.eval.measures import peak_memory_mib, reset_peak_memory
from foveal.eval.processes import Share
from foveal.eval.store import Store
from foveal.kernels.registry import get_operator, list_operators

log = logging.getLogger("foveal")
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """How items are computed; see `foveal.evaluate` for the fields."""

    place: torch.device
    precision: str
    batch_size: int
    workers: int
    on_bad: str
    timeout: float | None
    share: Share


def blocks_of(ids: Any, total: int, done: set[str], plan: Plan) -> list[list[int]]:
    """The items that this process has to compute, in blocks.

    Blocks are cut from the whole item order, so that which process computes one, and when, changes nothing in it.
    A run split by hand deals all blocks; processes that started together deal those that are left.
    """
    left = [
        missing
        for number, start in enumerate(range(0, total, plan.batch_size))
        if number % plan.share.shards == plan.share.shard
        and (missing := [i for i in range(start, min(start + plan.batch_size, total)) if ids[i] not in done])
    ]
    return left[plan.share.rank :: plan.share.world]


def fill(
    net: nn.Module,
    protocol: Any,
    bench: Benchmark,
    data: Any,
    store: Store,
    total: int,
    plan: Plan,
    progress: Progress | None,
) -> dict[str, Any]:
    """Predicts what is this process's to predict; gives what it did."""
    done = store.ids()
    plan.share.wait()  # all have read the store before anybody adds to it
    blocks = blocks_of(data.ids, total, done, plan)
    todo = sum(map(len, blocks))
    finished, target = (total - todo, total) if plan.share.world * plan.share.shards == 1 else (0, todo)
    if progress:
        progress(finished, target)
    operators = [get_operator(name) for name in list_operators()]
    before = {op.name: Counter(op.taken) for op in operators}
    reset_peak_memory()
    predict = functools.partial(protocol.predict, net, data)
    items: list[dict[str, Any]] = []
    arrays: dict[str, list[np.ndarray]] = {}
    forward_seconds, predicted, row = 0.0, 0, 0
    begin = flushed = time.perf_counter()
    loaded = protocol.batches(
        net, bench, data, blocks, workers=plan.workers, on_bad=plan.on_bad, timeout=plan.timeout
    )
    for good, inputs, bad in loaded:
        started = time.perf_counter()
        outputs = forward(predict, inputs, plan.place, plan.precision) if good else {}
        forward_seconds += time.perf_counter() - started
        predicted += len(good)
        for i in good:
            items.append({"id": data.ids[i], "row": row, "error": bad.get(i)})
            row += 1
        items.extend({"id": data.ids[i], "row": None, "error": bad[i]} for i in bad if i not in good)
        for name, array in outputs.items():
            arrays.setdefault(name, []).append(array)
        finished += len(good) + sum(i not in good for i in bad)
        if progress:
            progress(finished, target)
        now = time.perf_counter()
        # at first every second, later at 2 % of the time gone: a crash costs little and parts stay few
        if now - flushed > max(1.0, 0.02 * (now - begin)):
            _flush(store, items, arrays, plan)
            flushed, row = now, 0
    _flush(store, items, arrays, plan)
    return {
        "items": todo,
        "forward_items": predicted,
        "forward_seconds": forward_seconds,
        "seconds": time.perf_counter() - begin,
        "peak_memory_mib": peak_memory_mib(),
        "kernel_paths": {op.name: sorted(taken) for op in operators if (taken := op.taken - before[op.name])},
        "device": str(plan.place),
        "batch_size": plan.batch_size,
        "threads": torch.get_num_threads(),
    }


def _flush(store: Store, items: list[dict[str, Any]], arrays: dict[str, list[np.ndarray]], plan: Plan) -> None:
    if items:
        store.append(items, {name: np.concatenate(parts) for name, parts in arrays.items()}, plan.share.process)
        items.clear()
        arrays.clear()


def check_precision(precision: str) -> None:
    """Refuses what `PRECISIONS` does not have.

    Raises:
        ValueError: with the choices.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {precision!r}")


def in_precision(place: torch.device, precision: str) -> AbstractContextManager[Any]:
    """A block that computes in a precision: fp32 as it is, bf16 and fp16 through autocast.

    Raises:
        ValueError: on another precision.
    """
    check_precision(precision)
    dtype = PRECISIONS[precision]
    return torch.autocast(place.type, dtype) if dtype else nullcontext()


def forward(
    predict: Callable[[torch.Tensor], dict[str, np.ndarray]], inputs: torch.Tensor, place: torch.device, precision: str
) -> dict[str, np.ndarray]:
    """One batch on its device and in its precision, in halves when memory runs out."""
    try:
        with torch.inference_mode(), in_precision(place, precision):
            return predict(inputs.to(place))
    except torch.OutOfMemoryError:
        if len(inputs) == 1:
            raise
        half = len(inputs) // 2
        log.warning("out of memory at batch size %d, trying %d", len(inputs), half)
        torch.cuda.empty_cache()
    first, second = (forward(predict, part, place, precision) for part in (inputs[:half], inputs[half:]))
    return {name: np.concatenate([first[name], second[name]]) for name in first}
