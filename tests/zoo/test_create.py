"""From a name and weights to a model, and from a model to a file and back."""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import logging
import pickle
import re
import socket
import time

import numpy as np
import pytest
import timm
import torch
from torch import nn

import foveal
from foveal.weights import catalogue
from foveal.weights.catalogue import Preprocessing
from foveal.weights.saving import save as save_tensors
from foveal.zoo import registry
from foveal.zoo.create import RANDOM

SMALL = {"depths": (1, 1, 1, 1)}  # biformer_tiny with one block a stage
FILE = "tiny_test.safetensors"
ROW = """
["biformer_tiny.test"]
arch = "biformer_tiny"
file = "{file}"
page = "https://example.org/tiny"
sha256 = "{sha256}"
licences = {{ code = "MIT", weights = "MIT", data = "CC0-1.0" }}
preprocessing = {{ size = 48, mean = [0.25], std = [0.5], interpolation = "bilinear", crop_pct = 0.9 }}
options = {{ depths = [1, 1, 1, 1], topk = [2, "full", 16, "full"], in_chans = 1, num_classes = 3 }}
labels = ["cat", "dog", "owl"]
"""


@pytest.fixture
def pictures():
    return torch.randn(2, 3, 32, 32)


def small(**options):
    torch.manual_seed(0)
    return foveal.create_model("biformer_tiny", **{**SMALL, "num_classes": 10, **options}).eval()


def equal_states(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def forget():
    catalogue.rows.cache_clear()
    registry.models.cache_clear()


@pytest.fixture
def add_row(tmp_path, monkeypatch):
    """Puts rows into a catalogue that is the shipped one otherwise; FOVEAL_HOME is an empty folder."""
    folder = tmp_path / "facts" / "catalogue"
    folder.mkdir(parents=True)
    for path in (catalogue.FOLDER / "catalogue").glob("*.toml"):
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(catalogue, "FOLDER", folder.parent)
    monkeypatch.setenv("FOVEAL_HOME", str(tmp_path / "home"))

    def add(text):
        with (folder / "zz_test.toml").open("a", encoding="utf-8") as stream:
            stream.write(text)
        forget()

    forget()
    yield add
    monkeypatch.undo()
    forget()


@pytest.fixture
def row_and_file(add_row, tmp_path):
    """The row of ROW and its file in its place in FOVEAL_HOME."""
    model = small(in_chans=1, num_classes=3, topk=(2, None, 16, None))
    place = tmp_path / "home" / "weights" / FILE
    save_tensors(model, place)
    add_row(ROW.format(file=FILE, sha256=hashlib.sha256(place.read_bytes()).hexdigest()))
    return place, model


def no_socket(*_, **__):
    raise AssertionError("a socket was opened")


@pytest.fixture
def socketless(monkeypatch):
    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, no_socket)


# Tags and files


def test_pretrained_and_weights_together():
    with pytest.raises(TypeError, match="either pretrained=True or weights=, not both"):
        foveal.create_model("biformer_tiny", pretrained=True, weights="x.pth")


def test_bc35_file_and_tag_give_the_same(row_and_file, tmp_path):
    place, model = row_and_file
    elsewhere = tmp_path / "renamed.pth"
    elsewhere.write_bytes(place.read_bytes())
    x = torch.randn(2, 1, 48, 48)
    made = [
        foveal.create_model("biformer_tiny.test", pretrained=True),
        foveal.create_model("biformer_tiny", weights="test"),
        foveal.create_model("biformer_tiny", weights="biformer_tiny.test"),
        foveal.create_model("biformer_tiny", weights=place),
        foveal.create_model("biformer_tiny", weights=str(elsewhere)),
    ]
    for found in made:
        assert found.training
        assert torch.equal(found.eval()(x), model(x))
        assert foveal.transforms_for(found) == foveal.transforms_for(made[0])
        assert found.foveal == made[0].foveal
    info = made[0].foveal
    assert info.preprocessing == Preprocessing(48, (0.25,), (0.5,), "bilinear", 0.9)
    assert (info.name, info.weights, info.labels) == ("biformer_tiny", "biformer_tiny.test", ("cat", "dog", "owl"))
    assert info.sha256 == hashlib.sha256(place.read_bytes()).hexdigest()
    assert info.options["topk"] == (2, None, 16, None)


