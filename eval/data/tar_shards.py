"""Pictures inside tar files, read where they lie: the headers are listed once, nothing is unpacked."""

import functools
import io
import itertools
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.pictures import SUFFIXES

LONGEST_LABEL = 256  # bytes of a NAME.cls


@dataclass(frozen=True)
class Entry:
    """A file inside a tar file: its name there, where its bytes start and how many they are."""

    archive: Path
    name: str
    start: int
    size: int

    @property
    def suffix(self) -> str:
        """What follows the last dot, with it, in lower case."""
        return self.name[len(self.name.rpartition(".")[0]) :].lower()

    @property
    def sample(self) -> str:
        """The name up to the first dot of its last part: what webdataset calls the key of a sample."""
        folder, slash, base = self.name.rpartition("/")
        return folder + slash + base.partition(".")[0]

    def read(self) -> bytes:
        """The bytes.

        Raises:
            OSError: when the tar file can't be read any more.
        """
        with self.archive.open("rb") as stream:
            stream.seek(self.start)
            return stream.read(self.size)


class Member:
    """An entry as `read_image` takes it: a binary file that is read when it is first asked for."""

    def __init__(self, entry: Entry):
        self.name = f"{entry.archive}: {entry.name}"
        self._entry = entry

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def _stream(self) -> io.BytesIO:
        return io.BytesIO(self._entry.read())

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of a file."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """As of a file."""
        return self._stream.tell()

    def read(self, size: int = -1) -> bytes:
        """As of a file."""
        return self._stream.read(size)

    def tobytes(self) -> bytes:
        """All bytes, as `Pictures.fingerprint` takes them."""
        return self._entry.read()


class Members(Sequence[Any]):
    """The sources of `Pictures` for entries; each look gives a new `Member`, so that no picture stays in memory."""

    def __init__(self, entries: Sequence[Entry]):
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, at: Any) -> Any:
        return Members(self.entries[at]) if isinstance(at, slice) else Member(self.entries[at])


def tar_files(root: Path) -> list[Path]:
    """The tar files of a folder, sorted by name, or the one that is named; hidden or compressed ones are left out."""
    files = [root] if root.is_file() else sorted(p for p in root.iterdir() if p.is_file() and p.name[0] != ".")
    return [p for p in files if p.suffix.lower() == ".tar"]


def entries(archives: Iterable[Path]) -> list[Entry]:
    """All plain files of tar files, in their order; hidden ones (``.name``) are not looked at.

    Raises:
        DataMissing: when one is no whole tar file.
    """
    found: list[Entry] = []
    for archive in archives:
        stat = archive.stat()
        found += _listed(archive, stat.st_size, stat.st_mtime_ns)
    return found


@functools.lru_cache(maxsize=8192)
def _listed(archive: Path, size: int, changed: int) -> tuple[Entry, ...]:
    """Of one tar file; its size and time of change make a changed file another one."""
    found = []
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                if member.isreg() and not member.issparse() and not member.name.rpartition("/")[2].startswith("."):
                    found.append(Entry(archive, member.name.removeprefix("./"), member.offset_data, member.size))
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise DataMissing(f"{archive}: not a whole tar file ({error}); copy or download it again") from error
    return tuple(found)


def labelled(found: Sequence[Entry]) -> tuple[list[Entry], dict[tuple[Path, str], str]]:
    """The pictures among entries, and the text of every NAME.cls by tar file and NAME.

    Raises:
        DataMissing: when a label is longer than a label or not text.
    """
    labels: dict[tuple[Path, str], str] = {}
    for archive, inside in itertools.groupby((e for e in found if e.suffix == ".cls"), lambda entry: entry.archive):
        with archive.open("rb") as stream:
            for entry in inside:
                labels[archive, entry.sample] = _label(entry, stream)
    return [entry for entry in found if entry.suffix in SUFFIXES], labels


def _label(entry: Entry, stream: BinaryIO) -> str:
    try:
        if entry.size > LONGEST_LABEL:
            raise ValueError(f"{entry.size} bytes")
        stream.seek(entry.start)
        return stream.read(entry.size).decode("utf-8").strip()
    except ValueError as error:
        raise DataMissing(f"{entry.archive}: {entry.name} is no label ({error})") from error
