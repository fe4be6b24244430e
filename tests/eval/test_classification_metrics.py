"""Top-k accuracy and mean per class: against the protocol book's vectors, torch, scikit-learn and known cases."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from foveal.eval.metrics import classification
from foveal.eval.metrics.classification import checked_rows, mean_per_class, target_rank, topk_accuracy
from foveal.eval.metrics.vectors import agrees, load_vectors

BOOK = load_vectors(Path(__file__).parents[1] / "data/vectors/classification_topk.json")
CASES = [
    pytest.param(vector, key, id=f"{vector['id']}-{key}") for vector in BOOK["vectors"] for key in vector["expected"]
]
NAN, INF = float("nan"), float("inf")
RULES = ("pessimistic", "average", "argmax_first")


def accuracies(given, name="top", scale=1, **options):
    figures = topk_accuracy(given["logits"], given["target"], given["k"], **options)
    return {f"{name}{k}": figures[f"top{k}"] * scale for k in given["k"]} | {"n_nonfinite": figures["n_nonfinite"]}


FIGURES = {
    "timm": lambda given: accuracies(given, scale=100, k_exceeds="clip"),
    "clip_benchmark": lambda given: accuracies(given, name="acc"),
    "sklearn": lambda given: {
        "mean_per_class_recall": mean_per_class(target_rank(given["logits"], given["target"]) <= 1, given["target"])
    },
    "pessimistic_rule": lambda given: accuracies(given, ties="pessimistic"),
    "argmax_first_rule": lambda given: accuracies(given, ties="argmax_first"),
    "our_rule": accuracies,
}


def draw(n=200, classes=7, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, classes)), generator.integers(0, classes, size=n)


@pytest.mark.parametrize(("vector", "key"), CASES)
def test_agrees_with_every_reference(vector, key):
    want, got = vector["expected"][key], FIGURES[key](vector["input"])
    assert agrees({name: got[name] for name in want}, want, BOOK["atol"], BOOK["rtol"])


def test_every_reference_is_handled():
    listed = {reference["key"] for reference in BOOK["references"]}
    assert set(FIGURES) == listed | {key for vector in BOOK["vectors"] for key in vector["expected"]}


def test_bc47_top5_with_fewer_than_five_classes():
    logits, target = [[3, 1, 0], [2, 1, 0], [1, 2, 0]], [2, 1, 1]
    figures = topk_accuracy(logits, target)
    assert math.isnan(figures["top5"])
    assert figures["top1"] == pytest.approx(1 / 3)
    assert topk_accuracy(logits, target, k_exceeds="clip")["top5"] == 1
    assert topk_accuracy(logits, target, k=(3,))["top3"] == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_equal_to_torch_topk_without_ties(seed, dtype):
    generator = np.random.default_rng(seed)
    logits = generator.permuted(np.tile(np.arange(40), (300, 1)), axis=1).astype(dtype)  # distinct within a row
    target = generator.integers(0, 40, size=300)
    figures = topk_accuracy(logits, target, k=(1, 5, 40))
    for k in (1, 5, 40):
        best = torch.from_numpy(logits.astype("float64")).topk(k, dim=1).indices
        assert figures[f"top{k}"] == (best == torch.from_numpy(target)[:, None]).any(dim=1).double().mean().item()
    assert figures["tie_fraction"] == 0
    assert all(np.array_equal(target_rank(logits, target, rule), target_rank(logits, target)) for rule in RULES)


def test_takes_torch_tensors():
    logits, target = draw()
    assert topk_accuracy(torch.from_numpy(logits), torch.from_numpy(target)) == topk_accuracy(logits, target)


@pytest.mark.parametrize("seed", range(3))
def test_rank_equal_to_brute_force_with_ties(seed):
    generator = np.random.default_rng(seed)
    logits, target = generator.integers(0, 4, size=(100, 6)), generator.integers(0, 6, size=100)
    for row, label, *ranks in zip(logits.tolist(), target, *(target_rank(logits, target, rule) for rule in RULES)):
        greater = sum(score > row[label] for score in row)
        equal = row.count(row[label]) - 1
        first = sorted(range(6), key=lambda index: (-row[index], index)).index(label) + 1
        assert ranks == [1 + greater + equal, 1 + greater + equal / 2, first]


def test_argmax_first_is_numpy_argmax():
    logits, target = np.random.default_rng(0).integers(0, 2, size=(100, 4)), np.arange(100) % 4
    figures = topk_accuracy(logits, target, k=(1,), ties="argmax_first")
    assert figures["top1"] == np.mean(logits.argmax(axis=1) == target)


def test_tie_fraction_counts_rows_whose_target_is_tied():
    logits = [[1, 1, 0], [0, 1, 1], [1, 0, 0], [NAN, 1, 1]]
    assert topk_accuracy(logits, [0, 0, 0, 1])["tie_fraction"] == 0.25


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_constant_scorer_never_beats_chance(classes):
    figures = topk_accuracy(np.ones((classes * 5, classes)), np.arange(classes * 5) % classes, k=range(1, classes + 1))
    assert all(figures[f"top{k}"] <= k / classes for k in range(1, classes + 1))
    assert figures["tie_fraction"] == 1


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("rule", RULES)
def test_non_finite_row_is_wrong_at_every_k(bad, rule):
    logits = np.array([[0.0, 5.0, 1.0], [0.0, 5.0, 1.0]])
    logits[1, 2] = bad
    figures = topk_accuracy(logits, [1, 1], k=(1, 3, 5), ties=rule, k_exceeds="clip")
    assert figures == {"top1": 0.5, "top3": 0.5, "top5": 0.5, "n_nonfinite": 1, "tie_fraction": 0}
    assert target_rank(logits, [1, 1], rule).tolist() == [1, INF]


def test_empty_input_gives_nan():
    figures = topk_accuracy(np.zeros((0, 3)), [])
    assert agrees(figures, {"top1": NAN, "top5": NAN, "n_nonfinite": 0, "tie_fraction": NAN}, 0, 0)
    assert target_rank(np.zeros((0, 3)), []).shape == (0,)
    assert math.isnan(mean_per_class([], []))


def test_single_class_is_always_right():
    assert topk_accuracy(np.zeros((4, 1)), [0] * 4, k=(1,))["top1"] == 1
    assert mean_per_class([True, False], [3, 3]) == 0.5


def test_blocks_change_nothing(monkeypatch):
    logits, target = draw()
    whole = target_rank(logits, target)
    monkeypatch.setattr(classification, "BLOCK_NUMBERS", 50)  # 7 rows of 7 classes, and 4 left over
    assert np.array_equal(target_rank(logits, target), whole)


def test_no_wide_copy_of_large_logits():
    logits, target = np.zeros((20000, 500), dtype=np.float16), np.zeros(20000, dtype=np.int64)  # 80 MB in float64
    tracemalloc.start()
    target_rank(logits, target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_mean_per_class_equal_to_sklearn(seed):
    generator = np.random.default_rng(seed)
    target, predicted = generator.choice([0, 1, 4], size=100, p=[0.8, 0.15, 0.05]), generator.integers(0, 6, size=100)
    want = pytest.approx(balanced_accuracy_score(target, predicted), abs=1e-12)
    assert mean_per_class(predicted, target) == want
    assert mean_per_class(predicted == target, target) == want


@pytest.mark.parametrize(
    ("scores", "target", "message"),
    [
        ([1.0, 2.0], [0, 1], r"scores must be \(N, C\) real numbers with C >= 1, got \(2,\) float64"),
        (np.zeros((2, 0)), [0, 1], r"scores must be .* C >= 1, got \(2, 0\)"),
        ([["a", "b"]], [0], r"scores must be .* real numbers with C >= 1, got \(1, 2\) <U1"),
        (np.zeros((2, 3)), [0], r"target must be \(2,\) to go with \(2, 3\), got \(1,\)"),
        (np.zeros((2, 3)), [[0], [1]], r"target must be \(2,\) .* got \(2, 1\)"),
        (np.zeros((2, 3)), [0.0, 1.0], "target must be integer class indices, got dtype float64"),
        (np.zeros((2, 3)), [0, 3], r"target must be in 0\.\.2, got 3"),
        (np.zeros((2, 3)), [-1, 0], r"target must be in 0\.\.2, got -1"),
    ],
)
@pytest.mark.parametrize("function", [target_rank, topk_accuracy])
def test_bad_rows_are_refused(function, scores, target, message):
    with pytest.raises(ValueError, match=f"^{function.__name__}: {message}"):
        function(scores, target)
    with pytest.raises(ValueError, match=f"^here: {message}"):
        checked_rows(scores, target, "here")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ties": "optimistic"}, r"ties must be one of \('pessimistic', 'average', 'argmax_first'\), got 'optimistic'"),
        ({"k_exceeds": "raise"}, r"k_exceeds must be one of \('nan', 'clip'\), got 'raise'"),
        ({"k": (0, 1)}, r"every k must be an integer of at least 1, got \(0, 1\)"),
        ({"k": (1.5,)}, r"every k must be an integer of at least 1, got \(1\.5,\)"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        topk_accuracy(np.zeros((2, 3)), [0, 1], **options)


@pytest.mark.parametrize(
    ("given", "target", "message"),
    [
        ([True], [0, 1], r"both arguments must be \(N,\), got \(1,\) and \(2,\)"),
        (np.zeros((2, 3), dtype=int), np.zeros((2, 3), dtype=int), r"both arguments must be \(N,\), got \(2, 3\)"),
        ([0.5, 1.0], [0, 1], r"needs booleans .* or integer classes, got dtype float64"),
        ([True, True], [0, -1], "target must be class indices of at least 0, got -1"),
        ([True, True], [0.0, 1.0], r"target must be class indices of at least 0, got 0.0 \(float64\)"),
    ],
)
def test_mean_per_class_refuses(given, target, message):
    with pytest.raises(ValueError, match=message):
        mean_per_class(given, target)


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (np.array([1.0, 2.0]), [1, 2], True),
        (np.float32(1.0), 1.00001, True),
        (1.0, 1.1, False),
        (INF, INF, True),
        (-INF, INF, False),
        (1.0, INF, False),
        (INF, 1.0, False),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ([[1, 2]], [[1, 3]], False),
        ((1, 2), [1, 2], True),
        ([1], 1, False),
        (True, 1, False),
        (np.bool_(True), True, True),
        ("name", "name", True),
        ("nan", NAN, False),
        (None, None, True),
    ],
)
def test_agrees(got, want, equal):
    assert agrees(got, want, atol=1e-5, rtol=1e-5) is equal


def test_load_vectors_reads_numbers_and_keeps_names(tmp_path):
    assert all(math.isnan(each) for each in BOOK["vectors"][-1]["input"]["logits"][0])
    assert BOOK["non_finite"] == "encoded as the strings inf, -inf, nan"
    path = tmp_path / "other.json"
    path.write_text('{"schema": "vector-v2"}')
    with pytest.raises(ValueError, match="must have the schema 'vector-v1', got 'vector-v2'"):
        load_vectors(path)
