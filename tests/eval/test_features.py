"""Features of a model: what they are, that each part of the key decides a hit or a miss, and resuming."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from foveal.eval import features as module
from foveal.eval.data import folder
from foveal.eval.data.pictures import Pictures
from foveal.eval.feature_cache import FeatureCache
from foveal.eval.features import feature_key, features_of, pre_logits
from foveal.zoo.images import ImageError
from foveal.zoo.transforms import transforms_for


@pytest.fixture
def cache(tmp_path):
    return FeatureCache(tmp_path / "cache")


@pytest.fixture
def calls(monkeypatch):
    """Counts the pictures that the model sees."""
    seen = []

    def counted(model, inputs):
        seen.append(len(inputs))
        return pre_logits(model, inputs)

    monkeypatch.setattr(module, "pre_logits", counted)
    return seen


def get(model, data, **options):
    return features_of(model, data, **{"device": "cpu", "batch_size": 8} | options)


def test_features_are_what_the_classifier_is_given(tiny, grey):
    data = folder.read(grey)
    got = get(tiny, data)
    assert got.shape == (30, 32)
    assert got.dtype == np.float32
    tiny.eval()
    with torch.inference_mode():
        x = torch.stack([transforms_for(tiny)(path) for path in data.sources])
        logits = tiny(x)
        assert torch.allclose(tiny.get_classifier()(torch.from_numpy(got)), logits, atol=1e-5)


def test_mode_is_eval_and_put_back(tiny, grey):
    tiny.train()
    data = folder.read(grey)
    assert np.array_equal(get(tiny, data), get(tiny, data))
    assert tiny.training


def test_a_second_run_computes_nothing_and_gives_the_same_bits(tiny, grey, cache, calls):
    data = folder.read(grey)
    want = get(tiny, data)
    first = get(tiny, data, cache=cache)
    assert sum(calls) == 60
    assert np.array_equal(get(tiny, data, cache=cache), first)
    assert np.array_equal(want, first)
    assert sum(calls) == 60


def test_renamed_data_folder_file_name_of_weights_device_and_batch_size_hit(tiny, grey, cache, calls):
    want = get(tiny, folder.read(grey), cache=cache)
    moved = grey.rename(grey.with_name("elsewhere"))
    tiny.foveal = tiny.foveal.__class__(**{**vars(tiny.foveal), "weights": "other.pth"})
    assert np.array_equal(get(tiny, folder.read(moved), cache=cache, batch_size=3, workers=1), want)
    assert sum(calls) == 30


def change_weights(model, data, monkeypatch):
    next(model.parameters()).data.flatten()[0].add_(1e-6)


def change_structure(model, data, monkeypatch):
    model.register_module("more", nn.Identity())


def change_preprocessing(model, data, monkeypatch):
    spec = model.foveal.preprocessing
    spec = spec.__class__(**{**vars(spec), "mean": (0.123,)})
    model.foveal = model.foveal.__class__(**{**vars(model.foveal), "preprocessing": spec})


def change_byte(model, data, monkeypatch):
    path = data.sources[17]
    pixels = np.array(Image.open(path))
    pixels[3, 4] ^= 1
    Image.fromarray(pixels).save(path)


def change_id(model, data, monkeypatch):
    data.sources[5].rename(data.sources[5].with_name("x.png"))


def change_version(model, data, monkeypatch):
    found = module.versions()
    monkeypatch.setattr(module, "versions", lambda: found | {"foveal": "99"})


def change_torch(model, data, monkeypatch):
    found = module.versions()
    monkeypatch.setattr(module, "versions", lambda: found | {"torch": "99"})


CHANGES = {
    "state_sha256": change_weights,
    "structure_sha256": change_structure,
    "preprocessing": change_preprocessing,
    "data_sha256": change_byte,
    "data_sha256, a name": change_id,
    "code": change_version,
    "code, of torch": change_torch,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_part_of_the_key_is_a_miss(name, tiny, grey, cache, calls, monkeypatch):
    data = folder.read(grey)
    before = feature_key(tiny, data)
    get(tiny, data, cache=cache)
    CHANGES[name](tiny, data, monkeypatch)
    data = folder.read(grey)
    after = feature_key(tiny, data)
    assert [part for part in before if before[part] != after[part]] == [name.partition(",")[0]]
    get(tiny, data, cache=cache)
    assert sum(calls) == 60
    assert len([*cache.folder.iterdir()]) == 2


@pytest.mark.parametrize("option", [{"precision": "bf16"}, {"exif": False}, {"on_bad": "skip"}])
def test_a_changed_option_is_a_miss(option, tiny, grey, cache, calls):
    data = folder.read(grey)
    before, after = feature_key(tiny, data), feature_key(tiny, data, **option)
    assert [part for part in before if before[part] != after[part]] == [*option]
    get(tiny, data, cache=cache)
    get(tiny, data, cache=cache, **option)
    assert sum(calls) == 60


def test_every_part_of_the_key_is_tested(tiny, grey):
    tested = {name.partition(",")[0] for name in CHANGES} | {"precision", "exif", "on_bad"}
    assert set(feature_key(tiny, folder.read(grey))) == tested | {"features"}


class Stop(Exception):
    pass


def test_an_interrupted_run_goes_on_where_it_stopped(tiny, grey, cache, calls):
    data = folder.read(grey)
    want = get(tiny, data)
    calls.clear()

    def stop(finished, total):
        if finished == 16:
            raise Stop

    with pytest.raises(Stop):
        get(tiny, data, cache=cache, progress=stop)
    said = []
    got = get(tiny, data, cache=cache, progress=lambda *counts: said.append(counts))
    assert calls == [8, 8, 8, 6]
    assert said == [(24, 30), (30, 30)]
    assert np.array_equal(got, want)


def test_parts_are_written_on_the_way(tiny, grey, cache, monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 9 * 32 * 4)
    get(tiny, folder.read(grey), cache=cache)
    assert len([*next(cache.folder.iterdir()).glob("part-*")]) == 2  # 16 and 14 items


def test_out_of_memory_halves_the_batch(tiny, grey, calls, monkeypatch, caplog):
    data = folder.read(grey)
    want = get(tiny, data)
    counted = module.pre_logits

    def small(model, inputs):
        if len(inputs) > 3:
            raise torch.OutOfMemoryError
        return counted(model, inputs)

    monkeypatch.setattr(module, "pre_logits", small)
    calls.clear()
    assert get(tiny, data) == pytest.approx(want, abs=1e-5)
    assert calls == [2, 2, 2, 2] * 3 + [3, 3]
    assert "out of memory at batch size 8, trying 4" in caplog.text
    monkeypatch.setattr(module, "pre_logits", lambda model, inputs: small(model, torch.zeros(4)))
    with pytest.raises(torch.OutOfMemoryError):
        get(tiny, data)


def test_a_damaged_part_is_computed_again(tiny, grey, cache, calls):
    data = folder.read(grey)
    want = get(tiny, data, cache=cache)
    (path,) = cache.folder.rglob("part-*")
    contents = bytearray(path.read_bytes())
    contents[-5] ^= 64
    path.write_bytes(contents)
    assert np.array_equal(get(tiny, data, cache=cache), want)
    assert sum(calls) == 60


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_picture(tiny, grey, cache, calls, workers):
    data = folder.read(grey)
    data.sources[3].write_bytes(b"not a picture")
    with pytest.raises(ImageError, match="not a picture"):
        get(tiny, data, workers=workers)
    calls.clear()
    for _ in range(2):
        got = get(tiny, data, cache=cache, on_bad="skip", workers=workers)
        missing = np.isnan(got)
        assert np.flatnonzero(missing.any(axis=1)).tolist() == [3]
        assert missing[3].all()
    assert sum(calls) == 29
    for _ in range(2):
        assert np.isfinite(get(tiny, data, cache=cache, on_bad="substitute", workers=workers)).all()
    assert sum(calls) == 29 + 30 + 1  # what was made up is made up again


def test_nothing_readable_is_all_nan(tiny):
    data = Pictures(["a", "b"], [np.zeros((2, 2)), np.zeros((3, 3))], [0, 1], ["a", "b"])
    got = get(tiny, data, on_bad="skip")
    assert got.shape == (2, 32)
    assert np.isnan(got).all()


def test_timm_models_and_models_that_do_not_say_their_width(cache):
    import timm

    model = timm.create_model("test_vit", num_classes=5)
    del model.head_hidden_size, model.num_features
    data = Pictures(["a", "b"], [np.full((9, 9), shade, np.uint8) for shade in (0, 200)], [0, 1], ["a", "b"])
    got = get(model, data, cache=cache)
    assert got.shape == (2, 64)
    assert np.array_equal(get(model, data, cache=cache), got)


class Odd(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.out, self.pretrained_cfg = out, {"input_size": (3, 8, 8)}

    def forward_features(self, x):
        return x

    def forward_head(self, x, pre_logits=False):
        return self.out(x)


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        (lambda x: x, r"Odd gives \(2, 3, 8, 8\) before its logits, expected \(2, D\)"),
        (lambda x: x.flatten(1)[:1], r"Odd gives \(1, 192\) before its logits, expected \(2, D\)"),
        (lambda x: [x], "Odd gives a list before its logits"),
    ],
)
def test_errors_of_models(out, sentence):
    data = Pictures(["a", "b"], [np.zeros((8, 8), np.uint8)] * 2, [0, 1], ["a", "b"])
    with pytest.raises(ValueError, match=sentence):
        get(Odd(out), data)


def test_features_of_changing_length_are_refused():
    lengths = iter((4, 5))
    data = Pictures(["a", "b"], [np.zeros((8, 8), np.uint8)] * 2, [0, 1], ["a", "b"])
    with pytest.raises(ValueError, match="features of one model differ in length: 4 and 5"):
        get(Odd(lambda x: x.flatten(1)[:, : next(lengths)]), data, batch_size=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"precision": "int8"}, "precision is one of fp32, bf16, fp16, got 'int8'"),
        ({"on_bad": "hide"}, "on_bad is one of error, skip, substitute, got 'hide'"),
        ({"batch_size": 0}, "batch_size has to be 1 or more and workers 0 or more, got 0 and 0"),
        ({"workers": -1}, "batch_size has to be 1 or more and workers 0 or more, got 8 and -1"),
        ({"device": "nowhere"}, "device 'nowhere' can't be used here"),
    ],
)
def test_errors_of_options(options, sentence, tiny, grey, cache):
    for kept in (None, cache):
        with pytest.raises(ValueError, match=sentence):
            get(tiny, folder.read(grey), cache=kept, **options)


def test_error_of_models_without_features_and_of_no_pictures(nearest, colours, tiny):
    with pytest.raises(ValueError, match="Nearest has no forward_features and forward_head"):
        get(nearest, folder.read(colours))
    with pytest.raises(ValueError, match="there are no pictures in the data"):
        get(tiny, Pictures([], [], [], ["a"]))
