"""Linear probes on frozen features: against scikit-learn, CLIP_benchmark's loop, brute-force search and known cases."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from foveal.eval.probes import linear
from foveal.eval.probes.common import ProbeResult, coarse_to_fine, cut, unit
from foveal.eval.probes.linear import fit_logistic, linear_clip_benchmark_adamw, linear_clip_lbfgs

NAN, INF = float("nan"), float("inf")
PROBES = [linear_clip_lbfgs, linear_clip_benchmark_adamw]
CHOSEN = {"linear-clip-lbfgs": "C", "linear-clip-benchmark-adamw": "weight_decay"}


def clouds(n=120, classes=3, dim=8, spread=0.3, seed=0):
    """Points around as many unit axes as there are classes."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(n) % classes)
    return (np.eye(classes, dim)[labels] + spread * generator.normal(size=(n, dim))).astype(np.float32), labels


def bayes(test, target, classes=3):
    """Top-1 of the rule that knows how `clouds` were made: the nearest axis."""
    return (test[:, :classes].argmax(axis=1) == target).mean()


@pytest.mark.parametrize("probe", PROBES)
def test_separable_features_are_separated(probe):
    (train, y), (test, target) = clouds(spread=0.05), clouds(60, spread=0.05, seed=1)
    result = probe(train, y, test, target)
    assert result.figures() == pytest.approx(
        {"top1": 1, "top5": NAN, "mean_per_class": 1, "n_nonfinite": 0, "tie_fraction": 0}, nan_ok=True
    )
    assert result.settings["validation_top1"] == 1
    assert result.settings["train"] + result.settings["validation"] == 120


@pytest.mark.parametrize("probe", PROBES)
def test_overlapping_features_come_near_the_best_rule_there_is(probe):
    (train, y), (test, target) = clouds(600, spread=0.5), clouds(600, spread=0.5, seed=1)
    best = bayes(test, target)
    assert 0.7 < best < 0.9
    assert abs(probe(train, y, test, target).figures()["top1"] - best) < 0.04


@pytest.mark.parametrize("probe", PROBES)
def test_labels_without_meaning_give_chance(probe):
    generator = np.random.default_rng(0)
    train, test = generator.normal(size=(200, 4)), generator.normal(size=(300, 4))
    result = probe(train, generator.integers(0, 2, 200), test, np.arange(300) % 2)
    assert abs(result.figures()["top1"] - 0.5) < 0.1


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("c", [1e-3, 1.0, 100.0])
def test_logistic_regression_has_scikit_learns_minimum(classes, c):
    x, y = clouds(100, classes, spread=0.5)
    want = LogisticRegression(C=c, max_iter=10000, tol=1e-10).fit(x.astype(np.float64), y)
    weight, bias = fit_logistic(torch.from_numpy(x).double(), torch.from_numpy(y), classes, c, tolerance=1e-9)
    probabilities = (torch.from_numpy(x).double() @ weight + bias).softmax(1).numpy()
    assert probabilities == pytest.approx(want.predict_proba(x.astype(np.float64)), abs=1e-5)
    if classes > 2:
        assert np.abs(weight.numpy().T - want.coef_).max() < 1e-4 * np.abs(want.coef_).max()


def test_logistic_regression_in_blocks_is_the_same(monkeypatch):
    x, y = (torch.from_numpy(each) for each in clouds(100))
    want = fit_logistic(x.double(), y, 3, 1.0)
    monkeypatch.setattr(linear, "BLOCK_NUMBERS", 21)  # 7 rows at a time
    got = fit_logistic(x.double(), y, 3, 1.0)
    assert torch.allclose(got[0], want[0], atol=1e-6)
    assert torch.allclose(got[1], want[1], atol=1e-6)


def test_adamw_is_clip_benchmarks_loop():
    """The reference's train(): a torch Linear, AdamW, a half cosine by step; same first weights, same batches."""
    x, y = (torch.from_numpy(each) for each in clouds(100))
    generator, layer = torch.Generator().manual_seed(3), nn.Linear(8, 3)
    first = [torch.empty(shape).uniform_(-(8**-0.5), 8**-0.5, generator=generator) for shape in ((3, 8), (3,))]
    layer.load_state_dict({"weight": first[0], "bias": first[1]})
    optimizer, step = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.5), 0
    for _ in range(4):
        order = torch.randperm(100, generator=generator)
        for start in range(0, 100, 32):
            for group in optimizer.param_groups:
                group["lr"] = 0.5 * (1 + np.cos(np.pi * step / 16)) * 0.1
            optimizer.zero_grad()
            part = order[start : start + 32]
            nn.CrossEntropyLoss()(layer(x[part]), y[part]).backward()
            optimizer.step()
            step += 1
    weight, bias = linear._fit_adamw(x, y, 3, 0.5, epochs=4, lr=0.1, batch_size=32, seed=3)
    assert torch.allclose(weight.T, layer.weight, atol=1e-6)
    assert torch.allclose(bias, layer.bias, atol=1e-6)


