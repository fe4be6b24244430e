"""Features of frozen models, computed once: a cache keyed by everything that decides them, and by nothing else."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from foveal.eval.store import write_json
from foveal.weights.places import home
from foveal.weights.saving import save_state

log = logging.getLogger("foveal")
Features = NDArray[np.float32]
CAP = 20 << 30  # bytes
NAME = "key.json"  # what an entry was computed from; its time is that of the last use


class FeatureCache:
    """Entries in a folder, each the features of one model on one set of data, in parts of items.

    A part is a safetensors file, written aside and renamed, with the ids of its items and a sha256 over ids and
    features; one that does not agree with its hash is left out, with a warning, and its items are missing again. The
    entries together stay under the cap: the ones not used for longest go first.

    Args:
        folder: made when something is stored; without it, ``features`` in `FOVEAL_HOME`.
        cap: bytes that all entries may take.
    Raises:
        ValueError: for a cap below 1.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache, key = FeatureCache(folder), {"weights": "abc", "data": "def"}
    ...     cache.store(key, ["a.png", "b.png"], np.ones((2, 4), np.float32))
    ...     [cache.read({"weights": "abc", "data": what})[0] for what in ("def", "other")]
    True
    [['a.png', 'b.png'], []]
    """

    def __init__(self, folder: str | Path | None = None, cap: int = CAP):
        if cap < 1:
            raise ValueError(f"FeatureCache: cap must be at least 1 byte, got {cap}")
        self.folder = home() / "features" if folder is None else Path(folder).expanduser()
        self.cap = cap

    def entry(self, key: Mapping[str, Any]) -> Path:
        """The folder of a key's parts: named by the sha256 of its content, whatever the order of its names."""
        return self.folder / _digest(key)

    def read(self, key: Mapping[str, Any]) -> tuple[list[str], Features]:
        """Ids and (n, D) features of the items that the cache has, in no set order; counts as a use of the entry."""
        ids: dict[str, None] = {}
        rows: list[Features] = []
        for path in _parts(self.entry(key)):
            try:
                names, features = _read_part(path, path.parent.name)
            except FileNotFoundError:  # another process made room
                continue
            except ValueError as error:
                log.warning("%s; its items are computed again", error)
                path.unlink(missing_ok=True)
                continue
            if rows and features.shape[1] != rows[0].shape[1]:
                log.warning("%s: of another length than the parts before it; its items are computed again", path)
                path.unlink(missing_ok=True)
                continue
            new = [row for row, name in enumerate(names) if name not in ids]
            ids.update(dict.fromkeys(names))
            rows.append(features[new])
        if rows:
            _touch(self.entry(key))
        return list(ids), np.concatenate(rows) if rows else np.zeros((0, 0), np.float32)

    def store(self, key: Mapping[str, Any], ids: Sequence[str], features: Features) -> bool:
        """Adds one part; False, with a warning, when the cap leaves no room for it or the disk refuses it.

        Raises:
            ValueError: when features are not (n, D) float32 with one row for each of n different ids.
        """
        if features.ndim != 2 or features.dtype != np.float32 or len(features) != len(ids) or len({*ids}) != len(ids):
            raise ValueError(
                f"FeatureCache.store: features must be (n, D) float32, a row for each of n different ids, got "
                f"{features.shape} {features.dtype} for {len({*ids})} of {len(ids)} ids"
            )
        if not len(ids):
            return True
        entry = self.entry(key)
        names, features = json.dumps(list(ids)), np.ascontiguousarray(features)
        notes = {"key": entry.name, "ids": names, "sha256": _hash(names, features)}
        most = features.nbytes + 2 * len(names) + 2 * len(json.dumps(key)) + 1024  # of the two files, header and all
        if not self._make_room(most, entry):
            log.warning("%s: no room for these features under the cap of %d bytes; they are not kept", entry, self.cap)
            return False
        try:
            entry.mkdir(parents=True, exist_ok=True)
            if not (entry / NAME).exists():
                with suppress(FileNotFoundError):  # another process has just written the same
                    write_json(entry / NAME, key)
            part = f"part-{hashlib.sha256(names.encode()).hexdigest()[:16]}.safetensors"
            save_state({"features": torch.from_numpy(features)}, entry / part, notes)
            _touch(entry)
        except OSError as error:
            log.warning("%s: features can't be kept here (%s)", entry, error)
            return False
        return True

    def size(self) -> int:
        """Bytes that the entries take."""
        return sum(_size(entry) for entry in self._entries())

    def verify(self, repair: bool = False) -> list[str]:
        """A sentence for each part that is damaged and each file that a killed process left; none when all is well.

        Args:
            repair: remove these files. Only while no other process writes into the cache.
        """
        found: list[str] = []
        for entry in self._entries():
            for path in sorted(entry.iterdir()):
                try:
                    if path.suffix == ".safetensors":
                        _read_part(path, entry.name)
                    elif path.name == NAME:
                        _check_name(path)
                    else:
                        raise ValueError(f"{path}: a file that a killed process left")
                except ValueError as error:
                    found.append(str(error))
                    if repair:
                        path.unlink()
        return found

    def _entries(self) -> list[Path]:
        """Folders that are entries of ours, not used for longest first; anything else in the folder is let alone."""
        named = [p for p in self.folder.glob("*") if len(p.name) == 64 and {*p.name} <= {*"0123456789abcdef"}]
        return sorted((p for p in named if p.is_dir() and not p.is_symlink()), key=_last_use)

    def _make_room(self, needed: int, keep: Path) -> bool:
        """Removes whole entries, those not used for longest first, but never the one that is being filled."""
        sizes = {entry: _size(entry) for entry in self._entries()}
        excess = sum(sizes.values()) + needed - self.cap
        if excess > 0 and sizes.get(keep, 0) + needed > self.cap:
            return False  # no use in emptying the cache for it
        for entry, size in sizes.items():
            if excess <= 0:
                break
            if entry != keep:
                shutil.rmtree(entry, ignore_errors=True)
                excess -= size - _size(entry)
        return excess <= 0


