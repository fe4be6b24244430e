"""The class order of ImageNet-1k, and the files that say which class a validation picture has.

A class index is the position in the sorted list of the 1,000 WordNet ids ("wnids"). The numbers of the official devkit
are another order: they go through the wnid. Mixing the two up gives accuracies near 0.1 % and no error anywhere else,
so every reading is compared with what is known: names of folders, and the published ReaL labels, which agree with nine
of ten original labels (Beyer et al., arXiv:2006.07159). timm ships both lists.
"""

import csv
import functools
import json
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.pictures import SUFFIXES

WNID = re.compile(r"n\d{8}")
IN_STEM = re.compile(r"(?:^|_)(n\d{8})(?:_|$)")
OFFICIAL = re.compile(r"ILSVRC2012_val_(\d{8})")
ENOUGH = 10  # pictures with known labels from which on a comparison says something


def timm_list(name: str) -> str:
    """A list that timm ships, as text.

    >>> timm_list("imagenet_r_synsets.txt").split()[0]
    'n01443537'
    """
    return (files("timm.data") / "_info" / name).read_text(encoding="utf-8")


@functools.cache
def wnids() -> tuple[str, ...]:
    """The 1,000 wnids in the order of the class indices.

    >>> len(wnids()), wnids()[0], wnids()[999]
    (1000, 'n01440764', 'n15075141')
    """
    return tuple(timm_list("imagenet_synsets.txt").split())


@functools.cache
def index_of() -> dict[str, int]:
    """Class index by wnid.

    >>> index_of()["n15075141"]
    999
    """
    return {wnid: index for index, wnid in enumerate(wnids())}


@functools.cache
def real_labels() -> list[list[int]]:
    """The ReaL labels that timm ships: class indices that are right for each of the 50,000 validation pictures.

    >>> len(real_labels()), real_labels()[292]
    (50000, [0])
    """
    lists: list[list[int]] = json.loads(timm_list("imagenet_real_labels.json"))
    return lists


def key_of(name: str) -> str:
    """What a validation picture is called in every layout: ILSVRC2012_val_NUMBER, else its name without ending.

    >>> key_of("val/n01440764/ILSVRC2012_val_00000293.JPEG"), key_of("x/ILSVRC2012_val_00000293"), key_of("7.PNG")
    ('ILSVRC2012_val_00000293', 'ILSVRC2012_val_00000293', '7')
    """
    base = name.rpartition("/")[2]
    official = OFFICIAL.search(base)
    if official:
        return official[0]
    stem, dot, suffix = base.rpartition(".")
    return stem if stem and dot + suffix.lower() in SUFFIXES else base


def number_of(key: str) -> int | None:
    """The official number of a picture, from 1.

    >>> number_of("ILSVRC2012_val_00000293"), number_of("7")
    (293, None)
    """
    official = OFFICIAL.fullmatch(key)
    return int(official[1]) if official else None


def wnid_in(name: str) -> str | None:
    """The wnid that a picture's folder or its own name holds.

    >>> wnid_in("n01440764/1.jpg"), wnid_in("ILSVRC2012_val_00000293_n01440764.JPEG"), wnid_in("1.jpg")
    ('n01440764', 'n01440764', None)
    """
    above, _, base = name.rpartition("/")
    folder = above.rpartition("/")[2]
    if WNID.fullmatch(folder):
        return folder
    found = IN_STEM.search(base.partition(".")[0])
    return found[1] if found else None


def as_indices(labels: Sequence[str], where: str) -> list[int]:
    """Class indices from labels that are all wnids or all whole numbers.

    Raises:
        DataMissing: when they are anything else, or numbers outside 0..999.
    """
    if all(map(WNID.fullmatch, labels)):
        strange = next((label for label in labels if label not in index_of()), None)
        if strange:
            raise DataMissing(f"{where}: {strange} is none of the 1000 wnids of ImageNet-1k")
        return [index_of()[label] for label in labels]
    wrong = next((label for label in labels if not re.fullmatch(r"\d{1,9}", label)), None)
    if wrong is not None:
        raise DataMissing(
            f"{where}: the label {wrong!r} is neither a class index nor a wnid; all have to be one of these"
        )
    found = [int(label) for label in labels]
    if max(found) == len(wnids()) and min(found) >= 1:
        raise DataMissing(
            f"{where}: the labels are 1 to 1000, class indices are 0 to 999 in the order of the sorted wnids; numbers "
            "of the devkit are another order and need its meta.mat or map_clsloc.txt"
        )
    if max(found) >= len(wnids()):
        raise DataMissing(f"{where}: the label {max(found)} is no class index; they are 0 to 999")
    return found


