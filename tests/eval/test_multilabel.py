"""Average precision over several labels: against the protocol book's vectors, scikit-learn and brute force."""

import itertools
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from foveal.eval.metrics.multilabel import average_precision, multilabel_map
from foveal.eval.metrics.vectors import agrees, load_vectors

BOOK = load_vectors(Path(__file__).parents[1] / "data/vectors/multilabel_map.json")
CASES = [
    pytest.param(vector, key, id=f"{vector['id']}-{key}") for vector in BOOK["vectors"] for key in vector["expected"]
]
RULES = ("pessimistic", "sklearn", "clip_benchmark")
NAN, INF = float("nan"), float("inf")


def figures(given, ties):
    return {
        "ap": average_precision(given["scores"], given["targets"], ties),
        "map": multilabel_map(given["scores"], given["targets"], ties)["map"],
    }


def draw(n=60, classes=5, seed=0, levels=None):
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(n, classes)) if levels is None else generator.integers(0, levels, (n, classes))
    targets = generator.random((n, classes)) < 0.3
    targets[0] = True  # every class has a positive
    return scores, targets


def by_hand(pairs):
    """Of one class: (score, has the label) pairs, best first, ties already in order."""
    found, precisions = 0, []
    for place, (_, positive) in enumerate(pairs, start=1):
        if positive:
            found += 1
            precisions.append(found / place)
    return sum(precisions) / len(precisions)


@pytest.mark.parametrize("ties", RULES)
@pytest.mark.parametrize(("vector", "key"), CASES)
def test_agrees_with_every_reference(vector, key, ties):
    """No vector has a tie, so that every rule has to give every reference's figures."""
    assert agrees(figures(vector["input"], ties), vector["expected"][key], BOOK["atol"], BOOK["rtol"])


def test_every_reference_is_a_rule_but_timm():
    """timm is listed with its top-k function, which has no average precision and no figure in any vector."""
    listed = {reference["key"] for reference in BOOK["references"]}
    expected = {key for vector in BOOK["vectors"] for key in vector["expected"]}
    assert listed - expected == {"timm"}
    assert expected <= set(RULES)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("levels", [None, 4, 1])
def test_sklearn_is_a_second_implementation(seed, levels):
    scores, targets = draw(seed=seed, levels=levels)
    want = average_precision_score(targets, scores, average=None)
    assert average_precision(scores, targets, "sklearn") == pytest.approx(want, abs=1e-12)
    assert multilabel_map(scores, targets, "sklearn")["map"] == pytest.approx(want.mean(), abs=1e-12)
    if levels is None:
        assert multilabel_map(scores, targets)["tie_fraction"] == 0
        for rule in RULES:
            assert average_precision(scores, targets, rule) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_ties_equal_to_brute_force(seed):
    scores, targets = draw(n=40, seed=seed, levels=3)
    for label in range(5):
        pairs = list(zip(scores[:, label].tolist(), targets[:, label].tolist()))
        behind = by_hand(sorted(pairs, key=lambda pair: (-pair[0], pair[1])))
        in_order = by_hand(sorted(pairs, key=lambda pair: -pair[0]))  # sorted is stable
        assert average_precision(scores, targets)[label] == pytest.approx(behind, abs=1e-12)
        assert average_precision(scores, targets, "clip_benchmark")[label] == pytest.approx(in_order, abs=1e-12)


def test_pessimistic_is_the_worst_order_of_equal_scores():
    scores, targets = [2, 1, 1, 1, 0], [1, 0, 1, 1, 0]
    pairs = list(zip(scores, targets))
    orders = [order for order in itertools.permutations(pairs) if [s for s, _ in order] == scores]
    assert average_precision(np.transpose([scores]), np.transpose([targets]))[0] == min(map(by_hand, orders))


