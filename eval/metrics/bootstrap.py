"""Percentile bootstrap interval of any statistic, over the unit of independence."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rows = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def bootstrap_interval(
    items: Mapping[str, np.ndarray] | np.ndarray,
    statistic: Callable[[Any], float] | Literal["mean"],
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> tuple[float, float]:
    """Interval that holds the middle `level` of the statistic over resampled items.

    Args:
        items: (N, ...) array, or arrays by name that all have the same N; row i is item i in each.
        statistic: from resampled items, in the form they were given (an array, or a dict of arrays), to a number.
            "mean": the mean of (N,) items, the same interval as a callable mean, without gathering whole groups.
        resamples: how many times to draw, at least 1.
        seed: of numpy's PCG64; the same seed and items always give the same interval.
        level: between 0 and 1.
        groups: (N,) the unit of independence of each item (image, video, pair): as many whole groups are drawn as
            there are distinct ones, and an item comes along as often as its group. Without it each item is a unit.
    Returns:
        (low, high): the (1 - level) / 2 and (1 + level) / 2 quantiles, linear between the two nearest resamples.
        (nan, nan) with N = 0, or when the statistic of any resample is NaN. Infinite statistics are allowed.
    Raises:
        ValueError: for items of differing or no length, groups that are not (N,), "mean" of items that are not (N,),
            resamples below 1, or a level outside 0..1.
    Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13 (percentile interval).

    >>> bootstrap_interval(np.array([0.0, 1.0, 1.0, 1.0]), "mean")
    (0.25, 1.0)
    >>> bootstrap_interval({"hit": np.ones(3), "weight": np.arange(1, 4)}, lambda drawn: np.average(drawn["hit"]))
    (1.0, 1.0)
    """
    n = _count(items)
    if resamples < 1:
        raise ValueError(f"bootstrap_interval: resamples must be at least 1, got {resamples}")
    if not 0 < level < 1:
        raise ValueError(f"bootstrap_interval: level must be between 0 and 1, got {level}")
    if groups is not None and np.shape(groups) != (n,):
        raise ValueError(f"bootstrap_interval: groups must be ({n},), one for each item, got {np.shape(groups)}")
    if isinstance(statistic, str) and (statistic != "mean" or isinstance(items, Mapping) or np.ndim(items) != 1):
        raise ValueError(f"bootstrap_interval: a named statistic is 'mean', of one (N,) array; got {statistic!r}")
    if n == 0:
        return float("nan"), float("nan")

    unit = np.arange(n) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    draws = _draws(int(unit.max()) + 1, resamples, seed)
    if isinstance(statistic, str):
        values = _means(np.asarray(items, dtype=np.float64), unit, draws)
    else:
        rows = _rows_of(unit)
        values = [float(statistic(_take(items, rows(drawn)))) for drawn in draws]
    ordered = np.sort(values)  # NaN last
    if np.isnan(ordered[-1]):
        return float("nan"), float("nan")
    return _quantile(ordered, (1 - level) / 2), _quantile(ordered, (1 + level) / 2)


def _count(items: Mapping[str, np.ndarray] | np.ndarray) -> int:
    arrays = items if isinstance(items, Mapping) else {"items": items}
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    if not shapes or () in shapes.values() or len({shape[0] for shape in shapes.values()}) > 1:
        raise ValueError(f"bootstrap_interval: items must be arrays with one common first length, got {shapes}")
    return next(iter(shapes.values()))[0]


def _draws(units: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Units of each resample, drawn with replacement; one resample is held at a time."""
    generator = np.random.Generator(np.random.PCG64(seed))
    for _ in range(resamples):
        yield generator.integers(0, units, size=units)


def _means(values: NDArray[np.float64], unit: NDArray[np.int64], draws: Iterator[NDArray[np.int64]]) -> list[float]:
    """Mean of each resample, from the sum and count of each unit."""
    total, count = np.bincount(unit, weights=values), np.bincount(unit)
    return [float(total[drawn].sum() / count[drawn].sum()) for drawn in draws]


def _rows_of(unit: NDArray[np.int64]) -> Rows:
    """Function from drawn units to the item rows they stand for, units in the order drawn, rows in their own."""
    order, size = np.argsort(unit, kind="stable"), np.bincount(unit)
    start = np.cumsum(size) - size

    def rows(drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = size[drawn]
        before = np.cumsum(sizes) - sizes  # rows that earlier units fill
        return order[np.arange(sizes.sum()) + np.repeat(start[drawn] - before, sizes)]

    return rows


def _take(items: Mapping[str, np.ndarray] | np.ndarray, rows: NDArray[np.int64]) -> Any:
    if isinstance(items, Mapping):
        return {name: np.asarray(array)[rows] for name, array in items.items()}
    return np.asarray(items)[rows]


def _quantile(ordered: NDArray[np.float64], q: float) -> float:
    """Linear quantile of sorted numbers; right beside inf too, where numpy takes inf - inf and gives nan."""
    place = q * (len(ordered) - 1)
    low = int(place)
    below, above = float(ordered[low]), float(ordered[min(low + 1, len(ordered) - 1)])
    return below if place == low else below * (1 - (place - low)) + above * (place - low)
