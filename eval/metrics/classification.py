"""Top-k accuracy and mean recall per class, from logits and integer targets.

A logit equal to the target's counts against the target unless another tie rule is asked for, so that a constant scorer
never beats chance. A row with a NaN or infinite logit stays in the figure, as a wrong answer, under every rule.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ties = Literal["pessimistic", "average", "argmax_first"]
KExceeds = Literal["nan", "clip"]
FloatArray = NDArray[np.float64]

BLOCK_NUMBERS = 1 << 20  # scores held in float64 at one time: 8 MiB


def checked_rows(scores: ArrayLike, target: ArrayLike, caller: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Scores and targets as arrays, once their shapes and the range of the targets are known to be right.

    Args:
        scores: (N, C) real numbers, C at least 1; N may be 0.
        target: (N,) integers in 0..C-1.
        caller: the name that error messages start with.
    Returns:
        (N, C) scores in their own dtype, and (N,) targets as int64.
    Raises:
        ValueError: when a shape, a dtype or a target is not as above.

    >>> checked_rows([[0.5, 2.0]], [1], "example")
    (array([[0.5, 2. ]]), array([1]))
    """
    rows, labels = np.asarray(scores), np.asarray(target)
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiu":
        raise ValueError(f"{caller}: scores must be (N, C) real numbers with C >= 1, got {rows.shape} {rows.dtype}")
    if labels.shape != rows.shape[:1]:
        raise ValueError(f"{caller}: target must be ({rows.shape[0]},) to go with {rows.shape}, got {labels.shape}")
    if labels.size and labels.dtype.kind not in "iu":
        raise ValueError(f"{caller}: target must be integer class indices, got dtype {labels.dtype}")
    outside = (labels < 0) | (labels >= rows.shape[1])
    if outside.any():
        raise ValueError(f"{caller}: target must be in 0..{rows.shape[1] - 1}, got {labels[outside][0]}")
    return rows, labels.astype(np.int64)


