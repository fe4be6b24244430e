"""Result files, and the tables made of them."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from foveal.eval.benchmark import DataMissing

Result = dict[str, Any]
UNITS = ("top1", "top5", "mean_per_class")  # printed in percent


def load_results(root: str | Path) -> list[Result]:
    """Every result below a folder (or one result file), in order of benchmark and path.

    Raises:
        DataMissing: when there is none.
        ValueError: when a file is no result.
    """
    root = Path(root).expanduser()
    paths = [root] if root.is_file() else sorted(root.rglob("result.json"))
    if not paths:
        raise DataMissing(f"{root}: no result.json in it; `foveal eval MODEL --bench NAME --output {root}` writes one")
    return [_load(path) for path in paths]


def _load(path: Path) -> Result:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path}: not JSON ({error}); pass a result.json or a folder that foveal eval wrote"
        ) from error
    if not isinstance(result, dict) or not {"benchmark", "model", "metrics", "main"} <= result.keys():
        raise ValueError(f"{path}: not a result; pass a result.json or a folder that foveal eval wrote")
    return result


def label(result: Result) -> str:
    """What a result's model is called: the row of its weights, or its name and where the weights are from."""
    weights = result["weights"]
    if weights.startswith(result["model"] + "."):
        return weights
    if "/" in weights:  # a folder that `save_pretrained` wrote is known by its own name
        path = Path(weights)
        weights = path.parent.name if path.name == "model.safetensors" else path.name
    return f"{result['model']} ({weights})"


def show(name: str, value: float | str | None) -> str:
    """A metric's value as it is printed: percent with two decimals for rates, four digits otherwise.

    >>> show("top1", 0.91234), show("ece", 0.0123456), show("top5", None)
    ('91.23', '0.0123', 'n/a')
    """
    if value is None:
        return "n/a"
    if isinstance(value, str):
        return value
    return f"{100 * value:.2f}" if name in UNITS else f"{value:.4f}"


def notes(result: Result) -> str:
    """What a reader of the figure has to know."""
    said = ["partial"] if result["partial"] else []
    if result.get("precision", "fp32") != "fp32":
        said.append(result["precision"])
    if result["failed"]:
        said.append(f"{len(result['failed'])} unreadable ({result['on_bad']})")
    if result["n_nonfinite"]:
        said.append(f"{result['n_nonfinite']} not finite")
    return ", ".join(said)


def table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: benchmark, model, N, main metric with interval, the other metrics, speed, memory, notes."""
    others: list[str] = []
    for result in results:
        others += [m for m in result["metrics"] if m != result["main"] and m not in others]
    mains = {r["main"] for r in results}
    main = mains.pop() if len(mains) == 1 else "main metric"
    unit = " %" if main in UNITS else ""
    header = ["benchmark", "model", "N", f"{main}{unit} [95 % interval]"]
    header += [f"{m} %" if m in UNITS else m for m in others] + ["images/s", "peak MiB", "notes"]
    return header, [_row(result, others) for result in results]


def _row(result: Result, others: list[str]) -> list[str]:
    name, run = result["main"], result["run"]
    figure = result["metrics"][name]
    low, high = (show(name, x) for x in figure["interval"])
    rest = [show(m, result["metrics"][m]["value"]) if m in result["metrics"] else "" for m in others]
    speed = "" if run["images_per_second"] is None else f"{run['images_per_second']:.0f}"
    memory = "" if run["peak_memory_mib"] is None else f"{run['peak_memory_mib']:.0f}"
    main = f"{show(name, figure['value'])} [{low}, {high}]"
    return [result["benchmark"], label(result), str(result["n"]), main, *rest, speed, memory, notes(result)]


def as_markdown(results: Sequence[Result]) -> str:
    """The table in Markdown."""
    header, rows = table(results)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_csv(results: Sequence[Result]) -> str:
    """One line a result and metric, values as stored: fractions, not percent."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["benchmark", "model", "weights", "n", "metric", "value", "low", "high", "notes"])
    for result in results:
        for name, figure in result["metrics"].items():
            writer.writerow(
                [result["benchmark"], result["model"], result["weights"], result["n"], name, figure["value"]]
                + [*figure["interval"], notes(result)]
            )
    return out.getvalue().rstrip("\n")


def check_expectations(expectations: Sequence[str], metrics: Iterable[str]) -> list[tuple[str, float]]:
    """Metric and least value of each expectation, written NAME>=VALUE; checked before any work is done.

    Raises:
        ValueError: when one is written differently, or its metric is not among those there are.

    >>> check_expectations(["top1>=0.9"], ["top1", "ece"])
    [('top1', 0.9)]
    """
    parsed, metrics = [], list(dict.fromkeys(metrics))
    for text in expectations:
        name, sign, value = text.partition(">=")
        try:
            parsed.append((name.strip(), float(value)))
        except ValueError:
            sign = ""
        if not sign or not name.strip():
            raise ValueError(f"--expect is written NAME>=VALUE, for example top1>=0.9; got {text!r}")
        if name.strip() not in metrics:
            raise ValueError(f"--expect: there is no metric {name.strip()!r} here; there are {', '.join(metrics)}")
    return parsed


def unmet(results: Sequence[Result], expectations: Sequence[str]) -> list[str]:
    """Sentences about results whose metric (a fraction) is below an expectation.

    Raises:
        ValueError: as `check_expectations`.
    """
    missed = []
    for name, least in check_expectations(expectations, [m for r in results for m in r["metrics"]]):
        for result in (r for r in results if name in r["metrics"]):
            value = result["metrics"][name]["value"]
            number = float("nan") if value is None else float(value)
            if not number >= least:  # a NaN misses too
                missed.append(f"{label(result)} on {result['benchmark']}: {name} is {value}, expected >= {least}")
    return missed
