"""Archives opened safely: zip (and whl), tar (plain, gz, bz2, xz, zst) and deb; what one is, its first bytes say.

Nothing is written outside the folder asked for, no link or device is made, no mode or owner is taken over, and an
archive that unpacks to far more than it holds is refused while it is read.
"""

import fnmatch
import logging
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from foveal.weights.archive_formats import BROKEN, CHUNK, BadArchive, Entry, Limits, Meter, entries

log = logging.getLogger("foveal")


def unpack(
    archive: Path,
    folder: Path,
    *,
    members: Sequence[str] = ("*",),
    strip: str = "",
    links: str = "refuse",
    limits: Limits | None = None,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Unpacks members into a new folder, which appears whole or not at all.

    Args:
        members: patterns as of `fnmatch`; ``*`` crosses folders.
        strip: leading folders that are left away, e.g. "usr/share/datasets".
        links: "refuse" or "skip"; a link is never made.
        check: called with the unpacked folder before it takes its place; what it raises leaves nothing behind.
    Raises:
        BadArchive: when it is damaged, unsafe, too large, or holds none of the members.
        FileExistsError: when there is such a folder.
    """
    if links not in ("refuse", "skip"):
        raise ValueError(f"unpack: links is refuse or skip, got {links!r}")
    if folder.exists():
        raise FileExistsError(f"{folder}: is there already; move it away first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.part"
    aside.mkdir()
    try:
        made = skipped = 0
        meter = Meter(archive, limits or Limits())
        for entry in entries(archive, meter):
            name = _safe_name(archive, entry)
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in members):
                continue
            if entry.kind == "device" or (entry.kind == "link" and links == "refuse"):
                raise BadArchive(f"{archive.name}: {entry.name!a} is a {entry.kind}; refused, nothing was kept")
            skipped += entry.kind == "link"
            if entry.kind == "file":
                _write(entry, aside / _stripped(name, strip), archive)
                made += 1
        if not made:
            raise BadArchive(f"{archive.name}: holds no file like {', '.join(members)}")
        if skipped:
            log.warning("%s: %d links were left out", archive.name, skipped)
        if check is not None:
            check(aside)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def read_member(archive: Path, member: str, target: Path, *, limits: Limits | None = None) -> Path:
    """Writes one member of an archive into a file.

    Raises:
        BadArchive: when it is damaged, or has no such member.
    """
    found = False
    target.unlink(missing_ok=True)
    try:
        for entry in entries(archive, Meter(archive, limits or Limits())):  # to the end, where the checksum may be
            if entry.kind == "file" and PurePosixPath(entry.name) == PurePosixPath(member):
                _write(entry, target, archive)
                found = True
    except BadArchive:
        target.unlink(missing_ok=True)
        raise
    if not found:
        raise BadArchive(f"{archive.name}: has no member {member}")
    return target


def _safe_name(archive: Path, entry: Entry) -> str:
    """The name as a path inside the folder, "" for the folder itself."""
    path = PurePosixPath(entry.name)
    if path.is_absolute() or ".." in path.parts or re.search(r"\\|\x00|^[A-Za-z]:", entry.name):
        raise BadArchive(f"{archive.name}: {entry.name!a} would lie outside its folder; refused, nothing was kept")
    return path.as_posix() if path.parts else ""


def _stripped(name: str, strip: str) -> str:
    prefix = strip.rstrip("/") + "/"
    return name.removeprefix(prefix) if strip else name


def _write(entry: Entry, path: Path, archive: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as stream:
            while chunk := entry.read(CHUNK):
                stream.write(chunk)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise BadArchive(f"{archive.name}: holds {entry.name!a} twice; refused, nothing was kept") from error
    except BROKEN as error:
        raise BadArchive(f"{archive.name}: is damaged at {entry.name!a} ({error})") from error