def float_blocks(rows: NDArray[Any]) -> Iterator[tuple[slice, FloatArray, NDArray[np.bool_]]]:
    """A large (N, C) array as blocks of rows in float64, so that no wide copy of the whole is ever held.

    Args:
        rows: (N, C) real numbers.
    Returns:
        Of each block: its slice of the N rows, the (n, C) float64 rows, and (n,) whether all of a row is finite.

    >>> [(part.stop, block.dtype.name, finite.tolist()) for part, block, finite in float_blocks(np.ones((2, 3), "f2"))]
    [(2, 'float64', [True, True])]
    """
    step = max(1, BLOCK_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        block = rows[part].astype(np.float64)
        yield part, block, np.all(np.isfinite(block), axis=1)


def _rank_and_tied(
    logits: ArrayLike, target: ArrayLike, ties: Ties, caller: str
) -> tuple[FloatArray, NDArray[np.bool_], int]:
    """Rank of each target, whether another class has the same logit, and C."""
    if ties not in get_args(Ties):
        raise ValueError(f"{caller}: ties must be one of {get_args(Ties)}, got {ties!r}")
    rows, labels = checked_rows(logits, target, caller)
    n, classes = rows.shape
    rank, tied = np.empty(n), np.zeros(n, dtype=bool)
    for part, block, finite in float_blocks(rows):
        label = labels[part, None]  # (n, 1)
        own = np.take_along_axis(block, label, axis=1)
        equal = block == own  # (n, C), the target itself included
        others = equal.sum(axis=1) - 1
        if ties == "pessimistic":
            ahead = others
        elif ties == "average":
            ahead = others / 2
        else:
            ahead = (equal & (np.arange(classes) < label)).sum(axis=1)
        rank[part] = np.where(finite, 1 + (block > own).sum(axis=1) + ahead, np.inf)
        tied[part] = finite & (others > 0)
    return rank, tied, classes


def target_rank(logits: ArrayLike, target: ArrayLike, ties: Ties = "pessimistic") -> FloatArray:
    """Place of the target among the logits of its row, 1 for the largest.

    Args:
        logits: (N, C), any real dtype; compared in float64, a block of rows at a time.
        target: (N,) integers in 0..C-1.
        ties: where the target stands among the classes with the very same logit.
            "pessimistic": behind all of them, 1 + greater + equal.
            "average": in their middle, 1 + greater + equal / 2.
            "argmax_first": by class index, as numpy's argmax picks the first.
    Returns:
        (N,) float64 in 1..C; inf for a row with a NaN or infinite logit.
    Raises:
        ValueError: for shapes that do not fit, a target outside 0..C-1, or an unknown `ties`.
    Source: protocol book, section 0 (ties, non-finite scores).

    >>> target_rank([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0], [float("nan"), 0.0, 0.0]], [1, 0, 2])
    array([ 2.,  2., inf])
    >>> target_rank([[1.0, 1.0, 0.0]], [0], ties="average")
    array([1.5])
    """
    return _rank_and_tied(logits, target, ties, "target_rank")[0]


def topk_accuracy(
    logits: ArrayLike,
    target: ArrayLike,
    k: Sequence[int] = (1, 5),
    ties: Ties = "pessimistic",
    k_exceeds: KExceeds = "nan",
) -> dict[str, float]:
    """Share of rows whose target is among the k largest logits, for each k.

    Args:
        logits: (N, C).
        target: (N,) integers in 0..C-1.
        k: counts of answers allowed, each at least 1.
        ties: as in `target_rank`. With "average" a constant scorer can beat chance, so it is for comparison only.
        k_exceeds: what a k above C gives. "nan": not applicable, to be left out of any mean (CLIP_benchmark).
            "clip": the same as k = C (timm).
    Returns:
        "top<k>" for each k, a fraction in 0..1; "n_nonfinite", the count of rows with a NaN or infinite logit, which
        are wrong at every k; "tie_fraction", the share of rows where another class has exactly the target's logit: at
        0 every tie rule gives the same figures. With N = 0 the fractions are nan.
    Raises:
        ValueError: as `target_rank`, and for a k below 1 or an unknown `k_exceeds`.
    Source: protocol book, sections 1 and 18.

    >>> topk_accuracy([[3.0, 1.0, 0.0], [1.0, 2.0, 0.0]], [1, 1], k=(1, 2, 5))
    {'top1': 0.5, 'top2': 1.0, 'top5': nan, 'n_nonfinite': 0, 'tie_fraction': 0.0}
    """
    if k_exceeds not in get_args(KExceeds):
        raise ValueError(f"topk_accuracy: k_exceeds must be one of {get_args(KExceeds)}, got {k_exceeds!r}")
    if not all(isinstance(each, int | np.integer) and each >= 1 for each in k):
        raise ValueError(f"topk_accuracy: every k must be an integer of at least 1, got {k!r}")
    rank, tied, classes = _rank_and_tied(logits, target, ties, "topk_accuracy")
    figures: dict[str, float] = {}
    for each in k:
        applies = rank.size > 0 and (each <= classes or k_exceeds == "clip")
        figures[f"top{each}"] = float(np.mean(rank <= each)) if applies else float("nan")
    figures["n_nonfinite"] = int(np.isinf(rank).sum())
    figures["tie_fraction"] = float(tied.mean()) if tied.size else float("nan")
    return figures


def mean_per_class(correct_or_pred: ArrayLike, target: ArrayLike) -> float:
    """Mean over classes of the share of a class's rows that are right: balanced accuracy.

    Args:
        correct_or_pred: (N,) booleans, whether each row is right, such as `target_rank(...) <= 1`; or (N,) integers,
            the class predicted for each row.
        target: (N,) class indices, at least 0. Only classes that occur here enter the mean.
    Returns:
        A fraction in 0..1; nan with N = 0.
    Raises:
        ValueError: for shapes that differ, a dtype that is neither boolean nor integer, or a negative target.
    Source: equal to sklearn.metrics.balanced_accuracy_score.

    >>> mean_per_class([True, True, False, True], [0, 0, 0, 7])
    0.8333333333333333
    >>> mean_per_class([0, 0, 1, 7], [0, 0, 0, 7])
    0.8333333333333333
    """
    given, labels = np.asarray(correct_or_pred), np.asarray(target)
    if labels.ndim != 1 or given.shape != labels.shape:
        raise ValueError(f"mean_per_class: both arguments must be (N,), got {given.shape} and {labels.shape}")
    if labels.size == 0:
        return float("nan")
    if given.dtype.kind not in "biu":
        raise ValueError(f"mean_per_class: needs booleans (right or not) or integer classes, got dtype {given.dtype}")
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"mean_per_class: target must be class indices of at least 0, got {labels.min()} ({labels.dtype})"
        )
    right = given if given.dtype.kind == "b" else given == labels
    _, index, count = np.unique(labels, return_inverse=True, return_counts=True)
    return float(np.mean(np.bincount(index, weights=right) / count))
