"""Naming what is on a picture."""

import io
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import foveal
from foveal.tasks.classification import classify
from foveal.zoo.images import ImageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model():
    """A small grey classifier of three named classes, with weights from a file."""
    torch.manual_seed(0)
    net = foveal.create_model("biformer_nano", in_chans=1, num_classes=3)
    net.foveal = replace(net.foveal, labels=("ant", "bee", "cat"), weights="own file")
    return net


@pytest.fixture
def picture():
    return np.random.default_rng(0).integers(0, 256, (40, 30), dtype=np.uint8)


def test_every_form_of_a_picture_gives_the_same_answer(model, picture, tmp_path):
    Image.fromarray(picture).save(tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    forms = [tmp_path / "x.png", str(tmp_path / "x.png"), Image.fromarray(picture), picture, data, io.BytesIO(data)]
    first, *others = [classify(model, form) for form in forms]
    assert others == [first] * 5
    assert classify(model, 255 - picture) != first


def test_answers_are_sorted_probabilities(model, picture):
    answers = classify(model, picture)
    assert {a.label for a in answers} == {"ant", "bee", "cat"}  # 5 were asked for, there are 3
    assert all(("ant", "bee", "cat")[a.index] == a.label for a in answers)
    assert sum(a.probability for a in answers) == pytest.approx(1)
    assert answers == sorted(answers, key=lambda a: -a.probability)
    assert classify(model, picture, topk=1) == answers[:1]
    logits = model.eval()(foveal.transforms_for(model)(picture)[None])
    assert answers[0].probability == pytest.approx(logits.softmax(-1).max().item(), abs=1e-6)


def test_outputs_without_names_are_numbered(model, picture):
    model.foveal = replace(model.foveal, labels=())
    assert all(a.label == str(a.index) for a in classify(model, picture))


def test_random_weights_are_said_once_a_model(picture, caplog):
    models = [foveal.create_model("biformer_nano", in_chans=1, num_classes=3) for _ in range(2)]
    for net in (*models, *models):
        classify(net, picture)
    assert [r.message for r in caplog.records] == ["biformer_nano has random weights: its answers mean nothing"] * 2


def test_loaded_weights_are_not_called_random(picture, caplog, tmp_path):
    foveal.save(foveal.create_model("biformer_nano", in_chans=1, num_classes=3), tmp_path / "w.safetensors")
    classify(foveal.load(tmp_path / "w.safetensors"), picture)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_modes_are_put_back(model, picture):
    model.train()
    frozen = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    frozen.eval()
    before = [m.training for m in model.modules()]
    statistics = frozen.running_mean.clone()
    first = classify(model, picture)
    assert classify(model, picture) == first
    assert [m.training for m in model.modules()] == before
    assert torch.equal(frozen.running_mean, statistics)

    def fail(module, args):
        raise ZeroDivisionError

    model.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        classify(model, picture)
    assert [m.training for m in model.modules()] == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(model, picture, dtype):
    single = classify(model, picture)
    answers = classify(model.to(dtype), picture)
    assert {a.index: a.probability for a in answers} == pytest.approx(
        {a.index: a.probability for a in single}, abs={torch.float64: 1e-5, torch.bfloat16: 0.05}[dtype]
    )


def test_a_model_from_elsewhere(picture):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 7))
    assert len(classify(net, picture)) == 5


@pytest.mark.parametrize("options", [{"num_classes": 0}, {"features_only": True}])
def test_a_model_without_classes(picture, options):
    with pytest.raises(ValueError, match=r"the model has no classes \(num_classes=0 or features_only\)"):
        classify(foveal.create_model("biformer_nano", in_chans=1, **options), picture)


def test_refusals(model, picture, tmp_path):
    with pytest.raises(ValueError, match="topk has to be 1 or more, got 0"):
        classify(model, picture, topk=0)
    with pytest.raises(ImageError, match=r"nowhere\.jpg' cannot be opened"):
        classify(model, tmp_path / "nowhere.jpg")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="answer is not finite; its weights may be damaged"):
        classify(model, picture)
