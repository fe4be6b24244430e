"""Nearest neighbours on frozen features: against brute force, DINO's arithmetic, known cases; and memory."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foveal.eval.probes.knn import knn_dino, nearest


class Largest(TorchDispatchMode):
    """Remembers the bytes of the largest tensor that any operation gave."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for each in out if isinstance(out, list | tuple) else [out]:
            if isinstance(each, torch.Tensor):
                self.bytes = max(self.bytes, each.nbytes)
        return out


def clouds(n=300, classes=6, dim=16, spread=0.5, seed=0):
    """Points around as many unit axes as there are classes; overlapping for a large spread."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, n)
    labels[:classes] = np.arange(classes)
    points = np.eye(classes, dim)[labels] + spread * generator.normal(size=(n, dim))
    return points.astype(np.float32), labels


def brute_force(train, test):
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train.astype("float64"), test.astype("float64")))
    return b @ a.T


def dino(train, y, test, target, k, temperature):
    """eval_knn.py's arithmetic on all at once, in float64; top-1 only."""
    similarity = torch.from_numpy(brute_force(train, test))
    distances, indices = similarity.topk(k, largest=True, sorted=True)
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(y)[indices]).double()
    probs = (one_hot * (distances / temperature).exp()[:, :, None]).sum(1)
    return (probs.argmax(1).numpy() == target).mean()


@pytest.mark.parametrize("budget", [1, 20_000, 1 << 28])
@pytest.mark.parametrize("k", [1, 7, 90])
def test_neighbours_equal_to_brute_force(k, budget):
    (train, _), (test, _) = clouds(90), clouds(41, seed=1)
    similarity = brute_force(train, test)
    blocks = list(nearest(train, test, k, budget=budget))
    assert (len(blocks) == 1) == (budget > 1 << 20)
    index, cosine = np.concatenate([block[1] for block in blocks]), np.concatenate([block[0] for block in blocks])
    assert np.array_equal(index, np.argsort(-similarity, axis=1)[:, :k])
    assert cosine == pytest.approx(np.take_along_axis(similarity, index, axis=1), abs=1e-12)


@pytest.mark.parametrize("budget", [1, 30_000, 1 << 28])
def test_equal_neighbours_come_in_the_order_of_the_training_items(budget):
    base, _ = clouds(12, dim=5)
    train = np.concatenate([base, 3 * base, base, 2 * base])  # every direction four times: powers of two are exact
    _, index, _ = next(nearest(train[[*range(12), *range(24, 48)]], base[:1], 3, budget=budget))
    assert index.tolist() == [[0, 12, 24]]


def test_float32_does_not_decide_among_close_neighbours():
    """Cosines apart by 1e-10: float32 can't tell them apart."""
    angles = np.array([4e-5, 3e-5, 1e-5, 2e-5, 0.0])
    train = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    _, index, _ = next(nearest(train, np.array([[1.0, 0.0]]), 5))
    assert index.tolist() == [[4, 2, 3, 1, 0]]


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_dino_arithmetic_is_a_second_implementation(spread):
    (train, y), (test, target) = clouds(200, spread=spread), clouds(150, spread=spread, seed=1)
    results = knn_dino(train, y, test, target, k=(20, 10, 1, 200))
    assert [result.settings["k"] for result in results] == [20, 10, 1, 200]
    for result in results:
        assert result.figures()["top1"] == dino(train, y, test, target, result.settings["k"], 0.07)
    if spread == 0.1:
        assert results[0].figures()["top1"] == 1
    if spread == 1.0:
        assert 1 / 6 < results[0].figures()["top1"] < 0.9


def test_rule_name_says_the_rule():
    (train, y), (test, target) = clouds(50), clouds(20, seed=1)
    assert [result.rule for result in knn_dino(train, y, test, target)] == ["knn-dino-k20-t0.07", "knn-dino-k10-t0.07"]


def test_votes_weigh_by_nearness():
    """One near neighbour beats two far ones at 0.07, and loses to them where all weigh nearly the same."""
    train, y = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]), [0, 1, 1]
    assert knn_dino(train, y, [[1.0, 0.0]], [0], k=(3,))[0].figures()["top1"] == 1
    assert knn_dino(train, y, [[1.0, 0.0]], [0], k=(3,), temperature=100)[0].figures()["top1"] == 0


