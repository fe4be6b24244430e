"""Tables of the documents, generated from the registries."""

import re
from pathlib import Path

import torch

from foveal.eval.benchmark import benchmarks
from foveal.kernels.registry import describe_operators
from foveal.weights.catalogue import rows
from foveal.zoo.features import count_parameters
from foveal.zoo.registry import build, describe_attentions, models

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (ROOT / "README.md",)
MARK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.S)


def _markdown(header: list[str], lines: list[list[str]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in [header, ["---"] * len(header), *lines])


def _models() -> str:
    lines = []
    for entry in models().values():
        with torch.device("meta"):
            count = count_parameters(build(entry.name))
        known = [row for row in rows().values() if row.arch == entry.name]
        weights = ", ".join(f"`{row.tag}`" + (" (ships)" if row.path else "") for row in known)
        lines.append([f"`{entry.name}`", entry.attention, f"{count / 1e6:.2f} M", weights, entry.source])
    return _markdown(["model", "attention", "parameters", "weights known", "source"], lines)


def _attentions() -> str:
    does = describe_operators()
    yes = {True: "yes", False: "no"}
    lines = [
        [f"`{name}`", does[f["operator"]]["computes"], f["cost"], yes[f["prefix"]], yes[f["mask"]], yes[f["cross"]]]
        for name, f in describe_attentions().items()
    ]
    return _markdown(["attention", "computes", "cost", "prefix tokens", "masks", "cross"], lines)


def _quick() -> str:
    """The figures recorded in the rows of the shipped weights."""
    lines = []
    for bench in benchmarks().values():
        for name, _ in dict.fromkeys((n, w) for n, w in bench.quick if w != "random"):
            row = rows()[name]
            figures = ", ".join(f"{claim.metric} {100 * claim.value:.2f}" for claim in row.claims)
            lines.append([f"`{name}`", figures, row.notes, f"`{row.trained_by}`"])
    return _markdown(["weights", "%", "what", "trained by"], lines)


def fresh(text: str) -> str:
    """A document with its tables made anew."""
    made = {"models": _models, "attentions": _attentions, "quick": _quick}
    return MARK.sub(lambda found: found.group(1) + made[found.group(2)]() + found.group(3), text)