def test_order_of_items_changes_nothing_but_by_the_rule_named_so():
    scores, targets = draw(levels=3)
    order = np.random.default_rng(1).permutation(len(scores))
    for rule in ("pessimistic", "sklearn"):
        got = average_precision(scores[order], targets[order], rule)
        assert got == pytest.approx(average_precision(scores, targets, rule), abs=1e-12)
    shuffled = average_precision(scores[order], targets[order], "clip_benchmark")
    assert shuffled != pytest.approx(average_precision(scores, targets, "clip_benchmark"), abs=1e-3)


def test_constant_scorer_never_beats_chance():
    _, targets = draw(n=200)
    assert np.all(average_precision(np.ones(targets.shape), targets) <= targets.mean(axis=0))
    assert multilabel_map(np.ones(targets.shape), targets)["tie_fraction"] == 1


@pytest.mark.parametrize("ties", RULES)
def test_a_perfect_scorer_has_one(ties):
    _, targets = draw()
    assert multilabel_map(targets.astype(float) + 0.5, targets, ties)["map"] == 1


def test_class_without_positives():
    scores, targets = [[0.9, 0.1], [0.8, 0.7]], [[1, 0], [0, 0]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = average_precision_score(targets, scores, average=None)
    assert average_precision(scores, targets).tolist() == want.tolist() == [1, 0]
    assert multilabel_map(scores, targets)["n_without_positives"] == 1
    assert math.isnan(average_precision(scores, targets, no_positive="nan")[1])
    assert multilabel_map(scores, targets, no_positive="nan") == multilabel_map(scores, targets) | {"map": 1.0}
    alone = multilabel_map([[0.5]], [[0]], no_positive="nan")
    assert math.isnan(alone["map"])
    assert math.isnan(alone["tie_fraction"])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("ties", RULES)
def test_non_finite_item_has_the_worst_place(bad, ties):
    scores, targets = np.array([[3.0, 0.1], [2.0, bad], [1.0, 0.3]]), np.array([[1, 0], [0, 1], [1, 0]])
    # class 0: item 1 before both positives, precisions 1/2 and 2/3; class 1: its only positive is not found
    assert average_precision(scores, targets, ties) == pytest.approx([(1 / 2 + 2 / 3) / 2, 0])
    assert multilabel_map(scores, targets, ties)["n_nonfinite"] == 1
    assert multilabel_map(np.full((3, 2), bad), targets, ties)["map"] == 0


def test_empty_and_tensors_and_dtypes():
    empty = multilabel_map(np.zeros((0, 3)), np.zeros((0, 3)))
    assert math.isnan(empty["map"])
    assert empty["n_without_positives"] == 3
    scores, targets = draw()
    want = multilabel_map(scores.astype("float32"), targets)
    assert multilabel_map(torch.from_numpy(scores).float(), torch.from_numpy(targets)) == want
    assert average_precision([[1], [2]], [[1], [0]]).tolist() == [0.5]


def test_unsigned_scores_do_not_wrap_around():
    scores, targets = np.array([[0], [200], [100]], np.uint8), [[0], [1], [0]]
    assert average_precision(scores, targets).tolist() == [1]


@pytest.mark.parametrize("function", [average_precision, multilabel_map])
@pytest.mark.parametrize(
    ("scores", "targets", "options", "sentence"),
    [
        ([1.0], [1], {}, r"scores must be \(N, C\) real numbers"),
        (np.zeros((2, 0)), np.zeros((2, 0)), {}, "with C >= 1"),
        ([["a"]], [[1]], {}, "real numbers"),
        ([[1.0, 2.0]], [[1]], {}, r"targets must be \(1, 2\) as the scores, got \(1, 1\)"),
        ([[1.0]], [[-1]], {}, "targets must be booleans or 0 and 1"),
        ([[1.0]], [[NAN]], {}, "targets must be booleans or 0 and 1"),
        ([[1.0]], [[1]], {"ties": "first"}, "ties must be one of .*got 'first'"),
        ([[1.0]], [[1]], {"no_positive": "one"}, "no_positive must be one of .*got 'one'"),
    ],
)
def test_errors(function, scores, targets, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        function(scores, targets, **options)
