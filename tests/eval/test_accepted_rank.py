"""Rank with several right classes, against brute force."""

import numpy as np
import pytest

from foveal.eval.metrics.accepted import accepted_rank
from foveal.eval.metrics.classification import target_rank


def test_equals_brute_force_with_ties():
    draw = np.random.default_rng(0)
    logits = draw.integers(0, 4, (300, 6)).astype(np.float32)
    accepted = [draw.permutation(6)[: draw.integers(1, 7)].tolist() for _ in logits]
    expected = [
        1 + sum(row[c] >= max(row[right]) for c in range(6) if c not in right) for row, right in zip(logits, accepted)
    ]
    assert accepted_rank(logits, accepted).tolist() == expected
    assert len(set(expected)) > 3


def test_one_accepted_class_is_the_target():
    logits = np.random.default_rng(1).integers(0, 3, (50, 5))
    target = np.arange(50) % 5
    assert (accepted_rank(logits, target[:, None].tolist()) == target_rank(logits, target)).all()


def test_constant_and_not_finite_scores_never_hit():
    assert accepted_rank(np.zeros((2, 4)), [[0], [1, 2]]).tolist() == [4, 3]
    assert accepted_rank([[9.0, np.nan], [np.inf, 0.0]], [[0], [0]]).tolist() == [np.inf, np.inf]
    assert accepted_rank(np.zeros((0, 3)), []).shape == (0,)


@pytest.mark.parametrize(
    ("logits", "accepted", "said"),
    [
        (np.zeros(3), [[0]], r"logits must be \(1, C\) real numbers .* got \(3,\)"),
        (np.zeros((2, 3)), [[0]], r"logits must be \(1, C\)"),
        (np.zeros((1, 3), complex), [[0]], "complex128"),
        (np.zeros((1, 3)), [[]], r"row 0 must accept classes in 0\.\.2, got \[\]"),
        (np.zeros((2, 3)), [[0], [3]], r"row 1 must accept classes in 0\.\.2, got \[3\]"),
        (np.zeros((1, 3)), [[-1]], r"got \[-1\]"),
    ],
)
def test_refusals(logits, accepted, said):
    with pytest.raises(ValueError, match=said):
        accepted_rank(logits, accepted)
