"""Calibration error, Brier score and negative log-likelihood, from probabilities or logits.

A row with a NaN or infinite number stays in every figure, at a value that no working model gets, so that a broken
model never looks calibrated; each function says which.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foveal.eval.metrics.classification import FloatArray, checked_rows, float_blocks, target_rank

Edges = Literal["right_closed", "left_closed"]
Norm = Literal["l1", "max", "l2"]

ROUNDING = 1e-6  # how far a probability computed in float32 may stray outside 0..1


def softmax(logits: ArrayLike) -> FloatArray:
    """Probabilities of each row of logits, in float64.

    Args:
        logits: (N, C). For CLIP-like models, already times the model's own logit scale.
    Returns:
        (N, C), rows in 0..1 that sum to 1; all NaN where a row has a NaN or infinite logit.
    Raises:
        ValueError: when logits is not (N, C).

    >>> softmax([[0.0, 0.0], [1000.0, 0.0], [float("inf"), 0.0]])
    array([[0.5, 0.5],
           [1. , 0. ],
           [nan, nan]])
    """
    rows = np.asarray(logits)
    rows, _ = checked_rows(rows, np.zeros(rows.shape[:1], dtype=np.int64), "softmax")
    probs = np.empty(rows.shape)
    for part, block, finite in float_blocks(rows):
        probs[part] = np.nan
        probs[part][finite] = np.exp(_log_softmax(block[finite]))
    return probs


def _log_softmax(logits: FloatArray) -> FloatArray:
    """Logarithm of the softmax of finite (n, C) logits; the largest is taken off first, so no exponent overflows."""
    with np.errstate(over="ignore"):  # logits 1e308 and -1e308 differ by inf, which is the right limit
        shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _require_probabilities(values: FloatArray, caller: str) -> None:
    outside = values[(values < -ROUNDING) | (values > 1 + ROUNDING)]
    if outside.size:
        raise ValueError(f"{caller}: needs probabilities in 0..1 (after softmax), got {outside[0]}")


def top_label(probs: ArrayLike, target: ArrayLike) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Confidence of each row's answer and whether the answer is right: what calibration error is made of.

    Args:
        probs: (N, C) in 0..1.
        target: (N,) integers in 0..C-1.
    Returns:
        (N,) the largest probability, NaN for a row with a NaN or infinite number; and (N,) whether it is the
        target's alone. A tie at the top is wrong, as in `topk_accuracy`.
    Raises:
        ValueError: for shapes that do not fit, a target outside 0..C-1, or a number outside 0..1.

    >>> top_label([[0.75, 0.25], [0.5, 0.5]], [0, 1])
    (array([0.75, 0.5 ]), array([ True, False]))
    """
    rows, labels = checked_rows(probs, target, "top_label")
    confidence = np.full(len(rows), np.nan)
    for part, block, finite in float_blocks(rows):
        _require_probabilities(block[finite], "top_label")
        confidence[part][finite] = block[finite].max(axis=1)
    return confidence, target_rank(rows, labels) <= 1