def test_first_weights_are_those_of_a_torch_linear():
    """By their range: uniform within one over the root of the features."""
    x, y = torch.zeros(1, 16), torch.zeros(1, dtype=torch.int64)
    weight, bias = linear._fit_adamw(x, y, 500, 0.0, epochs=1, lr=1e-12, batch_size=1, seed=0)
    for got, want in ((weight, nn.Linear(16, 500).weight), (bias, nn.Linear(16, 500).bias)):
        assert got.abs().max().item() == pytest.approx(0.25, abs=0.01)
        assert got.std().item() == pytest.approx(want.std().item(), rel=0.1)


def test_coarse_to_fine_finds_every_peak_and_asks_each_point_once():
    for peak in range(97):
        asked = []
        assert coarse_to_fine(lambda index, at=peak, seen=asked: seen.append(index) or -abs(index - at)) == peak
        assert len(asked) == len(set(asked)) <= 15
        assert asked[:7] == [0, 16, 32, 48, 64, 80, 96]


def test_coarse_to_fine_is_clip_benchmarks_search():
    def find_peak(scores, indices):  # the reference's; its accuracies are not negative
        best, most = 0, 0
        for index in indices:
            if most < scores[index]:
                best, most = index, scores[index]
        return best

    for seed in range(50):
        scores = np.random.default_rng(seed).integers(1, 6, 97)  # many ties
        peak, span = find_peak(scores, range(0, 97, 16)), 8
        while span > 0:
            peak = find_peak(scores, [max(peak - span, 0), peak, min(peak + span, 96)])
            span //= 2
        assert coarse_to_fine(lambda index, of=scores: of[index]) == peak


def test_settings_searched_are_those_of_the_protocol_book():
    assert len(linear.WEIGHT_DECAYS) == len(linear.C_VALUES) == 97
    assert linear.WEIGHT_DECAYS[[0, 12, -1]] == pytest.approx([1e-6, 1e-5, 1e2])
    assert linear.C_VALUES[[0, 8, -1]] == pytest.approx([1e-6, 1e-5, 1e6])


@pytest.mark.parametrize("probe", PROBES)
def test_the_setting_is_the_best_on_validation_items(probe):
    (train, y), (test, target) = clouds(90, spread=0.6), clouds(30, seed=1)
    result = probe(train, y, test, target, validation=0.3, seed=5)
    kept, held = cut(y, 0.3, 5, "test")
    features = torch.from_numpy(unit(train)[0])
    adamw = probe is linear_clip_benchmark_adamw
    scores = {}
    for index in {*range(0, 97, 16)}:
        value = float((linear.WEIGHT_DECAYS if adamw else linear.C_VALUES)[index])
        x, columns = features[kept], torch.from_numpy(y)[kept]
        if adamw:
            fitted = linear._fit_adamw(x.float(), columns, 3, value, epochs=10, lr=0.1, batch_size=64, seed=5)
        else:
            fitted = fit_logistic(x, columns, 3, value)
        answers = (features[held].to(fitted[0]) @ fitted[0] + fitted[1]).argmax(1)
        scores[index] = (answers.numpy() == y[held]).mean()
    assert result.settings["validation_top1"] >= max(scores.values()) > 0.5
    assert result.settings["validation"] == len(held) == 27


@pytest.mark.parametrize("probe", PROBES)
def test_the_test_items_are_read_once_and_decide_nothing(probe, monkeypatch):
    (train, y), (test, target) = clouds(90, spread=0.5), clouds(30, spread=0.5, seed=1)
    seen = []
    ranks = linear._ranks
    monkeypatch.setattr(linear, "_ranks", lambda *args: seen.append(args[1]) or ranks(*args))
    result = probe(train, y, test, target)
    assert sum(rows is test for rows in seen) == 1
    assert seen[-1] is test
    other = probe(train, y, -test[::-1], (target + 1) % 3)
    assert other.settings == result.settings


