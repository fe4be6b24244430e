"""Files that say the classes of ImageNet's validation pictures: the known mistakes are caught, not scored."""

import csv
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from foveal.eval.benchmark import DataMissing
from foveal.eval.data import imagenet
from foveal.eval.data.checking import check
from foveal.eval.data.imagenet_devkit import LINE
from foveal.eval.data.imagenet_lists import real_labels, wnids
from tests.eval import imagenet_miniature as mini

TRUTH = "ILSVRC2012_validation_ground_truth.txt"


@pytest.fixture(scope="module")
def items():
    return mini.items()


# the devkit


def test_the_line_of_a_picture_is_its_number(items, tmp_path):
    """With a line for every picture of the part, a picture that is not there moves no other."""
    mini.write(tmp_path, "B", items)
    lines = ["1"] * 50_000
    for item, line in zip(items, (tmp_path / "data" / TRUTH).read_text().split()):
        lines[item.number - 1] = line
    (tmp_path / "data" / TRUTH).write_text("\n".join(lines))
    (tmp_path / "val" / items[2].name).unlink()
    data = imagenet.read(tmp_path)
    assert list(data.targets) == [item.target for item in items if item is not items[2]]
    assert len(imagenet.describe(tmp_path)["missing"]) == 50_000 - 11


def write_mat(file, order):
    io = pytest.importorskip("scipy.io")
    fields = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")]
    rows = [(n, wnid, "some words") for n, wnid in enumerate([*order, "n00001740"], start=1)]  # the last is no leaf
    io.savemat(file, {"synsets": np.array(rows, dtype=fields)[:, None]})


def test_meta_mat(items, tmp_path, monkeypatch):
    mini.write(tmp_path, "B", items)
    (tmp_path / "data" / "map_clsloc.txt").unlink()
    with pytest.raises(DataMissing, match=r"those of the devkit; put the devkit's meta\.mat or map_clsloc"):
        imagenet.read(tmp_path)
    write_mat(tmp_path / "data" / "meta.mat", mini.devkit_order())
    assert list(imagenet.read(tmp_path).targets) == [item.target for item in items]
    (tmp_path / "data" / "meta.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    with pytest.raises(DataMissing, match=r"meta\.mat: not the devkit's meta\.mat \("):
        imagenet.read(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataMissing, match=r"meta\.mat: needs scipy to be read \(pip install scipy\)"):
        imagenet.read(tmp_path)


def test_caffes_synset_words_do_not_say_what_the_numbers_mean(items, tmp_path):
    mini.write(tmp_path, "B", items)
    (tmp_path / "data" / "map_clsloc.txt").unlink()
    words = tmp_path / "data" / "synset_words.txt"
    words.write_text("".join(f"{wnid} words, more\n" for wnid in wnids()))
    with pytest.raises(DataMissing, match=r"synset_words\.txt: has the wnids in sorted order, which is not"):
        imagenet.read(tmp_path)
    words.write_text("".join(f"{wnid} words, more\n" for wnid in mini.devkit_order()))
    assert list(imagenet.read(tmp_path).targets) == [item.target for item in items]


def test_a_wrong_mapping_is_caught(items, tmp_path):
    mini.write(tmp_path, "B", items)
    other = mini.devkit_order()[::-1]
    (tmp_path / "data" / "map_clsloc.txt").write_text("".join(f"{w} {n} x\n" for n, w in enumerate(other, start=1)))
    with pytest.raises(DataMissing, match=r"only 0 of 12 labels are among .* not that of the sorted wnids"):
        imagenet.read(tmp_path)
    with pytest.raises(DataMissing, match="only 0 of 12 labels"):
        check("imagenet1k", tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("map_clsloc.txt", lambda lines: lines[:-1], r"not the 1000 wnids of ImageNet-1k.*: n\d{8} is not in it"),
        ("map_clsloc.txt", lambda lines: [s.replace(" 7 ", " 1007 ") for s in lines], "the numbers are not 1 to 1000"),
        ("map_clsloc.txt", lambda lines: ["tench 1", *lines], "expected lines of a number and a wnid, or of a wnid"),
        ("map_clsloc.txt", lambda lines: [lines[0][:9], *lines[1:]], "expected lines of a number and a wnid"),
        (TRUTH, lambda lines: ["0", *lines[1:]], "'0' is no number of the devkit"),
        (TRUTH, lambda lines: ["1001", *lines[1:]], "'1001' is no number of"),
        (TRUTH, lambda lines: lines[1:], "has 11 lines for 12 pictures that"),
    ],
)  # fmt: skip
def test_devkit_refusals(items, tmp_path, file, change, said):
    mini.write(tmp_path, "B", items)
    path = tmp_path / "data" / file
    path.write_text("\n".join(change(path.read_text().splitlines())))
    with pytest.raises(DataMissing, match=said):
        imagenet.read(tmp_path)


def test_one_foreign_picture_does_not_move_the_lines(items, tmp_path):
    mini.write(tmp_path, "B", items)
    (tmp_path / "val" / items[4].name).rename(tmp_path / "val" / "A.JPEG")
    with pytest.raises(DataMissing, match="12 lines for 12 pictures that are not all called ILSVRC2012_val_NUMBER"):
        imagenet.read(tmp_path)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("12 n01440764 tench", ("12", "n01440764", None)),
        ("n01440764 12 tench", (None, "n01440764", "12")),
        ("n01440764 tench, 12", (None, "n01440764", None)),
    ],
)
def test_lines_of_mappings(line, found):
    assert LINE.match(line).groups() == found


