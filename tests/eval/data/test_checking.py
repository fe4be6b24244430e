"""What lies in a folder, and what is missing there."""

import json

import pytest
from typer.testing import CliRunner

from foveal.data_commands import data_app
from foveal.eval.benchmark import DataMissing
from foveal.eval.data.checking import check
from foveal.eval.data.fetching import fetch_data
from foveal.kernels._names import UnknownName


def run(*arguments, code=0):
    done = CliRunner().invoke(data_app, list(arguments))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_check_of_a_fetched_set(shelf):
    with pytest.raises(DataMissing, match="pets: is not here; `foveal data fetch pets` brings it to"):
        check("pets")
    root = fetch_data("pets")
    out = run("check", "pets").stdout
    assert "layout    as unpacked from pypi:net==1.0" in out
    assert "counts    6 .png, 1 .gz" in out
    assert "missing   nothing" in out
    assert out.count("sample    ") == 3
    assert f"sample    {root}/cat/0.png" in out
    (root / "cat" / "0.png").unlink()
    (root / "dog" / "1.png").write_bytes(b"cut")
    done = json.loads(run("check", str(root), "--json", code=3).stdout)
    assert done["missing"] == ["cat/0.png"]
    assert done["wrong"] == [f"dog/1.png has 3 bytes, {len(shelf.files['net/data/dog/1.png'])} were unpacked"]
    assert "missing   1: cat/0.png" in run("check", "pets", code=3).stdout
    (root / ".foveal.json").write_text("{}")
    with pytest.raises(DataMissing, match=r"its \.foveal\.json is damaged; move the folder away"):
        check("pets")


def test_check_counts_again(shelf):
    root = fetch_data("pets")
    damaged = bytearray((root / "labels.gz").read_bytes())
    damaged[-5] ^= 0xFF
    (root / "labels.gz").write_bytes(damaged)
    assert check("pets").wrong == ["6 entries in labels.gz expected, 0 found"]
    (root / "labels.gz").write_bytes(shelf.files["net/data/labels.gz"])
    shelf.declare(pictures=5)
    assert check("pets").wrong == ["5 files *.png expected, 6 found"]


def test_check_of_weights(shelf):
    path = fetch_data("weights")
    assert check("weights").good
    path.write_bytes(b"other")
    assert "wrong     sha256 is" in run("check", "weights", code=3).stdout


def test_check_of_benchmarks(colours, monkeypatch):
    found = check("fashion-mnist-test")
    assert (found.good, found.counts, found.samples) == (
        True,
        {"images": 10000, "classes": 10},
        ["item 00000", "item 05000", "item 09999"],
    )
    assert found.counts == found.expected
    monkeypatch.setenv("FOVEAL_DATA", str(colours))
    done = json.loads(run("check", "folder", "--json").stdout)
    assert (done["counts"], done["good"]) == ({"images": 24, "classes": 6}, True)
    assert done["samples"][0] == str(colours / "amber" / "0.png")


def test_check_of_a_folder_of_one_s_own(colours, tmp_path):
    assert check(str(colours)).layout == "one folder a class"
    csv = tmp_path / "list.csv"
    csv.write_text("path,label\ncolours/amber/0.png,a\ncolours/gone.png,b\n")
    found = check(str(csv))
    assert (found.layout, found.missing, found.good) == (
        "csv with the columns path and label",
        ["colours/gone.png"],
        False,
    )
    loose = check(str(colours / "amber"))
    assert (loose.layout, loose.counts) == ("pictures without classes", {"images": 4})
    assert len(loose.samples) == 3
    (tmp_path / "sets").mkdir()
    colours.rename(tmp_path / "sets" / "val")
    with pytest.raises(DataMissing, match=r"holds the splits val; check one of them, e\.g\. .*sets/val"):
        check(str(tmp_path / "sets"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match=r"empty: holds no known layout of pictures \(csv with"):
        check(str(tmp_path / "empty"))
    with pytest.raises(
        UnknownName, match="no benchmark, data set or folder 'fashion-mnis'; did you mean fashion-mnist"
    ):
        check("fashion-mnis")
