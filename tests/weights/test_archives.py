"""Archives: what is unpacked, and what is refused with nothing left behind."""

import gzip
import io
import os
import shutil
import stat
import tarfile
import zipfile

import pytest

from foveal.weights.archives import BadArchive, Limits, read_member, unpack

FILES = {"top/a.txt": b"a" * 3000, "top/deep/b.bin": bytes(range(256)) * 9, "other/c.txt": b"c"}


def tar_bytes(files=FILES, mode="w", extra=()):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o4777
            tar.addfile(info, io.BytesIO(data))
        for info in extra:
            tar.addfile(info)
    return stream.getvalue()


def zip_bytes(files=FILES):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as whole:
        for name, data in files.items():
            whole.writestr(name, data)
    return stream.getvalue()


def deb_bytes(tar, suffix):
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", f"data.tar{suffix}": tar}
    whole = b"!<arch>\n"
    for name, data in parts.items():
        whole += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return whole


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


FORMATS = {
    "zip": zip_bytes,
    "tar": tar_bytes,
    "tgz": lambda: tar_bytes(mode="w:gz"),
    "xz": lambda: tar_bytes(mode="w:xz"),
    "bz2": lambda: tar_bytes(mode="w:bz2"),
    "deb.xz": lambda: deb_bytes(tar_bytes({f"./{n}": d for n, d in FILES.items()}, "w:xz"), ".xz"),
    "deb.gz": lambda: deb_bytes(tar_bytes(mode="w:gz"), ".gz"),
    "deb.tar": lambda: deb_bytes(tar_bytes(), ""),
}


def write(tmp_path, data):
    (tmp_path / "in").mkdir(exist_ok=True)
    path = tmp_path / "in" / "archive"  # no suffix: its bytes say what it is
    path.write_bytes(data)
    return path


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(tmp_path, data, match, **options):
    with pytest.raises(BadArchive, match=match):
        unpack(write(tmp_path, data), tmp_path / "to" / "x", **options)
    assert os.listdir(tmp_path / "to") == []
    assert sorted(os.listdir(tmp_path)) == ["in", "to"]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_files(tmp_path, kind):
    folder = unpack(write(tmp_path, FORMATS[kind]()), tmp_path / "to" / "x")
    assert content(folder) == FILES
    assert not any(p.stat().st_mode & (stat.S_ISUID | stat.S_IXUSR) for p in folder.rglob("*.*"))
    assert os.listdir(tmp_path / "to") == ["x"]


@pytest.mark.parametrize("kind", FORMATS)
def test_chosen_members_and_one_member(tmp_path, kind):
    archive = write(tmp_path, FORMATS[kind]())
    assert content(unpack(archive, tmp_path / "x", members=["top/*"], strip="top")) == {
        "a.txt": FILES["top/a.txt"],
        "deep/b.bin": FILES["top/deep/b.bin"],
    }
    assert read_member(archive, "./other/c.txt", tmp_path / "c").read_bytes() == b"c"
    with pytest.raises(BadArchive, match=r"archive: has no member top$"):
        read_member(archive, "top", tmp_path / "d")
    with pytest.raises(BadArchive, match=r"holds no file like \*\.png"):
        unpack(archive, tmp_path / "y", members=["*.png"])


@pytest.mark.parametrize("name", ["../a", "x/../../a", "/etc/a", "..\\a", "C:\\a", "c:a"])
@pytest.mark.parametrize("make", [tar_bytes, zip_bytes])
def test_a_name_that_leaves_the_folder(tmp_path, name, make):
    refused(tmp_path, make({"good": b"1", name: b"2"}), "would lie outside its folder; refused", members=["good"])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_refused_or_left_out_and_never_made(tmp_path, caplog, kind):
    data = tar_bytes({"good": b"1"}, extra=[special("bad", kind, "/etc")])
    refused(tmp_path, data, r"'bad' is a link; refused, nothing was kept")
    assert content(unpack(write(tmp_path, data), tmp_path / "to" / "x", links="skip")) == {"good": b"1"}
    assert "1 links were left out" in caplog.text
    with pytest.raises(ValueError, match="links is refuse or skip, got 'follow'"):
        unpack(write(tmp_path, data), tmp_path / "y", links="follow")


def test_a_link_and_then_a_file_behind_it(tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(special("way", tarfile.SYMTYPE, str(tmp_path / "in")))
        info = tarfile.TarInfo("way/pwned")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"!"))
    unpack(write(tmp_path, stream.getvalue()), tmp_path / "x", links="skip")
    assert os.listdir(tmp_path / "in") == ["archive"]


