"""What lies in a folder: its layout, counts, what is missing, and three sample pictures to look at."""

import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foveal.eval.benchmark import Benchmark, DataMissing, benchmarks
from foveal.eval.data import csv_file, fashion_mnist, folder
from foveal.eval.data.fetching import NOTE, DataSet, data_sets, miscounts, noted
from foveal.eval.data.pictures import SUFFIXES
from foveal.kernels._names import UnknownName
from foveal.weights.places import sha256_of

SPLITS = {"train", "val", "valid", "validation", "test"}


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        name: of the benchmark or data set, or the folder.
        place: where it lies.
        layout: how it is laid out, in words.
        counts: what was found; expected: what was declared, empty for one's own data.
        missing: ids or files that are listed but not there.
        wrong: anything else that is not as declared, in words.
        samples: three pictures: the first, the middle and the last one.
        notes: what is no mistake but worth knowing.
    """

    name: str
    place: str
    layout: str
    counts: dict[str, int]
    expected: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.missing or self.wrong)


@dataclass(frozen=True)
class Layout:
    """A way in which people lay out their pictures: how it is seen, and the reader that reads it."""

    what: str
    seen: Callable[[Path], bool]
    read: Callable[[Path], Any]


def _has_class_folders(root: Path) -> bool:
    return root.is_dir() and any(
        p.suffix.lower() in SUFFIXES for d in root.iterdir() if d.is_dir() and d.name[0] != "." for p in d.rglob("*")
    )


LAYOUTS = (  # the first that is seen is taken
    Layout(
        "csv with the columns path and label", lambda p: bool(p.suffix == ".csv" or [*p.glob("*.csv")]), csv_file.read
    ),
    Layout("idx files as of MNIST", lambda p: (p / "t10k-images-idx3-ubyte.gz").is_file(), fashion_mnist.read),
    Layout("one folder a class", _has_class_folders, folder.read),
)


def check(name: str, data_root: Path | None = None) -> Checked:
    """Checks a benchmark's data, a fetched data set, or a folder or csv file of one's own.

    Args:
        name: a benchmark, a name of `data_sets`, or a path.
        data_root: where the data of a benchmark lies, unless it ships.
    Raises:
        UnknownName: when it is none of the three.
        DataMissing: when the data is not there, or can't be read as what it has to be.
    """
    if name in benchmarks():
        bench = benchmarks()[name]
        describe = _describe_of(bench)
        if describe and data_root is not None:
            facts = describe(Path(data_root).expanduser())
            found = Checked(name, str(data_root), expected=dict(bench.counts), **facts)
            differ = {what: n for what, n in bench.counts.items() if found.counts.get(what) != n}
            found.wrong.extend(f"{n} {what} expected, {found.counts.get(what)} found" for what, n in differ.items())
            return found
        data = bench.read(data_root)
        place = "inside the package" if bench.embedded else str(data_root)
        return _of_reader(name, place, getattr(data, "layout", "") or f"read by {bench.reader}", data, bench.counts)
    if name in data_sets():
        row = data_sets()[name]
        if not row.here:
            raise DataMissing(f"{name}: is not here; `foveal data fetch {name}` brings it to {row.path}")
        return _weights(row) if row.kind == "weights" else _fetched(row, row.path)
    path = Path(name).expanduser()
    if not path.exists():
        raise UnknownName(
            "benchmark, data set or folder", name, [*benchmarks(), *data_sets()], hint="see `foveal data list`"
        )
    return _own(path)


def _describe_of(bench: Benchmark) -> Callable[[Path], dict[str, Any]] | None:
    """What stands beside a reader that can say more than counts: ``describe_x`` beside ``read_x``."""
    module, _, function = bench.reader.partition(":")
    beside = "describe" + function.removeprefix("read")
    return getattr(importlib.import_module(f"foveal.eval.data.{module}"), beside, None)


def _own(path: Path) -> Checked:
    if (path / NOTE).is_file():
        name, _ = noted(path)
        if name in data_sets():
            return _fetched(data_sets()[name], path)
    folders = {p.name for p in path.iterdir() if p.is_dir()} if path.is_dir() else set()
    if splits := sorted(folders & SPLITS):
        raise DataMissing(f"{path}: holds the splits {', '.join(splits)}; check one of them, e.g. {path / splits[0]}")
    for layout in LAYOUTS:
        if layout.seen(path):
            return _of_reader(str(path), str(path), layout.what, layout.read(path), {})
    loose = _pictures(path) if path.is_dir() else []
    if loose:
        return Checked(str(path), str(path), "pictures without classes", {"images": len(loose)}, samples=_three(loose))
    raise DataMissing(f"{path}: holds no known layout of pictures ({'; '.join(known.what for known in LAYOUTS)})")


def _of_reader(name: str, place: str, layout: str, data: Any, expected: dict[str, int]) -> Checked:
    sources, ids = getattr(data, "sources", ()), [str(i) for i in getattr(data, "ids", ())]
    missing = [i for i, source in zip(ids, sources) if isinstance(source, Path) and not source.is_file()]
    shown = [str(source) if isinstance(source, Path) else f"item {i}" for i, source in zip(ids, sources)]
    return Checked(name, place, layout, data.counts(), dict(expected), missing, samples=_three(shown))


def _fetched(row: DataSet, root: Path) -> Checked:
    _, sizes = noted(root)
    missing = [name for name in sizes if not (root / name).is_file()]
    wrong = [
        f"{name} has {(root / name).stat().st_size} bytes, {size} were unpacked"
        for name, size in sizes.items()
        if name not in missing and (root / name).stat().st_size != size
    ]
    if not missing:
        wrong += miscounts(row, root)
    counts = Counter(Path(name).suffix.lower() or "no suffix" for name in sizes if name not in missing)
    expected = {**row.files, **row.items}
    layout = f"as unpacked from {row.addresses[0]}"
    return Checked(
        row.name, str(root), layout, dict(counts.most_common()), expected, missing, wrong, _three(_pictures(root))
    )


def _weights(row: DataSet) -> Checked:
    found = sha256_of(row.path)
    wrong = [f"sha256 is {found}, not {row.sha256}"] if row.sha256 and found != row.sha256 else []
    return Checked(row.name, str(row.path), "one file of weights", {"bytes": row.path.stat().st_size}, wrong=wrong)


def _pictures(root: Path) -> list[str]:
    return [str(p) for p in sorted(root.rglob("*")) if p.suffix.lower() in SUFFIXES and p.is_file()]


def _three(found: Sequence[str]) -> list[str]:
    """The first, the middle and the last.

    >>> _three("abcde"), _three("ab"), _three("")
    (['a', 'c', 'e'], ['a', 'b'], [])
    """
    return [found[i] for i in sorted({0, len(found) // 2, len(found) - 1})] if found else []
