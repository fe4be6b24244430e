"""What a benchmark is: data, a protocol, metrics and the counts that must be found. A file in ``benchmarks/`` joins."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from foveal.kernels._names import UnknownName

FOLDER = Path(__file__).resolve().parent / "benchmarks"
OnBad = Literal["error", "skip", "substitute"]  # what an unreadable item does, see `evaluate`


class DataMissing(FileNotFoundError):
    """The data of a benchmark is not where it was looked for, or not what it has to be."""


@dataclass(frozen=True)
class Benchmark:
    """A declaration.

    Attributes:
        name: what a user types.
        protocol: module in ``eval/protocols`` that runs it.
        reader: ``module:function`` in ``eval/data``; called with the data root (None for embedded data).
        metrics: names that the protocol computes; main: the one to compare by.
        higher: whether larger is better for the main metric.
        counts: what the reader must find, e.g. {"images": 10000}; empty for a user's own data.
        version: raised when anything changes that changes figures.
        source: paper and licence of the data.
        exif: apply the orientation stored in photographs.
        embedded: ships with the package, needs no data root.
        quick: models of the quick suite, as (name, weights); weights "" are the name's own, "random" are fresh.
    """

    name: str
    protocol: str
    reader: str
    metrics: tuple[str, ...]
    main: str
    version: int
    source: str
    higher: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    exif: bool = True
    embedded: bool = False
    quick: tuple[tuple[str, str], ...] = ()

    def read(self, data_root: str | Path | None) -> Any:
        """The data, counted; embedded data are read from the package whatever the root is.

        Raises:
            DataMissing: when it is not there, or more than is declared was found: that is another set. What is less
                is part of the set, see `short_of`.
        """
        if data_root is None and not self.embedded:
            raise DataMissing(f"{self.name}: needs its data; say where it is with --data-root DIR (or FOVEAL_DATA)")
        module, _, function = self.reader.partition(":")
        reader: Callable[[Path | None], Any] = getattr(importlib.import_module(f"foveal.eval.data.{module}"), function)
        data = reader(None if self.embedded or data_root is None else Path(data_root).expanduser())
        found = data.counts()
        more = [what for what, n in self.counts.items() if found[what] > n]
        if more:
            raise DataMissing(f"{self.name}: this is not the declared data: {self._differences(found, more)}")
        return data

    def short_of(self, data: Any) -> str:
        """What of the declared counts is not there, or "": figures on such data are partial."""
        found = data.counts()
        return self._differences(found, [what for what, n in self.counts.items() if found[what] < n])

    def _differences(self, found: dict[str, int], kinds: list[str]) -> str:
        return ", ".join(f"{self.counts[what]} {what} expected, {found[what]} found" for what in kinds)


@functools.cache
def benchmarks() -> dict[str, Benchmark]:
    """All declarations by name.

    Raises:
        ValueError: when two files declare one name.
    """
    found: dict[str, Benchmark] = {}
    for path in sorted(FOLDER.glob("*.py")):
        bench: Benchmark = importlib.import_module(f"foveal.eval.benchmarks.{path.stem}").BENCHMARK
        if bench.name in found:
            raise ValueError(f"benchmark {bench.name!r} is declared twice")
        found[bench.name] = bench
    return found


def get_benchmark(name: str) -> Benchmark:
    """A declaration by name.

    Raises:
        UnknownName: with the nearest names.

    >>> get_benchmark("fashion-mnist-test").counts
    {'images': 10000, 'classes': 10}
    """
    if name not in benchmarks():
        raise UnknownName("benchmark", name, benchmarks())
    return benchmarks()[name]
