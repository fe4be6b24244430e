"""Pictures listed in a csv file with the columns path and label; paths are relative to the file."""

import csv
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.pictures import Pictures

WHOLE = re.compile(r"(-?\d+)(\.0+)?")  # pandas writes 3.0 where a column once had a gap
MOST_CLASSES = 1_000_000


def read(root: Path | None) -> Pictures:
    """The rows of a csv file (or of the only csv file in a folder), in file order.

    Labels that are all whole numbers are class indices; otherwise classes are the sorted label names.
    Raises:
        DataMissing: when the file, a column, every row, or a row's path or label is missing, it is not csv in UTF-8,
            a path is listed twice, or a number can't be a class index.
    """
    if root is not None and root.is_dir():
        found = sorted(root.glob("*.csv"))
        if len(found) != 1:
            raise DataMissing(f"{root}: holds {len(found)} csv files; name the one to read")
        root = found[0]
    if root is None or not root.is_file():
        raise DataMissing(f"{root}: no such csv file; expected one with the columns path and label")
    rows = _rows(root)
    if not rows:
        raise DataMissing(f"{root}: lists no pictures")
    ids = [path for path, _ in rows]
    places = [posixpath.normpath(path) for path in ids]  # ./a.png is a.png
    if len(set(places)) != len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise DataMissing(f"{root}: {twice} is listed twice")
    targets, classes = targets_of([label for _, label in rows], root)
    return Pictures(ids, [root.parent / path for path in ids], targets, classes)


def targets_of(labels: Sequence[str], where: Path) -> tuple[list[int], list[str]]:
    """Class indices and class names of labels: whole numbers are indices, else classes are the sorted names.

    Raises:
        DataMissing: when a number can't be a class index.
    """
    numbers = [WHOLE.fullmatch(label) for label in labels]
    if all(numbers):
        targets = [int(number[1]) for number in numbers if number]
        outside = [n for n in targets if not 0 <= n < MOST_CLASSES]
        if outside:
            raise DataMissing(f"{where}: the label {outside[0]} is no class index; they start at 0")
        return targets, [str(i) for i in range(max(targets) + 1)]
    classes = sorted(set(labels))
    index = {name: i for i, name in enumerate(classes)}
    return [index[label] for label in labels], classes


def _rows(file: Path) -> list[tuple[str, str]]:
    """Path and label of every row that is not blank."""
    rows = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, restval="")
            columns = reader.fieldnames or ["nothing"]
            missing = {"path", "label"} - set(columns)
            if missing:
                raise DataMissing(f"{file}: no column {' or '.join(sorted(missing))}; it has {', '.join(columns)}")
            for row in reader:
                path, label = row["path"], row["label"].strip()
                if not path and not label:
                    continue
                if not path or not label:
                    lacks = "label" if path else "path"
                    raise DataMissing(f"{file}: line {reader.line_num} has no {lacks}")
                rows.append((path, label))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataMissing(f"{file}: not a csv file in UTF-8 ({error})") from error
    return rows
