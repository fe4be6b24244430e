"""Runs one model on one benchmark: predictions of missing items go to the store, then metrics come from the store."""

import functools
import hashlib
import importlib
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from foveal.eval.benchmark import Benchmark, OnBad, get_benchmark
from foveal.eval.measures import foveal_version, peak_memory_mib, reset_peak_memory, versions
from foveal.eval.results import label
from foveal.eval.store import Store, write_json
from foveal.kernels.registry import get_operator, list_operators
from foveal.tasks.modes import eval_mode
from foveal.weights.saving import state_hash
from foveal.zoo.create import RANDOM, create_model
from foveal.zoo.transforms import preprocessing_of

log = logging.getLogger("foveal")
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
Progress = Callable[[int, int], None]


def pick_device(device: str) -> torch.device:
    """A device by name; "auto" takes cuda, then mps, then cpu.

    Raises:
        ValueError: when it is not there.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {device!r} can't be used here ({str(error).splitlines()[0]}); try cpu") from error


def evaluate(
    model: nn.Module | str,
    benchmark: str | Benchmark,
    *,
    data_root: str | Path | None = None,
    results: str | Path = "results",
    device: str = "auto",
    precision: str = "fp32",
    batch_size: int = 250,
    workers: int = 0,
    threads: int | None = None,
    limit: int | None = None,
    on_bad: str = "error",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The figures of a model on a benchmark, as the dict that is also written to ``result.json``.

    A run that was killed goes on where it stopped. At one batch size and thread count a resumed run gives the same
    figures to the bit. Without a key of their own are what does not decide figures: the device, the batch size, the
    threads, the names of the weights' file and of the data's folder.

    Args:
        model: from `create_model`, or a name (its default or tagged weights are loaded).
        benchmark: a name or a declaration.
        data_root: where the data lies; not needed for embedded benchmarks.
        results: folder that gets <benchmark>/<model>/<key>/.
        device: auto, cpu, cuda, cuda:1, mps.
        precision: fp32, or autocast to bf16 or fp16.
        batch_size: pictures a forward; halved on out-of-memory.
        workers: processes that read pictures.
        threads: CPU threads of torch while it runs; what torch uses now when None.
        limit: only the first so many items; the result is marked partial.
        on_bad: what an unreadable picture does: "error" stops, "skip" counts it as wrong, "substitute" scores what
            could be read; the last two list it and mark the result.
        progress: called with (items done, items in all).
    Raises:
        UnknownName: for a wrong model or benchmark name.
        DataMissing: when the data is not there or not what is declared.
        ImageError: with on_bad="error", for the first picture that can't be read.
        ValueError: when model and benchmark do not fit, or an option is not one of its choices.
    """
    bench = get_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    if precision not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {precision!r}")
    if on_bad not in get_args(OnBad):
        raise ValueError(f"on_bad is one of {', '.join(get_args(OnBad))}, got {on_bad!r}")
    for option, value in (("batch_size", batch_size), ("limit", limit), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"{option} has to be 1 or more, got {value}")
    if workers < 0:
        raise ValueError(f"workers has to be 0 or more, got {workers}")
    place = pick_device(device)
    data = bench.read(data_root)
    net = create_model(model, pretrained=True) if isinstance(model, str) else model
    protocol = importlib.import_module(f"foveal.eval.protocols.{bench.protocol}")
    protocol.check(net, bench, data)
    facts = _identity(net, bench, data.fingerprint(), precision, limit, on_bad)
    store = Store(_folder(Path(results).expanduser(), bench, facts))
    where = {"data_root": None if data_root is None or bench.embedded else str(Path(data_root).expanduser().resolve())}
    _warn_of_changed_data(store, facts, where)

    net.to(place)
    with eval_mode(net), _threads(threads):
        run = _predict_missing(
            net, protocol, bench, data, store, place, precision, batch_size, workers, limit, on_bad, progress
        )
        run |= {"device": str(place), "batch_size": batch_size, "threads": torch.get_num_threads()}

    order = list(range(min(len(data), limit) if limit else len(data)))
    items, arrays = store.read()
    failed = {data.ids[i]: items[data.ids[i]]["error"] for i in order if items[data.ids[i]]["error"]}
    result = {
        **facts,
        "n": len(order),
        "n_failed": len(failed),
        "failed": failed,
        "n_nonfinite": _nonfinite(arrays, [row for i in order if (row := items[data.ids[i]]["row"]) is not None]),
        "partial": bool(limit and limit < len(data)),
        "main": bench.main,
        "metrics": protocol.metrics(bench, data, order, items, arrays),
        "source": bench.source,
        "run": {**_history(store, run), **where},
        "versions": versions(),
    }
    write_json(store.folder / "result.json", result)
    if failed:
        log.warning("%s on %s: %d unreadable items, listed in the result", facts["model"], bench.name, len(failed))
    return result


def _identity(
    net: nn.Module, bench: Benchmark, fingerprint: str, precision: str, limit: int | None, on_bad: str
) -> dict[str, Any]:
    """What decides the figures, as JSON holds it, and what the weights are called."""
    info = getattr(net, "foveal", None)
    weights = info.weights if info else "given in memory"
    facts = {
        "model": info.name if info else type(net).__name__,
        "options": info.options if info else {},
        "weights": weights,
        "random_weights": weights == RANDOM,
        "state_sha256": state_hash(net),
        "structure_sha256": _structure_hash(net),
        "preprocessing": asdict(preprocessing_of(net)),
        "benchmark": bench.name,
        "benchmark_version": bench.version,
        "data_sha256": fingerprint,
        "precision": precision,
        "limit": limit,
        "on_bad": on_bad,
        "seed": 0,  # of the bootstrap; nothing else here is drawn
    }
    return json.loads(json.dumps(facts, default=str))  # options may hold types


