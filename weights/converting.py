"""Any readable checkpoint to a safetensors file, with proof that no value was lost on the way."""

import os
import uuid
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from foveal.weights.adapting import adapt
from foveal.weights.errors import WeightsError
from foveal.weights.key_maps import KeyMap
from foveal.weights.loading import LoadReport
from foveal.weights.places import sha256_of
from foveal.weights.reading import find_file, holds_ema, read_checkpoint
from foveal.weights.saving import save_state

CONVERTED = "foveal.converted_from"  # safetensors metadata: file name, sha256


def check_paths(source: str | PathLike[str], out: str | PathLike[str], *, ema: bool = False) -> Path:
    """The file to convert, after a look at what is asked for.

    Raises:
        ValueError: when `out` is not named as a safetensors file, is a folder or the source.
        WeightsError: when there is no source, or it has no EMA weights and they are asked for.
    """
    file, out = find_file(source), Path(out)
    if out.suffix != ".safetensors":
        raise ValueError(
            f"{out}: what is written is a safetensors file; name it {out.with_suffix('.safetensors').name}"
        )
    if out.is_dir():
        raise ValueError(f"{out}: is a folder; give the path of the file to write")
    if out.exists() and out.samefile(file):
        raise ValueError(f"{out}: is the file to convert; give another name")
    if ema and not holds_ema(file):
        raise WeightsError(f"{file}: holds no EMA weights (under state_dict_ema or model_ema); leave --ema out")
    return file


def origin(file: Path) -> dict[str, str]:
    """Metadata that say what a file was converted from."""
    return {CONVERTED: f"{file.name} sha256 {sha256_of(file)}"}


def convert_names_kept(source: str | PathLike[str], out: str | PathLike[str], *, ema: bool = False) -> str:
    """Write the tensors of a checkpoint under the names that they have there, its wrappers opened.

    Returns:
        what was done, in one sentence.
    Raises:
        ValueError, WeightsError: as `check_paths` and `read_checkpoint`.
    """
    file = check_paths(source, out, ema=ema)
    state, metadata = read_checkpoint(file, ema=ema)
    write_equal(state, Path(out), lambda aside: save_state(state, aside, metadata | origin(file)))
    return f"{out}: {len(state)} tensors of {file}, names kept, read back and equal"


def inferred_options(report: LoadReport) -> dict[str, int]:
    """The class count and input channels a model has to be built with to take a file as it is.

    Args:
        report: of loading the file into one built without.
    """
    options = {}
    for there, here in report.skipped.values():
        if there[1:] == here[1:]:
            options["num_classes"] = there[0]
    for there, here in report.adapted.values():
        if len(there) == len(here) == 4 and (there[0], *there[2:]) == (here[0], *here[2:]):
            options["in_chans"] = there[1]
    return options


def common_dtype(state: Mapping[str, Tensor]) -> torch.dtype:
    """The floating dtype of all tensors, float32 when there are several or none."""
    found = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    return found.pop() if len(found) == 1 else torch.float32


def require_whole(report: LoadReport) -> None:
    """Refuses a conversion in which the model kept values of its own or changed the file's.

    Raises:
        WeightsError: naming the first tensor.
    """
    changed = dict(report.skipped)
    for name, (there, here) in report.adapted.items():
        if torch.Size(there).numel() != torch.Size(here).numel():  # else a linear layer for a 1x1 convolution
            changed[name] = there, here
    if changed:
        name, (there, here) = next(iter(changed.items()))
        raise WeightsError(
            f"{report.source}: {name} is {there} there and {here} in the model, converting would change it; build the "
            "model as it was (--set img_size=…, --set num_classes=…)"
        )


def source_state(
    model: nn.Module, file: Path, *, ema: bool = False, key_map: KeyMap | None = None
) -> dict[str, Tensor]:
    """A file's tensors under the model's names and in its shapes."""
    state, _ = read_checkpoint(file, ema=ema, wanted=model.state_dict())
    own = model.state_dict()
    fitted = adapt(key_map(state) if key_map else state, model).state
    return {name: tensor for name, tensor in fitted.items() if name in own}


def write_equal(state: Mapping[str, Tensor], out: Path, write: Callable[[Path], object]) -> None:
    """Writes a file aside, reads it back, compares values and puts it in place; a wider dtype is no difference.

    Args:
        state: what has to be in it.
        write: writes it to the path that it is given.
    Raises:
        WeightsError: naming the first tensor that is not there or differs; nothing is written then.
    """
    aside = out.with_name(f".{uuid.uuid4().hex}.safetensors")
    try:
        write(aside)
        written, _ = read_checkpoint(aside)
        for name, tensor in state.items():
            if name not in written or not _same(tensor, written[name]):
                raise WeightsError(f"{out}: {name} ({tensor.dtype}) would lose values; nothing was written")
        del written
        os.replace(aside, out)
    finally:
        aside.unlink(missing_ok=True)


def _same(a: Tensor, b: Tensor) -> bool:
    wide = torch.promote_types(a.dtype, b.dtype)
    first, second = (t.to(wide).contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return a.shape == b.shape and torch.equal(first, second)
