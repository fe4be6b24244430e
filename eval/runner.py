"""Runs one model on one benchmark: predictions of missing items go to the store, then metrics come from the store."""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from foveal.eval.benchmark import Benchmark, OnBad, get_benchmark
from foveal.eval.identity import folder_of, identity
from foveal.eval.predicting import Plan, Progress, check_precision, fill
from foveal.eval.processes import join
from foveal.eval.scoring import score
from foveal.eval.store import Store, read_json, write_json
from foveal.tasks.modes import eval_mode
from foveal.zoo.create import create_model

log = logging.getLogger("foveal")


def pick_device(device: str) -> torch.device:
    """A device by name; "auto" takes cuda, then mps, then cpu.

    Raises:
        ValueError: when it is not there.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=device).cpu()
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
    timeout: float | None = None,
    shard: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The figures of a model on a benchmark, as the dict that is also written to ``result.json``.

    A run that was killed goes on where it stopped. At one batch size and thread count a resumed run, and one by
    several processes (``torchrun --nproc_per_node N -m foveal eval …``), gives the same figures to the bit. Without a
    key of their own are what does not decide figures: the device, the batch size, the threads, the processes, the
    names of the weights' file and of the data's folder.

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
        timeout: seconds that reading one picture may take; a slower one is listed as failed and the run goes on.
        shard: "I/N": compute only this part of the blocks; `foveal.eval.scoring.merge` joins the parts. What comes
            back then has no metrics unless the store is whole.
        progress: called with (items done, items in all).
    Raises:
        UnknownName: for a wrong model or benchmark name.
        DataMissing: when the data is not there or not what is declared.
        ImageError: with on_bad="error", for the first picture that can't be read.
        ValueError: when model and benchmark do not fit, or an option is not one of its choices.
    """
    bench = get_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    place = pick_device(device)
    check_precision(precision)
    if on_bad not in get_args(OnBad):
        raise ValueError(f"on_bad is one of {', '.join(get_args(OnBad))}, got {on_bad!r}")
    for option, value in (("batch_size", batch_size), ("limit", limit), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"{option} has to be 1 or more, got {value}")
    if workers < 0:
        raise ValueError(f"workers has to be 0 or more, got {workers}")
    if timeout is not None and not 0 < timeout <= 1e6:
        raise ValueError(f"timeout has to be positive and at most a million seconds, got {timeout}")
    share = join(shard)
    data = bench.read(data_root)
    net = create_model(model, pretrained=True) if isinstance(model, str) else model
    protocol = importlib.import_module(f"foveal.eval.protocols.{bench.protocol}")
    protocol.check(net, bench, data)
    facts = identity(net, bench, data, precision, limit, on_bad)
    store = Store(folder_of(Path(results).expanduser(), facts))
    where = {"data_root": None if data_root is None or bench.embedded else str(Path(data_root).expanduser().resolve())}
    if share.first:
        _warn_of_changed_data(store, facts, where)
        if short := bench.short_of(data):
            log.warning("%s: %s; the result is marked partial", bench.name, short)
        if not (store.folder / "identity.json").exists():
            write_json(store.folder / "identity.json", facts)

    net.to(place)
    plan = Plan(place, precision, batch_size, workers, on_bad, timeout, share)
    with eval_mode(net), _threads(threads):
        run = fill(net, protocol, bench, data, store, facts["n"], plan, progress)
    store.note_run(run, share.process)
    share.wait()
    if shard is not None and len(store.ids()) < facts["n"]:
        return {**facts, "metrics": {}, "stored": len(store.ids()), "computed_now": run["items"]}
    if share.first:
        score(store, facts, bench, data, where | {"computed_now": run["items"]})
    share.wait()
    return read_json(store.folder / "result.json")


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
        other = read_json(path, default={})
        changed = {name for name, value in facts.items() if other.get(name) != value}
        if {"data_sha256"} <= changed <= {"data_sha256", "n"} and where.items() <= other.get("run", {}).items():
            log.warning(
                "%s: the data have changed since %s was computed, so its figures are not those of these data",
                facts["benchmark"], path,
            )  # fmt: skip
