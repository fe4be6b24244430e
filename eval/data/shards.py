"""A user's own pictures in webdataset shards: tar files with NAME.jpg and NAME.cls for each."""

from pathlib import Path

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.csv_file import targets_of
from foveal.eval.data.pictures import Pictures
from foveal.eval.data.tar_shards import Members, entries, labelled, tar_files

PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def read(root: Path | None) -> Pictures:
    """The pictures of all tar files in a folder, or of one tar file, in their order there; ids are SHARD/NAME.

    Labels mean what they mean in a csv file, see `targets_of`.
    Raises:
        DataMissing: when there are no shards, one is compressed or damaged, a sample has no label or two pictures, or a
            number can't be a class index.
    """
    if root is None or not root.exists():
        raise DataMissing(f"{root}: not there; expected a folder of tar files with NAME.jpg and NAME.cls")
    packed = [
        path.name for path in ([root] if root.is_file() else sorted(root.iterdir())) if path.name.endswith(PACKED)
    ]
    if packed:
        raise DataMissing(
            f"{root}: {packed[0]} is compressed; unpack it to .tar: single pictures can't be reached in it"
        )
    pictures, texts = labelled(entries(tar_files(root)))
    if not pictures:
        raise DataMissing(f"{root}: no pictures in tar files; expected tar files with NAME.jpg and NAME.cls")
    samples = [(entry.archive, entry.sample) for entry in pictures]
    lacking = next((entry for entry, sample in zip(pictures, samples) if not texts.get(sample)), None)
    if lacking:
        raise DataMissing(f"{lacking.archive}: {lacking.name} has no label; expected {lacking.sample}.cls beside it")
    ids = [f"{archive.name}/{name}" for archive, name in samples]
    if len(set(ids)) < len(ids):
        twice = next(entry for entry, sample in zip(pictures, samples) if samples.count(sample) > 1)
        raise DataMissing(f"{twice.archive}: the sample {twice.sample} has two pictures")
    targets, classes = targets_of([texts[sample] for sample in samples], root)
    return Pictures(ids, Members(pictures), targets, classes)
