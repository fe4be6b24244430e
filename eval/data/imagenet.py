"""ImageNet-1k's validation pictures in the layouts in which people have them, as they lie: nothing is unpacked.

A picture has the same id, place and class in all of them: its official name without ending, sorted, and the position of
its wnid in the sorted list. Source of the layouts: protocol book, section 1.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.imagenet_labels import EACH, LAYOUTS, Labels, choose
from foveal.eval.data.imagenet_lists import agreement, number_of, real_labels, text_of, wnids
from foveal.eval.data.imagenet_places import Found, find
from foveal.eval.data.pictures import Pictures
from foveal.zoo.images import ImageError, read_image
from foveal.zoo.labels import imagenet_labels


def read(root: Path | None) -> Pictures:
    """The validation pictures that are there; classes are all 1,000 wnids.

    Raises:
        DataMissing: when no layout is found, a picture has no label, or the labels are not ImageNet's: two files that
            contradict each other, numbers of the devkit as class indices, another order than the sorted wnids.
    """
    found = find(root)
    return _pictures(found, choose(found)[0])


def read_real(root: Path | None) -> Pictures:
    """The validation pictures that have ReaL labels, each with all labels that are right.

    The labels are those of ``real.json`` where there is one, else those that timm ships.
    Raises:
        DataMissing: as `read`, or when real.json is not a list of labels a picture, or a picture has no official name.
    Source: Beyer et al., Are we done with ImageNet?, arXiv:2006.07159.
    """
    found = find(root)
    return _pictures(found, choose(found)[0], _accepted(found))


def describe(root: Path) -> dict[str, Any]:
    """What lies there, in the terms of a data check: layout, counts, missing, wrong, samples and notes.

    Raises:
        DataMissing: as `read`.
    """
    return _describe(root, real=False)


def describe_real(root: Path) -> dict[str, Any]:
    """As `describe`, of the pictures that have ReaL labels.

    Raises:
        DataMissing: as `read_real`.
    """
    return _describe(root, real=True)


def _describe(root: Path, real: bool) -> dict[str, Any]:
    found = find(root)
    labels, notes = choose(found)
    pictures = _pictures(found, labels, _accepted(found) if real else None)
    right, known = agreement(pictures.ids, pictures.targets)
    counts = Counter(pictures.targets)
    shown = [
        _sample(found, labels, found.keys.index(pictures.ids[i]))
        for i in sorted({0, len(pictures) // 2, len(pictures) - 1})
    ]
    return {
        "layout": f"{labels.layout}, {LAYOUTS[labels.layout]}; labels from {labels.where}",
        "counts": {
            **pictures.counts(),
            "classes with images": len(counts),
            "fewest in a class": min(counts.values()),
            "most in a class": max(counts.values()),
        },
        "missing": _missing(found.keys, labels),
        "wrong": _of_mapping(found) + [error for _, error in shown if error],
        "samples": [said for said, _ in shown],
        "notes": [f"{right} of {known} labels are among the ReaL labels of their pictures", *notes],
    }


def _sample(found: Found, labels: Labels, i: int) -> tuple[str, str]:
    """Where a picture lies, its class and size; and why it can't be read, if it can't."""
    (source,) = found.sources([i])
    index = labels.of[found.keys[i]]
    said = f"{source}: {imagenet_labels()[index]} ({wnids()[index]}, class {index})"
    try:
        width, height = read_image(source, exif=False).size
        return f"{said}, {width}x{height}", ""
    except ImageError as error:
        return said, str(error)


def _accepted(found: Found) -> dict[int, list[int]]:
    """ReaL labels by place, of the pictures that have any."""
    file = found.label_file("real.json")
    lists = _real_file(file) if file else real_labels()
    numbers = [number_of(key) or 0 for key in found.keys]
    lacking = next((key for key, n in zip(found.keys, numbers) if not 1 <= n <= len(lists)), None)
    if lacking is not None:
        raise DataMissing(
            f"{file or found.place}: no ReaL labels for {lacking}; they go by the number in ILSVRC2012_val_NUMBER"
        )
    accepted = {i: lists[n - 1] for i, n in enumerate(numbers) if lists[n - 1]}
    if not accepted:
        raise DataMissing(f"{file or found.place}: none of the {len(found.keys)} pictures has ReaL labels")
    return accepted


def _of_mapping(found: Found) -> list[str]:
    """What is wrong with Kaggle's list of the classes, which nothing here goes by."""
    file = found.label_file("LOC_synset_mapping.txt")
    if file is None or tuple(line.split()[0] for line in text_of(file).splitlines() if line.strip()) == wnids():
        return []
    return [f"{file}: not the sorted 1000 wnids of ImageNet-1k; class indices that were made by it are others"]


def _pictures(found: Found, labels: Labels, accepted: dict[int, list[int]] | None = None) -> Pictures:
    """All that was found, or what has accepted labels."""
    kept = range(len(found.keys)) if accepted is None else list(accepted)
    ids = [found.keys[i] for i in kept]
    targets = [labels.of[key] for key in ids]
    return Pictures(
        ids, found.sources(kept), targets, wnids(), accepted=None if accepted is None else list(accepted.values())
    )


def _missing(keys: Sequence[str], labels: Labels) -> list[str]:
    """Pictures that have a label but are not there; where no list names them, the gaps in the official numbers."""
    lacking = sorted(labels.of.keys() - set(keys))
    if lacking or 2 * len(keys) < EACH * len(wnids()) or not any(map(number_of, keys)):
        return lacking
    official = range(1, EACH * len(wnids()) + 1)
    return sorted({f"ILSVRC2012_val_{number:08d}" for number in official} - set(keys))


def _real_file(file: Path) -> list[list[int]]:
    """ReaL labels from a file.

    Raises:
        DataMissing: when it holds anything but a list of lists of class indices.
    """
    try:
        lists: list[list[int]] = json.loads(text_of(file))
        strange = next((n for labels in lists for n in labels if type(n) is not int or not 0 <= n < len(wnids())), None)
    except (ValueError, TypeError) as error:
        raise DataMissing(f"{file}: not a list of labels for each picture ({error})") from error
    if strange is not None:
        raise DataMissing(
            f"{file}: not a list of labels for each picture: {strange!r} is no class index; they are 0 to 999"
        )
    return lists
