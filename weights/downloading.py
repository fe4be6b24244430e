"""One https address into one file: hashed while it streams, resumed where it was cut, and never a page for a file."""

import contextlib
import errno
import hashlib
import http.client
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveal.weights.pages import HEAD, page_kind
from foveal.weights.sources import LOCAL_HOSTS, Package, Source, parse_address, shown

Progress = Callable[[int, int | None], None]  # bytes so far, and of how many

TIMEOUT = 20.0  # seconds without a byte
TRIES = 4  # in a row that bring nothing new
BACKOFF = 0.5  # seconds before the second try, doubled after each
LONGEST_WAIT = 30.0  # that a server's Retry-After is heeded
CHUNK = 1 << 18
NO_NETWORK = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ECONNREFUSED, errno.EADDRNOTAVAIL)


class Failed(Exception):
    """An address did not give the file; the next one may."""

    def __init__(self, text: str, *, no_network: bool = False):
        super().__init__(text)
        self.no_network = no_network


class _Cut(Exception):
    """The line was cut, or the server asked to come again: worth another try after ``wait`` seconds."""

    def __init__(self, text: str, wait: float = 0):
        super().__init__(text)
        self.wait = wait


class _Restart(Exception):
    """The bytes that are there are no beginning of what the server has."""


@dataclass
class _Part:
    """The bytes of a file so far, and beside them what the server called this version of it."""

    path: Path

    @property
    def note(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def write_note(self, address: str, response: Any) -> None:
        etag = response.headers.get("ETag") or ""
        validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified") or ""
        self.note.write_text(json.dumps({"address": address, "validator": validator}), encoding="utf-8")

    def validator(self, address: str) -> str:
        """The ETag or date that a request for the rest can be bound to."""
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads(self.note.read_text(encoding="utf-8"))
            if isinstance(facts, dict) and facts.get("address") == address:
                return str(facts.get("validator", ""))
        return ""


def download(
    address: str, target: Path, source: Source, progress: Progress | None = None, *, accept: str = "*/*"
) -> str:
    """Writes what is at an address into ``target``, going on from what is there already, and gives its sha256.

    Raises:
        Failed: with the reason; wrong bytes and pages are removed, a part that was cut stays for the next time.
        OSError: when ``target`` can't be written.
    """
    part, most, tries = _Part(target), 0, 0
    while True:
        try:
            found, resumed = _once(address, part, source, progress, accept)
        except _Restart:
            if not part.size():
                raise Failed(f"{shown(address)}: answers with a range that was not asked for") from None
            part.drop()
            continue
        except _Cut as cut:
            size = part.size()
            most, tries = (size, 1) if size > most else (most, tries + 1)
            if tries >= TRIES:
                raise Failed(f"{shown(address)}: {cut}, {TRIES} tries in a row") from None
            time.sleep(max(BACKOFF * 2 ** (tries - 1), cut.wait))
            continue
        if source.sha256 and found != source.sha256:
            part.drop()
            if resumed:  # the first half may have been of another version
                continue
            raise Failed(f"{shown(address)}: its bytes have sha256 {found}, not {source.sha256}; they were not kept")
        part.note.unlink(missing_ok=True)
        return found


def _once(address: str, part: _Part, source: Source, progress: Progress | None, accept: str) -> tuple[str, bool]:
    """One request: the sha256 of the whole file, and whether its first bytes came from an earlier one."""
    validator, offset = part.validator(address), part.size()
    if not (source.sha256 or validator):  # nothing would tell that the two halves belong together
        offset = 0
    if offset and source.sha256 and _hash(part.path).hexdigest() == source.sha256:
        return source.sha256, True
    headers = {"User-Agent": "foveal", "Accept-Encoding": "identity", "Accept": accept}
    if offset:
        headers |= {"Range": f"bytes={offset}-"} | ({"If-Range": validator} if validator else {})
    with _open(address, headers) as response:
        start, total = _start(response, offset, validator)
        digest = _hash(part.path) if start else hashlib.sha256()
        head, done = b"", start
        with part.path.open("ab" if start else "wb") as stream:
            part.write_note(address, response)
            while chunk := _read(response):
                stream.write(chunk)
                stream.flush()  # what has come stays, however this process ends
                digest.update(chunk)
                done += len(chunk)
                if not start and len(head) < HEAD:
                    head += chunk
                    if len(head) >= HEAD:
                        _refuse_page(address, part, source)
                if source.size and done > source.size:
                    part.drop()
                    raise Failed(f"{shown(address)}: sends more than the {source.size} bytes expected; not kept")
                if progress is not None:
                    progress(done, total or source.size or None)
            os.fsync(stream.fileno())
        if total and done < total:
            raise _Cut(f"the connection was cut after {done} of {total} bytes")
    _refuse_page(address, part, source)
    if not done:
        raise Failed(f"{shown(address)}: sends an empty file")
    return digest.hexdigest(), bool(start)


def _refuse_page(address: str, part: _Part, source: Source) -> None:
    with part.path.open("rb") as stream:
        kind = page_kind(stream.read(HEAD), source.file)
    if kind:
        part.drop()
        raise Failed(f"{shown(address)}: answers with {kind}; it was not kept as {source.file}")


def _hash(path: Path) -> Any:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256")


def _start(response: Any, offset: int, validator: str) -> tuple[int, int | None]:
    """Where the body begins in the file, and how long the file is."""
    length = response.headers.get("Content-Length") or ""
    if response.status != 206:  # the server refuses ranges, or its file has changed
        return 0, int(length) if length.isdigit() else None
    span, _, total = (response.headers.get("Content-Range") or "").removeprefix("bytes ").partition("/")
    etag = response.headers.get("ETag")
    if not offset or not span.startswith(f"{offset}-") or (etag and validator.startswith('"') and etag != validator):
        raise _Restart
    return offset, int(total) if total.isdigit() else None


def _read(response: Any) -> bytes:
    try:
        return response.read1(CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _Cut(f"the connection was cut ({_said(error)})") from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        try:
            safe = not isinstance(parse_address(newurl), Package) and (
                newurl.startswith("https:") or req.full_url.startswith("http:")
            )
        except ValueError:
            safe = False
        if not safe:
            raise Failed(f"{shown(req.full_url)}: redirects to {shown(newurl)}, which is not https; not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(address: str, headers: dict[str, str]) -> Any:
    """The response to a request.

    Raises:
        Failed: when asking again is of no use. _Cut: when it may be. _Restart: when the range can't be had.
    """
    handlers: list[urllib.request.BaseHandler] = [_Redirects()]
    if urllib.parse.urlsplit(address).hostname in LOCAL_HOSTS:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    try:
        return opener.open(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:
                raise _Restart from None
            said = f"answers {error.code} {ascii(error.reason)[1:-1][:80]}"
            if error.code == 429 or error.code >= 500:
                after = error.headers.get("Retry-After") or ""
                raise _Cut(said, min(float(after), LONGEST_WAIT) if after.isdigit() else 0) from None
            raise Failed(f"{shown(address)}: {said}") from None
    except (http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise Failed(f"{shown(address)}: its certificate is not trusted ({reason.verify_message})") from error
        if isinstance(reason, socket.gaierror) or getattr(reason, "errno", None) in NO_NETWORK:
            raise Failed(f"{shown(address)}: can't be reached ({_said(reason)})", no_network=True) from error
        if isinstance(reason, (http.client.HTTPException, OSError)):
            raise _Cut(f"the connection failed ({_said(reason)})") from error
        raise Failed(f"{shown(address)}: {_said(reason)}") from error


def _said(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {TIMEOUT:g} seconds"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ascii(text)[1:-1][:120]
