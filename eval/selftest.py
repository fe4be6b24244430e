"""Runs the protocol book's vector files against the metrics of this package: `foveal selftest --vectors DIR`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foveal.eval.benchmark import DataMissing
from foveal.eval.metrics.calibration import ece
from foveal.eval.metrics.classification import mean_per_class, target_rank, topk_accuracy
from foveal.eval.metrics.multilabel import average_precision, multilabel_map
from foveal.eval.metrics.vectors import agrees, load_vectors

Status = Literal["passed", "failed", "not there"]
Given = dict[str, Any]
Evaluate = Callable[[Given], dict[str, Any]]

FAILED = 5  # exit code
NOT_COMPARED = "measured"  # figures that a file gives for information
BOUND = "_below"  # ends the name of an upper bound on the figure before it


def _topk(given: Given) -> dict[str, Any]:
    logits, target, k = given["logits"], given["target"], given["k"]

    def figures(name: str = "top", scale: float = 1, **options: Any) -> dict[str, float]:
        found = topk_accuracy(logits, target, k, **options)
        return {f"{name}{each}": scale * found[f"top{each}"] for each in k} | {"n_nonfinite": found["n_nonfinite"]}

    return {
        "clip_benchmark": figures("acc"),
        "timm": figures(scale=100, k_exceeds="clip"),
        "sklearn": {"mean_per_class_recall": mean_per_class(target_rank(logits, target) <= 1, target)},
        "pessimistic_rule": figures(ties="pessimistic"),
        "argmax_first_rule": figures(ties="argmax_first"),
        "our_rule": figures(),
    }


def _calibration(given: Given) -> dict[str, Any]:
    return {
        "temperature_scaling": {"ece": ece(**given)},
        "torchmetrics": {
            "ece_l1": ece(**given, edges="left_closed"),
            "mce_max": ece(**given, edges="left_closed", norm="max"),
            "rms_l2": ece(**given, edges="left_closed", norm="l2"),
        },
    }


def _multilabel(given: Given) -> dict[str, Any]:
    scores, targets = given["scores"], given["targets"]
    return {
        "clip_benchmark": {
            "ap": average_precision(scores, targets, ties="clip_benchmark"),
            "map": multilabel_map(scores, targets, ties="clip_benchmark")["map"],
        },
        "sklearn": {
            "ap": average_precision(scores, targets, ties="sklearn"),
            "map": multilabel_map(scores, targets, ties="sklearn")["map"],
        },
    }


METRICS: dict[str, Evaluate] = {
    "calibration_ece": _calibration,
    "classification_topk": _topk,
    "multilabel_map": _multilabel,
}
"""From the name of a vector file to what gives its figures: a vector's input -> {reference key: figures}."""


@dataclass(frozen=True)
class Outcome:
    """What came of one vector file.

    Attributes:
        file: its name.
        status: "not there" when no metric of this package evaluates it yet.
        note: how much was compared, or the first thing that was wrong.
    """

    file: str
    status: Status
    note: str

    def __str__(self) -> str:
        return f"{self.status:9} {self.file}: {self.note}"


def selftest(folder: str | Path, metrics: Mapping[str, Evaluate] = METRICS) -> list[Outcome]:
    """Every vector file of a folder, by name: each figure that a reference gave, against the metric of that name.

    A file passes when every reference of every vector is produced and agrees within the file's own tolerances. Of a
    name that ends in "_below" the figure has to be below; "measured" is for information. A metric may give more.

    Args:
        folder: with vector files, JSON; the folders in it are not looked into.
        metrics: what gives the figures, by file name without ".json".
    Raises:
        DataMissing: when there is no such folder or no JSON file in it.
    Source: protocol book, section 19.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = '{"schema": "vector-v1", "atol": 0, "rtol": 0, "vectors": [{"id": "one", "input": [1, 2], '
    ...     _ = Path(folder, "total.json").write_text(text + '"expected": {"numpy": {"sum": 4}}}]}')
    ...     print(*selftest(folder, {"total": lambda given: {"numpy": {"sum": sum(given)}}}))
    failed    total.json: one, numpy: sum is 3, expected 4
    """
    folder = Path(folder).expanduser()
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataMissing(f"{folder}: no vector files (*.json) in it; pass the vectors folder of the protocol book")
    return [_outcome(path, metrics.get(path.stem)) for path in paths]


def main(folder: str | Path, say: Callable[[str], object] = print) -> int:
    """Says a line a file and a last line of counts; gives the exit code: 0, or 5 when a file failed.

    Raises:
        DataMissing: as `selftest`.
    """
    outcomes = selftest(folder)
    for outcome in outcomes:
        say(str(outcome))
    passed, failed, absent = (
        sum(outcome.status == status for outcome in outcomes) for status in ("passed", "failed", "not there")
    )
    say(f"{passed} passed, {failed} failed, {absent} not there")
    return FAILED if failed else 0


def _outcome(path: Path, evaluate: Evaluate | None) -> Outcome:
    try:
        book = load_vectors(path)
        vectors, atol, rtol = book["vectors"], float(book["atol"]), float(book["rtol"])
        if not vectors:
            raise ValueError("it has no vectors")
        if evaluate is None:
            return Outcome(path.name, "not there", f"no metric here evaluates it yet ({len(vectors)} vectors)")
        compared = 0
        for vector in vectors:
            wrong, figures = _compare(evaluate(vector["input"]), vector["expected"], atol, rtol)
            if wrong:
                return Outcome(path.name, "failed", f"{vector['id']}, {wrong}")
            compared += figures
        return Outcome(path.name, "passed", f"{len(vectors)} vectors, {compared} figures")
    except Exception as error:  # a damaged file, or a metric that can't take its input, is a failure and not the end
        return Outcome(path.name, "failed", f"{type(error).__name__}: {error}")


def _compare(got: dict[str, Any], want: dict[str, Any], atol: float, rtol: float) -> tuple[str | None, int]:
    """What is wrong first, if anything, and how many figures were compared."""
    if not want:
        return "no reference gives a figure", 0
    compared = 0
    for key, figures in want.items():
        if key not in got:
            return f"{key}: this reference is not produced", compared
        if not isinstance(figures, dict):
            figures, got = {"the figure": figures}, got | {key: {"the figure": got[key]}}
        for name, value in figures.items():
            if name == NOT_COMPARED:
                continue
            compared += 1
            bound = name.endswith(BOUND)
            name = name.removesuffix(BOUND)
            if name not in got[key]:
                return f"{key}: {name} is not produced", compared
            found = got[key][name]
            if not (found < value if bound else agrees(found, value, atol, rtol)):
                return f"{key}: {name} is {found}, expected {'below ' if bound else ''}{value}", compared
    return (None, compared) if compared else ("no figure to compare", 0)
