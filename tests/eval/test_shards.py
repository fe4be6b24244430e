"""Pictures inside tar files: ImageNet's and a user's own."""

import io
import pickle
import shutil
import tarfile
from dataclasses import replace

import pytest
from PIL import Image

from foveal.eval.benchmark import DataMissing, get_benchmark
from foveal.eval.data import imagenet, shards
from foveal.eval.data.checking import check
from foveal.eval.data.tar_shards import entries
from foveal.eval.runner import evaluate
from foveal.zoo.images import ImageError
from tests.eval import imagenet_miniature as mini


@pytest.fixture(scope="module")
def items():
    return mini.items()


# ImageNet's


def test_tar_of_flat_files_or_folders(items, tmp_path):
    mini.write(tmp_path / "flat", "D", items)
    shutil.rmtree(tmp_path / "flat" / "val")
    mini.write_tar(tmp_path / "flat" / "ILSVRC2012_img_val.tar", [(f"./{item.name}", item.data) for item in items])
    mini.write_tar(tmp_path / "flat" / "ILSVRC2012_img_test_v10102019.tar", [("ILSVRC2012_test_1.JPEG", b"x")])
    mini.write_tar(tmp_path / "deep" / "val.tar", [(f"val/{item.wnid}/{item.name}", item.data) for item in items])
    for root, layout in ((tmp_path / "flat", "D"), (tmp_path / "deep", "A")):
        assert imagenet.describe(root)["layout"].startswith(f"{layout}, ")
        assert list(imagenet.read(root).targets) == [item.target for item in items]


def test_shards_that_number_their_samples_anew(items, tmp_path):
    for shard in range(2):
        members = [
            (f"{n:06d}.{ending}", data)
            for n, item in enumerate(items[shard::2])
            for ending, data in (("png", item.data), ("cls", item.wnid.encode()))
        ]
        mini.write_tar(tmp_path / f"{shard}.tar", members)
    mini.write_tar(tmp_path / "train.tar", members)
    data = imagenet.read(tmp_path)
    assert list(data.ids[:2]) == ["0.tar/000000", "0.tar/000001"]
    assert list(data.targets) == [item.target for item in items[::2] + items[1::2]]


def test_shards_without_a_label_or_with_a_contradiction(items, tmp_path):
    members = [(f"{item.key}.jpg", item.data) for item in items]
    labels = [(f"{item.key}.cls", str(item.target).encode()) for item in items]
    mini.write_tar(tmp_path / "val.tar", members + labels[1:])
    with pytest.raises(DataMissing, match=f"has no label for 1 of 12 pictures, the first is {items[0].key}"):
        imagenet.read(tmp_path)
    members = [(f"{item.wnid}_{item.key}.jpg", item.data) for item in items[:4]]
    labels = [(f"{item.wnid}_{item.key}.cls", b"65") for item in items[:4]]
    mini.write_tar(tmp_path / "val.tar", members + labels)
    with pytest.raises(DataMissing, match=r"says \d+ of ILSVRC2012_val_\d+, but .* says 65"):
        imagenet.read(tmp_path)


def test_sources_survive_a_worker_and_hold_no_picture(items, tmp_path):
    data = imagenet.read(mini.write(tmp_path, "E", items))
    again = pickle.loads(pickle.dumps(data.sources))
    assert again[-1].read() == items[-1].data
    assert data.sources[0] is not data.sources[0]
    assert [source.read(3) for source in data.sources[2:4]] == [item.data[:3] for item in items[2:4]]


def test_an_unreadable_picture_is_named(items, tmp_path):
    members = [(f"{item.key}.jpg", item.data[:-100] if i == 3 else item.data) for i, item in enumerate(items)]
    labels = [(f"{item.key}.cls", str(item.target).encode()) for item in items]
    mini.write_tar(tmp_path / "val.tar", members + labels)
    bench = replace(get_benchmark("imagenet1k"), counts={})
    with pytest.raises(ImageError, match=rf"val\.tar: {items[3].key}\.jpg' is"):
        evaluate(mini.Levels(), bench, data_root=tmp_path, results=tmp_path / "r")
    result = evaluate(mini.Levels(), bench, data_root=tmp_path, results=tmp_path / "r", on_bad="skip")
    assert list(result["failed"]) == [items[3].key]
    assert result["metrics"]["top1"]["value"] == 10 / 12


# a user's own


