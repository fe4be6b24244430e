"""Weighted nearest neighbours on frozen features, by DINO's rule, a block at a time."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from foveal.eval.metrics.classification import FloatArray
from foveal.eval.probes.common import Labels, ProbeResult, check_pair, checked, ranks, unit

BUDGET = 256 << 20  # bytes
SPARE = 8  # neighbours beyond k that float32 may have ordered wrongly; float64 decides among them
MOST_QUERIES = 1024


def nearest(
    train: Any, test: Any, k: int, *, budget: int = BUDGET, device: str | torch.device = "cpu"
) -> Iterator[tuple[FloatArray, Labels, NDArray[np.bool_]]]:
    """The k training items of largest cosine similarity for each test item, block by block of test items.

    The N x M similarities never exist at once: blocks of both sides are compared in float32, the best few are kept,
    and their order is decided in float64; of equal ones the lower training index comes first.

    Args:
        train: (M, D) finite features, M at least k; test: (N, D). Neither has to be of length 1.
        k: how many.
        budget: bytes for what a block needs; down to one test item against one training item at a time.
        device: where similarities are computed.
    Returns:
        Of each block in order: (n, k) float64 cosines, largest first; (n, k) training indices; (n,) whether the test
        feature is finite (one that is not is compared as zeros).
    Raises:
        ValueError: when k is below 1 or above M.

    >>> train = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    >>> [(index.tolist(), cosine.round(3).tolist()) for cosine, index, _ in nearest(train, train[:1], 2)]
    [([[0, 2]], [[1.0, 0.707]])]
    """
    train, test = np.asarray(train), np.asarray(test)
    if not 1 <= k <= len(train):
        raise ValueError(f"nearest: k must be in 1..{len(train)}, the count of training items, got {k}")
    keep, dim = min(k + SPARE, len(train)), train.shape[1]
    per_query = 8 * dim * (5 * keep + 6)  # kept features in float64, a few times over
    queries = int(np.clip(budget // 2 // per_query, 1, min(MOST_QUERIES, max(len(test), 1))))
    items = int(np.clip(budget // 2 // (20 * queries + 40 * dim), 1, len(train)))
    for start in range(0, len(test), queries):
        exact, finite = unit(test[start : start + queries])
        query = torch.from_numpy(exact).to(device, torch.float32)
        values = torch.empty(len(query), 0, device=device)
        index = torch.empty(len(query), 0, dtype=torch.int64, device=device)
        for first in range(0, len(train), items):
            block = torch.from_numpy(unit(train[first : first + items])[0]).to(device, torch.float32)
            found, place = _best(query @ block.T, keep)
            both = torch.cat([values, found], dim=1), torch.cat([index, place + first], dim=1)
            values, place = _best(both[0], keep)
            index = both[1].gather(1, place)
        yield *_in_order(exact, train, index.cpu().numpy(), k), finite


def _best(values: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` largest of each row in order of their places; of equal ones at the border the first places."""
    if values.shape[1] <= keep:
        return values, torch.arange(values.shape[1], device=values.device).expand(values.shape)
    found, place = values.topk(keep + 1, dim=1, sorted=True)
    place = place[:, :keep].sort(dim=1).values
    tied = found[:, keep - 1] == found[:, keep]
    if tied.any():  # which of equal ones topk takes is its own affair
        rows, least = values[tied], found[tied, keep, None]
        wanted = keep - (rows > least).sum(dim=1, keepdim=True)
        equal = rows == least
        equal &= equal.cumsum(dim=1, dtype=torch.int32) <= wanted
        place[tied] = ((rows > least) | equal).nonzero()[:, 1].view(len(rows), keep)
    return values.gather(1, place), place


def _in_order(query: FloatArray, train: NDArray[Any], index: Labels, k: int) -> tuple[FloatArray, Labels]:
    """The k best of the kept neighbours (n, keep), which come in order of their index, by their float64 cosine."""
    kept = unit(train[index.ravel()])[0].reshape(*index.shape, -1)  # (n, keep, D)
    kept *= query[:, None]
    cosine = kept.sum(axis=2)  # not a matrix product: equal rows have to give equal sums
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(cosine, order, axis=1), np.take_along_axis(index, order, axis=1)


def knn_dino(
    train: Any,
    train_labels: ArrayLike,
    test: Any,
    test_labels: ArrayLike,
    *,
    k: Sequence[int] = (20, 10),
    temperature: float = 0.07,
    budget: int = BUDGET,
    device: str | torch.device = "cpu",
) -> list[ProbeResult]:
    """k-NN classification by DINO's rule: each neighbour votes for its class with the weight exp(cosine / 0.07).

    Args:
        train, test: (M, D) and (N, D) features of one model; made unit here.
        train_labels, test_labels: (M,) and (N,) class indices.
        k: counts of neighbours; all are answered from one search.
        temperature: of the weights.
        budget, device: as in `nearest`.
    Returns:
        A result for each k, in the order given; "tied_neighbours" among its settings is the share of test items whose
        k-th and next neighbour are equally near, where the lower training index decided.
    Raises:
        ValueError: for shapes that do not fit, a training feature that is not finite, fewer than 2 training classes,
            a k that is not in 1..M, or a temperature that is not positive.
    Source: DINO (arXiv:2104.14294), eval_knn.py; votes in float64, ties pessimistic (protocol book, sections 0 and 1).

    >>> train, labels = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> result = knn_dino(train, labels, np.eye(3), [0, 1, 0], k=(3,))[0]
    >>> result.rule, result.figures()["mean_per_class"]
    ('knn-dino-k3-t0.07', 0.75)
    """
    x, y = checked(train, train_labels, "knn_dino", "training")
    queries, target = checked(test, test_labels, "knn_dino", "test")
    check_pair(x, y, queries, "knn_dino")
    if not k or not all(1 <= each <= len(x) for each in k):
        raise ValueError(f"knn_dino: every k must be in 1..{len(x)}, the count of training items, got {tuple(k)}")
    if not temperature > 0:
        raise ValueError(f"knn_dino: temperature must be positive, got {temperature}")
    classes, column = np.unique(y, return_inverse=True)
    one_more = min(max(k) + 1, len(x))
    rank, tied = np.full((len(k), len(target)), np.inf), np.zeros((len(k), len(target)), dtype=bool)
    border = np.zeros(len(k), dtype=np.int64)
    broken = start = 0
    for cosine, index, finite in nearest(x, queries, one_more, budget=budget, device=device):
        part = slice(start, start + len(index))
        weight = np.exp((cosine - 1) / temperature)  # the factor exp(-1 / temperature) of all keeps it in 0..1
        for row, each in enumerate(k):
            votes = np.zeros((len(index), len(classes)))
            np.add.at(votes, (np.arange(len(index))[:, None], column[index[:, :each]]), weight[:, :each])
            rank[row, part], tied[row, part] = ranks(votes, classes, target[part], finite)
            if each < one_more:
                border[row] += int((cosine[:, each - 1] == cosine[:, each])[finite].sum())
        broken += int((~finite).sum())
        start = part.stop
    return [
        ProbeResult(
            rule=f"knn-dino-k{each}-t{temperature:g}",
            target=target,
            rank=rank[row],
            tied=tied[row],
            classes=len(classes),
            n_nonfinite=broken,
            settings={
                "k": each,
                "temperature": temperature,
                "tied_neighbours": float(border[row] / len(target)) if len(target) else 0.0,
            },
        )
        for row, each in enumerate(k)
    ]