def test_settings_given_win_over_those_of_the_row(row_and_file):
    model = foveal.create_model("biformer_tiny", weights="test", num_classes=5, in_chans=3, img_size=(32, 64))
    assert model(torch.randn(2, 3, 32, 64)).shape == (2, 5)
    spec = model.foveal.preprocessing
    assert spec.shape == (32, 64)
    assert (spec.mean, spec.std) == ((0.25,) * 3, (0.5,) * 3)
    assert (spec.interpolation, spec.crop_pct) == ("bilinear", 0.9)
    assert model.foveal.labels == ()  # the classifier is fresh
    assert model.foveal.weights == "biformer_tiny.test"


def test_the_row_of_a_file_without_a_known_hash(add_row, tmp_path):
    add_row(ROW.format(file=FILE, sha256=""))
    save_tensors(small(in_chans=1, num_classes=3, topk=(2, None, 16, None)), tmp_path / "home" / "weights" / FILE)
    model = foveal.create_model("biformer_tiny.test", pretrained=True)
    assert model.foveal.weights == "biformer_tiny.test"
    assert model.foveal.preprocessing.size == 48
    assert model.foveal.labels == ("cat", "dog", "owl")


def test_load_weights_takes_tags_files_and_folders(row_and_file, caplog):
    place, model = row_and_file
    for source in ("test", "biformer_tiny.test", place, place.parent):
        other = small(in_chans=1, num_classes=3, topk=[2, None, 16, None])
        report = foveal.load_weights(other, source)
        assert equal_states(other, model)
        assert report.loaded == len(model.state_dict())
        assert other.foveal.weights == "biformer_tiny.test"
        assert other.foveal.labels == ("cat", "dog", "owl")
    assert caplog.text == ""
    foveal.load_weights(small(in_chans=1, num_classes=3, topk=(9, None, 16, None)), "test")  # fits, but differs
    assert "made with {'topk': (2, None, 16, None)}, the model has {'topk': (9, None, 16, None)}" in caplog.text


def test_a_file_with_another_hash_is_refused_before_it_is_read(row_and_file, monkeypatch):
    place, _ = row_and_file
    place.write_bytes(place.read_bytes() + b" ")
    other = small(in_chans=1, num_classes=3)
    before = copy.deepcopy(other)
    monkeypatch.setattr("foveal.zoo.create.read_checkpoint", no_socket)
    monkeypatch.setattr("foveal.zoo.create.load_file", no_socket)
    calls = (
        lambda: foveal.create_model("biformer_tiny.test", pretrained=True),
        lambda: foveal.create_model("biformer_tiny", weights="test"),
        lambda: foveal.load_weights(other, "test"),
    )
    sentence = r"biformer_tiny\.test: .*tiny_test.* has sha256 [0-9a-f]{64}, the row says"
    for call in calls:
        with pytest.raises(foveal.WeightsError, match=sentence):
            call()
    assert equal_states(other, before)


def test_bc34_with_the_file_in_place_no_socket_is_opened(row_and_file, socketless):
    assert foveal.create_model("biformer_tiny.test", pretrained=True).foveal.weights == "biformer_tiny.test"
    first = catalogue.rows_of("biformer_tiny")[0]
    assert foveal.create_model("biformer_tiny", weights="test").foveal.weights != first.name


def test_bc34_without_the_file_one_sentence_within_a_second(add_row, tmp_path, socketless):
    add_row(ROW.format(file=FILE, sha256="0" * 64))
    for wanted, hash_known in (("biformer_tiny.test", True), ("biformer_tiny", False)):
        row = catalogue.rows().get(wanted) or catalogue.rows_of(wanted)[0]
        started = time.perf_counter()
        with pytest.raises(foveal.WeightsError) as error:
            foveal.create_model(wanted, pretrained=True)
        assert time.perf_counter() - started < 1
        text = str(error.value)
        assert "\n" not in text
        assert len(text) < 500
        for part in (row.name, row.file, row.page, str(tmp_path / "home" / "weights")):
            assert part in text
        assert (row.sha256 in text) if hash_known else ("verified" in text)


