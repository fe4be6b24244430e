"""ImageNet-1k's validation part: the same items and figures in all layouts, what is missing, and where it may lie."""

import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from foveal.cli import app
from foveal.eval.benchmark import DataMissing, get_benchmark
from foveal.eval.data import imagenet
from foveal.eval.data.checking import check
from foveal.eval.data.imagenet_labels import LAYOUTS, Labels, _refuse_uneven
from foveal.eval.data.imagenet_lists import wnids
from foveal.eval.runner import evaluate
from tests.eval import imagenet_miniature as mini

BENCH = replace(get_benchmark("imagenet1k"), counts={"images": 12, "classes": 1000})


@pytest.fixture(scope="module")
def items():
    return mini.items()


@pytest.fixture(scope="module")
def roots(items, tmp_path_factory):
    """Roots of all five layouts; not to be written to."""
    return {layout: mini.write(tmp_path_factory.mktemp(layout), layout, items) for layout in mini.LAYOUTS}


# all layouts


def test_the_same_items_in_all_layouts(roots, items):
    read = {layout: BENCH.read(root) for layout, root in roots.items()}
    for data in read.values():
        assert list(data.ids) == [item.key for item in items]
        assert list(data.targets) == [item.target for item in items]
        assert data.classes == wnids()
        assert [s.tobytes() if hasattr(s, "tobytes") else s.read_bytes() for s in data.sources] == [
            item.data for item in items
        ]
    assert len({data.fingerprint() for data in read.values()}) == 1
    assert list(data.targets) != sorted(data.targets)


def test_the_same_figures_in_all_layouts(roots, tmp_path):
    results = [evaluate(mini.Levels(), BENCH, data_root=roots[x], results=tmp_path / x, batch_size=5) for x in roots]
    lasting = [{k: v for k, v in result.items() if k not in ("run", "versions")} for result in results]
    assert all(result == lasting[0] for result in lasting[1:])
    assert lasting[0]["metrics"]["top1"]["value"] == 11 / 12
    assert lasting[0]["n_failed"] == 0


def test_worker_processes_read_shards(roots, tmp_path):
    result = evaluate(mini.Levels(), BENCH, data_root=roots["E"], results=tmp_path, batch_size=5, workers=1)
    assert result["metrics"]["top1"]["value"] == 11 / 12


def test_orientation_is_not_applied(roots, tmp_path):
    """Three of the twelve are stored upside down, as some of the real ones are."""
    turned = evaluate(mini.Levels(), replace(BENCH, exif=True), data_root=roots["A"], results=tmp_path)
    assert turned["metrics"]["top1"]["value"] < 11 / 12
    assert not get_benchmark("imagenet1k").exif


@pytest.mark.parametrize("layout", mini.LAYOUTS)
def test_checked(roots, items, layout):
    found = check("imagenet1k", roots[layout])
    assert found.layout.startswith(f"{layout}, {LAYOUTS[layout]}; labels from {roots[layout]}")
    assert found.counts == {
        "images": 12, "classes": 1000, "classes with images": 3, "fewest in a class": 4, "most in a class": 4
    }  # fmt: skip
    assert found.missing == []
    assert found.wrong == ["50000 images expected, 12 found"]
    assert found.notes == ["12 of 12 labels are among the ReaL labels of their pictures"]
    assert len(found.samples) == 3
    for said, item in zip(found.samples, (items[0], items[6], items[11])):
        assert item.key in said
        assert f"({item.wnid}, class {item.target}), 20x20" in said


def test_checked_from_the_command_line(roots):
    done = CliRunner().invoke(app, ["data", "check", "imagenet1k", "--data-root", str(roots["E"])])
    assert done.exit_code == 3
    assert "layout    E, tar files of NAME.jpg and NAME.cls; labels from" in done.stdout
    assert "note      12 of 12 labels are among the ReaL labels" in done.stdout
    assert "tench, Tinca tinca (n01440764, class 0), 20x20" in done.stdout


def test_an_unreadable_sample_is_wrong(items, tmp_path):
    mini.write(tmp_path, "A", [replace(items[0], data=b"<html>no</html>"), *items[1:]])
    assert "not a picture but an HTML page" in check("imagenet1k", tmp_path).wrong[0]