def ece_from_confidence(
    confidence: ArrayLike,
    correct: ArrayLike,
    n_bins: int = 15,
    edges: Edges | Literal["equal_mass"] = "right_closed",
    norm: Norm = "l1",
) -> float:
    """Calibration error from per-item arrays, the form to resample in a bootstrap.

    Args:
        confidence: (N,) in 0..1, NaN for an item whose scores were not finite.
        correct: (N,) booleans, or numbers 0 and 1.
        n_bins: count of bins, at least 1.
        edges: "right_closed", equal widths (lo, hi], with 0 in the first bin (temperature_scaling).
            "left_closed", equal widths [lo, hi), with one more bin for exactly 1 (torchmetrics).
            "equal_mass", equal counts; items of equal confidence share the bin of the first of them, so that the
            order of the items changes nothing.
        norm: how the gaps |accuracy - mean confidence| of the bins are put together. "l1": mean weighted by count
            (ECE). "max": the largest (MCE). "l2": root of the weighted mean square.
    Returns:
        A number in 0..1; nan with N = 0. Items with NaN confidence form a bin of their own with a gap of 1 (certain
        and wrong). So they never make the error smaller; in one bin with under-confident items the two could cancel.
    Raises:
        ValueError: for shapes that differ or are not (N,), a confidence outside 0..1, a `correct` that is not 0 or 1,
            n_bins below 1, or an unknown option.
    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017; protocol book, section 11.

    >>> ece_from_confidence([0.75, 0.75, 0.5], [True, False, True])
    0.3333333333333333
    >>> ece_from_confidence([1.0, float("nan")], [True, False])
    0.5
    """
    sure, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if sure.ndim != 1 or right.shape != sure.shape:
        raise ValueError(f"calibration error: confidence and correct must be (N,), got {sure.shape} and {right.shape}")
    if not np.isin(right, (0, 1)).all():
        raise ValueError("calibration error: correct must be booleans or 0 and 1, got other numbers")
    if n_bins < 1:
        raise ValueError(f"calibration error: n_bins must be at least 1, got {n_bins}")
    if edges not in (*get_args(Edges), "equal_mass"):
        raise ValueError(f"calibration error: edges must be one of {get_args(Edges)} or 'equal_mass', got {edges!r}")
    if norm not in get_args(Norm):
        raise ValueError(f"calibration error: norm must be one of {get_args(Norm)}, got {norm!r}")
    _require_probabilities(sure, "calibration error")
    if sure.size == 0:
        return float("nan")

    broken = np.isnan(sure)
    sure, right = np.clip(sure[~broken], 0, 1), right[~broken]
    index = _equal_mass_bins(sure, n_bins) if edges == "equal_mass" else _equal_width_bins(sure, n_bins, edges)
    count = np.bincount(index)
    used = count > 0
    gap = np.abs(np.bincount(index, weights=right) - np.bincount(index, weights=sure))[used] / count[used]
    gap = np.append(gap, 1.0)  # the bin of the broken items, empty for a working model
    share = np.append(count[used], broken.sum()) / broken.size
    if norm == "max":
        return float(gap[share > 0].max())
    if norm == "l2":
        return float(np.sqrt(np.sum(share * gap**2)))
    return float(np.sum(share * gap))


def _equal_width_bins(confidence: FloatArray, n_bins: int, edges: Edges) -> NDArray[np.intp]:
    bounds = np.arange(n_bins + 1) / n_bins  # the nearest float64 to i/n; linspace gives 0.30000000000000004 for 3/10
    if edges == "right_closed":
        return np.maximum(np.searchsorted(bounds, confidence, side="left") - 1, 0)
    return np.searchsorted(bounds, confidence, side="right") - 1


