"""From a full store to a result: no model is needed, only the store and the data."""

import importlib
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foveal.eval.benchmark import Benchmark, DataMissing, get_benchmark
from foveal.eval.measures import versions
from foveal.eval.store import Store, read_json, write_json

log = logging.getLogger("foveal")


def score(store: Store, facts: dict[str, Any], bench: Benchmark, data: Any, where: dict[str, Any]) -> dict[str, Any]:
    """The result of a store, also written to ``result.json``.

    Raises:
        DataMissing: when items are still to be computed.
    """
    items, arrays = store.read()
    order = list(range(facts["n"]))
    absent = [data.ids[i] for i in order if data.ids[i] not in items]
    if absent:
        raise DataMissing(
            f"{store.folder}: {len(absent)} of {facts['n']} items are not computed yet, the first is {absent[0]}; "
            "run the other shards and merge them, or the same command without --shard"
        )
    failed = {data.ids[i]: items[data.ids[i]]["error"] for i in order if items[data.ids[i]]["error"]}
    protocol = importlib.import_module(f"foveal.eval.protocols.{bench.protocol}")
    result = {
        **facts,
        "n_failed": len(failed),
        "failed": failed,
        "n_nonfinite": _nonfinite(arrays, [row for i in order if (row := items[data.ids[i]]["row"]) is not None]),
        "main": bench.main,
        "metrics": protocol.metrics(bench, data, order, items, arrays),
        "source": bench.source,
        "run": {**_together(store), **where},
        "versions": versions(),
    }
    write_json(store.folder / "result.json", result)
    if failed:
        log.warning("%s on %s: %d unreadable items, listed in the result", facts["model"], bench.name, len(failed))
    return result


def _nonfinite(arrays: dict[str, np.ndarray], rows: list[int]) -> int:
    return sum(int((~np.isfinite(a[rows]).reshape(len(rows), -1).all(1)).sum()) for a in arrays.values() if rows)


def _together(store: Store) -> dict[str, Any]:
    """What all runs into this store did, kept beside it so that a resumed result still has its timing.

    Processes of one run worked at the same time, so the longest of them counts.
    """
    by_process = store.runs()
    runs = [run for of_one in by_process.values() for run in of_one]
    longest = max((sum(r["forward_seconds"] for r in of_one) for of_one in by_process.values()), default=0.0)
    predicted = sum(r["forward_items"] for r in runs)
    paths: dict[str, set[str]] = {}
    for r in runs:
        for name, taken in r["kernel_paths"].items():
            paths.setdefault(name, set()).update(taken)
    return {
        "seconds": max((sum(r["seconds"] for r in of_one) for of_one in by_process.values()), default=0.0),
        "processes": len(by_process),
        "images_per_second": predicted / longest if predicted else None,
        "peak_memory_mib": max((r["peak_memory_mib"] for r in runs), default=None),
        "kernel_paths": {name: sorted(taken) for name, taken in paths.items()},
        **{name: runs[-1][name] if runs else None for name in ("device", "batch_size", "threads")},
    }


def merge(
    sources: Sequence[str | Path], output: str | Path, *, data_root: str | Path | None = None
) -> list[dict[str, Any]]:
    """Joins the stores that shards left in several result folders, and scores those that are whole.

    Args:
        sources: folders that ``foveal eval --shard I/N --output …`` wrote.
        output: the folder that gets the joined stores; may be one of the sources.
        data_root: as for `foveal.evaluate`.
    Raises:
        DataMissing: when a folder holds no store, items are missing, or the data is not what the shards saw.
    """
    output = Path(output).expanduser()
    joined: dict[Path, None] = {}
    for source in (Path(s).expanduser() for s in sources):
        found = sorted(source.rglob("identity.json"))
        if not found:
            raise DataMissing(f"{source}: holds no store; pass folders that `foveal eval --shard I/N` wrote")
        for path in found:
            place = output / path.parent.relative_to(source)
            joined[place] = None
            if place.resolve() != path.parent.resolve():
                Store(place).take(Store(path.parent))
                shutil.copyfile(path, place / "identity.json")
    results = []
    for place in joined:
        facts = read_json(place / "identity.json")
        bench = get_benchmark(facts["benchmark"])
        data = bench.read(data_root)
        if data.fingerprint() != facts["data_sha256"]:
            raise DataMissing(f"{place}: was computed on other data than {data_root}; pass the data the shards saw")
        results.append(score(Store(place), facts, bench, data, {"data_root": None}))
    return results
