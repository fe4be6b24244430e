"""Which of the labels that lie beside ImageNet's validation pictures are taken: the most direct that can be trusted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.imagenet_devkit import from_devkit
from foveal.eval.data.imagenet_lists import from_csv, from_list, from_rows, refuse_other_order, wnid_in, wnids
from foveal.eval.data.imagenet_places import Found

EACH = 50  # pictures a class in the whole part
LAYOUTS = {
    "A": "one folder a wnid",
    "B": "flat, with the devkit's numbers",
    "C": "flat, with Kaggle's csv file",
    "D": "flat, with a list of names and indices",
    "E": "tar files of NAME.jpg and NAME.cls",
    "names": "flat, with wnids in the names of the files",
}
TRUTHS = (
    "ILSVRC2012_validation_ground_truth.txt",
    "ILSVRC2014_clsloc_validation_ground_truth.txt",
    "ILSVRC2015_clsloc_validation_ground_truth.txt",
)


@dataclass(frozen=True)
class Labels:
    """Class index by picture, and where it was read: a letter of `LAYOUTS`, a file or folder."""

    layout: str
    where: str
    of: dict[str, int]


def choose(found: Found) -> tuple[Labels, list[str]]:
    """The labels to use, and why others could not be; of several that can be read, all have to say the same.

    Raises:
        DataMissing: when there are none, they leave a picture out, contradict each other or can't be ImageNet's.
    """
    readable: list[Labels] = []
    refused: list[DataMissing] = []
    for layout, where, reader in _offered(found):
        try:
            labels = reader()
            _refuse_gaps(found.keys, labels, where)
            targets = [labels[key] for key in found.keys]
            _refuse_uneven(targets, where)
            refuse_other_order(found.keys, targets, where)
            readable.append(Labels(layout, where, labels))
        except DataMissing as error:
            refused.append(error)
    if not readable:
        if refused:
            raise refused[0]
        raise DataMissing(
            f"{found.place}: {len(found.keys)} pictures but no labels; expected folders called by wnid, NAME.cls in "
            "tar files, LOC_val_solution.csv, val.txt, or the devkit's ground truth beside them"
        )
    first, *others = readable
    for other in others:
        for key in found.keys:
            if first.of[key] != other.of[key]:
                raise DataMissing(
                    f"{other.where}: says {other.of[key]} of {key}, but {first.where} says {first.of[key]}; one of "
                    "them is not in the order of the sorted wnids"
                )
    return first, [str(error) for error in refused]


def _offered(found: Found) -> list[tuple[str, str, Callable[[], dict[str, int]]]]:
    """Layout, place and reader of everything that may say the classes; the most direct first."""
    place = str(found.place)
    offered: list[tuple[str, str, Callable[[], dict[str, int]]]] = []
    if found.cls:
        rows = [(key, found.cls[key]) for key in found.keys if key in found.cls]
        offered.append(("E", place, lambda: from_rows(rows, place)))
    named = [(key, wnid) for key, name in zip(found.keys, found.names) if (wnid := wnid_in(name))]
    if named:
        foldered = all("/" in name for name in found.names)
        offered.append(("A" if foldered else "names", place, lambda: from_rows(named, place)))
    if csv_file := found.label_file("LOC_val_solution.csv"):
        offered.append(("C", str(csv_file), lambda: from_csv(csv_file)))
    if list_file := found.label_file("val.txt"):
        offered.append(("D", str(list_file), lambda: from_list(list_file)))
    if truth := found.label_file(*TRUTHS):
        folders = [truth.parent, *found.label_folders()]
        offered.append(("B", str(truth), lambda: from_devkit(truth, folders, found.keys)))
    return offered


def _refuse_gaps(keys: Sequence[str], labels: dict[str, int], where: str) -> None:
    lacking = [key for key in keys if key not in labels]
    if lacking:
        raise DataMissing(
            f"{where}: has no label for {len(lacking)} of {len(keys)} pictures, the first is {lacking[0]}"
        )


def _refuse_uneven(targets: Sequence[int], where: str) -> None:
    counts = Counter(targets)
    odd = next((index for index in range(len(wnids())) if counts[index] != EACH), None)
    if len(targets) == EACH * len(wnids()) and odd is not None:
        raise DataMissing(f"{where}: class {odd} ({wnids()[odd]}) has {counts[odd]} pictures, each class has {EACH}")
