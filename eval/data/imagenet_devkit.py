"""Labels of the official devkit: one number a validation picture, and what wnid a number means.

The numbers are not class indices. Only the devkit's own meta.mat or map_clsloc.txt, or a list of wnids in the devkit's
order, says what they mean; caffe's synset_words.txt has the wnids in sorted order and would permute the classes.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.imagenet_lists import index_of, number_of, text_of, wnids

MAPPINGS = ("map_clsloc.txt", "synset_words.txt", "synsets.txt", "meta.mat")
LINE = re.compile(r"(?:(\d+)\s+)?(n\d{8})(?:\s+(\d+)(?=\s|$))?")


def from_devkit(truth: Path, folders: Sequence[Path], keys: Sequence[str]) -> dict[str, int]:
    """Class index by picture from a ground truth file, its lines being pictures in the order of their names.

    Args:
        truth: the file, one number of the devkit a line.
        folders: where the meaning of the numbers is looked for.
        keys: the pictures that are there, as `key_of` calls them. Those with official names have the line of their
            number; where the numbers go beyond the lines, or no name is official, there has to be a line for each.
    Raises:
        DataMissing: when lines and pictures do not fit, a number is not the devkit's, or its meaning not known.
    """
    lines = text_of(truth).split()
    meaning = meaning_of_numbers(truth, folders)
    strange = next((line for line in lines if not line.isdecimal() or int(line) not in meaning), None)
    if strange is not None:
        raise DataMissing(f"{truth}: {strange!r} is no number of the devkit; they are 1 to {len(meaning)}")
    labels = [index_of()[meaning[int(line)]] for line in lines]
    numbers = [number_of(key) for key in keys]
    if all(number and number <= len(labels) for number in numbers):
        return {f"ILSVRC2012_val_{place:08d}": label for place, label in enumerate(labels, start=1)}
    if len(labels) == len(keys) and (all(numbers) or not any(numbers)):
        return dict(zip(sorted(keys), labels))
    raise DataMissing(
        f"{truth}: has {len(labels)} lines for {len(keys)} pictures that are not all called ILSVRC2012_val_NUMBER, "
        "so it is not known which line is whose"
    )


def meaning_of_numbers(truth: Path, folders: Sequence[Path]) -> dict[int, str]:
    """The wnid of each number of the devkit.

    Raises:
        DataMissing: when no file says it, or none that can be trusted.
    """
    refused: list[DataMissing] = []
    for file in (folder / name for name in MAPPINGS for folder in folders):
        if file.is_file():
            try:
                return _from_mat(file) if file.suffix == ".mat" else _from_text(file)
            except DataMissing as error:
                refused.append(error)
    if refused:
        raise refused[0]
    raise DataMissing(
        f"{truth}: its numbers are those of the devkit; put the devkit's meta.mat or map_clsloc.txt beside it"
    )


def _from_text(file: Path) -> dict[int, str]:
    """Lines of NUMBER WNID or WNID NUMBER, words may follow; without numbers the line is the number."""
    lines = [line.strip() for line in text_of(file).splitlines() if line.strip()]
    read = [found for line in lines if (found := LINE.match(line))]
    numbers = [int(found[1] or found[3]) for found in read if found[1] or found[3]]
    if len(read) != len(lines) or len(numbers) not in (0, len(lines)):
        raise DataMissing(f"{file}: expected lines of a number and a wnid, or of a wnid")
    return _checked(file, dict(zip(numbers or range(1, len(read) + 1), (found[2] for found in read))))


def _from_mat(file: Path) -> dict[int, str]:
    """The leaves of the devkit's tree of synsets, which are the classes; the others have numbers above 1000."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataMissing(
            f"{file}: needs scipy to be read (pip install scipy), or put map_clsloc.txt beside it"
        ) from error
    try:
        synsets = loadmat(str(file), squeeze_me=True)["synsets"]
        found = {int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"])}
    except Exception as error:  # on damaged files the parser raises almost anything
        raise DataMissing(f"{file}: not the devkit's meta.mat ({type(error).__name__}: {error})") from error
    return _checked(file, {number: wnid for number, wnid in found.items() if number <= len(wnids())})


def _checked(file: Path, meaning: dict[int, str]) -> dict[int, str]:
    """The same, once it is known to be the 1,000 classes in an order that can be the devkit's."""
    lacking = sorted(set(wnids()) - set(meaning.values()))
    if lacking or sorted(meaning) != list(range(1, len(wnids()) + 1)):
        said = f"{lacking[0]} is not in it" if lacking else "the numbers are not 1 to 1000"
        raise DataMissing(f"{file}: not the 1000 wnids of ImageNet-1k with the devkit's numbers: {said}")
    if tuple(meaning[number] for number in sorted(meaning)) == wnids():
        raise DataMissing(
            f"{file}: has the wnids in sorted order, which is not that of the devkit's numbers; use the devkit's "
            "meta.mat or map_clsloc.txt"
        )
    return meaning
