"""Calibration figures: against the protocol book's vectors, torch, scikit-learn, brute force and known cases."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

from foveal.eval.metrics import classification
from foveal.eval.metrics.calibration import adaptive_ece, brier, ece, ece_from_confidence, nll, softmax, top_label
from foveal.eval.metrics.vectors import agrees, load_vectors

BOOK = load_vectors(Path(__file__).parents[1] / "data/vectors/calibration_ece.json")
CASES = [
    pytest.param(vector, key, id=f"{vector['id']}-{key}") for vector in BOOK["vectors"] for key in vector["expected"]
]
NAN, INF = float("nan"), float("inf")
EDGES = ("right_closed", "left_closed", "equal_mass")
NORMS = ("l1", "max", "l2")

FIGURES = {
    "temperature_scaling": lambda given: {"ece": ece(**given)},
    "torchmetrics": lambda given: {
        name: ece(**given, edges="left_closed", norm=norm)
        for name, norm in (("ece_l1", "l1"), ("mce_max", "max"), ("rms_l2", "l2"))
    },
}


def draw(n=300, classes=5, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, classes)) * 2, generator.integers(0, classes, size=n)


def put_together(bins, n, norm):
    gaps = [
        (len(each) / n, abs(sum(r for _, r in each) - sum(c for c, _ in each)) / len(each)) for each in bins if each
    ]
    if norm == "max":
        return max(gap for _, gap in gaps)
    power = {"l1": 1, "l2": 2}[norm]
    return sum(share * gap**power for share, gap in gaps) ** (1 / power)


@pytest.mark.parametrize(("vector", "key"), CASES)
def test_agrees_with_every_reference(vector, key):
    assert agrees(FIGURES[key](vector["input"]), vector["expected"][key], BOOK["atol"], BOOK["rtol"])


def test_every_reference_is_handled():
    listed = {reference["key"] for reference in BOOK["references"]}
    assert set(FIGURES) == listed | {key for vector in BOOK["vectors"] for key in vector["expected"]}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_equal_width_bins_equal_to_brute_force(n_bins, norm):
    generator = np.random.default_rng(n_bins)
    sure = np.append(generator.integers(0, 61, size=200) / 60, [0.0, 1.0])  # many confidences on an edge
    right = generator.random(202) < 0.6
    items = list(zip(sure.tolist(), right.tolist()))
    closed = [[item for item in items if b / n_bins < item[0] <= (b + 1) / n_bins] for b in range(n_bins)]
    closed[0] += [item for item in items if item[0] == 0]
    opened = [[item for item in items if b / n_bins <= item[0] < (b + 1) / n_bins] for b in range(n_bins + 1)]
    for edges, bins in (("right_closed", closed), ("left_closed", opened)):
        got = ece_from_confidence(sure, right, n_bins, edges, norm)
        assert got == pytest.approx(put_together(bins, 202, norm), abs=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("n", "n_bins"), [(100, 10), (103, 10), (3, 10), (50, 1)])
def test_equal_mass_bins_equal_to_brute_force(n, n_bins, norm):
    generator = np.random.default_rng(n)
    sure, right = generator.random(n), generator.random(n) < 0.6
    items = sorted(zip(sure.tolist(), right.tolist()))
    bins = [[] for _ in range(n_bins)]
    for place, item in enumerate(items):
        bins[place * n_bins // n].append(item)
    want = pytest.approx(put_together(bins, n, norm), abs=1e-12)
    assert ece_from_confidence(sure, right, n_bins, "equal_mass", norm) == want
    assert max(map(len, bins)) - min(map(len, bins)) <= 1


def test_equal_mass_of_equal_confidences_ignores_item_order():
    sure, right = np.full(100, 0.75), np.arange(100) < 75
    order = np.random.default_rng(0).permutation(100)
    assert ece_from_confidence(sure, right, 10, "equal_mass") == 0
    assert ece_from_confidence(sure[order], right[order], 10, "equal_mass") == 0


def test_confidence_on_a_decimal_edge():
    # 0.3 is an edge of ten bins: with 0.25 in (0.2, 0.3], with 0.35 in [0.3, 0.4)
    sure, right = [0.25, 0.3, 0.35], [True, False, False]
    assert ece_from_confidence(sure, right, 10) == pytest.approx((0.45 + 0.35) / 3)
    assert ece_from_confidence(sure, right, 10, "left_closed") == pytest.approx((0.75 + 0.65) / 3)


def test_calibrated_scorer_is_near_zero_and_certain_wrong_one_is_one():
    generator = np.random.default_rng(0)
    sure = generator.uniform(0.5, 1, size=20000)
    right = generator.random(20000) < sure
    assert all(ece_from_confidence(sure, right, edges=edges) < 0.02 for edges in EDGES)
    assert ece([[1.0, 0.0]] * 3, [1, 1, 1]) == 1
    assert ece([[1.0, 0.0]] * 3, [0, 0, 0]) == 0


def test_figures_from_probabilities_are_those_from_confidence():
    logits, target = draw()
    probs = softmax(logits)
    sure, right = top_label(probs, target)
    assert np.array_equal(sure, probs.max(axis=1))
    assert np.array_equal(right, probs.argmax(axis=1) == target)
    assert ece(probs, target, 9, "left_closed", "l2") == ece_from_confidence(sure, right, 9, "left_closed", "l2")
    assert adaptive_ece(probs, target, 9) == ece_from_confidence(sure, right, 9, "equal_mass")


def test_constant_scorer_is_not_credited_with_right_answers():
    probs = np.full((100, 4), 0.25)
    assert not top_label(probs, np.arange(100) % 4)[1].any()
    assert ece(probs, np.arange(100) % 4) == 0.25


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_and_nll_equal_to_torch(dtype):
    logits, target = draw()
    logits = (logits * 100).astype(dtype)
    wide, labels = torch.from_numpy(logits).double(), torch.from_numpy(target)
    np.testing.assert_allclose(softmax(logits), wide.softmax(dim=1).numpy(), rtol=1e-12, atol=1e-300)
    assert nll(logits, target) == pytest.approx(torch.nn.functional.cross_entropy(wide, labels).item(), rel=1e-12)


def test_nll_and_brier_equal_to_sklearn():
    logits, target = draw()
    assert nll(logits, target) == pytest.approx(log_loss(target, softmax(logits)), rel=1e-9)
    logits, target = draw(classes=2)
    probs = softmax(logits)
    assert brier(probs, target) == pytest.approx(2 * brier_score_loss(target, probs[:, 1]), rel=1e-9)


def test_brier_equal_to_brute_force():
    logits, target = draw()
    probs = softmax(logits)
    assert brier(probs, target) == pytest.approx(np.square(probs - np.eye(5)[target]).sum(axis=1).mean(), rel=1e-12)


@pytest.mark.filterwarnings("error")
def test_extreme_logits_stay_exact():
    assert nll([[1e308, -1e308]], [0]) == 0
    assert nll([[1e308, -1e308]], [1]) == INF
    assert nll([[-1e4, 0.0]], [0]) == 1e4
    assert softmax([[1e308, -1e308, 1e308]]).tolist() == [[0.5, 0, 0.5]]


def test_blocks_change_nothing(monkeypatch):
    logits, target = draw()
    logits[17, 2] = NAN
    figures = [lambda: softmax(logits), lambda: ece(softmax(logits), target), lambda: brier(softmax(logits), target)]
    whole = [each() for each in figures]
    monkeypatch.setattr(classification, "BLOCK_NUMBERS", 35)  # 7 rows of 5 classes, and 6 left over
    assert agrees([each() for each in figures], whole, 0, 0)
    assert nll(logits, target) == INF
    assert nll(logits[18:], target[18:]) == pytest.approx(log_loss(target[18:], softmax(logits[18:])), rel=1e-9)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.filterwarnings("error")
def test_one_bad_row_has_the_worst_figures(bad):
    logits = np.array([[bad, 0.0, 1e300], [0.0, 0.0, 0.0]])
    assert nll(logits, [0, 0]) == INF
    assert np.isnan(softmax(logits)).tolist() == [[True] * 3, [False] * 3]
    probs = np.array([[bad, 0.0, 1e300], [1.0, 0.0, 0.0]])
    assert brier(probs, [0, 0]) == 1
    assert agrees(top_label(probs, [2, 0]), ([NAN, 1.0], [False, True]), 0, 0)
    assert ece(probs, [2, 0]) == adaptive_ece(probs, [2, 0]) == 0.5
    assert ece(probs, [2, 0], norm="max") == 1
    assert ece(probs, [2, 0], norm="l2") == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("edges", EDGES)
def test_bad_rows_never_make_the_error_smaller(edges, norm):
    sure, right = np.full(100, 0.95), np.ones(100, dtype=bool)  # under-confident: 5 bad rows would cancel it
    figure = ece_from_confidence(sure, right, edges=edges, norm=norm)
    for count in (1, 5, 50):
        mixed = ece_from_confidence([*sure, *[NAN] * count], [*right, *[False] * count], edges=edges, norm=norm)
        assert mixed > figure
        assert mixed >= count / (100 + count)
    assert ece_from_confidence([NAN] * 3, [False] * 3, edges=edges, norm=norm) == 1


def test_empty_input_gives_nan():
    empty = np.zeros((0, 3))
    figures = [ece(empty, []), adaptive_ece(empty, []), brier(empty, []), nll(empty, []), ece_from_confidence([], [])]
    assert all(map(math.isnan, figures))
    assert softmax(empty).shape == (0, 3)


def test_single_class_is_perfect():
    probs, target = np.ones((4, 1)), [0] * 4
    assert ece(probs, target) == adaptive_ece(probs, target) == brier(probs, target) == nll(probs, target) == 0


def test_rounding_above_one_is_one():
    assert ece_from_confidence([1 + 1e-7, -1e-7], [True, False]) == 0
    assert ece_from_confidence([1 + 1e-7], [True], edges="left_closed") == 0


@pytest.mark.parametrize("function", [ece, adaptive_ece, brier, top_label])
def test_logits_for_probabilities_are_refused(function):
    with pytest.raises(ValueError, match=r"needs probabilities in 0\.\.1 \(after softmax\), got 3\.0"):
        function([[3.0, 0.0]], [0])
    with pytest.raises(ValueError, match=r"needs probabilities in 0\.\.1 \(after softmax\), got -0\.5"):
        function([[-0.5, 1.0]], [0])


@pytest.mark.parametrize("function", [ece, adaptive_ece, brier, top_label, nll])
def test_bad_rows_are_refused(function):
    with pytest.raises(ValueError, match=r"target must be \(1,\) to go with \(1, 2\), got \(2,\)"):
        function([[0.5, 0.5]], [0, 1])
    with pytest.raises(ValueError, match=r"target must be in 0\.\.1, got 2"):
        function([[0.5, 0.5]], [2])


@pytest.mark.parametrize("logits", [1.0, [1.0, 2.0]])
def test_softmax_refuses(logits):
    with pytest.raises(ValueError, match=r"softmax: scores must be \(N, C\) real numbers"):
        softmax(logits)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"correct": [True]}, r"confidence and correct must be \(N,\), got \(2,\) and \(1,\)"),
        ({"confidence": [[0.5], [0.5]]}, r"confidence and correct must be \(N,\), got \(2, 1\) and \(2,\)"),
        ({"confidence": [0.5, 1.5]}, r"needs probabilities in 0\.\.1 \(after softmax\), got 1\.5"),
        ({"confidence": [0.5, INF]}, r"needs probabilities in 0\.\.1 \(after softmax\), got inf"),
        ({"correct": [0.5, 1.0]}, "correct must be booleans or 0 and 1, got other numbers"),
        ({"correct": [NAN, 1.0]}, "correct must be booleans or 0 and 1, got other numbers"),
        ({"n_bins": 0}, "n_bins must be at least 1, got 0"),
        ({"edges": "closed"}, r"edges must be one of \('right_closed', 'left_closed'\) or 'equal_mass', got 'closed'"),
        ({"norm": "l3"}, r"norm must be one of \('l1', 'max', 'l2'\), got 'l3'"),
    ],
)
def test_ece_from_confidence_refuses(given, message):
    with pytest.raises(ValueError, match=f"^calibration error: {message}"):
        ece_from_confidence(**({"confidence": [0.5, 0.75], "correct": [True, False]} | given))