def test_places_a_root_may_mean(roots, items, tmp_path):
    expected = [item.target for item in items]
    for root in (roots["A"] / "val", roots["C"] / "ILSVRC", roots["C"] / "ILSVRC" / "Data" / "CLS-LOC" / "val"):
        assert list(imagenet.read(root).targets) == expected
    shutil.copytree(roots["D"], tmp_path / "imagenet")
    assert list(imagenet.read(tmp_path).targets) == expected
    one = imagenet.read(roots["E"] / "imagenet1k-validation-01.tar")
    assert list(one.targets) == expected[1::2]


def test_hidden_files_are_left_out(items, tmp_path):
    mini.write(tmp_path, "A", items)
    (tmp_path / "val" / items[0].wnid / f"._{items[0].name}").write_bytes(b"x")
    (tmp_path / "val" / ".cache").mkdir()
    (tmp_path / "val" / items[0].wnid / "notes.txt").touch()
    assert len(imagenet.read(tmp_path)) == 12


def test_wnids_in_the_names_of_flat_files(items, tmp_path):
    (tmp_path / "val").mkdir()
    for item in items:
        (tmp_path / "val" / f"{item.key}_{item.wnid}.JPEG").write_bytes(item.data)
    assert imagenet.describe(tmp_path)["layout"].startswith("names, flat, with wnids in the names")
    assert list(imagenet.read(tmp_path).ids) == [item.key for item in items]
    assert list(imagenet.read(tmp_path).targets) == [item.target for item in items]


# counts and what is missing


def test_real_counts_are_declared(roots):
    bench = get_benchmark("imagenet1k")
    assert bench.short_of(bench.read(roots["A"])) == "50000 images expected, 12 found"


@pytest.mark.parametrize("layout", "CD")
def test_listed_pictures_that_are_missing(items, tmp_path, layout):
    mini.write(tmp_path, layout, items)
    next(tmp_path.rglob(items[3].name)).unlink()
    assert check("imagenet1k", tmp_path).missing == [items[3].key]
    assert BENCH.short_of(BENCH.read(tmp_path)) == "12 images expected, 11 found"


def test_missing_of_the_whole_part_without_a_list():
    keys = [f"ILSVRC2012_val_{n:08d}" for n in range(1, 50_001) if n not in (7, 50_000)]
    gaps = imagenet._missing(keys, Labels("A", "", dict.fromkeys(keys, 0)))
    assert gaps == ["ILSVRC2012_val_00000007", "ILSVRC2012_val_00050000"]


def test_fifty_a_class():
    even = [n % 1000 for n in range(50_000)]
    _refuse_uneven(even, "here")
    with pytest.raises(DataMissing, match=r"here: class 0 \(n01440764\) has 49 pictures, each class has 50"):
        _refuse_uneven([1, *even[1:]], "here")


# places


def test_no_layout_or_no_labels(items, tmp_path):
    for root in (None, tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataMissing, match=r"no ImageNet validation pictures; expected val/WNID/\*\.JPEG"):
            imagenet.read(root)
    mini.write_flat(tmp_path / "val", items)
    with pytest.raises(DataMissing, match="12 pictures but no labels; expected folders called by wnid"):
        imagenet.read(tmp_path)


def test_pictures_beside_class_folders(items, tmp_path):
    mini.write(tmp_path, "A", items)
    (tmp_path / "val" / "extra.JPEG").write_bytes(items[0].data)
    with pytest.raises(DataMissing, match=r"1 pictures lie beside the class folders \(extra\.JPEG\)"):
        imagenet.read(tmp_path)


def test_folders_that_are_numbers_or_strange(items, tmp_path):
    mini.write(tmp_path, "A", items)
    for n, folder in enumerate(sorted((tmp_path / "val").iterdir())):
        folder.rename(tmp_path / "val" / str(n))
    with pytest.raises(DataMissing, match=r"its folders are numbers \(0, …\), not wnids"):
        imagenet.read(tmp_path)
    for folder in sorted((tmp_path / "val").iterdir()):
        folder.rename(tmp_path / "val" / f"n0000000{folder.name}")
    with pytest.raises(DataMissing, match="n00000000 is none of the 1000 wnids"):
        imagenet.read(tmp_path)


def test_one_picture_in_two_classes(items, tmp_path):
    mini.write(tmp_path, "A", items)
    other = next(item.wnid for item in items if item.wnid != items[0].wnid)
    (tmp_path / "val" / other / items[0].name).write_bytes(items[0].data)
    with pytest.raises(DataMissing, match=rf"{items[0].key} is there twice \(n\d+/.* and n\d+/"):
        imagenet.read(tmp_path)