@pytest.mark.parametrize("probe", PROBES)
def test_the_seed_decides(probe):
    (train, y), (test, target) = clouds(90, spread=0.6), clouds(200, spread=0.6, seed=1)
    first, again, other = (probe(train, y, test, target, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.rank, again.rank)
    assert first.settings == again.settings
    assert other.settings | {"seed": 1} != first.settings
    state = torch.get_rng_state()
    probe(train, y, test, target)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("probe", PROBES)
def test_length_of_features_and_names_of_classes_change_nothing(probe):
    (train, y), (test, target) = clouds(60), clouds(30, seed=1)
    want = probe(train, y, test, target)
    got = probe(train * np.float32(4), y * 5 + 2, torch.from_numpy(test * np.float32(0.25)), target * 5 + 2)
    assert np.array_equal(got.rank, want.rank)


@pytest.mark.parametrize("probe", PROBES)
def test_rule_is_named_and_its_settings_given(probe):
    (train, y), (test, target) = clouds(60), clouds(30, seed=1)
    result = probe(train, y, test, target, seed=4)
    assert result.settings.keys() >= {CHOSEN[result.rule], "validation_top1", "train", "validation", "seed"}
    assert result.settings["seed"] == 4


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_non_finite_test_item_is_wrong_and_unseen_class_too(probe, bad):
    (train, y), (test, target) = clouds(60, spread=0.05), clouds(30, spread=0.05, seed=1)
    test[4, 0], target[5] = bad, 77
    result = probe(train, y, test, target)
    assert np.flatnonzero(result.rank > 1).tolist() == [4, 5]
    assert result.figures()["n_nonfinite"] == 1


def test_top5_with_enough_classes_and_no_items():
    result = ProbeResult("r", np.arange(6), np.array([1, 2, 5, 6, 1, INF]), np.zeros(6, bool), 6, 0, {})
    assert result.figures()["top5"] == 4 / 6
    assert result.figures()["top1"] == 2 / 6
    none = ProbeResult("r", np.arange(0), np.zeros(0), np.zeros(0, bool), 6, 0, {}).figures()
    assert math.isnan(none["top1"])
    assert math.isnan(none["tie_fraction"])


def test_cut_is_by_class_and_leaves_one():
    labels = np.repeat([0, 1, 2, 3], [100, 10, 2, 1])
    train, held = cut(labels, 0.1, 0, "test")
    assert sorted([*train, *held]) == list(range(113))
    assert np.bincount(labels[held], minlength=4).tolist() == [10, 1, 1, 0]
    assert cut(labels, 0.1, 0, "test")[1].tolist() == held.tolist() != cut(labels, 0.1, 1, "test")[1].tolist()
    assert np.bincount(labels[cut(labels, 0.999, 0, "test")[0]]).tolist() == [1, 1, 1, 1]


def test_unit_of_extreme_rows():
    rows = np.array([[1e300, 1e300], [1e-300, 0], [5e-324, 0]])
    assert unit(rows)[0] == pytest.approx(np.array([[0.5**0.5, 0.5**0.5], [1, 0], [1, 0]]))


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"train": np.ones(4)}, r"training features must be \(N, D\)"),
        ({"test_labels": [0]}, r"test labels must be \(4,\)"),
        ({"test": np.ones((4, 3))}, "differ in length, 4 and 3"),
        ({"train_labels": [1, 1, 1, 1]}, "2 classes or more, got 1"),
        ({"train": np.diag([1, 1, 1, INF])}, "training item 3 has a NaN or infinite feature; leave such out"),
        ({"validation": 0}, "validation must be a share between 0 and 1, got 0"),
        ({"validation": 1.0}, "validation must be a share between 0 and 1, got 1.0"),
        ({"train_labels": [0, 1, 2, 3]}, "no class has 2 training items"),
    ],
)
def test_errors(probe, changed, sentence):
    labels = [0, 1, 0, 1]
    good = {"train": np.eye(4), "train_labels": labels, "test": np.eye(4), "test_labels": labels}
    with pytest.raises(ValueError, match=sentence):
        probe(**good | changed)


@pytest.mark.parametrize("changed", [{"epochs": 0}, {"lr": 0.0}, {"batch_size": 0}])
def test_errors_of_training(changed):
    with pytest.raises(ValueError, match="epochs, lr and batch_size must be positive, got"):
        linear_clip_benchmark_adamw(np.eye(4), [0, 1, 0, 1], np.eye(4), [0, 1, 0, 1], **changed)
