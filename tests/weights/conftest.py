"""A web server of this process that misbehaves as told, and a cache of its own for every test."""

import contextlib
import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from foveal.weights import downloading
from foveal.weights.fetch import Source


@dataclass
class Reply:
    """What a path answers: a body, and how it is kept from arriving.

    cuts: the connection ends after so many bytes of the body, one entry a request; hold: it stands still there until
    `Site.go` is set.
    """

    body: bytes = b""
    status: int = 200
    headers: dict = field(default_factory=dict)
    etag: str = ""
    ranges: bool = True
    length: bool = True
    cuts: list = field(default_factory=list)
    hold: int = -1


class Site:
    def __init__(self):
        self.pages, self.asked, self.ranges, self.served = {}, [], [], 0
        self.go = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                with contextlib.suppress(ConnectionError):
                    site.answer(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, request):
        reply = self.pages.get(request.path, Reply(b"<html>not here</html>", 404))
        wanted = request.headers.get("Range") or ""
        self.asked.append(request.path)
        self.ranges.append(wanted)
        start, body, status = 0, reply.body, reply.status
        bound = request.headers.get("If-Range")
        if wanted and reply.ranges and bound in (None, reply.etag):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            status = 206 if start < len(body) else 416
        request.send_response(status)
        for name, value in reply.headers.items():
            request.send_header(name, value)
        if reply.etag:
            request.send_header("ETag", reply.etag)
        if status == 206:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if reply.length:
            request.send_header("Content-Length", str(len(body) - start if status != 416 else 0))
        request.end_headers()
        end = min(reply.cuts.pop(0), len(body)) if reply.cuts and status in (200, 206) else len(body)
        held = reply.hold if start < reply.hold < end else -1
        for begin, stop in ((start, held), (held, end)) if held >= 0 else ((start, end),):
            if begin == held and held >= 0:
                request.wfile.flush()
                self.go.wait(60)
            request.wfile.write(body[begin:stop])
            self.served += max(stop - begin, 0)
        request.close_connection = True

    def source(self, path="/w.pth", *more, file="w.pth", known=True, of=None, **facts):
        body = self.pages[path].body if of is None and path in self.pages else of or b""
        sha256 = hashlib.sha256(body).hexdigest() if known else ""
        return Source("net", file, (self.url + path, *more), sha256=sha256, **facts)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(downloading, "BACKOFF", 0.01)
    monkeypatch.setattr(downloading, "TIMEOUT", 30.0)
    site = Site()
    yield site
    site.go.set()
    site.server.shutdown()
    site.server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOVEAL_HOME", str(tmp_path / "home"))
    for name in ("FOVEAL_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home" / "weights"


@pytest.fixture
def reply():
    return Reply
