"""Readers, fingerprints and declarations: what is found, in which order, and what is refused."""

import gzip
import os
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from foveal.eval import benchmark
from foveal.eval.benchmark import DataMissing, benchmarks, get_benchmark
from foveal.eval.data import csv_file, fashion_mnist, folder
from foveal.eval.runner import evaluate
from foveal.kernels._names import UnknownName


def write_csv(root, text, encoding="utf-8"):
    root.mkdir(exist_ok=True)
    (root / "list.csv").write_bytes(text.encode(encoding))
    return root / "list.csv"


# folder


def test_folder_is_sorted_by_class_then_path(colours):
    (colours / "blue" / "deeper").mkdir()
    Image.new("RGB", (3, 3)).save(colours / "blue" / "deeper" / "x.JPEG")
    data = folder.read(colours)
    assert data.classes == ["amber", "blue", "crimson", "green", "violet", "white"]
    assert data.counts() == {"images": 25, "classes": 6}
    assert data.ids[3:6] == ["amber/3.png", "blue/0.png", "blue/1.png"]
    assert "blue/deeper/x.JPEG" in data.ids
    assert [data.classes[t] for t in data.targets] == [i.partition("/")[0] for i in data.ids]
    assert all(Path(s) == colours / i for s, i in zip(data.sources, data.ids, strict=True))


