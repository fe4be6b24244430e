"""Small data and models whose figures are known."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import foveal

COLOURS = {
    "amber": (250, 190, 10),
    "blue": (20, 40, 240),
    "crimson": (220, 20, 60),
    "green": (10, 150, 30),
    "violet": (140, 30, 200),
    "white": (255, 255, 255),
}


class Nearest(nn.Module):
    """Scores the six colours by their distance to the mean of the picture: always right on plain pictures."""

    def __init__(self):
        super().__init__()
        self.colours = nn.Parameter(torch.tensor(list(COLOURS.values())) / 255)  # (6, 3)
        self.pretrained_cfg = {"input_size": (3, 8, 8), "mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1.0}

    def forward(self, x):
        return -10 * torch.cdist(x.mean((2, 3)), self.colours)  # (B, 6)


class Constant(Nearest):
    """The same score for every class."""

    def forward(self, x):
        return super().forward(x) * 0


@pytest.fixture(autouse=True)
def always_one_thread(one_thread):
    """See `one_thread`."""


@pytest.fixture
def nearest():
    return Nearest()


@pytest.fixture
def constant():
    return Constant()


@pytest.fixture
def colours(tmp_path):
    """Root of 24 plain pictures in 6 folders."""
    for name, colour in COLOURS.items():
        (tmp_path / "colours" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (9 + i, 12), colour).save(tmp_path / "colours" / name / f"{i}.png")
    return tmp_path / "colours"


@pytest.fixture
def grey(tmp_path):
    """Root of 30 grey pictures of noise, 28x28, in 10 folders."""
    noise = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        (tmp_path / "grey" / f"class {i % 10}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "grey" / f"class {i % 10}" / f"{i}.png")
    return tmp_path / "grey"


@pytest.fixture
def tiny():
    """A real model with 20,000 parameters for grey pictures in 10 classes."""
    torch.manual_seed(0)
    options = {"in_chans": 1, "num_classes": 10, "depths": (1, 1, 1), "dims": (8, 16, 32), "num_heads": (1, 2, 4)}
    return foveal.create_model("biformer_nano", **options)