def test_default_folder_of_fetched_files(monkeypatch):
    from pathlib import Path

    from foveal.weights.places import home

    monkeypatch.delenv("FOVEAL_HOME", raising=False)
    assert home() == Path.home() / ".cache" / "foveal"
    monkeypatch.setenv("FOVEAL_HOME", "~/elsewhere")
    assert home() == Path.home() / "elsewhere"


def test_unknown_weights(tmp_path):
    with pytest.raises(foveal.UnknownName, match=r"no weight 'biformer_tiny\.in2k'; did you mean biformer_tiny\.in1k"):
        foveal.create_model("biformer_tiny.in2k", pretrained=True)
    with pytest.raises(foveal.UnknownName, match="did you mean"):
        foveal.create_model("biformer_tiny.in2k")
    for wrong in ("in2k", "biformer_tiny.in2k", "biformer_small.in1k"):
        sentence = rf"{wrong}: neither a file nor weights of biformer_tiny \(known: .*in1k"
        with pytest.raises(foveal.WeightsError, match=sentence):
            foveal.create_model("biformer_tiny", weights=wrong)
    with pytest.raises(foveal.WeightsError, match="no such file or folder"):
        foveal.create_model("biformer_tiny", weights=tmp_path / "none.pth")
    with pytest.raises(foveal.WeightsError, match="no weights in this folder"):
        foveal.create_model("biformer_tiny", weights=tmp_path)


def test_a_model_without_known_weights(monkeypatch):
    monkeypatch.setattr("foveal.weights.places.rows_of", lambda arch: [])
    with pytest.raises(foveal.WeightsError, match="biformer_nano: no weights are known for it; pass weights=FILE"):
        foveal.create_model("biformer_nano", pretrained=True)


def test_timm_weights_without_network(tmp_path, monkeypatch, socketless):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(foveal.WeightsError, match=r"resnet10t: timm could not fetch its weights .*pass weights=FILE"):
        foveal.create_model("resnet10t", pretrained=True)


def test_a_path_that_timm_would_read_in_its_own_way(tmp_path):
    with pytest.raises(TypeError, match="pass weights=FILE"):
        foveal.create_model("resnet10t", checkpoint_path=str(tmp_path / "x.pth"))


# Files of one's own


def test_bc32_own_checkpoint_at_another_size_class_count_and_channels(tmp_path, caplog):
    model = small()
    path = foveal.save(model, tmp_path / "own.safetensors")
    with caplog.at_level(logging.INFO, "foveal"):
        other = foveal.create_model("biformer_tiny", weights=path, img_size=64, num_classes=5, in_chans=1).eval()
    assert other(torch.randn(1, 1, 64, 64)).shape == (1, 5)
    for name, shapes in (("downsample_layers.0.0.weight", "(32, 3, 3, 3)"), ("head.weight", "(10, 512)")):
        lines = [record.message for record in caplog.records if name in record.message]
        assert len(lines) == 1
        assert shapes in lines[0]
    assert torch.equal(other.stages[0][0].attn.wo.weight, model.stages[0][0].attn.wo.weight)
    assert other.foveal.preprocessing.shape == (64, 64)
    assert len(other.foveal.preprocessing.mean) == 1
    assert foveal.transforms_for(other)(np.zeros((50, 70), np.uint8)).shape == (1, 64, 64)


def test_bc12_grey_pictures_give_the_same_features_through_the_transforms(tmp_path):
    """Normalisation included: the one channel has the average of the three means and deviations."""
    grey_spec = {"mean": (0.3, 0.3, 0.3), "std": (0.2, 0.2, 0.2), "size": 32}
    model = small()
    model.foveal = foveal.zoo.create.replace(model.foveal, preprocessing=Preprocessing(**grey_spec))
    path = foveal.save(model, tmp_path / "own.safetensors")
    one, three = (foveal.create_model("biformer_tiny", weights=path, in_chans=n).eval() for n in (1, 3))
    picture = np.random.default_rng(0).integers(0, 256, (40, 50), np.uint8)
    a, b = (m.forward_features(foveal.transforms_for(m)(picture)[None]) for m in (one, three))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_settings_in_a_saved_file_hold_for_weights_too(tmp_path, pictures):
    model = small(topk=(1, 2, None, None), num_classes=4)
    path = foveal.save(model, tmp_path / "own.safetensors")
    same = foveal.create_model("biformer_tiny", weights=path).eval()
    assert torch.equal(same(pictures), model(pictures))
    assert same.cfg == model.cfg


