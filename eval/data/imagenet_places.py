"""Where ImageNet's validation pictures lie below a data root: loose, in a folder a class, or inside tar files."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.imagenet_lists import WNID, key_of
from foveal.eval.data.pictures import SUFFIXES
from foveal.eval.data.tar_shards import Entry, Members, entries, labelled, tar_files

BASES = ("imagenet1k", "imagenet-1k", "imagenet", "ILSVRC2012", "")
PLACES = ("val", "validation", "ILSVRC2012_img_val", "ILSVRC/Data/CLS-LOC/val", "Data/CLS-LOC/val", "CLS-LOC/val", "")
LABELS = (
    "",
    "data",
    "meta",
    "devkit/data",
    "ILSVRC2012_devkit_t12/data",
    "ILSVRC2012_devkit_t3/data",
    "ILSVRC/devkit/data",
)
ABOVE = 4  # Kaggle's csv file lies so many folders above the pictures


@dataclass(frozen=True)
class Found:
    """Pictures in the order of their keys.

    Attributes:
        base: the folder that holds all there is of ImageNet; place: the one with the pictures, or their tar files.
        keys: see `key_of`; names: paths in the place or in a tar file; files: where each picture is.
        cls: the text of NAME.cls by key.
    """

    base: Path
    place: Path
    keys: Sequence[str]
    names: Sequence[str]
    files: Sequence[Path | Entry]
    cls: dict[str, str]

    def sources(self, kept: Iterable[int]) -> Sequence[Any]:
        """What `read_image` takes, of chosen pictures."""
        chosen = [self.files[i] for i in kept]
        inside = [file for file in chosen if isinstance(file, Entry)]
        return Members(inside) if inside else chosen

    def label_folders(self) -> list[Path]:
        """Where files with labels are looked for."""
        tops = dict.fromkeys((self.base, self.place, self.place.parent))
        return [top / below for top in tops for below in LABELS]

    def label_file(self, *names: str) -> Path | None:
        """The first of such files that is there; of Kaggle's also above the pictures."""
        folders = self.label_folders() + list(self.place.parents)[:ABOVE]
        return next((file for name in names for folder in folders if (file := folder / name).is_file()), None)


def find(root: Path | None) -> Found:
    """The pictures of the first place that holds some.

    Raises:
        DataMissing: when there are none, two have one name, or a place holds pictures and class folders at once.
    """
    if root is not None and root.is_file() and root.suffix.lower() == ".tar":
        found = _in_tars(root.parent, root.parent, [root])
        if found:
            return found
    for base in BASES:
        for below in PLACES:
            if root is not None and (root / base / below).is_dir():
                found = _look(root / base, root / base / below)
                if found:
                    return found
    raise DataMissing(
        f"{root}: no ImageNet validation pictures; expected val/WNID/*.JPEG, val/*.JPEG with a devkit, "
        "LOC_val_solution.csv or val.txt, or plain *.tar files"
    )


def _look(base: Path, place: Path) -> Found | None:
    inside = sorted(path for path in place.iterdir() if not path.name.startswith("."))
    loose = [path for path in inside if path.suffix.lower() in SUFFIXES and path.is_file()]
    folders = [path for path in inside if path.suffix.lower() not in SUFFIXES and path.is_dir()]
    classes = [folder for folder in folders if WNID.fullmatch(folder.name)]
    if classes and loose:
        raise DataMissing(
            f"{place}: {len(loose)} pictures lie beside the class folders ({loose[0].name}); move them in"
        )
    if not classes and len(folders) > 1 and all(folder.name.isdecimal() for folder in folders):
        raise DataMissing(
            f"{place}: its folders are numbers ({folders[0].name}, …), not wnids (n01440764, …), so it is not known "
            "which class is which; ImageNet-V2 has numbers, its benchmarks are imagenet-v2-…"
        )
    if not classes and not loose:
        return _in_tars(base, place, tar_files(place))
    pictures = loose or [
        path for folder in classes for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    ]  # fmt: skip
    names = [path.relative_to(place).as_posix() for path in pictures]
    keys = [key_of(name) for name in names]
    return _sorted(base, place, keys, names, pictures, {})


def _in_tars(base: Path, place: Path, archives: list[Path]) -> Found | None:
    """Of tar files with "val" in their names, if some are called so; those of the training part are not looked at."""
    others = [archive for archive in archives if "train" not in archive.name.lower()]
    validation = [archive for archive in others if "val" in archive.name.lower()]
    pictures, labels = labelled(entries(validation or others))
    if not pictures:
        return None
    samples = [(entry.archive, entry.sample) for entry in pictures]
    keys = [key_of(entry.name) for entry in pictures]
    if len(set(keys)) < len(keys):  # shards that number their samples anew
        keys = [f"{archive.name}/{sample}" for archive, sample in samples]
    cls = {key: labels[sample] for key, sample in zip(keys, samples) if sample in labels}
    return _sorted(base, place, keys, [entry.name for entry in pictures], pictures, cls)


def _sorted(
    base: Path, place: Path, keys: list[str], names: list[str], files: Sequence[Path | Entry], cls: dict[str, str]
) -> Found:
    order = sorted(range(len(keys)), key=keys.__getitem__)
    twice = next((keys[a] for a, b in itertools.pairwise(order) if keys[a] == keys[b]), None)
    if twice is not None:
        where = " and ".join(sorted(name for key, name in zip(keys, names) if key == twice)[:2])
        raise DataMissing(f"{place}: {twice} is there twice ({where})")
    return Found(base, place, [keys[i] for i in order], [names[i] for i in order], [files[i] for i in order], cls)
