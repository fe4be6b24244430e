"""Real photographs through `tf_efficientnet_lite0.package`; the true weights where a person has imported them."""

import pytest
import torch
from sklearn.datasets import load_sample_image

import foveal
from foveal.tasks.classification import classify
from foveal.weights.catalogue import rows
from foveal.weights.errors import WeightsError
from foveal.weights.places import checked_file_of, home
from foveal.zoo.labels import imagenet_labels
from foveal.zoo.verify import verify
from tests.weights import lite0

ROW = "tf_efficientnet_lite0.package"
PERSONS_HOME = str(home())  # before the tests' own setting takes its place


def answers(model, picture):
    return {answer.label: answer.probability for answer in classify(model, picture, topk=5)}


@pytest.mark.parametrize("photo", ["china.jpg", "flower.jpg"])
def test_photographs_go_through_a_file_in_the_real_layout(tmp_path, photo):
    torch.save(lite0.state(), tmp_path / "w.pth")
    model = foveal.create_model("tf_efficientnet_lite0", weights=tmp_path / "w.pth")
    found = classify(model, load_sample_image(photo), topk=1000)
    assert sum(answer.probability for answer in found) == pytest.approx(1, abs=1e-4)
    assert len({answer.index for answer in found}) == 1000


def test_the_thousand_names_are_different_and_in_the_usual_order():
    names = imagenet_labels()
    assert len(names) == len({*names}) == 1000
    assert [names[i] for i in (0, 282, 285, 504, 872, 967)] == [
        "tench, Tinca tinca", "tiger cat", "Egyptian cat", "coffee mug", "tripod", "espresso",
    ]  # fmt: skip


def test_the_true_weights_name_what_is_on_photographs(monkeypatch):
    monkeypatch.setenv("FOVEAL_HOME", PERSONS_HOME)
    try:
        checked_file_of(rows()[ROW])
    except WeightsError as error:
        pytest.skip(str(error))
    data = pytest.importorskip("skimage.data")
    assert verify(rows()[ROW]).startswith("sha256 as recorded, loads strictly, probe agrees")
    model = foveal.create_model(ROW, pretrained=True)
    coffee, camera, cat = (answers(model, getattr(data, name)()) for name in ("coffee", "camera", "chelsea"))
    print(coffee, camera, cat)
    assert next(iter(coffee)) == "espresso"
    assert coffee["espresso"] > 0.9
    assert next(iter(camera)) == "tripod"
    assert camera["tripod"] > 0.9
    assert list(cat)[:3] == ["tiger cat", "Egyptian cat", "tabby, tabby cat"]
    assert sum(list(cat.values())[:3]) > 0.85