def test_released_files_load(tmp_path, pictures):
    model = small()
    torch.save({"model": model.state_dict(), "epoch": 1, "args": argparse.Namespace(lr=1e-3)}, tmp_path / "best.pth")
    found = foveal.create_model("biformer_tiny", weights=tmp_path / "best.pth", num_classes=10, **SMALL).eval()
    assert torch.equal(found(pictures), model(pictures))
    assert found.foveal.weights == str(tmp_path / "best.pth")
    assert found.foveal.sha256 == hashlib.sha256((tmp_path / "best.pth").read_bytes()).hexdigest()
    assert found.foveal.labels == ()
    assert small().foveal.weights == RANDOM
    assert small().foveal.sha256 == ""


def test_averaged_weights(tmp_path):
    model, average = small(), small()
    nn.init.zeros_(average.head.weight)
    torch.save({"model": model.state_dict(), "model_ema": average.state_dict()}, tmp_path / "both.pth")
    for ema, expected in ((True, average), (False, model)):
        found = foveal.create_model("biformer_tiny", weights=tmp_path / "both.pth", ema=ema, num_classes=10, **SMALL)
        assert equal_states(found, expected)
        foveal.load_weights(found, tmp_path / "both.pth", ema=not ema)
        assert equal_states(found, model if ema else average)


def test_strict_and_not(tmp_path):
    state = small().state_dict()
    del state["norm.bias"]
    torch.save(state | {"norm.bais": torch.zeros(512)}, tmp_path / "wrong.pth")
    options = {"weights": tmp_path / "wrong.pth", "num_classes": 10, **SMALL}
    with pytest.raises(foveal.WeightsError, match=r"1 are missing, 1 are unexpected[^$]*norm\.bias"):
        foveal.create_model("biformer_tiny", **options)
    model = foveal.create_model("biformer_tiny", strict=False, **options)
    report = foveal.load_weights(model, tmp_path / "wrong.pth", strict=False)
    assert (report.missing, report.unexpected) == (["norm.bias"], ["norm.bais"])


def test_another_models_checkpoint(tmp_path):
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "other.pth")
    with pytest.raises(foveal.WeightsError, match="looks like the checkpoint of another model") as error:
        foveal.create_model("biformer_tiny", weights=tmp_path / "other.pth")
    assert len(str(error.value)) < 1500
    save_tensors(small(), tmp_path / "own.safetensors")
    with pytest.raises(foveal.WeightsError, match="does not fit BiFormer") as error:
        foveal.create_model("biformer_stl", weights=tmp_path / "own.safetensors", depths=(1, 1, 1, 1))
    assert len(str(error.value)) < 1500


def test_addresses():
    """An address is fetched; offline that is one sentence that names the place to put the file."""
    with pytest.raises(foveal.WeightsError, match=r"w\.pth: .*offline.*foveal-home"):
        foveal.create_model("biformer_tiny", weights="https://example.org/w.pth")


def test_unknown_preprocessing_is_said(tmp_path, caplog):
    net = foveal.create_model("resnet10t", num_classes=2)
    torch.save(net.state_dict(), tmp_path / "own.pth")
    foveal.load_weights(net, tmp_path / "own.pth")
    assert "own.pth: its preprocessing is unknown, taken to be Preprocessing(size=" in caplog.text
    caplog.clear()
    foveal.save(net, tmp_path / "own.safetensors")
    foveal.load_weights(net, tmp_path / "own.safetensors")
    assert "unknown" not in caplog.text


# Saving