def _equal_mass_bins(confidence: FloatArray, n_bins: int) -> NDArray[np.intp]:
    _, index, count = np.unique(confidence, return_inverse=True, return_counts=True)
    first = np.cumsum(count) - count  # place of each distinct confidence in the sorted items
    return (first * n_bins // confidence.size)[index]


def ece(
    probs: ArrayLike, target: ArrayLike, n_bins: int = 15, edges: Edges = "right_closed", norm: Norm = "l1"
) -> float:
    """Expected calibration error of the top label: how far confidence and accuracy are apart.

    Args:
        probs: (N, C) in 0..1.
        target: (N,) integers in 0..C-1.
        n_bins, edges, norm: as in `ece_from_confidence`; "max" gives the maximum calibration error.
    Returns:
        A number in 0..1; nan with N = 0. A row with a NaN or infinite number counts as certain and wrong, in a bin of
        its own, so a share f of broken rows makes the error at least f. A tie at the top counts as wrong.
    Raises:
        ValueError: as `top_label` and `ece_from_confidence`.
    Source: Guo et al., ICML 2017; edges as in gpleiss/temperature_scaling ("right_closed") and torchmetrics
        ("left_closed").

    >>> ece([[0.75, 0.25], [0.75, 0.25]], [0, 1])
    0.25
    """
    return ece_from_confidence(*top_label(probs, target), n_bins=n_bins, edges=edges, norm=norm)


def adaptive_ece(probs: ArrayLike, target: ArrayLike, n_bins: int = 15) -> float:
    """Expected calibration error over bins that hold equal counts of items instead of equal widths.

    Args:
        probs: (N, C) in 0..1.
        target: (N,) integers in 0..C-1.
        n_bins: count of bins, at least 1. With N below it, each item is a bin.
    Returns:
        As `ece`. Per item: `ece_from_confidence(..., edges="equal_mass")`.
    Raises:
        ValueError: as `ece`.
    Source: equal-mass bins of Nixon et al., Measuring Calibration in Deep Learning, 2019, on the top label.

    >>> adaptive_ece([[0.75, 0.25], [0.625, 0.375]], [0, 1], n_bins=2)
    0.4375
    """
    return ece_from_confidence(*top_label(probs, target), n_bins=n_bins, edges="equal_mass")


def brier(probs: ArrayLike, target: ArrayLike) -> float:
    """Multi-class Brier score: mean over rows of the squared error summed over ALL classes.

    For two classes this is twice the score that uses the positive class only.

    Args:
        probs: (N, C) in 0..1.
        target: (N,) integers in 0..C-1.
    Returns:
        A number in 0..2 for rows that sum to 1, 0 the best; nan with N = 0. A row with a NaN or infinite number
        scores 2, as one that is certain and wrong.
    Raises:
        ValueError: for shapes that do not fit, a target outside 0..C-1, or a number outside 0..1.
    Source: Brier, Verification of forecasts expressed in terms of probability, 1950.

    >>> brier([[0.75, 0.25], [0.0, 1.0]], [0, 0])
    1.0625
    """
    score = brier_rows(probs, target)
    return float(score.mean()) if score.size else float("nan")


def brier_rows(probs: ArrayLike, target: ArrayLike) -> FloatArray:
    """The Brier score of each row, (N,), the form to resample in a bootstrap; see `brier`.

    >>> brier_rows([[0.75, 0.25], [0.0, 1.0]], [0, 0])
    array([0.125, 2.   ])
    """
    rows, labels = checked_rows(probs, target, "brier")
    score = np.full(len(rows), 2.0)
    for part, block, finite in float_blocks(rows):
        _require_probabilities(block[finite], "brier")
        block[np.arange(len(block)), labels[part]] -= 1
        score[part][finite] = np.square(block[finite]).sum(axis=1)
    return score


def nll(logits: ArrayLike, target: ArrayLike) -> float:
    """Mean negative log-likelihood of the targets, in nats: the cross-entropy.

    Args:
        logits: (N, C), before softmax. For CLIP-like models, already times the model's own logit scale.
        target: (N,) integers in 0..C-1.
    Returns:
        A number of at least 0; nan with N = 0. A row with a NaN or infinite logit makes it inf.
    Raises:
        ValueError: for shapes that do not fit or a target outside 0..C-1.

    >>> round(nll([[0.0, 0.0], [1000.0, 0.0]], [0, 0]), 6)
    0.346574
    """
    loss = nll_rows(logits, target)
    return float(loss.mean()) if loss.size else float("nan")


def nll_rows(logits: ArrayLike, target: ArrayLike) -> FloatArray:
    """The negative log-likelihood of each row, (N,), the form to resample in a bootstrap; see `nll`.

    >>> nll_rows([[0.0, 0.0], [float("nan"), 0.0]], [0, 0]).round(4)
    array([0.6931,    inf])
    """
    rows, labels = checked_rows(logits, target, "nll")
    loss = np.full(len(rows), np.inf)
    for part, block, finite in float_blocks(rows):
        loss[part][finite] = -np.take_along_axis(_log_softmax(block[finite]), labels[part][finite, None], axis=1)[:, 0]
    return loss
