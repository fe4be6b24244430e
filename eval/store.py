"""Predictions on disk, append-only: a part is a jsonl file of items and a safetensors file of their arrays.

Each part is written aside and renamed, arrays first, so that a part whose jsonl file exists is whole. A killed run
loses at most the part it was gathering.
"""

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes

log = logging.getLogger("foveal")


class Store:
    """The parts of one run in a folder.

    Attributes:
        folder: RESULTS/<benchmark>/<model>/<key>.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._checked: dict[Path, bool] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def _parts(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("part-*.jsonl") if self._whole(path))

    def _whole(self, path: Path) -> bool:
        """Whether a part is of this run and as it was written; another is left alone and its items computed again."""
        if path not in self._checked:
            try:
                head, _, items = path.read_bytes().partition(b"\n")
                arrays = path.with_suffix(".safetensors").read_bytes()
                self._checked[path] = json.loads(head) == _seal(self.folder.name, items, arrays)
            except (OSError, ValueError):
                self._checked[path] = False
            if not self._checked[path]:
                log.warning("%s: not a whole part of this run, its items are computed again", path)
        return self._checked[path]

    def append(self, items: Sequence[dict[str, Any]], arrays: dict[str, np.ndarray], process: int = 0) -> None:
        """Adds one part: dicts with at least an "id", and arrays whose rows the items number in "row" (or null)."""
        number = len(list(self.folder.glob(f"part-{process}-*.jsonl")))
        # a name of its own: another run may be adding to the same store
        stem = self.folder / f"part-{process}-{number:05d}-{secrets.token_hex(4)}"
        data, lines = to_bytes(arrays), "".join(json.dumps(item) + "\n" for item in items).encode()
        _write(stem.with_suffix(".safetensors"), data)
        head = json.dumps(_seal(self.folder.name, lines, data)) + "\n"
        _write(stem.with_suffix(".jsonl"), head.encode() + lines)

    def take(self, other: "Store") -> None:
        """Adds the parts and notes of another store of the same run; parts that are here already are left alone."""
        for path in (*other._parts(), *other.folder.glob("runs-*.json")):
            for source in (path.with_suffix(".safetensors"), path):
                if source.exists() and not (self.folder / path.name).exists():
                    _write(self.folder / source.name, source.read_bytes())

    def note_run(self, run: dict[str, Any], process: int = 0) -> None:
        """Keeps what one process did, unless it had nothing to do."""
        if run["items"]:
            write_json(self.folder / f"runs-{process}.json", [*self.runs().get(process, []), run])

    def runs(self) -> dict[int, list[dict[str, Any]]]:
        """What each process did, oldest first."""
        found = {int(p.stem.partition("-")[2]): p for p in self.folder.glob("runs-*.json")}
        runs = {process: read_json(path, default=[]) for process, path in sorted(found.items())}
        return {process: of_one for process, of_one in runs.items() if of_one}

    def ids(self) -> set[str]:
        """Ids of all stored items."""
        return {item["id"] for path in self._parts() for item in _items(path)}

    def read(self) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]:
        """Items by id, "row" pointing into the arrays joined over all parts; an id stored twice keeps its first."""
        items: dict[str, dict[str, Any]] = {}
        pieces: dict[str, list[np.ndarray]] = {}
        offset = 0
        for path in self._parts():
            arrays = load_file(path.with_suffix(".safetensors"))
            for name, array in arrays.items():
                pieces.setdefault(name, []).append(array)
            for item in _items(path):
                if item["row"] is not None:
                    item["row"] += offset
                items.setdefault(item["id"], item)
            offset += len(next(iter(arrays.values()))) if arrays else 0
        return items, {name: np.concatenate(part) for name, part in pieces.items()}


def _seal(store: str, items: bytes, arrays: bytes) -> dict[str, str]:
    """The first line of a part: which run it belongs to, and the hashes of what it holds."""
    return {
        "store": store,
        "items_sha256": hashlib.sha256(items).hexdigest(),
        "arrays_sha256": hashlib.sha256(arrays).hexdigest(),
    }


def _items(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        next(stream)  # the seal
        for line in stream:
            yield json.loads(line)


def read_json(path: Path, default: Any = None) -> Any:
    """What `write_json` wrote.

    Raises:
        ValueError: when it is damaged; with a default, that is given instead.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if default is not None and not isinstance(found, type(default)):
            raise ValueError(f"a {type(found).__name__}")
        return found
    except ValueError as error:
        if default is None:
            raise ValueError(f"{path}: damaged ({error}); delete it and run again") from error
        log.warning("%s: damaged (%s), left aside", path, error)
        return default


def write_json(path: Path, facts: Any) -> None:
    """JSON written aside and renamed. It is ASCII: the name of a file need not be valid text."""
    _write(path, (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode())


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    with aside.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())  # else a power cut could keep the name and lose what it names
    os.replace(aside, path)
