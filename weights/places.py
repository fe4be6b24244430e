"""Where the file of a row is, or the sentence that says how to get it."""

import hashlib
import os
from pathlib import Path

from foveal.weights.catalogue import Row, rows, rows_of
from foveal.weights.errors import WeightsError
from foveal.weights.key_maps import KEY_MAPS, KeyMap


def home() -> Path:
    """The folder of fetched files: ``FOVEAL_HOME``, else ~/.cache/foveal."""
    return Path(os.environ.get("FOVEAL_HOME") or "~/.cache/foveal").expanduser()


def file_of(row: Row) -> Path:
    """The file of a row: inside the package, or in the folder of fetched files.

    Raises:
        WeightsError: when it is in neither, with the page, the file name and the folder to put it in.
    """
    if row.path is not None:
        return row.path
    path = home() / "weights" / row.file
    if path.is_file():
        return path
    what = f"its sha256 is {row.sha256}" if row.sha256 else "nobody has verified its hash yet"
    raise WeightsError(
        f"{row.name}: the file {row.file} is not here; get it from {row.page} and put it into {path.parent} ({what}), "
        "or pass weights=FILE"
    )


def sha256_of(path: Path) -> str:
    """The hash of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def checked_file_of(row: Row) -> Path:
    """As `file_of`, its bytes compared with the row's sha256 before anybody reads them.

    Raises:
        WeightsError: as `file_of`, or when the file is another one.
    """
    path = file_of(row)
    if row.sha256 and (found := sha256_of(path)) != row.sha256:
        raise WeightsError(f"{row.name}: {path} has sha256 {found}, the row says {row.sha256}; it was not read")
    return path


def row_of_file(arch: str, path: Path) -> Row | None:
    """The row of a model whose file this is, by its sha256; None when there is none."""
    known = [row for row in rows_of(arch) if row.sha256]
    found = sha256_of(path) if known else ""
    return next((row for row in known if row.sha256 == found), None)


def row_for(arch: str, weights: str) -> Row | None:
    """The row that ``weights`` names: a tag of the model or a full name of one; None when it names none."""
    return rows().get(weights if weights.startswith(arch + ".") else f"{arch}.{weights}")


def key_map_for(arch: str, row: Row | None) -> KeyMap | None:
    """What turns a file's names into the model's: the row's, else the first that a row of the model has."""
    names = [row.remap] if row is not None else [r.remap for r in rows_of(arch)]
    return next((KEY_MAPS[name] for name in names if name), None)


def default_row(arch: str) -> Row:
    """The row that ``pretrained=True`` means.

    Raises:
        WeightsError: when the catalogue has none for this model.
    """
    known = rows_of(arch)
    if not known:
        raise WeightsError(f"{arch}: no weights are known for it; pass weights=FILE")
    return known[0]