# lists and csv


def test_numbers_of_the_devkit_as_class_indices(items, tmp_path):
    mini.write(tmp_path, "D", items)
    order = mini.devkit_order()
    lines = [f"{item.name} {order.index(item.wnid)}" for item in items]
    (tmp_path / "val.txt").write_text("\n".join(lines))
    with pytest.raises(DataMissing, match=r"val\.txt: only 0 of 12 labels .* not that of the sorted wnids"):
        imagenet.read(tmp_path)
    lines = [f"{item.name} {item.target + 1}" for item in items]
    (tmp_path / "val.txt").write_text("\n".join(lines))
    with pytest.raises(DataMissing, match="labels are 1 to 1000, class indices are 0 to 999 in the order of"):
        imagenet.read(tmp_path)


def test_indices_that_start_at_1_without_the_last_class(items, tmp_path):
    """Nothing is out of range then."""
    mini.write(tmp_path, "D", items)
    numbers = [n for n, labels in enumerate(real_labels(), start=1) if labels == [65]][:12]
    shutil.rmtree(tmp_path / "val")
    mini.write_flat(tmp_path / "val", [replace(item, number=n) for item, n in zip(items, numbers)])
    (tmp_path / "val.txt").write_text("".join(f"ILSVRC2012_val_{n:08d}.JPEG 66\n" for n in numbers))
    with pytest.raises(DataMissing, match=r"only 0 of 12 .*: they start at 1, class indices start at 0"):
        imagenet.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[1:], "has no label for 1 of 12 pictures, the first is ILSVRC2012_val_"),
        (lambda lines: [*lines, lines[0]], r"ILSVRC2012_val_\d+ is listed twice"),
        (lambda lines: [lines[0].split()[0], *lines[1:]], "line 1 is 'ILSVRC2012_val_.*', expected NAME INDEX"),
        (lambda lines: [f"{lines[0]}.5", *lines[1:]], r"the label '\d+\.5' is neither a class index nor a wnid"),
        (lambda lines: [f"{line.split()[0]} {n}" for n, line in enumerate(lines, start=49_980)], "49991 is no class"),
        (lambda lines: [], "lists no pictures"),
        (lambda lines: [f"{line.split()[0]} n99999999" for line in lines], "n99999999 is none of the 1000 wnids"),
    ],
)  # fmt: skip
def test_list_refusals(items, tmp_path, change, said):
    mini.write(tmp_path, "D", items)
    (tmp_path / "val.txt").write_text("\n".join(change((tmp_path / "val.txt").read_text().splitlines())))
    with pytest.raises(DataMissing, match=rf"val\.txt: .*{said}"):
        imagenet.read(tmp_path)


def test_list_with_folders_wnids_and_tabs(items, tmp_path):
    mini.write(tmp_path, "D", items)
    (tmp_path / "val.txt").write_text("".join(f"val/{item.wnid}/{item.name}\t{item.wnid}\n" for item in items))
    assert list(imagenet.read(tmp_path).targets) == [item.target for item in items]
    (tmp_path / "val.txt").write_text("".join(f"{item.wnid}/{item.name} {items[0].target}\n" for item in items))
    with pytest.raises(DataMissing, match=r"says \d+ of n\d{8}/.*, but n\d{8} is class \d+; the labels are"):
        imagenet.read(tmp_path)


def test_csv_with_quoted_fields(items, tmp_path):
    mini.write(tmp_path, "C", items)
    with (tmp_path / "LOC_val_solution.csv").open("w", newline="", encoding="utf-8-sig") as stream:
        rows = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        rows.writerow(["ImageId", "PredictionString"])
        rows.writerows([item.key, f"{item.wnid} 1 2\n3 4"] for item in items)
        rows.writerow(["", ""])
    assert list(imagenet.read(tmp_path).targets) == [item.target for item in items]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ImageId,Label\n", "expected the columns ImageId and PredictionString, it has ImageId, Label"),
        ("ImageId,PredictionString\nILSVRC2012_val_00000001,\n", "the label '' is neither a class index nor a wnid"),
        ("ImageId,PredictionString\n\xff,x\n", "not a csv file in UTF-8"),
    ],
)
def test_csv_refusals(items, tmp_path, text, said):
    mini.write(tmp_path, "C", items)
    (tmp_path / "LOC_val_solution.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataMissing, match=rf"LOC_val_solution\.csv: {said}"):
        imagenet.read(tmp_path)


def test_kaggles_list_of_classes_is_looked_at(items, tmp_path):
    mini.write(tmp_path, "C", items)
    (tmp_path / "LOC_synset_mapping.txt").write_text("\n".join(f"{wnid} words" for wnid in mini.devkit_order()))
    assert check("imagenet1k", tmp_path).wrong[0].endswith("class indices that were made by it are others")


def test_a_second_file_that_says_something_else(items, tmp_path):
    """Too few pictures to be told by the ReaL labels."""
    mini.write(tmp_path, "A", items[:6])
    (tmp_path / "val.txt").write_text("".join(f"{item.name} {(item.target + 1) % 1000}\n" for item in items[:6]))
    with pytest.raises(DataMissing, match=r"val\.txt: says \d+ of ILSVRC2012_val_\d+, but .*val says \d+"):
        imagenet.read(tmp_path)
    (tmp_path / "val.txt").write_text("no list")
    facts = imagenet.describe(tmp_path)
    assert (facts["layout"][:2], facts["wrong"]) == ("A,", [])
    assert "the label 'list' is neither" in facts["notes"][1]
