"""Test sets beside ImageNet's validation part, and its second labels."""

import json
from dataclasses import replace

import pytest

from foveal.eval.benchmark import DataMissing, get_benchmark
from foveal.eval.data import imagenet, imagenet_variants
from foveal.eval.data.checking import check
from foveal.eval.data.imagenet_lists import index_of, real_labels, timm_list, wnids
from foveal.eval.runner import evaluate
from tests.eval import imagenet_miniature as mini


@pytest.fixture(scope="module")
def items():
    return mini.items()


@pytest.fixture(scope="module")
def roots(items, tmp_path_factory):
    """Roots of all five layouts; not to be written to."""
    return {layout: mini.write(tmp_path_factory.mktemp(layout), layout, items) for layout in mini.LAYOUTS}


# ReaL labels


def real_bench(n):
    return replace(get_benchmark("imagenet-real"), counts={"images": n})


def test_real_labels_that_timm_ships(roots, items, tmp_path):
    assert sum(bool(labels) for labels in real_labels()) == get_benchmark("imagenet-real").counts["images"]
    found = check("imagenet-real", roots["B"])
    assert found.counts["images"] == 12
    assert found.wrong == ["46837 images expected, 12 found"]
    data = real_bench(12).read(roots["B"])
    assert data.accepted == [[item.target] for item in items]
    result = evaluate(mini.Levels(), real_bench(12), data_root=roots["B"], results=tmp_path)
    assert {name: figure["value"] for name, figure in result["metrics"].items()} == {"top1": 11 / 12}


def test_real_labels_of_a_file_with_empty_and_several(items, tmp_path):
    mini.write(tmp_path, "E", items)
    lists = [[] for _ in range(50_000)]
    for item in items:
        lists[item.number - 1] = [7, item.target]
    wrong = items[mini.WRONG]
    looks = mini.CLASSES[(mini.CLASSES.index(wrong.target) + 1) % 3]
    lists[items[0].number - 1] = []
    lists[wrong.number - 1] = [wrong.target, looks]  # what it looks like is right as well
    for item in items[1:3]:
        lists[item.number - 1] = [7]
    (tmp_path / "real.json").write_text(json.dumps(lists))
    data = real_bench(11).read(tmp_path)
    assert list(data.ids) == [item.key for item in items[1:]]
    assert data.fingerprint() != replace(data, accepted=[[1], *data.accepted[1:]]).fingerprint()
    result = evaluate(mini.Levels(), real_bench(11), data_root=tmp_path, results=tmp_path / "r")
    assert result["metrics"]["top1"]["value"] == 9 / 11


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps([[]] * 50_000), "none of the 12 pictures has ReaL labels"),
        ("[[0]]", r"real\.json: no ReaL labels for ILSVRC2012_val_"),
        ("[[0], [1000]]", "1000 is no class index; they are 0 to 999"),
        ("[[0], [true]]", "True is no class index"),
        ("[0, 1]", "not a list of labels for each picture"),
        ("{", "not a list of labels for each picture"),
    ],
)
def test_real_refusals(items, tmp_path, text, said):
    mini.write(tmp_path, "A", items)
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(DataMissing, match=said):
        imagenet.read_real(tmp_path)


def test_real_labels_go_by_official_names(items, tmp_path):
    mini.write(tmp_path, "A", items)
    folder = tmp_path / "val" / items[0].wnid
    (folder / items[0].name).rename(folder / "a.JPEG")
    with pytest.raises(DataMissing, match="no ReaL labels for a; they go by the number in ILSVRC2012_val_NUMBER"):
        imagenet.read_real(tmp_path)


# other test sets


def write_folders(root, names, pictures=2):
    """Folders of plain pictures."""
    for n, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(pictures):
            (root / name / f"{i}.jpg").write_bytes(mini.picture(mini.CLASSES[n % 3], i % 4))
    return root


def bench(name, **counts):
    return replace(get_benchmark(name), counts=counts)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("imagenet-v2-matched-frequency", "imagenetv2-matched-frequency-format-val"),
        ("imagenet-v2-threshold-0.7", "imagenetv2-threshold0.7-format-val"),
        ("imagenet-v2-top-images", "imagenetv2-top-images-format-val"),
    ],
)
def test_v2_folders_are_numbers(tmp_path, name, folder):
    """As text, "999" would come before "65", and "0", "10", "2" would be the classes 0, 1, 2."""
    write_folders(tmp_path / folder, ["999", "0", "65", "10", "2"])
    data = bench(name, images=10, classes=1000).read(tmp_path)
    assert list(data.targets) == [0, 0, 2, 2, 10, 10, 65, 65, 999, 999]
    assert data.ids[-1] == "999/1.jpg"
    assert bench(name).read(tmp_path / folder).fingerprint() == data.fingerprint()
    assert get_benchmark(name).counts == {"images": 10_000, "classes": 1000}