def write_shards(root, labels, shards=2):
    """Three colours; labels as given, one a picture."""
    for shard in range(shards):
        members = []
        for i, label in list(enumerate(labels))[shard::shards]:
            stream = io.BytesIO()
            Image.new("RGB", (8, 8), (80 * i, 0, 255 - 80 * i)).save(stream, "PNG")
            members += [(f"x/{i // shards}.PNG", stream.getvalue()), (f"x/{i // shards}.cls", label.encode())]
        mini.write_tar(root / f"part-{shard}.tar", members)
    return root


def test_own_shards(nearest, tmp_path):
    data = get_benchmark("shards").read(write_shards(tmp_path, ["2", "0", "1", "0\n"]))
    assert list(data.ids) == ["part-0.tar/x/0", "part-0.tar/x/1", "part-1.tar/x/0", "part-1.tar/x/1"]
    assert (data.targets, data.classes) == ([2, 1, 0, 0], ["0", "1", "2"])
    assert len(shards.read(tmp_path / "part-1.tar")) == 2
    named = shards.read(write_shards(tmp_path, ["cat", "ant", "öre", "cat"]))
    assert (named.targets, named.classes) == ([1, 2, 0, 1], ["ant", "cat", "öre"])


def test_own_shards_are_evaluated_and_described(colours, nearest, tmp_path):
    members = []
    for path in sorted(colours.rglob("*.png")):
        name = f"{path.parent.name}-{path.stem}"
        members += [(f"{name}.png", path.read_bytes()), (f"{name}.cls", path.parent.name.encode())]
    mini.write_tar(tmp_path / "shards" / "0.tar", members)
    result = evaluate(nearest, "shards", data_root=tmp_path / "shards", results=tmp_path / "r", batch_size=7)
    assert (result["metrics"]["top1"]["value"], result["n"]) == (1, 24)
    found = check("shards", tmp_path / "shards")
    assert (found.good, found.counts) == (True, {"images": 24, "classes": 6})
    assert found.samples[2] == "item 0.tar/white-3"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("a.jpg", b"x"), ("b.cls", b"1")], r"0\.tar: a\.jpg has no label; expected a\.cls beside it"),
        ([("a.jpg", b"x"), ("a.cls", b" ")], r"a\.jpg has no label"),
        ([("a.jpg", b"x"), ("a.seg.png", b"x"), ("a.cls", b"1")], r"0\.tar: the sample a has two pictures"),
        ([("a.jpg", b"x"), ("a.cls", b"1" * 300)], r"a\.cls is no label \(300 bytes\)"),
        ([("a.jpg", b"x"), ("a.cls", b"\xff")], r"a\.cls is no label \('utf-8' codec"),
        ([("a.jpg", b"x"), ("a.cls", b"9999999999")], "the label 9999999999 is no class index"),
        ([("a.txt", b"x"), (".a.jpg", b"x")], "no pictures in tar files; expected tar files with NAME"),
    ],
)
def test_own_shards_refusals(tmp_path, members, said):
    mini.write_tar(tmp_path / "0.tar", members)
    with pytest.raises(DataMissing, match=said):
        shards.read(tmp_path)


def test_own_shards_that_are_not_there_or_compressed(tmp_path):
    for root in (None, tmp_path / "nowhere"):
        with pytest.raises(DataMissing, match="not there; expected a folder of tar files"):
            shards.read(root)
    (tmp_path / "0.tar.gz").touch()
    for root in (tmp_path, tmp_path / "0.tar.gz"):
        with pytest.raises(DataMissing, match=r"0\.tar\.gz is compressed; unpack it to \.tar"):
            shards.read(root)


@pytest.mark.parametrize("damage", [lambda b: b[:700], lambda b: b"<html>" * 100, lambda b: b[: 512 + 5000]])
def test_a_tar_file_that_is_not_whole(items, tmp_path, damage):
    mini.write_tar(tmp_path / "0.tar", [("a.jpg", bytes(6000)), ("a.cls", b"1")])
    (tmp_path / "0.tar").write_bytes(damage((tmp_path / "0.tar").read_bytes()))
    with pytest.raises(DataMissing, match=r"0\.tar: not a whole tar file \("):
        shards.read(tmp_path)


def test_a_changed_tar_file_is_listed_again(tmp_path):
    mini.write_tar(tmp_path / "0.tar", [("a.jpg", b"x")])
    assert [entry.name for entry in entries([tmp_path / "0.tar"])] == ["a.jpg"]
    mini.write_tar(tmp_path / "0.tar", [("b.jpg", b"y" * 20_000)])
    assert [entry.read() for entry in entries([tmp_path / "0.tar"])] == [b"y" * 20_000]


def test_links_in_a_tar_file_are_not_followed(tmp_path):
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        link = tarfile.TarInfo("a.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert entries([tmp_path / "0.tar"]) == []
