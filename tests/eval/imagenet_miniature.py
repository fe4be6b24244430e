"""ImageNet's validation part in miniature: the same twelve pictures in each layout in which people have the real one.

Three classes of four pictures. Their official numbers are such that the published ReaL labels agree with their class.
Kinds are those that the real part holds: grey, CMYK, PNG under the name .JPEG, an orientation that must not be applied.
``python -m tests.eval.imagenet_miniature DIR`` writes all layouts to DIR/A … DIR/E.
"""

import csv
import io
import random
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from foveal.eval.data.imagenet_lists import real_labels, wnids

CLASSES = (0, 65, 999)
LEVELS = {0: 40, 65: 130, 999: 220}  # grey value of the upper half
WRONG = 5  # the place of the picture that looks like another class
LAYOUTS = ("A", "B", "C", "D", "E")


@dataclass(frozen=True)
class Item:
    """A picture of the miniature."""

    number: int
    target: int
    data: bytes

    @property
    def key(self) -> str:
        return f"ILSVRC2012_val_{self.number:08d}"

    @property
    def name(self) -> str:
        return f"{self.key}.JPEG"

    @property
    def wnid(self) -> str:
        return wnids()[self.target]


class Levels(nn.Module):
    """1,000 logits; right for every picture of the miniature but one."""

    num_classes = 1000

    def __init__(self):
        super().__init__()
        self.levels = nn.Parameter(torch.tensor([LEVELS[c] / 255 for c in CLASSES]))
        self.pretrained_cfg = {"input_size": (3, 16, 16), "mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1.0}

    def forward(self, x):
        logits = x.new_full((len(x), 1000), -50.0)
        logits[:, list(CLASSES)] = -10 * (x[:, :, :7].mean((1, 2, 3))[:, None] - self.levels).abs()
        return logits


def picture(target: int, kind: int) -> bytes:
    """Upper half of its class, lower half of the next one."""
    lower = CLASSES[(CLASSES.index(target) + 1) % len(CLASSES)]
    image = Image.new("L", (20, 20), LEVELS[lower])
    image.paste(LEVELS[target], (0, 0, 20, 10))
    exif = Image.Exif()
    if kind == 3:
        exif[0x0112] = 3  # upside down
    mode, form = (("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("RGB", "JPEG"))[kind]
    stream = io.BytesIO()
    image.convert("RGB").convert(mode).save(stream, form, exif=exif, quality=95)
    return stream.getvalue()


def items() -> list[Item]:
    """The twelve, in the order of their numbers, which is not that of their classes."""
    numbered = sorted(
        (number, target)
        for target in CLASSES
        for number in [n for n, labels in enumerate(real_labels(), start=1) if labels == [target]][:4]
    )
    looks = [target for _, target in numbered]
    looks[WRONG] = CLASSES[(CLASSES.index(looks[WRONG]) + 1) % len(CLASSES)]
    return [Item(n, target, picture(looks[i], i % 4)) for i, (n, target) in enumerate(numbered)]


def devkit_order() -> list[str]:
    """The wnids in an order as that of the devkit's numbers: not sorted."""
    order = list(wnids())
    random.Random(0).shuffle(order)
    return order


def write(root: Path, layout: str, pictures: list[Item]) -> Path:
    """The pictures in one of the five layouts; gives the root."""
    {"A": _folders, "B": _devkit, "C": _kaggle, "D": _list, "E": _shards}[layout](root, pictures)
    return root


def write_flat(folder: Path, pictures: list[Item]) -> None:
    folder.mkdir(parents=True)
    for item in pictures:
        (folder / item.name).write_bytes(item.data)


def write_tar(file: Path, members: list[tuple[str, bytes]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _folders(root: Path, pictures: list[Item]) -> None:
    for item in pictures:
        folder = root / "val" / item.wnid
        folder.mkdir(parents=True, exist_ok=True)
        (folder / item.name).write_bytes(item.data)


def _devkit(root: Path, pictures: list[Item]) -> None:
    write_flat(root / "val", pictures)
    (root / "data").mkdir()
    order = devkit_order()
    truth = "".join(f"{order.index(item.wnid) + 1}\n" for item in pictures)
    (root / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text(truth)
    mapping = "".join(f"{wnid} {number} some_words\n" for number, wnid in enumerate(order, start=1))
    (root / "data" / "map_clsloc.txt").write_text(mapping)


def _kaggle(root: Path, pictures: list[Item]) -> None:
    write_flat(root / "ILSVRC" / "Data" / "CLS-LOC" / "val", pictures)
    with (root / "LOC_val_solution.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["ImageId", "PredictionString"])
        for item in reversed(pictures):  # the real file is in no order
            rows.writerow([item.key, f"{item.wnid} 1 2 3 4 {item.wnid} 5 6 7 8 "])
    mapping = "".join(f"{wnid} some, words\n" for wnid in wnids())
    (root / "LOC_synset_mapping.txt").write_text(mapping)


def _list(root: Path, pictures: list[Item]) -> None:
    write_flat(root / "val", pictures)
    (root / "val.txt").write_text("".join(f"{item.name} {item.target}\n" for item in pictures))


def _shards(root: Path, pictures: list[Item]) -> None:
    for shard in range(2):
        members = []
        for item in pictures[shard::2]:
            members += [(f"{item.key}.cls", str(item.target).encode()), (f"{item.key}.jpg", item.data)]
        write_tar(root / f"imagenet1k-validation-{shard:02d}.tar", members)
    write_tar(root / "imagenet1k-train-0000.tar", [("n01440764_1.jpg", pictures[0].data), ("n01440764_1.cls", b"0")])


if __name__ == "__main__":
    for each in LAYOUTS:
        print(write(Path(sys.argv[1]) / each, each, items()))
