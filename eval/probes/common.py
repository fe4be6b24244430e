"""What every probe of frozen features shares: checked input, unit features, a validation cut, ranks of the answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foveal.eval.metrics.classification import FloatArray, mean_per_class, target_rank

Labels = NDArray[np.int64]
ROWS = 4096  # features made unit, or scored, at one time


@dataclass(frozen=True)
class ProbeResult:
    """What a probe answered on the test items; the answers of one item do not depend on the others.

    Attributes:
        rule: the published rule that was followed, by name: figures of two rules do not compare.
        target: (N,) the labels given.
        rank: (N,) place of the target among the classes, 1 for the best, behind the classes with an equal score; inf
            for an item with a NaN or infinite feature, or of a class that the training items do not have.
        tied: (N,) whether another class has exactly the target's score.
        classes: how many the training items have.
        n_nonfinite: count of test items with a NaN or infinite feature.
        settings: of the rule, those found on validation items too.
    """

    rule: str
    target: Labels = field(repr=False)
    rank: FloatArray = field(repr=False)
    tied: NDArray[np.bool_] = field(repr=False)
    classes: int
    n_nonfinite: int
    settings: dict[str, Any]

    def figures(self) -> dict[str, float]:
        """Fractions "top1", "top5" (nan below 5 classes), "mean_per_class", "tie_fraction"; count "n_nonfinite"."""
        empty = not len(self.rank)
        return {
            "top1": float("nan") if empty else float(np.mean(self.rank <= 1)),
            "top5": float("nan") if empty or self.classes < 5 else float(np.mean(self.rank <= 5)),
            "mean_per_class": mean_per_class(self.rank <= 1, self.target),
            "n_nonfinite": self.n_nonfinite,
            "tie_fraction": float("nan") if empty else float(np.mean(self.tied)),
        }


def checked(features: Any, target: ArrayLike, caller: str, what: str) -> tuple[NDArray[Any], Labels]:
    """Features and labels as arrays (the features not copied), once their shapes are known to be right.

    Raises:
        ValueError: when features are not (N, D) real numbers or labels not (N,) integers from 0.

    >>> checked([[1.0, 2.0]], [3], "example", "test")
    (array([[1., 2.]]), array([3]))
    """
    rows, labels = np.asarray(features), np.asarray(target)
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiu":
        raise ValueError(
            f"{caller}: {what} features must be (N, D) real numbers with D >= 1, got {rows.shape} {rows.dtype}"
        )
    if labels.shape != rows.shape[:1]:
        raise ValueError(f"{caller}: {what} labels must be ({len(rows)},), one a row, got {labels.shape}")
    if labels.size and (labels.dtype.kind not in "iu" or labels.min() < 0):
        raise ValueError(f"{caller}: {what} labels must be class indices of at least 0, got {labels.min()}")
    return rows, labels.astype(np.int64)


def check_pair(train: NDArray[Any], labels: Labels, test: NDArray[Any], caller: str) -> None:
    """Refuses training items that can't teach anything, and features of two lengths.

    Raises:
        ValueError: for differing lengths, fewer than 2 training classes, or a training feature that is not finite.
    """
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            f"{caller}: training and test features differ in length, {train.shape[1]} and {test.shape[1]}; "
            "take both from one model"
        )
    if len(np.unique(labels)) < 2:
        raise ValueError(f"{caller}: needs training items of 2 classes or more, got {len(np.unique(labels))}")
    for start in range(0, len(train), ROWS):
        bad = ~np.isfinite(train[start : start + ROWS]).all(axis=1)
        if bad.any():
            raise ValueError(
                f"{caller}: training item {start + int(bad.argmax())} has a NaN or infinite feature; leave such out"
            )


def unit(rows: NDArray[Any]) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Rows of length 1 in float64, and which were finite; rows that were not, and rows of zeros, become zeros.

    >>> unit(np.array([[3.0, 4.0], [0.0, 0.0], [np.nan, 1.0]]))
    (array([[0.6, 0.8],
           [0. , 0. ],
           [0. , 0. ]]), array([ True,  True, False]))
    """
    wide = rows.astype(np.float64)
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(wide).all(axis=1))
    wide[~finite] = 0
    wide /= np.maximum(np.abs(wide).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)  # squares can't overflow
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(length > 0, length, 1), finite


def cut(labels: Labels, share: float, seed: int, caller: str) -> tuple[Labels, Labels]:
    """Indices to train on and to validate on, drawn by the seed: about `share` of each class, one left to train.

    Raises:
        ValueError: when share is not between 0 and 1, or no class has two items.

    >>> train, validation = cut(np.array([0, 0, 0, 0, 1, 1, 2]), 0.25, 0, "example")
    >>> len(train), len(validation)
    (5, 2)
    """
    if not 0 < share < 1:
        raise ValueError(f"{caller}: validation must be a share between 0 and 1, got {share}")
    generator = np.random.Generator(np.random.PCG64(seed))
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        items = generator.permutation(np.flatnonzero(labels == label))
        held[items[: min(len(items) - 1, max(1, round(share * len(items))))]] = True
    if not held.any():
        raise ValueError(f"{caller}: no class has 2 training items, so none can be held out to validate on")
    return np.flatnonzero(~held), np.flatnonzero(held)


def coarse_to_fine(score: Callable[[int], float], points: int = 97, coarse: int = 7) -> int:
    """Index of the best of evenly spaced settings: first a coarse row, then neighbours at half the distance each time.

    Args:
        score: of a setting, larger is better; asked once for each index it is needed for.
        points: how many settings there are; coarse: how many of them, the ends included, are looked at first.
    Returns:
        The index; of equal scores the first that was looked at, lowest index first.
    Source: CLIP (arXiv:2103.00020), A.3, as in CLIP_benchmark's linear probe: spans 8, 4, 2, 1 of 97 points.

    >>> coarse_to_fine(lambda index: -abs(index - 41))
    41
    """
    known: dict[int, float] = {}

    def best(indices: list[int]) -> int:
        for index in indices:
            if index not in known:
                known[index] = score(index)
        return max(indices, key=known.__getitem__)  # max keeps the first

    step = (points - 1) // (coarse - 1)
    peak = best(list(range(0, points, step)))
    while step := step // 2:
        peak = best([max(peak - step, 0), peak, min(peak + step, points - 1)])
    return peak


def ranks(
    scores: FloatArray, classes: Labels, target: Labels, finite: NDArray[np.bool_]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Pessimistic rank of each target and whether it is tied, for scores of the classes that training has.

    Args:
        scores: (n, C); classes: (C,) sorted labels of the columns; target: (n,); finite: (n,) of the features.
    """
    column = np.minimum(np.searchsorted(classes, target), len(classes) - 1)
    known = (classes[column] == target) & finite
    rank = np.where(known, target_rank(scores, column), np.inf)
    tied: NDArray[np.bool_] = np.isfinite(rank) & (rank != target_rank(scores, column, "average"))
    return rank, tied