def _structure_hash(net: nn.Module) -> str:
    """Of the modules and their settings as torch prints them: equal weights can be used in two ways."""
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(net)).encode()).hexdigest()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _warn_of_changed_data(store: Store, facts: dict[str, Any], where: dict[str, Any]) -> None:
    for path in store.folder.parent.glob("*/result.json"):
        other = json.loads(path.read_text(encoding="utf-8"))
        changed = {name for name, value in facts.items() if other.get(name) != value}
        if changed == {"data_sha256"} and where.items() <= other.get("run", {}).items():
            log.warning(
                "%s: the data have changed since %s was computed, so its figures are not those of these data",
                facts["benchmark"], path,
            )  # fmt: skip


def _folder(results: Path, bench: Benchmark, facts: dict[str, Any]) -> Path:
    decides = {name: value for name, value in facts.items() if name != "weights"} | {"code": foveal_version()}
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
    return results / bench.name / re.sub(r"[^\w.-]+", "_", label(facts)).strip("_") / key


def _nonfinite(arrays: dict[str, np.ndarray], rows: list[int]) -> int:
    return sum(int((~np.isfinite(a[rows]).reshape(len(rows), -1).all(1)).sum()) for a in arrays.values() if rows)


def _predict_missing(
    net: nn.Module,
    protocol: Any,
    bench: Benchmark,
    data: Any,
    store: Store,
    place: torch.device,
    precision: str,
    batch_size: int,
    workers: int,
    limit: int | None,
    on_bad: str,
    progress: Progress | None,
) -> dict[str, Any]:
    """Predicts what the store lacks, in fixed blocks of the item order; gives what this run did."""
    total = min(len(data), limit) if limit else len(data)
    done = store.ids()
    blocks = [
        missing
        for start in range(0, total, batch_size)
        if (missing := [i for i in range(start, min(start + batch_size, total)) if data.ids[i] not in done])
    ]
    todo = sum(map(len, blocks))
    finished = total - todo
    if progress:
        progress(finished, total)
    operators = [get_operator(name) for name in list_operators()]
    before = {op.name: Counter(op.taken) for op in operators}
    reset_peak_memory()
    predict = functools.partial(protocol.predict, net, data)
    items: list[dict[str, Any]] = []
    arrays: dict[str, list[np.ndarray]] = {}
    forward_seconds, predicted = 0.0, 0
    begin = flushed = time.perf_counter()
    for good, inputs, bad in protocol.batches(net, bench, data, blocks, workers=workers, on_bad=on_bad):
        started = time.perf_counter()
        outputs = _forward(predict, inputs, place, precision) if good else {}
        forward_seconds += time.perf_counter() - started
        predicted += len(good)
        row = sum(item["row"] is not None for item in items)
        for i in good:
            items.append({"id": data.ids[i], "row": row, "error": bad.get(i)})
            row += 1
        items.extend({"id": data.ids[i], "row": None, "error": bad[i]} for i in bad if i not in good)
        for name, array in outputs.items():
            arrays.setdefault(name, []).append(array)
        finished += len(good) + sum(i not in good for i in bad)
        if progress:
            progress(finished, total)
        now = time.perf_counter()
        # at first every second, later at 2 % of the time gone: a crash costs little and parts stay few
        if now - flushed > max(1.0, 0.02 * (now - begin)):
            _flush(store, items, arrays)
            flushed = now
    _flush(store, items, arrays)
    return {
        "items": todo,
        "forward_items": predicted,
        "forward_seconds": forward_seconds,
        "seconds": time.perf_counter() - begin,
        "peak_memory_mib": peak_memory_mib(),
        "kernel_paths": {op.name: sorted(taken) for op in operators if (taken := op.taken - before[op.name])},
    }


def _flush(store: Store, items: list[dict[str, Any]], arrays: dict[str, list[np.ndarray]]) -> None:
    if items:
        store.append(items, {name: np.concatenate(parts) for name, parts in arrays.items()})
        items.clear()
        arrays.clear()


def _forward(
    predict: Callable[[torch.Tensor], dict[str, np.ndarray]], inputs: torch.Tensor, place: torch.device, precision: str
) -> dict[str, np.ndarray]:
    dtype = PRECISIONS[precision]
    try:
        with torch.inference_mode(), torch.autocast(place.type, dtype) if dtype else nullcontext():
            return predict(inputs.to(place))
    except torch.OutOfMemoryError:
        if len(inputs) == 1:
            raise
        half = len(inputs) // 2
        log.warning("out of memory at batch size %d, trying %d", len(inputs), half)
        torch.cuda.empty_cache()
    first, second = (_forward(predict, part, place, precision) for part in (inputs[:half], inputs[half:]))
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def _history(store: Store, run: dict[str, Any]) -> dict[str, Any]:
    """What all runs into this store did together; kept beside it so that a resumed result still has its timing."""
    path = store.folder / "runs.json"
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if run["items"]:
        runs.append(run)
        write_json(path, runs)
    seconds = sum(r["forward_seconds"] for r in runs)
    predicted = sum(r["forward_items"] for r in runs)
    paths: dict[str, set[str]] = {}
    for r in runs:
        for name, taken in r["kernel_paths"].items():
            paths.setdefault(name, set()).update(taken)
    return {
        "computed_now": run["items"],
        "seconds": sum(r["seconds"] for r in runs),
        "images_per_second": predicted / seconds if seconds else None,
        "peak_memory_mib": max((r["peak_memory_mib"] for r in runs), default=None),
        "kernel_paths": {name: sorted(taken) for name, taken in paths.items()},
        **{name: (runs or [run])[-1][name] for name in ("device", "batch_size", "threads")},
    }
