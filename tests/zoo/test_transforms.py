"""From a picture to the input of a model: the same numbers as timm's own pipeline, for every kind of row."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform
from torch import nn

import foveal
from foveal.weights.catalogue import Preprocessing, rows
from foveal.zoo.transforms import EvalTransform, TrainTransform, at, from_timm, preprocessing_of, transforms_for

COLOUR = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY = ((0.2860,), (0.3530,))
SIZES = [(97, 61), (61, 97), (64, 64), (20, 31), (5, 3), (1, 1), (301, 40)]  # width, height
TIMMS_NAME = {"shorter": "center", "squash": "squash", "border": "border"}


def picture(size, mode="RGB"):
    values = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], len(mode)), np.uint8)
    return Image.fromarray(values if mode == "RGB" else values[..., 0])


def timms(spec, **options):
    return create_transform(
        input_size=(len(spec.mean), *spec.shape),
        is_training=False,
        interpolation=spec.interpolation,
        mean=spec.mean,
        std=spec.std,
        crop_pct=spec.crop_pct,
        crop_mode=TIMMS_NAME[spec.crop_mode],
        **options,
    )


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("crop_mode", ["shorter", "squash", "border"])
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0, 1.15])
@pytest.mark.parametrize(("mean", "std"), [COLOUR, GREY])
def test_equals_timm(interpolation, crop_mode, crop_pct, mean, std):
    mode = "RGB" if len(mean) == 3 else "L"
    for shape, size in itertools.product([(32, 32), (49, 49), (32, 56), (57, 32)], SIZES):
        spec = Preprocessing(shape[0], mean, std, interpolation, crop_pct, crop_mode, width=shape[1])
        found, expected = EvalTransform(spec)(picture(size, mode)), timms(spec)(picture(size, mode))
        assert found.shape == expected.shape == (len(mean), *shape)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["resnet18.a1_in1k", "vit_base_patch16_clip_224.openai", "efficientnet_b0.ra_in1k"])
def test_equals_timms_own_resolution_of_a_configuration(name):
    cfg = timm.get_pretrained_cfg(name).to_dict()
    expected = create_transform(**timm.data.resolve_data_config(pretrained_cfg=cfg))
    torch.testing.assert_close(EvalTransform(from_timm(cfg))(picture((97, 61))), expected(picture((97, 61))))


def test_every_configuration_of_timm_can_be_read():
    for name in timm.list_pretrained():
        cfg = timm.get_pretrained_cfg(name).to_dict()
        spec = from_timm(cfg)
        assert spec.shape == cfg["input_size"][1:]
        assert (len(spec.mean), spec.interpolation) == (cfg["input_size"][0], cfg["interpolation"])
        if cfg.get("crop_mode"):
            assert TIMMS_NAME[spec.crop_mode] == cfg["crop_mode"]


def test_every_row_has_a_transform():
    for row in rows().values():
        shape = (len(row.preprocessing.mean), *row.preprocessing.shape)
        assert EvalTransform(row.preprocessing)(picture((50, 40))).shape == shape


def test_anything_that_the_reader_takes(tmp_path):
    transform = EvalTransform(Preprocessing(32, *COLOUR))
    expected = transform(picture((97, 61)))
    picture((97, 61)).save(tmp_path / "p.png")
    for source in (tmp_path / "p.png", str(tmp_path / "p.png"), np.asarray(picture((97, 61)))):
        assert torch.equal(transform(source), expected)
    assert transform(picture((40, 30), "L")).shape == (3, 32, 32)
    assert EvalTransform(Preprocessing(32, *GREY))(picture((40, 30))).shape == (1, 32, 32)
    with pytest.raises(foveal.ImageError):
        transform(tmp_path / "none.png")


def test_equality_hash_and_pickle():
    spec = Preprocessing(32, *COLOUR)
    transform = EvalTransform(spec)
    assert transform == EvalTransform(replace(spec))
    assert hash(transform) == hash(EvalTransform(replace(spec)))
    assert pickle.loads(pickle.dumps(transform)) == transform
    changes = [
        {"size": 33}, {"width": 40}, {"mean": (0.0, 0.0, 0.0)}, {"std": (1.0, 1.0, 1.0)}, {"interpolation": "bilinear"},
        {"crop_pct": 0.9}, {"crop_mode": "squash"},
    ]  # fmt: skip
    for change in changes:
        assert transform != EvalTransform(replace(spec, **change))


@pytest.mark.parametrize("make", [EvalTransform, TrainTransform])
def test_models_that_do_not_take_pictures(make):
    spec = at(Preprocessing(32, *COLOUR), 4, 32)
    with pytest.raises(ValueError, match="a picture gives 1 or 3 channels, the model takes 4"):
        make(spec)
    with pytest.raises(ValueError, match="the model takes 4"):
        transforms_for(foveal.create_model("biformer_nano", in_chans=4))


def test_at():
    spec = Preprocessing(224, *COLOUR, crop_pct=0.9)
    assert at(spec, 3, 224) == spec
    assert at(spec, 3, (96, 96)) == replace(spec, size=96)
    assert at(spec, 3, (96, 64)).shape == (96, 64)
    assert at(at(spec, 3, (96, 64)), 3, 96) == replace(spec, size=96)
    grey = at(spec, 1, 224)
    assert grey.mean == pytest.approx((0.449,))
    assert grey.std == pytest.approx((0.226,))
    assert at(spec, 4, 224).mean == (*spec.mean, spec.mean[0])
    assert at(Preprocessing(28, *GREY), 3, 28).std == GREY[1] * 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": 0}, "size and width are pixels, got 0 and None"),
        ({"size": 224.0}, r"size and width are pixels, got 224\.0"),
        ({"width": -3}, "size and width are pixels, got 32 and -3"),
        ({"interpolation": "nearest"}, "interpolation is bicubic or bilinear, got 'nearest'"),
        ({"crop_mode": "center"}, "crop_mode is shorter, squash or border, got 'center'"),
        ({"mean": (0.5,)}, r"mean and std are lists of one length, got \(0\.5,\)"),
        ({"mean": 0.5, "std": 0.5}, r"mean and std are lists of one length, got 0\.5"),
        ({"mean": (), "std": ()}, "mean and std are lists of one length"),
        ({"crop_pct": 87.5}, r"crop_pct is a fraction such as 0\.875, got 87\.5"),
        ({"crop_pct": 0}, "crop_pct is a fraction"),
    ],
)
def test_preprocessing_that_can_not_be(change, sentence):
    with pytest.raises(ValueError, match=f"preprocessing: {sentence}"):
        replace(Preprocessing(32, *COLOUR), **change)


@pytest.mark.parametrize(("mean", "std"), [COLOUR, GREY])
@pytest.mark.parametrize("size", [28, (24, 40)])
def test_training_transform(mean, std, size, tmp_path):
    spec = at(Preprocessing(28, mean, std), len(mean), size)
    transform = TrainTransform(spec)
    picture((97, 61)).save(tmp_path / "p.png")
    for source in (picture((97, 61)), picture((97, 61), "L"), tmp_path / "p.png", np.asarray(picture((20, 30)))):
        x = transform(source)
        assert x.shape == (len(mean), *spec.shape)
        assert x.dtype == torch.float32
        assert x.isfinite().all()
    assert len({transform(picture((97, 61))).sum().item() for _ in range(8)}) > 1  # random
    assert pickle.loads(pickle.dumps(transform))(picture((97, 61))).shape == x.shape
    black = torch.stack([transform(Image.new("RGB", (50, 50))) for _ in range(4)])
    expected = -torch.tensor(mean) / torch.tensor(std)
    torch.testing.assert_close(black.mean((0, 2, 3)), expected, rtol=1e-5, atol=1e-5)  # normalised as in evaluation


def test_transforms_for():
    for options in ({}, {"in_chans": 1}, {"img_size": (32, 48)}):
        model = foveal.create_model("biformer_nano", **options)
        channels = options.get("in_chans", 3)
        shape = (channels, *options.get("img_size", model.foveal.preprocessing.shape))
        for train in (False, True):
            transform = transforms_for(model, train=train)
            assert transform(picture((60, 50))).shape == shape
            assert model.eval()(transform(picture((60, 50)))[None]).shape == (1, 1000)
        assert transforms_for(model) == EvalTransform(model.foveal.preprocessing)


def test_models_made_elsewhere():
    model = timm.create_model("vit_tiny_patch16_224.augreg_in21k", depth=1)
    assert preprocessing_of(model) == Preprocessing(224, (0.5,) * 3, (0.5,) * 3, "bicubic", 0.9)
    assert preprocessing_of(nn.Linear(2, 2)) == Preprocessing(224, *COLOUR)
    assert transforms_for(model)(picture((60, 50))).shape == (3, 224, 224)
