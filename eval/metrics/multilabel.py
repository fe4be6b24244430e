"""Average precision of each class and its mean, where a picture can have several labels at once.

A score equal to a positive's counts against it unless another tie rule is asked for, so that a constant scorer never
beats chance. A row with a NaN or infinite score stays in the figure at its worst place, under every rule.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foveal.eval.metrics.classification import FloatArray

Ties = Literal["pessimistic", "sklearn", "clip_benchmark"]
NoPositive = Literal["zero", "nan"]


def _checked(scores: ArrayLike, targets: ArrayLike, caller: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    rows, truth = np.asarray(scores), np.asarray(targets)
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiu":
        raise ValueError(f"{caller}: scores must be (N, C) real numbers with C >= 1, got {rows.shape} {rows.dtype}")
    if truth.shape != rows.shape:
        raise ValueError(f"{caller}: targets must be {rows.shape} as the scores, got {truth.shape}")
    if not np.isin(truth, (0, 1)).all():
        raise ValueError(f"{caller}: targets must be booleans or 0 and 1, got other numbers")
    return rows, truth.astype(bool)


def average_precision(
    scores: ArrayLike, targets: ArrayLike, ties: Ties = "pessimistic", no_positive: NoPositive = "zero"
) -> FloatArray:
    """Non-interpolated average precision of each class: the mean of the precision at each of its positives.

    Args:
        scores: (N, C), larger for a more probable label; compared in float64.
        targets: (N, C) booleans, or 0 and 1: whether item n has label c.
        ties: how items with the very same score stand to one another.
            "pessimistic": the positives behind all the others, which no order of the items can make worse.
            "sklearn": as one step; each positive among them gets the precision at the end of the step.
            "clip_benchmark": in the order of the items, so that the figure depends on it; for comparison only.
        no_positive: what a class without positives gets. "zero": 0 (CLIP_benchmark, scikit-learn). "nan".
    Returns:
        (C,) fractions in 0..1. An item with a NaN or infinite score stands before all others in the classes that it
        does not have, and where it is a positive that positive counts with a precision of 0.
    Raises:
        ValueError: for shapes that differ or are not (N, C), a target that is not 0 or 1, or an unknown option.
    Source: protocol book, sections 1 and 18; scikit-learn's average_precision_score.

    >>> average_precision([[0.9, 0.1], [0.8, 0.7], [0.3, 0.6]], [[1, 0], [0, 1], [1, 0]])
    array([0.83333333, 1.        ])
    >>> [average_precision([[0.5], [0.5]], [[1], [0]], ties).item() for ties in ("pessimistic", "clip_benchmark")]
    [0.5, 1.0]
    """
    if ties not in get_args(Ties):
        raise ValueError(f"average_precision: ties must be one of {get_args(Ties)}, got {ties!r}")
    if no_positive not in get_args(NoPositive):
        raise ValueError(f"average_precision: no_positive must be one of {get_args(NoPositive)}, got {no_positive!r}")
    rows, truth = _checked(scores, targets, "average_precision")
    finite = np.isfinite(rows).all(axis=1)
    figures = np.empty(rows.shape[1])
    for label in range(rows.shape[1]):
        count = int(truth[:, label].sum())
        if count:
            ahead = int((~finite & ~truth[:, label]).sum())  # broken items without the label, taken to be first
            column = rows[finite, label].astype(np.float64)
            figures[label] = _precisions(column, truth[finite, label], ahead, ties).sum() / count
        else:
            figures[label] = 0.0 if no_positive == "zero" else np.nan
    return figures


def _precisions(scores: FloatArray, truth: NDArray[np.bool_], ahead: int, ties: Ties) -> FloatArray:
    """Precision at each positive among finite scores, when `ahead` wrong items stand before all of them."""
    if ties == "pessimistic":
        order = np.lexsort((truth, -scores))  # the last key decides first
    else:
        order = np.argsort(-scores, kind="stable")
    hits = truth[order]
    found, place = np.cumsum(hits), np.arange(1, len(hits) + 1)
    if ties == "sklearn":
        ordered = scores[order]
        last = np.searchsorted(-ordered, -ordered, side="right") - 1  # end of the step that each item is in
        found, place = found[last], place[last]
    return found[hits] / (ahead + place[hits])


def multilabel_map(
    scores: ArrayLike, targets: ArrayLike, ties: Ties = "pessimistic", no_positive: NoPositive = "zero"
) -> dict[str, float]:
    """Mean average precision over classes, with what a reader of the figure has to know.

    Args:
        scores, targets, ties, no_positive: as in `average_precision`.
    Returns:
        "map", a fraction in 0..1: the mean over all classes, those without positives too; with no_positive="nan" over
        the others alone. nan when there are no classes to average, or N = 0. "n_without_positives" counts classes;
        "n_nonfinite" counts items; "tie_fraction" is the share of the positives that have the score of an item without
        the label: at 0 every tie rule gives the same figure.
    Raises:
        ValueError: as `average_precision`.
    Source: VOC2007 classification as CLIP_benchmark scores it; protocol book, section 1.

    >>> multilabel_map([[0.9, 0.1], [0.8, 0.7]], [[1, 0], [0, 0]])
    {'map': 0.5, 'n_without_positives': 1, 'n_nonfinite': 0, 'tie_fraction': 0.0}
    """
    rows, truth = _checked(scores, targets, "multilabel_map")
    figures = average_precision(rows, truth, ties, no_positive)
    kept = figures[~np.isnan(figures)]
    finite = np.isfinite(rows).all(axis=1)
    tied = positives = 0
    for column, label in zip(rows[finite].T, truth[finite].T):
        positives += int(label.sum())
        tied += int(np.isin(column[label], column[~label]).sum())
    return {
        "map": float(kept.mean()) if kept.size and len(rows) else float("nan"),
        "n_without_positives": int((~truth.any(axis=0)).sum()),
        "n_nonfinite": int((~finite).sum()),
        "tie_fraction": tied / positives if positives else float("nan"),
    }
