"""Weights of a model to a safetensors file, and a hash that names them."""

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from foveal.weights.errors import WeightsError
from foveal.weights.reading import TIES


def save(model: nn.Module, path: str | PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write the model's state dict as safetensors, see `save_state`.

    Raises:
        WeightsError: when `path` is a folder, or the state dict has what safetensors cannot hold.
        TypeError: when the metadata are not text.
    """
    save_state(_tensors(model.state_dict()), path, metadata)


def save_state(
    state: Mapping[str, Tensor], path: str | PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name as safetensors; the file is there whole or not at all.

    Parameters that are one tensor are stored once and are one again after `load_weights`. Strided tensors are stored
    by value. A missing folder is made.

    Args:
        metadata: kept in the file, given back by `read_checkpoint`.
    Raises:
        WeightsError: when `path` is a folder.
        TypeError: when the metadata are not text.
    """
    path = Path(path)
    if path.is_dir():
        raise WeightsError(f"{path}: this is a folder; give the path of the file to write")
    notes = dict(metadata or {})
    if not all(isinstance(text, str) for item in notes.items() for text in item):
        raise TypeError(f"metadata must map text to text, got {notes!r:.200}")
    tensors, ties = _stored_once(dict(state))
    if ties:
        notes[TIES] = json.dumps(ties)

    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        aside.touch()
        mode = aside.stat().st_mode
        save_file(tensors, aside, metadata=notes or None)
        aside.chmod(mode)  # safetensors writes files that only their owner can read; this has the usual rights
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def state_hash(model: nn.Module) -> str:
    """SHA-256 of the state dict's names, dtypes, shapes and values, in hex; device and strides do not count."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_tensors(model.state_dict()).items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(state: Mapping[str, object]) -> dict[str, Tensor]:
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    for name, value in state.items():
        if name not in tensors:
            raise WeightsError(f"{name!r} in the state dict is a {type(value).__name__}; only tensors can be stored")
    return tensors


def _stored_once(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Contiguous CPU tensors that share no memory, and {name: the name that has its tensor} for the rest."""
    tensors: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    used: set[int] = set()
    for name, tensor in state.items():
        place = tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride()
        if tensor.numel() and place in seen:
            ties[name] = seen[place]
            continue
        seen[place] = name
        flat = tensor.cpu().contiguous()
        memory = flat.untyped_storage().data_ptr()
        tensors[name] = flat.clone() if memory in used else flat
        used.add(memory)
    return tensors, ties