def test_folder_leaves_out_what_is_hidden_or_no_picture(colours):
    before = folder.read(colours)
    for name in ("amber/.ipynb_checkpoints/0-checkpoint.png", "blue/._0.png", ".cache/x/1.png"):
        (colours / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(colours / "blue" / "0.png", colours / name)
    (colours / "blue" / "notes.txt").write_text("no picture")
    (colours / "blue" / "folder.png").mkdir()
    (colours / "readme.png").write_bytes(b"beside the classes")
    after = folder.read(colours)
    assert (after.ids, after.classes) == (before.ids, before.classes)


def test_folder_with_a_name_that_is_not_text(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("L", (2, 2)).save(os.fsdecode(bytes(tmp_path / "a") + b"/caf\xe9.png"), "PNG")
    data = folder.read(tmp_path)
    assert len(data) == 1
    assert len(data.fingerprint()) == 64


def test_folder_refusals(tmp_path):
    with pytest.raises(DataMissing, match=r"nowhere: no such folder; expected DIR/CLASS/PICTURE"):
        folder.read(tmp_path / "nowhere")
    with pytest.raises(DataMissing, match="no such folder"):
        folder.read(None)
    with pytest.raises(DataMissing, match="holds no folders"):
        folder.read(tmp_path)
    (tmp_path / "class").mkdir()
    with pytest.raises(DataMissing, match=r"its folders hold no pictures \(\.jpg, "):
        folder.read(tmp_path)


# csv


def test_csv_with_names_keeps_file_order(tmp_path):
    file = write_csv(tmp_path, "note,label,path\nx,cat,b.png\ny, ant ,sub/a.png\nz,cat,c.png\n")
    data = csv_file.read(file)
    assert data.ids == ["b.png", "sub/a.png", "c.png"]
    assert data.classes == ["ant", "cat"]
    assert data.targets == [1, 0, 1]
    assert data.sources == [tmp_path / "b.png", tmp_path / "sub/a.png", tmp_path / "c.png"]
    assert csv_file.read(tmp_path).ids == data.ids  # the only csv file of a folder


@pytest.mark.parametrize("labels", [("10", "2", "0"), ("10.0", "2.0", "0.0"), ("010", "02", "0")])
def test_csv_whole_numbers_are_class_indices(tmp_path, labels):
    rows = "".join(f"{i}.png,{label}\n" for i, label in enumerate(labels))
    data = csv_file.read(write_csv(tmp_path, "path,label\n" + rows))
    assert data.targets == [10, 2, 0]
    assert data.classes == [str(i) for i in range(11)]


def test_csv_from_a_spreadsheet(tmp_path):
    """A byte order mark, Windows line ends, quoted commas and blank rows at the end."""
    text = '\ufeffpath,label\r\n"a, b.png",öre\r\nc.png,zebra\r\n,\r\n\r\n'
    data = csv_file.read(write_csv(tmp_path, text))
    assert data.ids == ["a, b.png", "c.png"]
    assert data.classes == ["zebra", "öre"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column label or path; it has nothing"),
        ("path;label\na.png;1\n", "no column label or path; it has path;label"),
        ("path,class\na.png,1\n", "no column label; it has path, class"),
        ("path,label\n", "lists no pictures"),
        ("path,label\na.png,1\nb.png,2\na.png,1\n", "a.png is listed twice"),
        ("path,label\na.png,1\nb.png\n", "line 3 has no label"),
        ("path,label\na.png, \n", "line 2 has no label"),
        ("path,label\n,cat\n", "line 2 has no path"),
        ("path,label\na.png,-1\nb.png,0\n", "the label -1 is no class index"),
        ("path,label\na.png,123456789012\n", "the label 123456789012 is no class index"),
        ('path,label\n"a' + "x" * 200_000 + '.png",1\n', "not a csv file in UTF-8"),
    ],
)  # fmt: skip
def test_csv_refusals(tmp_path, text, said):
    with pytest.raises(DataMissing, match=rf"list\.csv.*{said}"):
        csv_file.read(write_csv(tmp_path, text))


def test_csv_that_is_not_utf8(tmp_path):
    with pytest.raises(DataMissing, match=r"list\.csv: not a csv file in UTF-8"):
        csv_file.read(write_csv(tmp_path, "path,label\na.png,öre\n", "latin-1"))


def test_csv_file_is_not_there_or_not_the_only_one(tmp_path):
    with pytest.raises(DataMissing, match="holds 0 csv files; name the one to read"):
        csv_file.read(tmp_path)
    with pytest.raises(DataMissing, match="no such csv file"):
        csv_file.read(tmp_path / "list.csv")
    write_csv(tmp_path, "path,label\n")
    (tmp_path / "second.csv").touch()
    with pytest.raises(DataMissing, match="holds 2 csv files"):
        csv_file.read(tmp_path)


# Fashion-MNIST


def test_fashion_mnist_ships_whole_and_in_official_order(tmp_path):
    data = get_benchmark("fashion-mnist-test").read(None)
    assert data.targets[:5] == [9, 2, 1, 1, 6]
    assert data.ids[:2] == ["00000", "00001"]
    assert Counter(data.targets) == dict.fromkeys(range(10), 1000)
    assert len(data.sources) == 10_000
    assert data.sources[0].shape == (28, 28)
    assert data.sources[0].dtype == np.uint8
    # the data root of another benchmark in the same command does not matter
    assert get_benchmark("fashion-mnist-test").read(tmp_path).targets[:5] == [9, 2, 1, 1, 6]


def broken(kind, raw):
    """Bytes of a file with one kind of damage."""
    if kind == "not gzip":
        return b"<html>not found</html>"
    if kind == "cut":
        return raw[:-1000]
    if kind == "bytes wrong":
        return raw[:20] + b"\xff" * 20 + raw[40:]
    if kind == "one byte wrong":
        return raw[:5000] + bytes([raw[5000] ^ 0xFF]) + raw[5001:]
    if kind == "shape":  # promises more pictures than there are
        return gzip.compress(gzip.decompress(raw)[:-1], 1)
    return b""


@pytest.mark.parametrize("kind", ["not gzip", "cut", "bytes wrong", "one byte wrong", "shape", "empty"])
def test_fashion_mnist_broken_file(tmp_path, kind):
    for file in fashion_mnist.HERE.glob("*.gz"):
        shutil.copy(file, tmp_path)
    file = tmp_path / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(broken(kind, file.read_bytes()))
    with pytest.raises(DataMissing, match=r"labels-idx1-ubyte\.gz: not a whole gzipped idx file"):
        fashion_mnist.read(tmp_path)


def test_fashion_mnist_files_absent_or_of_unequal_length(tmp_path):
    with pytest.raises(DataMissing, match=r"t10k-images-idx3-ubyte\.gz: not found"):
        fashion_mnist.read(tmp_path)
    images, labels = (tmp_path / f"t10k-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    images.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 7, 8])))
    labels.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2])))
    with pytest.raises(DataMissing, match="2 pictures but 3 labels"):
        fashion_mnist.read(tmp_path)


# fingerprints