def _digest(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def _hash(names: str, features: Features) -> str:
    whole = hashlib.sha256(f"{names}\0{features.shape}\0".encode())
    whole.update(features.data if features.size else b"")
    return whole.hexdigest()


def _parts(entry: Path) -> list[Path]:
    return sorted(entry.glob("part-*.safetensors"))


def _read_part(path: Path, key: str) -> tuple[list[str], Features]:
    """Ids and features of a part.

    Raises:
        ValueError: when its bytes are not those that were written, or it is of another entry.
    """
    try:
        with safe_open(path, framework="np") as part:
            notes, features = part.metadata() or {}, part.get_tensor("features")
        names = notes.get("ids", "")
        if notes.get("key") != key or features.dtype != np.float32 or notes.get("sha256") != _hash(names, features):
            raise ValueError("its content does not agree with its hash")
        return json.loads(names), features
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: a damaged part of the feature cache ({error})") from error


def _check_name(path: Path) -> None:
    try:
        right = _digest(json.loads(path.read_text(encoding="utf-8"))) == path.parent.name
    except ValueError:
        right = False
    if not right:
        raise ValueError(f"{path}: does not describe the entry that it stands in")


def _last_use(entry: Path) -> int:
    try:
        return (entry / NAME).stat().st_mtime_ns
    except OSError:
        return 0


def _touch(entry: Path) -> None:
    try:
        os.utime(entry / NAME)
    except OSError as error:  # a cache that can only be read is still a cache
        log.debug("%s: %s", entry, error)


def _size(entry: Path) -> int:
    try:
        return sum(path.stat().st_size for path in entry.iterdir())
    except FileNotFoundError:  # another process removed it
        return 0
