"""Pictures listed in a csv file with the columns path and label; paths are relative to the file."""

import csv
from pathlib import Path

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.pictures import Pictures


def read(root: Path | None) -> Pictures:
    """The rows of a csv file (or of the only csv file in a folder), in file order.

    Labels that are all whole numbers are class indices; otherwise classes are the sorted label names.
    Raises:
        DataMissing: when the file, a column or every row is missing, or a path is listed twice.
    """
    if root is not None and root.is_dir():
        found = sorted(root.glob("*.csv"))
        if len(found) != 1:
            raise DataMissing(f"{root}: holds {len(found)} csv files; name the one to read")
        root = found[0]
    if root is None or not root.is_file():
        raise DataMissing(f"{root}: no such csv file; expected one with the columns path and label")
    with root.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.DictReader(stream)
        missing = {"path", "label"} - set(reader.fieldnames or ())
        if missing:
            raise DataMissing(
                f"{root}: no column {' or '.join(sorted(missing))}; it has {', '.join(reader.fieldnames or ['nothing'])}"
            )
        rows = [(row["path"], row["label"]) for row in reader if row["path"]]
    if not rows:
        raise DataMissing(f"{root}: lists no pictures")
    ids = [path for path, _ in rows]
    if len(set(ids)) != len(ids):
        twice = next(path for path in ids if ids.count(path) > 1)
        raise DataMissing(f"{root}: {twice} is listed twice")
    labels = [label.strip() for _, label in rows]
    if all(label.isdecimal() for label in labels):
        targets = [int(label) for label in labels]
        classes = [str(i) for i in range(max(targets) + 1)]
    else:
        classes = sorted(set(labels))
        targets = [classes.index(label) for label in labels]
    return Pictures(ids, [root.parent / path for path in ids], targets, classes)