def test_a_link_in_a_zip(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as whole:
        info = zipfile.ZipInfo("bad")
        info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        whole.writestr(info, "/etc/passwd")
    refused(tmp_path, stream.getvalue(), "'bad' is a link")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_are_refused(tmp_path, kind):
    refused(tmp_path, tar_bytes(extra=[special("dev", kind)]), "'dev' is a device; refused", links="skip")


@pytest.mark.parametrize(
    "make", [zip_bytes, lambda files: tar_bytes(files, "w:gz"), lambda files: tar_bytes(files, "w:xz")]
)
def test_bombs(tmp_path, make):
    data = make({"zeros": bytes(4_000_000)})
    assert len(data) < 20_000
    refused(tmp_path, data, r"unpacks to more than 100 times its \d+ bytes", limits=Limits(ratio=100, slack=100_000))
    refused(tmp_path, data, r"unpacks to more than 3000000 bytes", limits=Limits(size=3_000_000))
    unpack(write(tmp_path, data), tmp_path / "fine")


@pytest.mark.parametrize("make", [zip_bytes, tar_bytes])
def test_too_many_members(tmp_path, make):
    files = {f"{i}": b"" for i in range(11)}
    refused(tmp_path, make(files), "holds more than 10 members", limits=Limits(count=10))


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_a_name_twice(tmp_path, names):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    refused(tmp_path, stream.getvalue(), "twice; refused, nothing was kept")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_cut_archive(tmp_path, kind, part):
    noise = {f"top/{i}": os.urandom(20_000) for i in range(5)}
    packed = {"zip": zip_bytes, "tar": tar_bytes}.get(kind)
    mode = {"tgz": "w:gz", "deb.gz": "w:gz", "xz": "w:xz", "deb.xz": "w:xz", "bz2": "w:bz2"}.get(kind, "w")
    data = packed(noise) if packed else tar_bytes(noise, mode)
    data = deb_bytes(data, f".{kind[4:]}") if kind.startswith("deb") else data
    refused(tmp_path, data[: int(len(data) * part)], "is damaged|is no zip")


def test_flipped_bytes(tmp_path):
    data = bytearray(zip_bytes({"a": os.urandom(5000)}))
    data[2000] ^= 0xFF
    refused(tmp_path, bytes(data), "is damaged")
    packed = bytearray(tar_bytes({"a": os.urandom(5000)}, "w:gz"))
    packed[2000:2100] = bytes(100)
    refused(tmp_path, bytes(packed), "is damaged")


def test_an_encrypted_zip(tmp_path):
    data = bytearray(zip_bytes({"a": b"1"}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    refused(tmp_path, bytes(data), "is encrypted")


@pytest.mark.parametrize(
    "data", [b"", b"hello", gzip.compress(b"hello"), b"!<arch>\nhello", b"!<arch>\n", b"PK\x03\x04"]
)
def test_what_is_no_archive(tmp_path, data):
    refused(tmp_path, data, r"is no zip, tar or deb file|is damaged|is no Debian package|holds no file")


def test_zstd_needs_a_reader(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr("importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    refused(tmp_path, b"\x28\xb5\x2f\xfd" + bytes(600), r"packed with zstd, which needs Python 3\.14")
    refused(tmp_path, deb_bytes(b"\x28\xb5\x2f\xfd" + bytes(600), ".zst"), "needs dpkg-deb on PATH")
    client = tmp_path / "bin" / "dpkg-deb"
    client.parent.mkdir()
    (tmp_path / "plain.tar").write_bytes(tar_bytes())
    client.write_text(
        f'#!/bin/sh\n[ "$1" = --fsys-tarfile ] && exec {shutil.which("cat", path=os.defpath)} {tmp_path}/plain.tar\n'
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(client.parent))
    archive = write(tmp_path, deb_bytes(b"\x28\xb5\x2f\xfd" + bytes(600), ".zst"))
    assert content(unpack(archive, tmp_path / "x")) == FILES


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(FileExistsError, match="is there already; move it away first"):
        unpack(write(tmp_path, tar_bytes()), tmp_path / "x")
    assert os.listdir(tmp_path / "x") == []


def test_a_check_that_fails_leaves_nothing(tmp_path):
    def check(folder):
        assert content(folder) == FILES
        raise KeyError("wrong counts")

    with pytest.raises(KeyError, match="wrong counts"):
        unpack(write(tmp_path, tar_bytes()), tmp_path / "to" / "x", check=check)
    assert os.listdir(tmp_path / "to") == []