def from_rows(rows: Sequence[tuple[str, str]], where: str) -> dict[str, int]:
    """Class index by picture from rows of a picture, as `key_of` calls it, and a label.

    Raises:
        DataMissing: when there are none, one is there twice, or a label is wrong.
    """
    if not rows:
        raise DataMissing(f"{where}: lists no pictures")
    indices = as_indices([label for _, label in rows], where)
    found = {key: index for (key, _), index in zip(rows, indices)}
    if len(found) < len(rows):
        twice = Counter(key for key, _ in rows).most_common(1)[0][0]
        raise DataMissing(f"{where}: {twice} is listed twice")
    return found


def from_list(file: Path) -> dict[str, int]:
    """Class index by picture from a list as caffe's val.txt: lines of NAME INDEX.

    Raises:
        DataMissing: as `from_rows`, or when a line is no such line, or the wnid in a name is another class.
    """
    rows = []
    for number, line in enumerate(text_of(file).splitlines(), start=1):
        name, _, label = line.strip().replace("\t", " ").rpartition(" ")
        if name:
            rows.append((name.strip(), label))
        elif label:
            raise DataMissing(f"{file}: line {number} is {label!r}, expected NAME INDEX")
    found = from_rows([(key_of(name), label) for name, label in rows], str(file))
    for name, label in rows:
        wnid = wnid_in(name)
        if wnid and index_of().get(wnid) != found[key_of(name)]:
            raise DataMissing(
                f"{file}: says {label} of {name}, but {wnid} is class {index_of().get(wnid)}; the labels are not in "
                "the order of the sorted wnids"
            )
    return found


def from_csv(file: Path) -> dict[str, int]:
    """Class index by picture from Kaggle's LOC_val_solution.csv; the first word of a prediction is the wnid.

    Raises:
        DataMissing: as `from_rows`, or when it is not such a file.
    """
    columns = ("ImageId", "PredictionString")
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, restval="")
            if not set(columns) <= set(reader.fieldnames or ()):
                given = ", ".join(reader.fieldnames or ["nothing"])
                raise DataMissing(f"{file}: expected the columns {' and '.join(columns)}, it has {given}")
            rows = [(key_of(row[columns[0]].strip()), (row[columns[1]].split() or [""])[0]) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataMissing(f"{file}: not a csv file in UTF-8 ({error})") from error
    return from_rows([row for row in rows if any(row)], str(file))


def agreement(keys: Sequence[str], targets: Sequence[int], shift: int = 0) -> tuple[int, int]:
    """How many targets are among the ReaL labels of their picture, and for how many pictures that is known.

    >>> agreement(["ILSVRC2012_val_00000293", "ILSVRC2012_val_00000001", "7"], [0, 65, 3])  # only one has any
    (1, 1)
    """
    known = [
        target + shift in real_labels()[number - 1]
        for key, target in zip(keys, targets)
        if (number := number_of(key)) and number <= len(real_labels()) and real_labels()[number - 1]
    ]
    return sum(known), len(known)


def refuse_other_order(keys: Sequence[str], targets: Sequence[int], where: str) -> None:
    """Refuses labels that can't be ImageNet's.

    Raises:
        DataMissing: when less than half of them are among the published ReaL labels of their pictures.
    """
    right, known = agreement(keys, targets)
    if known < ENOUGH or 2 * right >= known:
        return
    one_more = 2 * agreement(keys, targets, -1)[0] >= known
    said = "they start at 1, class indices start at 0" if one_more else "their order is not that of the sorted wnids"
    raise DataMissing(f"{where}: only {right} of {known} labels are among the ReaL labels of their pictures: {said}")


def text_of(file: Path) -> str:
    """A file's text.

    Raises:
        DataMissing: when it is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataMissing(f"{file}: not text in UTF-8 ({error})") from error
