"""Two processes on one cache, one of them killed."""

import hashlib
import os
import signal
import subprocess
import sys
import time

BODY = os.urandom(400_000)
HASH = hashlib.sha256(BODY).hexdigest()
CODE = """
import logging, sys
from pathlib import Path
from foveal.weights import downloading
from foveal.weights.fetch import Source, fetch
downloading.TIMEOUT = 60
logging.basicConfig(format="%(message)s")
print(fetch(Source("net", "w.pth", (sys.argv[1],), sha256=sys.argv[2])), flush=True)
"""


def process(site):
    return subprocess.Popen(
        [sys.executable, "-c", CODE, f"{site.url}/w.pth", HASH],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_processes_and_the_first_is_killed(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY, hold=200_000)
    part = cache / f".w.pth.{HASH[:16]}.part"
    first = process(site)
    until(lambda: part.is_file() and part.stat().st_size == 200_000)
    second = process(site)
    assert "another process is at it; waiting" in second.stderr.readline()
    assert len(site.asked) == 1
    first.send_signal(signal.SIGKILL)
    out, _ = second.communicate(timeout=60)
    first.communicate(timeout=60)
    assert second.returncode == 0
    assert out.strip() == str(cache / "w.pth")
    assert (cache / "w.pth").read_bytes() == BODY
    assert site.ranges == ["", "bytes=200000-"]
    assert site.served == len(BODY)
    assert sorted(os.listdir(cache)) == [".w.pth.lock", "w.pth"]


def test_two_processes_fetch_once(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY, hold=200_000)
    first = process(site)
    until(lambda: site.asked)
    second = process(site)
    assert "waiting" in second.stderr.readline()
    site.go.set()
    for each in (first, second):
        out, _ = each.communicate(timeout=60)
        assert out.strip() == str(cache / "w.pth")
    assert site.asked == ["/w.pth"]
    assert (cache / "w.pth").read_bytes() == BODY
