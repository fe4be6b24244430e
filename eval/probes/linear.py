"""Linear classifiers on frozen features, by two published rules that differ by up to two points.

Both cut validation items from the training items, choose one setting on them, train again on all training items and
read the test items once. Everything drawn comes from the seed.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from foveal.eval.metrics.classification import FloatArray
from foveal.eval.probes.common import ROWS, Labels, ProbeResult, check_pair, checked, coarse_to_fine, cut, ranks, unit

Device = str | torch.device
Fit = Callable[[Tensor, Tensor, int, float], tuple[Tensor, Tensor]]  # features, columns, classes, setting -> W, b
POINTS = 97
C_VALUES = np.logspace(-6, 6, POINTS)  # 8 a decade
WEIGHT_DECAYS = np.logspace(-6, 2, POINTS)
BLOCK_NUMBERS = 1 << 24  # scores held at one time


def linear_clip_lbfgs(
    train: Any,
    train_labels: ArrayLike,
    test: Any,
    test_labels: ArrayLike,
    *,
    validation: float = 0.1,
    seed: int = 0,
    iterations: int = 1000,
    device: Device = "cpu",
) -> ProbeResult:
    """The CLIP paper's linear probe: logistic regression fitted by L-BFGS in float64, its C chosen on validation items.

    Args:
        train, test: (M, D) and (N, D) features of one model; made unit here.
        train_labels, test_labels: (M,) and (N,) class indices.
        validation: share of each training class held out while C is chosen.
        seed: of that cut.
        iterations: most steps of L-BFGS in a fit.
        device: where the fits run.
    Returns:
        Its settings have "C", out of 97 in 1e-6..1e6, searched coarse to fine; "validation_top1" at it;
        "train" and "validation", the counts of items. C weighs the loss as in scikit-learn; the smaller of equals.
    Raises:
        ValueError: for shapes that do not fit, a training feature that is not finite, fewer than 2 training classes,
            a share outside 0..1, or no class with 2 items.
    Source: CLIP (arXiv:2103.00020), A.3 (features made unit as CLIP_benchmark does); protocol book, section 1.

    >>> x = np.array([[1.0, 0.1 * i] for i in range(-9, 0)] + [[1.0, 0.1 * i] for i in range(1, 10)])
    >>> result = linear_clip_lbfgs(x, [0] * 9 + [1] * 9, x[::4], [0, 0, 0, 1, 1])
    >>> result.rule, result.figures()["top1"]
    ('linear-clip-lbfgs', 1.0)
    """
    return _probe(
        "linear-clip-lbfgs",
        partial(fit_logistic, iterations=iterations),
        ("C", C_VALUES),
        (train, train_labels, test, test_labels),
        validation,
        seed,
        device,
        torch.float64,
        {"iterations": iterations},
    )


def linear_clip_benchmark_adamw(
    train: Any,
    train_labels: ArrayLike,
    test: Any,
    test_labels: ArrayLike,
    *,
    validation: float = 0.1,
    seed: int = 0,
    epochs: int = 10,
    lr: float = 0.1,
    batch_size: int = 64,
    device: Device = "cpu",
) -> ProbeResult:
    """CLIP_benchmark's linear probe: one linear layer trained by AdamW, its weight decay chosen on validation items.

    Args:
        train, test, train_labels, test_labels, validation, device: as in `linear_clip_lbfgs`.
        seed: of the cut, of the first weights and of the order of the items in each epoch; the same in every fit.
        epochs, lr, batch_size: of training; the rate falls to 0 as a half cosine, a step at a time.
    Returns:
        Its settings have "weight_decay", out of 97 in 1e-6..1e2, searched coarse to fine; the rest as in
        `linear_clip_lbfgs`. The reference runs under autocast, this in float32.
    Raises:
        ValueError: as `linear_clip_lbfgs`, and for epochs, lr or batch_size that are not positive.
    Source: LAION-AI/CLIP_benchmark, clip_benchmark/metrics/linear_probe.py; protocol book, section 1.

    >>> x = np.array([[1.0, 0.1 * i] for i in range(-9, 0)] + [[1.0, 0.1 * i] for i in range(1, 10)])
    >>> result = linear_clip_benchmark_adamw(x, [0] * 9 + [1] * 9, x[::4], [0, 0, 0, 1, 1])
    >>> result.rule, result.figures()["top1"]
    ('linear-clip-benchmark-adamw', 1.0)
    """
    if epochs < 1 or not lr > 0 or batch_size < 1:
        raise ValueError(
            f"linear_clip_benchmark_adamw: epochs, lr and batch_size must be positive, got {epochs}, {lr}, {batch_size}"
        )
    options = {"epochs": epochs, "lr": lr, "batch_size": batch_size}
    return _probe(
        "linear-clip-benchmark-adamw",
        partial(_fit_adamw, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed),
        ("weight_decay", WEIGHT_DECAYS),
        (train, train_labels, test, test_labels),
        validation,
        seed,
        device,
        torch.float32,
        options,
    )


def _probe(
    rule: str,
    fit: Fit,
    choice: tuple[str, FloatArray],
    data: tuple[Any, ArrayLike, Any, ArrayLike],
    validation: float,
    seed: int,
    device: Device,
    dtype: torch.dtype,
    options: dict[str, Any],
) -> ProbeResult:
    x, y = checked(data[0], data[1], rule, "training")
    queries, target = checked(data[2], data[3], rule, "test")
    check_pair(x, y, queries, rule)
    kept, held = cut(y, validation, seed, rule)
    classes, column = np.unique(y, return_inverse=True)
    name, values = choice
    features = torch.cat(
        [torch.from_numpy(unit(x[start : start + ROWS])[0]).to(device, dtype) for start in range(0, len(x), ROWS)]
    )
    columns = torch.from_numpy(column.astype(np.int64)).to(device)
    kept_features, kept_columns = features[kept], columns[kept]

    def top1(index: int) -> float:
        weights = fit(kept_features, kept_columns, len(classes), float(values[index]))
        return float(np.mean(_ranks(weights, x[held], classes, y[held])[0] <= 1))

    found: dict[int, float] = {}
    best = coarse_to_fine(lambda index: found.setdefault(index, top1(index)), POINTS)
    weights = fit(features, columns, len(classes), float(values[best]))
    rank, tied, broken = _ranks(weights, queries, classes, target)
    settings = {name: float(values[best]), "validation_top1": found[best], "train": len(kept), "validation": len(held)}
    return ProbeResult(rule, target, rank, tied, len(classes), broken, settings | options | {"seed": seed})


def _ranks(
    weights: tuple[Tensor, Tensor], rows: NDArray[Any], classes: Labels, target: Labels
) -> tuple[FloatArray, NDArray[np.bool_], int]:
    matrix, bias = (part.double().cpu().numpy() for part in weights)
    rank, tied, broken = np.empty(len(rows)), np.empty(len(rows), dtype=bool), 0
    for start in range(0, len(rows), ROWS):
        part = slice(start, start + ROWS)
        features, finite = unit(rows[part])
        rank[part], tied[part] = ranks(features @ matrix + bias, classes, target[part], finite)
        broken += int((~finite).sum())
    return rank, tied, broken


def fit_logistic(
    features: Tensor, columns: Tensor, classes: int, c: float, *, iterations: int = 1000, tolerance: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression: the weights that scikit-learn's LogisticRegression(C=c) has its minimum at.

    Args:
        features: (N, D) float64; columns: (N,) int64 in 0..classes-1; c: weight of the loss against half the squared
            length of the weights; the bias is free. For 2 classes that length is of the difference of the two rows.
        iterations: most steps; tolerance: largest gradient of the mean loss to stop at.
    Returns:
        (D, classes) weights and (classes,) bias.

    >>> x, y = torch.tensor([[-1.0], [1.0], [2.0]], dtype=torch.float64), torch.tensor([0, 1, 2])
    >>> (x @ fit_logistic(x, y, 3, 100.0)[0] + fit_logistic(x, y, 3, 100.0)[1]).argmax(dim=1).tolist()
    [0, 1, 2]
    """
    n, dim = features.shape
    penalty = (2 if classes == 2 else 1) / (c * n)
    both = torch.zeros(dim + 1, classes, dtype=features.dtype, device=features.device)  # the last row is the bias
    step = max(1, BLOCK_NUMBERS // classes)
    optimizer = torch.optim.LBFGS(
        [both],
        max_iter=iterations,
        max_eval=2 * iterations,
        tolerance_grad=tolerance,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    @torch.no_grad()
    def loss() -> Tensor:
        gradient, total = torch.zeros_like(both), penalty / 2 * both[:-1].square().sum()
        for start in range(0, n, step):
            x, y = features[start : start + step], columns[start : start + step]
            log = F.log_softmax(x @ both[:-1] + both[-1], dim=1)
            total = total - log.gather(1, y[:, None]).sum() / n
            wrong = log.exp_()
            wrong[torch.arange(len(y), device=y.device), y] -= 1
            gradient[:-1] += x.T @ wrong / n
            gradient[-1] += wrong.sum(dim=0) / n
        gradient[:-1] += penalty * both[:-1]
        both.grad = gradient
        return total

    optimizer.step(loss)
    return both[:-1], both[-1]


def _fit_adamw(
    features: Tensor,
    columns: Tensor,
    classes: int,
    weight_decay: float,
    *,
    epochs: int,
    lr: float,
    batch_size: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """(D, classes) weights and (classes,) bias after AdamW, from the first weights that a torch Linear has."""
    generator = torch.Generator().manual_seed(seed)
    n, dim = features.shape
    bound = 1 / math.sqrt(dim)
    weight, bias = (
        torch.empty(shape).uniform_(-bound, bound, generator=generator).to(features).requires_grad_()
        for shape in ((classes, dim), (classes,))
    )
    optimizer = torch.optim.AdamW([weight, bias], lr=lr, weight_decay=weight_decay)
    steps, step = epochs * math.ceil(n / batch_size), 0
    for _ in range(epochs):
        for part in torch.randperm(n, generator=generator).to(features.device).split(batch_size):
            optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            F.cross_entropy(F.linear(features[part], weight, bias), columns[part]).backward()
            optimizer.step()
            step += 1
    return weight.detach().T, bias.detach()
