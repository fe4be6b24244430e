"""Weights from a file: safetensors, or `torch.load(weights_only=True)`, and no other way.

What a file is, is decided by its first bytes, never by its name. A file that the safe reader refuses stays refused.
"""

import json
import pickle
import pickletools
import re
import zipfile
from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveal.weights.errors import UnsafeCheckpoint, WeightsError

TIES = "foveal.tied"  # safetensors metadata: JSON {name: the name that its tensor is stored under}
_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
_LEGACY = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # torch.save's magic number before it wrote zip archives


class _Ignored:
    """Stands in for what training scripts leave beside the weights; it takes any arguments and does nothing."""

    def __new__(cls, *_: object) -> "_Ignored":
        return super().__new__(cls)

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


# The file's `args` and best scores are dropped anyway, so their names are mapped to the class above and neither
# argparse's nor numpy's code is reached. (Numpy's own would be a risk: a forged dtype makes pointers of bytes.)
_HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (_Ignored, name)
    for name in (
        "argparse.Namespace",
        "numpy.dtype",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
    )
]
# What the pickle of any state dict asks for; not worth naming when a file is refused.
_USUAL = re.compile(r"torch\._utils\._rebuild_\w+|torch\.(storage\.)?\w*Storage|collections\.OrderedDict|torch\.Size")


def find_file(source: str | PathLike[str]) -> Path:
    """The weights file that `source` means: itself, or the one inside when it is a folder.

    Raises:
        WeightsError: when there is none, or a folder has several and no `model.safetensors` or `pytorch_model.bin`.
    """
    path = Path(source)
    if not path.exists():
        raise WeightsError(f"{path}: there is no such file or folder; check the path")
    if not path.is_dir():
        return path
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).is_file():
            return path / name
    found = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    if not found:
        raise WeightsError(f"{path}: no weights in this folder (looked for {', '.join('*' + s for s in _SUFFIXES)})")
    if len(found) > 1:
        names = ", ".join(p.name for p in found[:8]) + (", …" if len(found) > 8 else "")
        raise WeightsError(f"{path}: {len(found)} files could be the weights, give the path of one: {names}")
    return found[0]