ROUND_TRIPS = [
    ("biformer_tiny", {"depths": (1, 1, 1, 1), "topk": (1, None, 16, None), "num_classes": 4, "drop_path_rate": 0.2}),
    ("biformer_nano", {"in_chans": 1, "num_classes": 0, "img_size": (20, 28)}),
    ("biformer_nano", {"features_only": True, "out_indices": (0, -1), "num_classes": 4}),
    ("biformer_nano", {"features_only": True, "out_norms": True, "out_indices": (1,)}),
    ("vit_tiny_patch16_224", {"img_size": (32, 48), "depth": 1, "num_classes": 3, "class_token": True}),
    ("resnet10t", {"features_only": True, "out_indices": (1, -1)}),
]


@pytest.mark.parametrize(("name", "options"), ROUND_TRIPS)
@pytest.mark.parametrize("folder", [False, True])
def test_save_and_load(tmp_path, name, options, folder):
    model = foveal.create_model(name, **options).eval()
    assert model.foveal.options.items() >= options.items()
    path = foveal.save_pretrained(model, tmp_path / "m") if folder else foveal.save(model, tmp_path / "m.safetensors")
    again = foveal.load(path)
    assert again.training
    assert equal_states(again, model)
    x = torch.randn(1, options.get("in_chans", 3), *options.get("img_size", (32, 32)))
    for a, b in zip(again.eval()(x), model(x), strict=True):
        assert torch.equal(a, b)
    assert again.foveal.options.items() >= options.items()
    assert again.foveal.preprocessing == model.foveal.preprocessing
    assert again.foveal.name == model.foveal.name
    foveal.save(again, tmp_path / "again.safetensors")
    assert equal_states(foveal.load(tmp_path / "again.safetensors"), model)


def test_what_weights_came_with_is_saved(row_and_file, tmp_path):
    model = foveal.create_model("biformer_tiny", weights="test")
    again = foveal.load(foveal.save(model, tmp_path / "own.safetensors"))
    assert again.foveal.preprocessing == model.foveal.preprocessing
    assert again.foveal.labels == ("cat", "dog", "owl")
    assert foveal.transforms_for(again) == foveal.transforms_for(model)
    assert again.foveal.options["topk"] == (2, None, 16, None)
    config = json.loads((foveal.save_pretrained(model, tmp_path / "m") / "config.json").read_text())
    assert config["labels"] == ["cat", "dog", "owl"]
    assert config["options"]["topk"] == [2, None, 16, None]
    for source in (tmp_path / "m", str(tmp_path / "m")):
        assert equal_states(foveal.create_model("biformer_tiny", weights=source), model)


def test_a_classifier_that_was_reset_is_saved_as_it_is(row_and_file, tmp_path):
    model = foveal.create_model("biformer_tiny", weights="test")
    model.reset_classifier(5)
    again = foveal.load(foveal.save(model, tmp_path / "own.safetensors"))
    assert again.num_classes == 5
    assert equal_states(again, model)
    assert again.foveal.labels == ()
    model.reset_classifier(0)
    assert equal_states(foveal.load(foveal.save(model, tmp_path / "own.safetensors")), model)


def test_the_tag_of_a_timm_name_is_saved(tmp_path):
    model = foveal.create_model("vit_tiny_patch16_224.augreg_in21k", depth=1)
    assert model.num_classes == 21843
    again = foveal.load(foveal.save(model, tmp_path / "m.safetensors"))
    assert equal_states(again, model)
    assert again.foveal.preprocessing == model.foveal.preprocessing


def test_files_that_do_not_say_what_they_hold(tmp_path):
    save_tensors(small(), tmp_path / "bare.safetensors")
    torch.save(small().state_dict(), tmp_path / "bare.pth")
    for name in ("bare.safetensors", "bare.pth"):
        sentence = rf"{name}: does not say which model it holds; create the model by name and pass weights='.*{name}'"
        with pytest.raises(foveal.WeightsError, match=sentence):
            foveal.load(tmp_path / name)
    foveal.save(nn.Linear(2, 2), tmp_path / "linear.safetensors")
    with pytest.raises(foveal.WeightsError, match="does not say which model it holds"):
        foveal.load(tmp_path / "linear.safetensors")