def test_figures_do_not_depend_on_scale_order_budget_or_labels_used():
    (train, y), (test, target) = clouds(), clouds(80, seed=1)
    want = knn_dino(train, y, test, target)
    order = np.random.default_rng(2).permutation(len(y))
    lengths = np.random.default_rng(3).uniform(0.01, 1000, (len(y), 1))
    others = (
        knn_dino((train * lengths)[order], y[order], 1e-3 * test, target),
        knn_dino(train, y, test, target, budget=50_000),
        knn_dino(torch.from_numpy(train), y * 7 + 3, torch.from_numpy(test), target * 7 + 3),
    )
    for got in others:
        assert [result.figures() for result in got] == [result.figures() for result in want]


def test_tied_votes_and_tied_neighbours_are_said():
    train, y = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), [0, 1, 0, 1]
    result = knn_dino(train, y, train, y, k=(2, 1))
    assert result[0].figures() == pytest.approx(
        {"top1": 0, "top5": float("nan"), "mean_per_class": 0, "n_nonfinite": 0, "tie_fraction": 1}, nan_ok=True
    )
    assert [each.settings["tied_neighbours"] for each in result] == [0, 1]


def test_constant_features_do_not_beat_chance():
    target = np.arange(60) % 6
    result = knn_dino(np.ones((60, 4)), target, np.ones((60, 4)), target)[0]
    assert result.figures()["top1"] <= 1 / 6
    assert result.settings["tied_neighbours"] == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_test_item_is_wrong_and_changes_no_other(bad):
    (train, y), (test, target) = clouds(spread=0.1), clouds(40, spread=0.1, seed=1)
    test[3, 2] = bad
    result = knn_dino(train, y, test, target)[0]
    assert result.rank[3] == np.inf
    assert result.figures()["top1"] == 39 / 40
    assert result.figures()["n_nonfinite"] == 1


def test_a_class_that_training_lacks_is_wrong():
    train, y = clouds(60, spread=0.1)
    result = knn_dino(train, y + 1, train[:2], [0, 99])[0]
    assert result.rank.tolist() == [np.inf, np.inf]


def test_no_test_items():
    train, y = clouds(60)
    figures = knn_dino(train, y, train[:0], y[:0])[0].figures()
    assert np.isnan(figures["top1"])


def test_memory_stays_within_the_budget_where_all_similarities_would_not():
    (train, y), (test, target) = clouds(1500, dim=8), clouds(500, dim=8, seed=1)
    budget = 1 << 20  # all similarities: 3 MB, in float32
    with Largest() as largest:
        got = knn_dino(train, y, test, target, budget=budget)
    assert 50_000 < largest.bytes < budget / 2
    tracemalloc.start()  # sees numpy, not torch
    try:
        knn_dino(train, y, test, target, budget=budget)
        assert tracemalloc.get_traced_memory()[1] < budget
    finally:
        tracemalloc.stop()
    assert [result.figures() for result in got] == [result.figures() for result in knn_dino(train, y, test, target)]


GOOD = {"train": np.eye(4), "train_labels": [0, 1, 0, 1], "test": np.eye(4), "test_labels": [0, 1, 0, 1], "k": (2,)}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"train": np.ones(4)}, r"training features must be \(N, D\) real numbers"),
        ({"test": np.ones((4, 0))}, "test features must be .* with D >= 1"),
        ({"train": [["a"] * 4] * 4}, "training features must be .* real numbers"),
        ({"train_labels": [0, 1]}, r"training labels must be \(4,\), one a row, got \(2,\)"),
        ({"test_labels": [0.5] * 4}, "test labels must be class indices"),
        ({"test_labels": [0, 1, 2, -1]}, "test labels must be class indices of at least 0, got -1"),
        ({"test": np.ones((4, 3))}, "differ in length, 4 and 3"),
        ({"train_labels": [1, 1, 1, 1]}, "2 classes or more, got 1"),
        ({"train": np.diag([1, 1, float("nan"), 1])}, "training item 2 has a NaN or infinite feature"),
        ({"k": (5,)}, r"every k must be in 1..4, the count of training items, got \(5,\)"),
        ({"k": ()}, r"every k must be in 1..4"),
        ({"k": (0, 1)}, r"every k must be in 1..4"),
        ({"temperature": 0}, "temperature must be positive, got 0"),
    ],
)
def test_errors(changed, sentence):
    assert knn_dino(**GOOD)[0].figures()["top1"] == 1
    with pytest.raises(ValueError, match=sentence):
        knn_dino(**GOOD | changed)


def test_error_of_nearest():
    with pytest.raises(ValueError, match=r"nearest: k must be in 1..4, the count of training items, got 5"):
        next(nearest(np.eye(4), np.eye(4), 5))
