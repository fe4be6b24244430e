"""Fashion-MNIST's test part from the idx files that ship with the package, or from a folder with the same files."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.pictures import Pictures

HERE = Path(__file__).resolve().parent / "fashion_mnist"
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array of a gzipped idx file.

    Raises:
        DataMissing: when the file is not there or is not such a file.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
        dims = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(dims)
    except FileNotFoundError as error:
        raise DataMissing(f"{path}: not found; it is one of Fashion-MNIST's official files") from error
    except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
        raise DataMissing(f"{path}: not a whole gzipped idx file; get Fashion-MNIST's official file again") from error


def read(root: Path | None) -> Pictures:
    """The 10,000 test pictures in official order.

    Raises:
        DataMissing: when a file is not there or not whole, or their counts differ.
    """
    root = HERE if root is None else root
    images = read_idx(root / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(root / "t10k-labels-idx1-ubyte.gz")
    if len(images) != len(labels):
        raise DataMissing(f"{root}: {len(images)} pictures but {len(labels)} labels")
    return Pictures([f"{i:05d}" for i in range(len(images))], list(images), labels.tolist(), CLASSES)