def read_checkpoint(
    path: str | PathLike[str], *, ema: bool = False, wanted: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, or of the weights file in a folder, by name, on the CPU; and its metadata.

    Tensors may be views of the file: clone them before that file is overwritten in place.

    Args:
        ema, wanted: as for `unwrap`.
    Returns:
        state, and the metadata of a safetensors file (empty for other files).
    Raises:
        UnsafeCheckpoint: when reading would run or build anything but tensors and plain values; nothing was run.
        WeightsError: when the file is not a checkpoint, is damaged, or holds no tensors.
    """
    file = find_file(path)
    obj, metadata = _read(file)
    state = unwrap(obj, ema=ema, wanted=wanted)
    if not state:
        holds = f"only {', '.join(map(repr, list(obj)[:5]))}" if isinstance(obj, Mapping) and obj else "no named values"
        raise WeightsError(f"{file}: holds no tensors by name ({holds:.300}); save model.state_dict() instead")
    for name, tensor in state.items():
        if tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided:
            raise WeightsError(f"{file}: {name!r} is meta, quantised or sparse; save plain tensors with their values")
    return state, metadata


def holds_ema(path: str | PathLike[str]) -> bool:
    """Whether a file has averaged weights under a key of their own."""

    def inside(obj: object, depth: int = 4) -> bool:
        if not isinstance(obj, Mapping) or depth < 0:
            return False
        return any(
            (k.endswith("_ema") and bool(_innermost(v, []))) or inside(v, depth - 1)
            for k, v in obj.items()
            if isinstance(k, str)
        )

    return inside(_read(find_file(path))[0])


def unwrap(obj: object, *, ema: bool = False, wanted: Collection[str] = ()) -> dict[str, Tensor]:
    """The state dict inside a checkpoint object; values that are not tensors are left out.

    Looks under "model", "state_dict_ema", "model_ema", "state_dict", "module", "weights", "params", also nested, and
    takes the first that holds tensors, else `obj` itself. `_orig_mod.` is removed from names, and `module.` in front
    of all of them.

    Args:
        ema: look under the EMA keys first.
        wanted: names of the model; `model.` in front of all names is removed where then more names are wanted ones.
    Returns:
        the tensors by name; empty when there are none.
    """
    keys = ["model", "state_dict_ema", "model_ema", "state_dict", "module", "weights", "params"]
    if ema:
        keys.sort(key=lambda key: not key.endswith("_ema"))
    return _strip(_innermost(obj, keys), wanted)


def _innermost(obj: object, keys: list[str], depth: int = 4) -> dict[str, Tensor]:
    # The depth ends the search in a hostile file whose dict holds itself.
    if not isinstance(obj, Mapping) or depth < 0:
        return {}
    for key in keys:
        if inner := _innermost(obj.get(key), keys, depth - 1):
            return inner
    return {k: v for k, v in obj.items() if isinstance(k, str) and isinstance(v, Tensor)}


def _strip(state: dict[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    plain = {re.sub(r"(^|\.)(_orig_mod\.)+", r"\1", name): tensor for name, tensor in state.items()}
    best, most, asked = plain, -1, False
    while plain:
        matches = sum(name in wanted for name in plain)
        # `module.` is a wrapper's mark and goes on equal terms; `model.` may belong to the model and must gain a match.
        if matches > most or (matches == most and not asked):
            best, most = plain, matches
        prefix = next((p for p in ("module.", "model.") if all(name.startswith(p) for name in plain)), None)
        if prefix is None:
            break
        asked = asked or prefix == "model."
        plain = {name.removeprefix(prefix): tensor for name, tensor in plain.items()}
    return best


def _read(path: Path) -> tuple[object, dict[str, str]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(512)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        raise WeightsError(f"{path}: the file is empty; download or save it again")
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 27:  # header length, then its JSON
        return _read_safetensors(path)
    if head.startswith(b"version https://git-lfs"):
        raise WeightsError(f"{path}: a git-LFS pointer, not the weights; run `git lfs pull` where it came from")
    if text[:1] in (b"<", b"{", b"["):
        raise WeightsError(f"{path}: a web page (HTML or JSON) saved in place of the weights; download it again")
    if head.startswith(b"PK\x03\x04"):
        return _read_zip(path), {}
    with path.open("rb") as file:
        if _LEGACY in head[:32]:
            if _scan(file, 5)[1] < 5:  # magic number, version, system, object, storage keys
                raise WeightsError(f"{path}: truncated within its table of contents; download it again")
            return _torch_load(path, file, file), {}
        names, complete = _scan(file, 1)
    if (head[:1] == b"\x80" and size >= 16) or (complete and names):
        raise _refused(path, names, "is a plain pickle, not a file of torch.save, that ")
    if size < 64:  # less than the frame of any checkpoint
        raise WeightsError(f"{path}: truncated, only {size} bytes are there; download it again")
    kind = "a numpy file" if head.startswith(b"\x93NUMPY") else "of an unknown kind"
    raise WeightsError(f"{path}: {kind}, not weights (safetensors or torch.save); begins with {head[:8]!r}")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            state = {name: file.get_tensor(name) for name in names}
            metadata = dict(file.metadata() or {})
        for name, stored in json.loads(metadata.pop(TIES, "{}")).items():
            state[name] = state[stored]
    except (SafetensorError, LookupError, ValueError, AttributeError, TypeError) as error:
        raise WeightsError(f"{path}: truncated or damaged safetensors ({error!s:.200}); download it again") from error
    return state, metadata


def _read_zip(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            pickled = next((info for info in infos if info.filename.endswith("/data.pkl")), None)
            with archive.open(pickled or infos[0]) as file:
                head = BytesIO(file.read(1 << 24))
    except Exception as error:  # a damaged archive has many ways to fail: its directory, sizes, sums, compression
        raise WeightsError(f"{path}: truncated or damaged archive ({error!s:.200}); download it again") from error
    if any(info.filename.endswith("/constants.pkl") for info in infos):
        raise WeightsError(
            f"{path}: a TorchScript archive (a program), not weights; where you trust it, "
            "torch.save(torch.jit.load(path).state_dict(), new_path) and load that"
        )
    if not pickled:
        kind = "a numpy archive" if any(info.filename.endswith(".npy") for info in infos) else "a zip archive"
        raise WeightsError(f"{path}: {kind}, not weights (safetensors or torch.save)")
    # torch takes a ".safetensors" path for that format, and maps compressed entries as if they were plain.
    if path.suffix != ".safetensors" and all(info.compress_type == zipfile.ZIP_STORED for info in infos):
        return _torch_load(path, str(path), head, mmap=True)
    with path.open("rb") as stream:
        return _torch_load(path, stream, head)


def _torch_load(path: Path, source: str | IO[bytes], pickled: IO[bytes], mmap: bool = False) -> Any:
    # `pickled` is the pickle in that file, to name what was refused when torch does not.
    pickled.seek(0)
    try:
        with torch.serialization.safe_globals(_HARMLESS):
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        pickled.seek(0)
        raise _refused(path, [named[1]] if named else _scan(pickled, 5)[0]) from None
    except Exception as error:  # whatever a damaged file makes torch stumble over
        reason = str(error).split("\n")[0]
        raise WeightsError(f"{path}: truncated or damaged ({reason:.200}); download it again") from error


def _scan(stream: IO[bytes], pickles: int) -> tuple[list[str], int]:
    """Classes and functions that the first `pickles` pickles of a stream ask for, and how many of them are complete.

    Parses only: nothing is imported, built or called.
    """
    names: list[str] = []
    for complete in range(pickles):
        strings, memo = [""], dict[Any, str]()
        try:
            for op, arg, _ in pickletools.genops(stream):
                if op.name in ("GLOBAL", "INST"):
                    names.append(str(arg).replace(" ", "."))
                elif op.name == "STACK_GLOBAL":
                    names.append(".".join(strings[-2:]))
                elif op.name == "MEMOIZE" or "PUT" in op.name:
                    memo[len(memo) if arg is None else arg] = strings[-1]
                elif "GET" in op.name:
                    strings.append(memo.get(arg, ""))
                elif isinstance(arg, str):
                    strings.append(arg)
        except (ValueError, MemoryError):  # the pickle ends early, or a damaged length is beyond all bounds
            return names, complete
    return names, pickles


def _refused(path: Path, names: list[str], kind: str = "") -> WeightsError:
    unusual = list(dict.fromkeys(name for name in names if not _USUAL.fullmatch(name)))
    if not unusual:
        kind = kind or "is pickled in a way that the safe reader does not know, one that "
        return WeightsError(f"{path}: {kind}was not run; save model.state_dict() with torch.save, all else default")
    asks = ", ".join(ascii(name)[1:-1][:100] for name in unusual[:4])
    return UnsafeCheckpoint(
        f"{path}: refused, nothing was run: it {kind}asks for {asks}, which no state dict needs; if this is a "
        "whole model or training object that you trust, save model.state_dict() where it was made and load that"
    )
