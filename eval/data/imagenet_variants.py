"""Test sets for ImageNet-1k models other than its validation part: ImageNet-V2, -A, -R and -Sketch.

Each lies in its own folder, or in a data root that holds that folder under its released name.
"""

from collections.abc import Iterable
from pathlib import Path

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.imagenet_lists import WNID, index_of, timm_list, wnids
from foveal.eval.data.pictures import SUFFIXES, Pictures

V2 = "imagenetv2-{}-format-val"
FLAVOURS = ("matched-frequency", "threshold0.7", "top-images")


def read_v2_matched_frequency(root: Path | None) -> Pictures:
    """ImageNet-V2, matched frequency; as `read_v2`."""
    return read_v2(root, "matched-frequency")


def read_v2_threshold(root: Path | None) -> Pictures:
    """ImageNet-V2, threshold 0.7; as `read_v2`."""
    return read_v2(root, "threshold0.7")


def read_v2_top_images(root: Path | None) -> Pictures:
    """ImageNet-V2, top images; as `read_v2`."""
    return read_v2(root, "top-images")


def read_v2(root: Path | None, flavour: str) -> Pictures:
    """One of the three ImageNet-V2 sets; folders are class indices, sorted as numbers and not as text.

    Raises:
        DataMissing: when the folder is not there, is another flavour, or a folder in it is no class index.
    Source: Recht et al., Do ImageNet classifiers generalize to ImageNet?, arXiv:1902.10811.
    """
    place = _place(root, V2.format(flavour), V2.format(flavour).removesuffix("-format-val"))
    other = next((f for f in FLAVOURS if f != flavour and f in place.name), None)
    if other:
        raise DataMissing(f"{place}: is the flavour {other}, expected {flavour}")
    folders = _folders(place)
    wrong = next((name for name in folders if not name.isdecimal() or int(name) >= len(wnids())), None)
    if wrong is not None:
        raise DataMissing(f"{place}: the folder {wrong} is no class index; ImageNet-V2's folders are 0 to 999")
    return _of_folders(place, {name: int(name) for name in sorted(folders, key=int)})


def read_sketch(root: Path | None) -> Pictures:
    """ImageNet-Sketch, one folder a wnid; classes are all 1,000.

    Raises:
        DataMissing: when it is not there or a folder is none of the wnids.
    Source: Wang et al., Learning robust global representations, arXiv:1905.13549.
    """
    place = _place(root, "imagenet-sketch", "ImageNet-Sketch", "sketch")
    return _of_folders(place, {name: index_of()[name] for name in _wnid_folders(place)})


def read_a(root: Path | None) -> Pictures:
    """ImageNet-A: natural adversarial examples of 200 classes; as `read_some`.

    Source: Hendrycks et al., Natural adversarial examples, arXiv:1907.07174.
    """
    return read_some(root, "imagenet-a")


def read_r(root: Path | None) -> Pictures:
    """ImageNet-R: renditions of 200 classes; as `read_some`.

    Source: Hendrycks et al., The many faces of robustness, arXiv:2006.16241.
    """
    return read_some(root, "imagenet-r")


def read_some(root: Path | None, name: str) -> Pictures:
    """Pictures in one folder a wnid; classes are the folders, and of 1,000 logits those of these classes are compared.

    Raises:
        DataMissing: when it is not there or a folder is none of its 200 wnids.
    """
    place = _place(root, name)
    folders = _wnid_folders(place)
    of_it = timm_list(f"{name.replace('-', '_')}_synsets.txt").split()
    strange = next((folder for folder in folders if folder not in of_it), None)
    if strange:
        raise DataMissing(f"{place}: {strange} is none of the {len(of_it)} classes of {name}")
    columns = [index_of()[folder] for folder in folders]
    pictures = _of_folders(place, {folder: i for i, folder in enumerate(folders)})
    return Pictures(pictures.ids, pictures.sources, pictures.targets, folders, columns=columns, outputs=len(wnids()))


def _place(root: Path | None, *names: str) -> Path:
    """The first such folder below the root, or the root itself.

    Raises:
        DataMissing: when there is no such folder.
    """
    if root is None or not root.is_dir():
        raise DataMissing(f"{root}: no such folder; expected {names[0]} in it, or its contents")
    return next((root / name for name in names if (root / name).is_dir()), root)


def _folders(place: Path) -> list[str]:
    found = sorted(path.name for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise DataMissing(f"{place}: holds no folders; expected one a class")
    return found


def _wnid_folders(place: Path) -> list[str]:
    folders = _folders(place)
    wrong = next((name for name in folders if not WNID.fullmatch(name) or name not in index_of()), None)
    if wrong is not None:
        raise DataMissing(f"{place}: the folder {wrong} is none of the 1000 wnids of ImageNet-1k (n01440764, …)")
    return folders


def _of_folders(place: Path, classes: dict[str, int]) -> Pictures:
    """Pictures of folders in the order given, with all 1,000 wnids as classes; hidden files are not looked at."""
    paths = [(path, target) for name, target in classes.items() for path in _pictures(place / name)]
    if not paths:
        raise DataMissing(f"{place}: its folders hold no pictures ({', '.join(SUFFIXES)})")
    ids = [path.relative_to(place).as_posix() for path, _ in paths]
    return Pictures(ids, [path for path, _ in paths], [target for _, target in paths], wnids())


def _pictures(folder: Path) -> Iterable[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.name[0] != "." and p.is_file())
