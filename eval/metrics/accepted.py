"""Rank where several classes count as right for one item, as in ReaL labels."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from foveal.eval.metrics.classification import FloatArray, float_blocks


def accepted_rank(logits: ArrayLike, accepted: Sequence[Sequence[int]]) -> FloatArray:
    """Place of the best accepted class among the classes that are not accepted, 1 for a hit of the largest logit.

    A class that is not accepted and has the very same logit stands before it, so a constant scorer never hits.

    Args:
        logits: (N, C), any real dtype; compared in float64, a block of rows at a time.
        accepted: the classes that are right for each of the N rows, at least one each, in 0..C-1.
    Returns:
        (N,) float64 in 1..C; inf for a row with a NaN or infinite logit.
    Raises:
        ValueError: for shapes that do not fit, a row without accepted class, or a class outside 0..C-1.
    Source: protocol book, section 1 (ReaL: a hit is top-1 in the list); ties as in `target_rank`.

    >>> accepted_rank([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 1.0, 0.0]], [[0, 1], [1, 2], [0]])
    array([1., 2., 2.])
    """
    rows = np.asarray(logits)
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiu" or len(rows) != len(accepted):
        raise ValueError(
            f"accepted_rank: logits must be ({len(accepted)}, C) real numbers to go with the accepted classes, got "
            f"{rows.shape} {rows.dtype}"
        )
    right = np.zeros(rows.shape, dtype=bool)
    for i, classes in enumerate(accepted):
        if not classes or min(classes) < 0 or max(classes) >= rows.shape[1]:
            raise ValueError(
                f"accepted_rank: row {i} must accept classes in 0..{rows.shape[1] - 1}, got {list(classes)}"
            )
        right[i, list(classes)] = True
    rank = np.empty(len(rows))
    for part, block, finite in float_blocks(rows):
        best = np.max(block, axis=1, keepdims=True, where=right[part], initial=-np.inf)  # (n, 1)
        rank[part] = np.where(finite, 1 + ((block >= best) & ~right[part]).sum(axis=1), np.inf)
    return rank