@pytest.mark.parametrize(
    "note",
    [
        "{", "[]", '"text"', '{"name": 3}', '{"name": "biformer_tiny"}',
        '{"name": "biformer_tiny", "options": 3, "preprocessing": {}, "labels": []}',
        '{"name": "biformer_tiny", "options": {}, "preprocessing": {"size": 0, "mean": [0], "std": [1]}, "labels": []}',
        '{"name": "biformer_tiny", "options": [], "preprocessing": {"size": 8, "mean": [0], "std": [1]}, "labels": 3}',
    ],
)  # fmt: skip
def test_files_with_a_damaged_note(tmp_path, note):
    save_tensors(small(), tmp_path / "odd.safetensors", {"foveal": note})
    sentence = r"odd.safetensors: its note on the model it holds is damaged"
    for call in (foveal.load, lambda path: foveal.create_model("biformer_tiny", weights=path)):
        with pytest.raises(foveal.WeightsError, match=sentence):
            call(tmp_path / "odd.safetensors")


def test_what_can_not_be_saved(tmp_path):
    model = foveal.create_model("vit_tiny_patch16_224", depth=1, act_layer=nn.ReLU)
    with pytest.raises(TypeError, match=r"an option of vit_tiny_patch16_224 is not .*type"):
        foveal.save(model, tmp_path / "m.safetensors")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(foveal.WeightsError, match="this is a folder"):
        foveal.save(small(), tmp_path)


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert foveal.save(small(), "~/m.safetensors") == tmp_path / "m.safetensors"
    assert foveal.save_pretrained(small(), "~/m") == tmp_path / "m"
    for source in ("~/m.safetensors", "~/m"):
        assert equal_states(foveal.load(source), small())
        assert equal_states(foveal.create_model("biformer_tiny", weights=source), small())


# What a model carries


def test_the_record_survives_copies(row_and_file):
    model = foveal.create_model("biformer_tiny", weights="test")
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.foveal == model.foveal
        assert foveal.transforms_for(copied) == foveal.transforms_for(model)
    net = foveal.create_model("biformer_tiny", weights="test", features_only=True)
    assert copy.deepcopy(net).foveal.weights == "biformer_tiny.test"
    assert re.search("cat", repr(model.foveal)) is None  # long lists of labels stay out of logs


def test_features_from_a_classifiers_file(tmp_path, pictures):
    model = small()
    path = foveal.save(model, tmp_path / "own.safetensors")
    for indices in (None, (0, -1), (1,)):
        net = foveal.create_model("biformer_tiny", weights=path, features_only=True, out_indices=indices).eval()
        expected = model.forward_intermediates(pictures, indices, intermediates_only=True)
        for found, want in zip(net(pictures), expected, strict=True):
            assert torch.equal(found, want)
        assert net.foveal.weights == str(path)
        assert not [key for key in net.state_dict() if "head" in key]
    state = model.state_dict()
    del state["stages.0.0.norm1.weight"]
    torch.save(state, tmp_path / "less.pth")
    with pytest.raises(foveal.WeightsError, match=r"missing: stages\.0\.0\.norm1\.weight"):
        foveal.create_model("biformer_tiny", weights=tmp_path / "less.pth", features_only=True, **SMALL)


def test_preprocessing_of_random_weights_is_that_of_the_models_known_ones():
    spec = foveal.create_model("biformer_tiny", img_size=96).foveal.preprocessing
    (known,) = {row.preprocessing for row in catalogue.rows_of("biformer_tiny")}
    assert (spec.mean, spec.crop_pct, spec.shape) == (known.mean, known.crop_pct, (96, 96))
    assert len(foveal.create_model("biformer_nano").foveal.preprocessing.mean) == 3
    assert len(foveal.create_model("biformer_nano", in_chans=1).foveal.preprocessing.mean) == 1


def test_timm_reads_our_preprocessing():
    from timm.data import resolve_model_data_config

    model = foveal.create_model("biformer_nano", pretrained=True)
    spec = model.foveal.preprocessing
    found = resolve_model_data_config(model)
    assert (found["input_size"], found["mean"], found["std"]) == ((1, 28, 28), spec.mean, spec.std)
    assert found["crop_pct"] == spec.crop_pct
    assert model.pretrained_cfg["num_classes"] == model.num_classes == 10


def test_offline_timm_weights_are_one_sentence_at_once():
    with pytest.raises(foveal.WeightsError, match="timm could not fetch its weights"):
        foveal.create_model("timm:resnet18", pretrained=True)
