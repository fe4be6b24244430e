"""What decides the figures of a run; its hash is the key of the store."""

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from foveal.eval.benchmark import Benchmark
from foveal.eval.measures import foveal_version
from foveal.eval.results import label
from foveal.weights.saving import state_hash
from foveal.zoo.create import RANDOM
from foveal.zoo.transforms import preprocessing_of

NOT_DECIDING = ("weights", "n", "partial")  # what weights are called, and what follows from the rest


def identity(
    net: nn.Module, bench: Benchmark, data: Any, precision: str, limit: int | None, on_bad: str
) -> dict[str, Any]:
    """The deciding facts as JSON holds them, what the weights are called, and how many items there are to be."""
    info = getattr(net, "foveal", None)
    weights = info.weights if info else "given in memory"
    facts = {
        "model": info.name if info else type(net).__name__,
        "options": info.options if info else {},
        "weights": weights,
        "random_weights": weights == RANDOM,
        "state_sha256": state_hash(net),
        "structure_sha256": structure_hash(net),
        "preprocessing": asdict(preprocessing_of(net)),
        "benchmark": bench.name,
        "benchmark_version": bench.version,
        "data_sha256": data.fingerprint(),
        "precision": precision,
        "limit": limit,
        "on_bad": on_bad,
        "seed": 0,  # of the bootstrap; nothing else here is drawn
        "n": min(len(data), limit) if limit else len(data),
        "partial": bool(limit and limit < len(data)) or bool(bench.short_of(data)),
    }
    return json.loads(json.dumps(facts, default=str))  # options may hold types


def structure_hash(net: nn.Module) -> str:
    """Of the modules and their settings as torch prints them: equal weights can be used in two ways."""
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(net)).encode()).hexdigest()


def folder_of(results: Path, facts: dict[str, Any]) -> Path:
    """RESULTS/<benchmark>/<model>/<key>."""
    decides = {name: value for name, value in facts.items() if name not in NOT_DECIDING}
    key = hashlib.sha256(json.dumps(decides | {"code": foveal_version()}, sort_keys=True).encode()).hexdigest()[:16]
    return results / facts["benchmark"] / re.sub(r"[^\w.-]+", "_", label(facts)).strip("_") / key