def test_bc67_any_change_of_the_data_changes_the_fingerprint(colours):
    whole = folder.read(colours)
    prints = {whole.fingerprint()}
    file = colours / "blue" / "2.png"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    prints.add(folder.read(colours).fingerprint())
    file.unlink()
    prints.add(folder.read(colours).fingerprint())
    file.write_bytes(before)
    assert folder.read(colours).fingerprint() == whole.fingerprint()
    prints.add(replace(whole, targets=[1, *whole.targets[1:]]).fingerprint())
    turned = {name: getattr(whole, name)[::-1] for name in ("ids", "sources", "targets")}
    prints.add(replace(whole, **turned).fingerprint())
    prints.add(replace(whole, classes=[*whole.classes[:-1], "wheat"]).fingerprint())
    prints.add(replace(whole, ids=["amber/9.png", *whole.ids[1:]]).fingerprint())
    assert len(prints) == 7


def test_bc67_where_the_data_lies_does_not_change_the_fingerprint(colours, tmp_path):
    before = folder.read(colours).fingerprint()
    assert folder.read(colours.rename(tmp_path / "elsewhere")).fingerprint() == before


def test_bc67_pictures_in_memory():
    data = get_benchmark("fashion-mnist-test").read(None)
    first = data.sources[0].copy()
    first[5, 5] ^= 1
    assert replace(data, sources=[first, *data.sources[1:]]).fingerprint() != data.fingerprint()


def test_listed_picture_that_is_absent_has_a_fingerprint(tmp_path):
    data = csv_file.read(write_csv(tmp_path, "path,label\na.png,1\n"))
    absent = data.fingerprint()
    (tmp_path / "a.png").touch()
    assert data.fingerprint() != absent


# declarations


def test_more_than_declared_is_refused_and_less_is_partial(colours, nearest, tmp_path, caplog):
    bench = replace(get_benchmark("folder"), counts={"images": 24, "classes": 6})
    whole = evaluate(nearest, bench, data_root=colours, results=tmp_path / "r")
    assert (whole["partial"], bench.short_of(bench.read(colours))) == (False, "")
    with pytest.raises(DataMissing, match="not the declared data: 23 images expected, 24 found"):
        replace(bench, counts={"images": 23, "classes": 6}).read(colours)
    (colours / "blue" / "2.png").unlink()
    assert bench.short_of(bench.read(colours)) == "24 images expected, 23 found"
    part = evaluate(nearest, bench, data_root=colours, results=tmp_path / "r")
    assert (part["partial"], part["n"]) == (True, 23)
    assert "24 images expected, 23 found; the result is marked partial" in caplog.text


def test_data_root_is_asked_for(monkeypatch, tmp_path):
    with pytest.raises(
        DataMissing, match=r"csv: needs its data; say where it is with --data-root DIR \(or FOVEAL_DATA"
    ):
        get_benchmark("csv").read(None)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_csv(tmp_path / "lists", "path,label\na.png,1\n")
    assert get_benchmark("csv").read("~/lists").ids == ["a.png"]


def test_unknown_benchmark_has_near_names():
    with pytest.raises(UnknownName, match=r"no benchmark 'fashion_mnist_test'; did you mean fashion-mnist-test"):
        get_benchmark("fashion_mnist_test")


def test_one_name_declared_twice(tmp_path, monkeypatch):
    for name in ("folder", "second"):
        (tmp_path / f"{name}.py").touch()
    declared = SimpleNamespace(BENCHMARK=get_benchmark("folder"))
    monkeypatch.setitem(sys.modules, "foveal.eval.benchmarks.second", declared)
    monkeypatch.setattr(benchmark, "FOLDER", tmp_path)
    benchmarks.cache_clear()
    with pytest.raises(ValueError, match="benchmark 'folder' is declared twice"):
        benchmarks()


def test_every_declaration_can_be_used():
    assert {"folder", "csv", "fashion-mnist-test"} <= benchmarks().keys()
    for bench in benchmarks().values():
        assert bench.main in bench.metrics
        assert bench.source
        assert bench.version >= 1


def test_two_spellings_of_one_path_are_one_picture(tmp_path):
    (tmp_path / "list.csv").write_text("path,label\na.png,0\n./a.png,1\n")
    with pytest.raises(DataMissing, match=r"a\.png is listed twice"):
        get_benchmark("csv").read(tmp_path / "list.csv")