def test_v2_figures(tmp_path):
    write_folders(tmp_path, [str(c) for c in mini.CLASSES], pictures=4)
    name = "imagenet-v2-top-images"
    result = evaluate(mini.Levels(), bench(name), data_root=tmp_path, results=tmp_path / ".results")
    assert result["metrics"]["top1"]["value"] == 1


def test_v2_refusals(tmp_path):
    write_folders(tmp_path / "imagenetv2-top-images-format-val", ["0", "1"])
    with pytest.raises(DataMissing, match=r"is the flavour top-images, expected threshold0\.7"):
        imagenet_variants.read_v2_threshold(tmp_path / "imagenetv2-top-images-format-val")
    with pytest.raises(DataMissing, match="the folder imagenetv2-top-images-format-val is no class index"):
        imagenet_variants.read_v2_threshold(tmp_path)
    write_folders(tmp_path / "v2", ["0", "1000"])
    with pytest.raises(DataMissing, match="the folder 1000 is no class index; ImageNet-V2's folders are 0 to 999"):
        imagenet_variants.read_v2_top_images(tmp_path / "v2")


@pytest.mark.parametrize("name", ["imagenet-a", "imagenet-r"])
def test_only_classes_that_are_there_can_be_the_answer(tmp_path, name):
    """The largest of the 1,000 logits is class 0, which is in neither set."""
    chosen = timm_list(f"{name.replace('-', '_')}_synsets.txt").split()[3:6]
    write_folders(tmp_path / name, chosen, pictures=4)

    class Shifted(mini.Levels):
        def forward(self, x):
            levels = super().forward(x)
            logits = levels * 0 - 50
            logits[:, [index_of()[wnid] for wnid in chosen]] = levels[:, list(mini.CLASSES)]
            logits[:, 0] = 99
            return logits

    data = bench(name, images=12, classes=3).read(tmp_path)
    assert data.classes == chosen
    assert list(data.targets) == [0] * 4 + [1] * 4 + [2] * 4
    assert data.columns == [index_of()[wnid] for wnid in chosen]
    assert (data.width, bench(name).exif) == (1000, False)
    assert data.fingerprint() != replace(data, columns=data.columns[::-1]).fingerprint()
    result = evaluate(Shifted(), bench(name), data_root=tmp_path, results=tmp_path / "r")
    assert result["metrics"]["top1"]["value"] == 1
    assert result["metrics"]["top5"]["value"] is None
    assert result["metrics"]["ece"]["value"] < 0.5


def test_a_model_of_200_classes_is_refused(tmp_path):
    write_folders(tmp_path, timm_list("imagenet_a_synsets.txt").split()[:2])
    model = mini.Levels()
    model.num_classes = 200
    with pytest.raises(ValueError, match="the model gives 200 classes but imagenet-a has 1000"):
        evaluate(model, bench("imagenet-a"), data_root=tmp_path, results=tmp_path / ".r")


def test_a_and_r_refuse_other_folders(tmp_path):
    write_folders(tmp_path / "one", ["n01440764"])  # tench
    with pytest.raises(DataMissing, match="n01440764 is none of the 200 classes of imagenet-r"):
        imagenet_variants.read_r(tmp_path / "one")
    write_folders(tmp_path / "two", ["n00000000"])
    with pytest.raises(DataMissing, match="the folder n00000000 is none of the 1000 wnids of ImageNet-1k"):
        imagenet_variants.read_a(tmp_path / "two")
    with pytest.raises(DataMissing, match="n00000000 is none"):
        check("imagenet-a", tmp_path / "two")


def test_sketch(tmp_path):
    write_folders(tmp_path / "sketch", [wnids()[c] for c in mini.CLASSES], pictures=4)
    data = bench("imagenet-sketch", images=12, classes=1000).read(tmp_path)
    assert sorted(set(data.targets)) == list(mini.CLASSES)
    result = evaluate(mini.Levels(), bench("imagenet-sketch"), data_root=tmp_path, results=tmp_path / "r")
    assert result["metrics"]["top1"]["value"] == 1


def test_variants_that_are_not_there_or_empty(tmp_path):
    for root in (None, tmp_path / "nowhere"):
        with pytest.raises(DataMissing, match="no such folder; expected imagenet-sketch in it, or its contents"):
            imagenet_variants.read_sketch(root)
    with pytest.raises(DataMissing, match="holds no folders; expected one a class"):
        imagenet_variants.read_a(tmp_path)
    write_folders(tmp_path, [wnids()[0]], pictures=0)
    with pytest.raises(DataMissing, match=r"its folders hold no pictures \(\.jpg, "):
        imagenet_variants.read_sketch(tmp_path)
