"""Pictures in one folder a class; classes are the folder names in sorted order, as torchvision's ImageFolder."""

from pathlib import Path

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.pictures import SUFFIXES, Pictures


def read(root: Path | None) -> Pictures:
    """The pictures below DIR/CLASS/, sorted by path; hidden files and folders (``.name``) are not looked at.

    Raises:
        DataMissing: when there is no such folder, class or picture.
    """
    if root is None or not root.is_dir():
        raise DataMissing(f"{root}: no such folder; expected DIR/CLASS/PICTURE")
    classes = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise DataMissing(f"{root}: holds no folders; expected one folder a class, DIR/CLASS/PICTURE")
    paths = [
        (path, index)
        for index, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    if not paths:
        raise DataMissing(f"{root}: its folders hold no pictures ({', '.join(SUFFIXES)})")
    ids = [path.relative_to(root).as_posix() for path, _ in paths]
    return Pictures(ids, [path for path, _ in paths], [index for _, index in paths], classes)
