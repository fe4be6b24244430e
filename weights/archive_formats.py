"""The members of zip, tar and deb files, read one after another through a meter that stops a bomb."""

import bz2
import contextlib
import gzip
import importlib
import io
import lzma
import shutil
import stat
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from foveal.weights.errors import WeightsError


class BadArchive(WeightsError):
    """An archive that is damaged, or that asks for something unsafe; nothing of it was kept."""


BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)


CHUNK = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What an archive may unpack to.

    Attributes:
        size: bytes of all members together.
        count: how many members.
        ratio: bytes out for a byte in, once more than ``slack`` bytes have come out.
    """

    size: int = 16 << 30
    count: int = 200_000
    ratio: float = 200
    slack: int = 64 << 20


class Meter:
    """Counts what comes out of an archive and stops at the limits."""

    def __init__(self, archive: Path, limits: Limits):
        self.archive, self.limits = archive, limits
        self.packed, self.size, self.count = archive.stat().st_size, 0, 0

    def member(self) -> None:
        self.count += 1
        if self.count > self.limits.count:
            raise BadArchive(f"{self.archive.name}: holds more than {self.limits.count} members; refused")

    def add(self, size: int) -> None:
        self.size += size
        if self.size > self.limits.size:
            raise BadArchive(f"{self.archive.name}: unpacks to more than {self.limits.size} bytes; refused")
        if self.size > max(self.limits.slack, self.limits.ratio * self.packed):
            times = f"{self.limits.ratio:g} times its {self.packed} bytes"
            raise BadArchive(f"{self.archive.name}: unpacks to more than {times}; refused")


class Metered:
    """A stream to read from, counted; what a decompressor says of damaged data becomes a sentence."""

    def __init__(self, stream: Any, meter: Meter):
        self.stream, self.meter = stream, meter

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self.stream.read(size)
        except (*BROKEN, OSError) as error:  # gzip and bz2 say OSError
            raise BadArchive(f"{self.meter.archive.name}: is damaged ({error})") from error
        self.meter.add(len(data))
        return data


@dataclass(frozen=True)
class Entry:
    """One member: its name as it stands in the archive, what it is, and how it is read."""

    name: str
    kind: str  # "file", "folder", "link" or "device"
    read: Callable[[int], bytes]


def entries(archive: Path, meter: Meter) -> Iterator[Entry]:
    """The members in order; each has to be read before the next is asked for.

    Raises:
        BadArchive: when the file is no archive, is damaged or is encrypted.
    """
    try:
        with archive.open("rb") as stream:
            head = stream.read(512)
            stream.seek(0)
            if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                yield from _zip(stream, meter)
            elif head.startswith(b"!<arch>\n"):
                yield from _deb(stream, meter)
            else:
                with _plain(stream, head, archive) as tar:
                    yield from _tar(tar, meter)
    except BROKEN as error:
        raise BadArchive(f"{archive.name}: is damaged ({error})") from error


def _zip(stream: IO[bytes], meter: Meter) -> Iterator[Entry]:
    with zipfile.ZipFile(stream) as whole:
        for info in whole.infolist():
            meter.member()
            if info.flag_bits & 1:
                raise BadArchive(f"{meter.archive.name}: is encrypted")
            kind = "link" if stat.S_ISLNK(info.external_attr >> 16) else "folder" if info.is_dir() else "file"
            with whole.open(info) as member:
                yield Entry(info.filename, kind, Metered(member, meter).read)


def _tar(stream: Any, meter: Meter) -> Iterator[Entry]:
    metered: Any = Metered(stream, meter)
    with tarfile.open(fileobj=metered, mode="r|") as whole:
        for info in whole:
            meter.member()
            member = whole.extractfile(info) if info.isreg() else None
            link = info.issym() or info.islnk()
            kind = "file" if member else "folder" if info.isdir() else "link" if link else "device"
            yield Entry(info.name, kind, member.read if member else io.BytesIO().read)
            whole.members = []  # type: ignore[attr-defined]  # a stream is read once; the list would only grow
    while metered.read(CHUNK):  # to the end, where the checksum is
        pass


def _deb(stream: IO[bytes], meter: Meter) -> Iterator[Entry]:
    stream.seek(8)
    while header := stream.read(60):
        name, size = header[:16].rstrip(b" /").decode("ascii", "replace"), header[48:58].strip()
        if len(header) < 60 or header[58:] != b"`\n" or not size.isdigit():
            raise BadArchive(f"{meter.archive.name}: is damaged (no ar header where one has to be)")
        begin = stream.tell()
        if name.startswith("data.tar"):
            part: Any = io.BufferedReader(_Slice(stream, int(size)))
            with _plain(part, part.peek(512)[:512], meter.archive, deb=True) as tar:
                yield from _tar(tar, meter)
            return
        stream.seek(begin + int(size) + int(size) % 2)
    raise BadArchive(f"{meter.archive.name}: is no Debian package, it has no data.tar")


class _Slice(io.RawIOBase):
    """The next bytes of a stream and no more."""

    def __init__(self, stream: IO[bytes], size: int):
        self.stream, self.left = stream, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.stream.read(min(len(buffer), self.left))
        buffer[: len(data)] = data
        self.left -= len(data)
        return len(data)


@contextlib.contextmanager
def _plain(stream: IO[bytes], head: bytes, archive: Path, *, deb: bool = False) -> Iterator[Any]:
    """The tar inside a stream, by what that begins with."""
    if head.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=stream) as tar:
            yield tar
    elif head.startswith(b"\xfd7zXZ\x00"):
        with lzma.LZMAFile(stream) as tar:
            yield tar
    elif head.startswith(b"BZh"):
        with bz2.BZ2File(stream) as tar:
            yield tar
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        with _zstd(stream, archive, deb) as tar:
            yield tar
    elif head[257:262] == b"ustar" or (len(head) == 512 and not any(head)):
        yield stream
    else:
        raise BadArchive(f"{archive.name}: is no zip, tar or deb file")


@contextlib.contextmanager
def _zstd(stream: IO[bytes], archive: Path, deb: bool) -> Iterator[Any]:
    try:
        yield importlib.import_module("compression.zstd").ZstdFile(stream)  # from Python 3.14 on
        return
    except ImportError:
        client = shutil.which("dpkg-deb") if deb else None
    if client is None:
        need = "dpkg-deb on PATH" if deb else "Python 3.14"
        raise BadArchive(f"{archive.name}: is packed with zstd, which needs {need}; nothing was unpacked")
    with subprocess.Popen([client, "--fsys-tarfile", archive], stdout=subprocess.PIPE) as process:
        try:
            yield process.stdout
        finally:
            process.kill()
