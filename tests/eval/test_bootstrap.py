"""Bootstrap intervals: against a plain reimplementation, a known interval and known cases."""

import math

import numpy as np
import pytest

from foveal.eval.metrics.bootstrap import bootstrap_interval
from foveal.eval.metrics.calibration import ece_from_confidence
from foveal.eval.metrics.classification import mean_per_class

NAN, INF = float("nan"), float("inf")


def brute_force(values, statistic, groups, resamples=200, seed=0):
    """The same interval by loops over lists, with numpy's quantile."""
    members = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    names = sorted(members)
    generator = np.random.Generator(np.random.PCG64(seed))
    figures = []
    for _ in range(resamples):
        rows = [row for drawn in generator.integers(0, len(names), size=len(names)) for row in members[names[drawn]]]
        figures.append(statistic(np.array([values[row] for row in rows])))
    return pytest.approx(tuple(np.quantile(figures, [0.025, 0.975])), rel=1e-12)


def draw(n=60, seed=1):
    generator = np.random.default_rng(seed)
    return generator.normal(size=n), generator.integers(0, 12, size=n)


@pytest.mark.parametrize("statistic", [np.mean, np.median, np.std], ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", ["items", "integers", "names"])
def test_equal_to_brute_force(statistic, kind):
    values, integers = draw()
    groups = {"items": None, "integers": integers, "names": [f"video {each}" for each in integers]}[kind]
    want = brute_force(values, statistic, range(60) if groups is None else groups)
    assert bootstrap_interval(values, statistic, resamples=200, groups=groups) == want
    if statistic is np.mean:
        assert bootstrap_interval(values, "mean", resamples=200, groups=groups) == want


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_near_the_binomial_interval(level):
    hits = np.arange(1000) < 300
    half = {0.5: 0.674490, 0.95: 1.959964}[level] * math.sqrt(0.3 * 0.7 / 1000)  # normal quantiles
    low, high = bootstrap_interval(hits, "mean", resamples=2000, level=level)
    assert (low, high) == pytest.approx((0.3 - half, 0.3 + half), abs=0.004)


def test_copies_within_groups_add_no_certainty():
    values, _ = draw(n=40)
    copies, groups = np.repeat(values, 5), np.repeat(np.arange(40), 5)
    single = bootstrap_interval(values, "mean")
    assert bootstrap_interval(copies, "mean", groups=groups) == pytest.approx(single, rel=1e-12)
    low, high = bootstrap_interval(copies, "mean")
    assert high - low < 0.6 * (single[1] - single[0])


def test_arrays_by_name_are_drawn_together():
    values, _ = draw()
    seen = []

    def statistic(drawn):
        seen.append(np.array_equal(drawn["pair"][:, 1], 2 * drawn["value"]))
        return drawn["value"].mean()

    items = {"value": values, "pair": np.stack([values, 2 * values], axis=1)}
    assert bootstrap_interval(items, statistic) == pytest.approx(bootstrap_interval(values, "mean"), rel=1e-12)
    assert seen == [True] * 1000


def test_metrics_of_this_folder_can_be_resampled():
    generator = np.random.default_rng(0)
    sure, target = generator.uniform(0.5, 1, size=300), generator.integers(0, 3, size=300)
    items = {"sure": sure, "right": generator.random(300) < sure, "target": target}
    error = bootstrap_interval(items, lambda drawn: ece_from_confidence(drawn["sure"], drawn["right"]), resamples=50)
    assert 0 <= error[0] < error[1] < 0.3
    recall = bootstrap_interval(items, lambda drawn: mean_per_class(drawn["right"], drawn["target"]), resamples=50)
    assert recall[0] < mean_per_class(items["right"], target) < recall[1]


def test_same_seed_same_interval():
    values, groups = draw()
    first = bootstrap_interval(values, np.median, groups=groups)
    assert bootstrap_interval(values, np.median, groups=groups) == first
    assert bootstrap_interval(values, np.median, groups=groups, seed=1) != first


def test_wider_level_is_wider():
    values, _ = draw()
    narrow, wide = (bootstrap_interval(values, "mean", level=level) for level in (0.8, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("groups", [None, [7]])
@pytest.mark.parametrize("statistic", ["mean", np.median])
def test_one_item_is_its_own_interval(statistic, groups):
    assert bootstrap_interval(np.array([0.3]), statistic, groups=groups) == (0.3, 0.3)


def test_one_resample_is_its_own_interval():
    low, high = bootstrap_interval(draw()[0], "mean", resamples=1)
    assert low == high


@pytest.mark.parametrize("groups", [None, []])
@pytest.mark.parametrize("items", [np.zeros(0), {"a": np.zeros(0), "b": np.zeros((0, 3))}])
def test_no_items_give_nan(items, groups):
    assert all(map(math.isnan, bootstrap_interval(items, lambda drawn: 1 / 0, groups=groups)))


@pytest.mark.parametrize("statistic", ["mean", np.mean])
def test_nan_statistic_gives_nan(statistic):
    assert all(map(math.isnan, bootstrap_interval(np.array([NAN, 1.0, 2.0]), statistic)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("statistic", ["mean", np.mean])
def test_infinite_statistics_are_ordered_not_lost(statistic):
    assert bootstrap_interval(np.array([INF, INF]), statistic) == (INF, INF)
    low, high = bootstrap_interval(np.array([INF, *[1.0] * 5]), statistic)  # a third of the resamples has no inf
    assert (low, high) == (1, INF)
    low, high = bootstrap_interval(np.array([-INF, *[1.0] * 5]), statistic)
    assert (low, high) == (-INF, 1)


def test_quantile_on_a_resample_beside_an_infinite_one():
    figures = iter([INF, 2.0, INF, 1.0, INF])  # the quartiles of five are the second and the fourth
    assert bootstrap_interval(np.zeros(3), lambda drawn: next(figures), resamples=5, level=0.5) == (2, INF)


@pytest.mark.parametrize(
    ("items", "statistic", "options", "message"),
    [
        (np.zeros(3), "mean", {"resamples": 0}, "resamples must be at least 1, got 0"),
        (np.zeros(3), "mean", {"level": 1.0}, r"level must be between 0 and 1, got 1\.0"),
        (np.zeros(3), "mean", {"level": 95}, "level must be between 0 and 1, got 95"),
        (np.zeros(3), "mean", {"groups": [0, 1]}, r"groups must be \(3,\), one for each item, got \(2,\)"),
        (np.zeros(3), "median", {}, r"a named statistic is 'mean', of one \(N,\) array; got 'median'"),
        (np.zeros((3, 2)), "mean", {}, r"a named statistic is 'mean', of one \(N,\) array"),
        ({"a": np.zeros(3)}, "mean", {}, r"a named statistic is 'mean', of one \(N,\) array"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, np.mean, {}, r"one common first length, got {'a': \(3,\), 'b': \(2,\)}"),
        ({}, np.mean, {}, "items must be arrays with one common first length, got {}"),
        (np.float64(1), np.mean, {}, r"one common first length, got {'items': \(\)}"),
    ],
)
def test_bad_input_is_refused(items, statistic, options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(items, statistic, **options)
