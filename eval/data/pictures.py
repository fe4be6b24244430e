"""What every reader of labelled pictures gives."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")


@dataclass(frozen=True)
class Pictures:
    """Labelled pictures in a fixed order.

    Attributes:
        ids: what an item is called in results: a path inside the data, or a number.
        sources: what `read_image` takes, one an item; opened only when the item is needed.
        targets: class indices; classes: their names.
        accepted: where several classes are right, all of these for each item; the target is not looked at then.
        columns: where a model has more outputs than there are classes, which output each class is.
        outputs: how many outputs a model must have then.
    """

    ids: Sequence[str]
    sources: Sequence[Any]
    targets: Sequence[int]
    classes: Sequence[str]
    accepted: Sequence[Sequence[int]] | None = None
    columns: Sequence[int] | None = None
    outputs: int | None = None

    @property
    def width(self) -> int:
        """How many outputs a model must have."""
        return self.outputs or len(self.classes)

    def __len__(self) -> int:
        return len(self.ids)

    def counts(self) -> dict[str, int]:
        """Pictures and classes."""
        return {"images": len(self.ids), "classes": len(self.classes)}

    def fingerprint(self) -> str:
        """sha256 over classes, ids, targets and the bytes of every picture: one changed byte changes it.

        Where the data lies does not matter; a picture that is not there counts as absent.
        """
        whole = hashlib.sha256(repr(list(self.classes)).encode())
        if self.accepted is not None or self.columns is not None:
            whole.update(repr((self.accepted, self.columns, self.outputs)).encode())
        for item, source, target in zip(self.ids, self.sources, self.targets):
            whole.update(f"{item!r}\0{target}\0".encode())  # repr: a name that is not UTF-8 can't be encoded
            if isinstance(source, Path):
                if source.is_file():
                    with source.open("rb") as stream:
                        whole.update(hashlib.file_digest(stream, "sha256").digest())
            elif hasattr(source, "read"):  # inside an archive: the same as beside it
                whole.update(hashlib.sha256(source.tobytes()).digest())
            else:
                whole.update(source.tobytes())
        return whole.hexdigest()
