"""What `foveal show` says about a name."""

from typing import Any

from foveal.eval.benchmark import benchmarks
from foveal.kernels._names import UnknownName
from foveal.kernels.registry import describe_operators
from foveal.weights.catalogue import Row, rows, rows_of
from foveal.zoo.registry import ModelEntry, describe_attentions, models, variant


def describe(name: str) -> dict[str, Any]:
    """Facts about a model, weights row, attention, operator or benchmark.

    Raises:
        UnknownName: with the nearest of all names.

    >>> describe("biformer_tiny")["parameters"]
    '13.14 M'
    """
    if name in models():
        return _model(models()[name])
    if name in rows():
        return _row(rows()[name])
    facts: dict[str, Any] = {"name": name}
    if name in describe_attentions() or name in describe_operators():
        if name in describe_operators():
            facts |= {"is": "operator", **describe_operators()[name]}
        if name in describe_attentions():
            known = {k: v for k, v in describe_attentions()[name].items() if k != "class"}
            facts |= {"is": "operator and attention" if "is" in facts else "attention", **known}
        return facts
    if name in benchmarks():
        bench = benchmarks()[name]
        return facts | {
            "is": "benchmark", "protocol": bench.protocol, "metrics": ", ".join(bench.metrics),
            "main metric": bench.main,
            "counts": ", ".join(f"{n} {what}" for what, n in bench.counts.items()) or "the user's own",
            "ships": bench.embedded, "version": bench.version, "source": bench.source,
        }  # fmt: skip
    names = [*models(), *rows(), *describe_attentions(), *describe_operators(), *benchmarks()]
    raise UnknownName("name", name, list(dict.fromkeys(names)))


def _model(entry: ModelEntry) -> dict[str, Any]:
    import torch

    from foveal.zoo.features import count_parameters
    from foveal.zoo.registry import build

    with torch.device("meta"):
        model = build(entry.name)
    count = count_parameters(model)
    return {
        "name": entry.name, "is": "model", "family": entry.family, "attention": entry.attention,
        "tasks": ", ".join(entry.tasks), "parameters": f"{count / 1e6:.2f} M", "any size": entry.any_size,
        **variant(entry.name),
        "weights": [_line(row) for row in rows_of(entry.name)] or ["none known"],
        "source": entry.source,
    }  # fmt: skip


def _line(row: Row) -> str:
    claims = ", ".join(f"{c.metric} {100 * c.value:.2f} on {c.benchmark} ({c.source})" for c in row.claims)
    return f"{row.name}: {'ships' if row.path else 'not shipped'}; {claims or 'no figure claimed'}"


def _row(row: Row) -> dict[str, Any]:
    spec = row.preprocessing
    return {
        "name": row.name, "is": "weights", "model": row.arch, "options": row.options or "",
        "input": "x".join(map(str, (len(spec.mean), *spec.shape))),
        "resize": f"{spec.interpolation}, {spec.crop_mode}, crop {spec.crop_pct}",
        "mean": spec.mean, "std": spec.std, "file": row.file, "ships": row.path is not None, "page": row.page,
        "sha256": row.sha256 or "not verified",
        "licences": [f"{part}: {licence}" for part, licence in row.licences.items()],
        "claims": [f"{c.metric} {100 * c.value:.2f} on {c.benchmark} ({c.source})" for c in row.claims],
        "trained by": row.trained_by, "labels": ", ".join(row.labels), "notes": row.notes,
    }  # fmt: skip
