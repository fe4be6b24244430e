"""Class names of well-known data sets, for weights that come without any."""

import functools
from collections import Counter

from timm.data import ImageNetInfo


@functools.cache
def imagenet_labels() -> tuple[str, ...]:
    """The 1000 classes of ImageNet-1k in the order of the outputs (sorted wnids), all different.

    >>> imagenet_labels()[967], imagenet_labels()[134]
    ('espresso', 'crane (n02012849)')
    """
    info = ImageNetInfo("imagenet-1k")
    names, wnids = info.label_descriptions(), info.label_names()
    count = Counter(names)
    return tuple(f"{name} ({wnid})" if count[name] > 1 else name for name, wnid in zip(names, wnids, strict=True))


def labels_for(outputs: int | None) -> tuple[str, ...]:
    """Names for a classifier whose weights have none: those of ImageNet-1k for 1000 outputs, else none."""
    return imagenet_labels() if outputs == 1000 else ()
