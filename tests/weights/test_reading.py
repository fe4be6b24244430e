import argparse
import io
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from foveal.weights.errors import UnsafeCheckpoint, WeightsError
from foveal.weights.reading import find_file, read_checkpoint, unwrap

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([7.0, 8.0])}


class Evil:
    def __reduce__(self):
        return os.system, ("touch pwned",)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)


def torch_bytes(obj, **options):
    stream = io.BytesIO()
    torch.save(obj, stream, **options)
    return stream.getvalue()


def same(state):
    return state.keys() == STATE.keys() and all(torch.equal(state[name], STATE[name]) for name in STATE)


HOSTILE = {
    "zip": lambda obj: torch_bytes(obj),
    "zip, protocol 4": lambda obj: torch_bytes(obj, pickle_protocol=4),
    "legacy": lambda obj: torch_bytes(obj, _use_new_zipfile_serialization=False),
    **{f"pickle {n}": lambda obj, n=n: pickle.dumps(obj, protocol=n) for n in range(6)},
}


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors", "x.bin"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_bc29_hostile_pickle_is_named_and_not_run(tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_bytes(HOSTILE[kind]({"model": Evil()}))
    with pytest.raises(UnsafeCheckpoint, match=r"refused, nothing was run.*(posix|nt)\.system"):
        read_checkpoint(path)
    assert os.listdir(tmp_path) == [name]


def test_bc29_hostile_beside_good_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": STATE, "extra": Evil()}, "x.pth")
    with pytest.raises(UnsafeCheckpoint, match="system"):
        read_checkpoint("x.pth")
    assert os.listdir(tmp_path) == ["x.pth"]


@pytest.mark.parametrize("legacy", [False, True])
def test_whole_module_is_refused_with_advice(tmp_path, legacy):
    torch.save(Net(), tmp_path / "x.pth", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UnsafeCheckpoint, match=r"Net, which.*model\.state_dict\(\)"):
        read_checkpoint(tmp_path / "x.pth")


def test_bc30_torchscript_archive(tmp_path):
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "x.pth")
    with pytest.raises(WeightsError, match=r"TorchScript.*state_dict\(\)"):
        read_checkpoint(tmp_path / "x.pth")


@pytest.mark.parametrize("name", ["x.safetensors", "x.pth", "x"])
def test_content_decides_not_the_name(tmp_path, name):
    path = tmp_path / name
    safetensors.torch.save_file(STATE, path, metadata={"arch": "vit"})
    state, metadata = read_checkpoint(path)
    assert same(state)
    assert metadata == {"arch": "vit"}
    for legacy in (False, True):
        torch.save({"epoch": 3, "model": STATE}, path, _use_new_zipfile_serialization=not legacy)
        state, metadata = read_checkpoint(str(path))
        assert same(state)
        assert metadata == {}


def test_zip_that_was_compressed_again(tmp_path):
    path, stored = tmp_path / "x.pth", io.BytesIO(torch_bytes(STATE))
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert same(read_checkpoint(path)[0])


def test_what_training_scripts_leave_beside_the_weights(tmp_path):
    args = argparse.Namespace(lr=0.1, best=np.float32(3), names=["a"])
    torch.save({"model": STATE, "args": args, "best": np.float64(0.5), "n": np.int64(3)}, tmp_path / "x.pth")
    assert same(read_checkpoint(tmp_path / "x.pth")[0])


WHOLE = {
    "safetensors": safetensors.torch.save(STATE),
    "zip": torch_bytes(STATE),
    "legacy": torch_bytes(STATE, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_truncated_at_any_length(tmp_path, kind):
    path, whole = tmp_path / "x.pth", WHOLE[kind]
    step = max(1, len(whole) // 150)
    for length in {*range(1, len(whole), step), *range(1, 40), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(WeightsError, match="truncated") as caught:
            read_checkpoint(path)
        assert not isinstance(caught.value, UnsafeCheckpoint), length
    path.write_bytes(whole)
    assert same(read_checkpoint(path)[0])


def numpy_bytes(save, array):
    stream = io.BytesIO()
    save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n<!DOCTYPE html><html><body>404</body></html>", "web page.*download it again"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "web page"),
        (b'{"error": "Repository not found"}', "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git-LFS pointer"),
        (pickle.dumps({"a": 1, "b": [2.0] * 9}), "plain pickle"),
        (numpy_bytes(np.save, np.zeros(3)), "numpy file"),
        (numpy_bytes(np.savez, np.zeros(3)), "numpy archive"),
        (b"config:\n  lr: 0.1\n  names: a\n" * 9, "unknown kind"),
        (bytes(range(129, 256)) * 4, "unknown kind"),
        (torch_bytes(STATE, pickle_protocol=4), "safe reader does not know"),
        (torch_bytes({"epoch": 3, "lr": 0.1}), "no tensors.*'epoch', 'lr'"),
        (torch_bytes(torch.zeros(3)), "no tensors"),
        (torch_bytes({"a": torch.zeros(3, device="meta")}), "meta"),
    ],
)
def test_one_sentence_on_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "x.pth"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message) as caught:
        read_checkpoint(path)
    assert not isinstance(caught.value, UnsafeCheckpoint)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_random_damage_is_always_a_weights_error_or_harmless(tmp_path):
    path = tmp_path / "x.pth"
    rng = np.random.default_rng(0)
    for whole in WHOLE.values():
        for _ in range(60):
            damaged = bytearray(whole)
            for place in rng.integers(0, len(whole), 8):
                damaged[place] = rng.integers(256)
            path.write_bytes(damaged)
            try:
                state, _ = read_checkpoint(path)
            except WeightsError:
                continue
            assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())


def test_folder(tmp_path):
    with pytest.raises(WeightsError, match="no such file"):
        find_file(tmp_path / "none")
    with pytest.raises(WeightsError, match=r"no weights in this folder.*\.safetensors"):
        find_file(tmp_path)
    (tmp_path / "one.pth").touch()
    (tmp_path / "config.json").touch()
    assert find_file(tmp_path).name == "one.pth"
    (tmp_path / "two.bin").touch()
    with pytest.raises(WeightsError, match=r"2 files.*one\.pth, two\.bin"):
        find_file(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    assert find_file(tmp_path).name == "pytorch_model.bin"
    safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
    assert same(read_checkpoint(tmp_path)[0])


OTHER = {name: tensor + 1 for name, tensor in STATE.items()}


@pytest.mark.parametrize(
    "obj",
    [
        STATE,
        {"model": STATE, "state_dict_ema": OTHER, "state_dict": OTHER},
        {"state_dict_ema": STATE, "model_ema": OTHER, "state_dict": OTHER},
        {"model_ema": STATE, "state_dict": OTHER},
        {"state_dict": {"model": STATE}},
        {"model": {"name": "vit", "depth": 3}, "state_dict": STATE},
        {"module": {"weights": {"params": STATE}}},
        {"model": {**STATE, "epoch": 3, 5: torch.ones(1)}},
        {"model": OrderedDict((f"module._orig_mod.{name}", t) for name, t in STATE.items())},
        {"_orig_mod.module.module." + name: t for name, t in STATE.items()},
        {name.replace(".", "._orig_mod."): t for name, t in STATE.items()},
    ],
)
def test_bc28_wrappers_and_prefixes(obj):
    assert same(unwrap(obj))


def test_bc28_ema_on_demand():
    both = {"model": OTHER, "model_ema": STATE, "state_dict": OTHER}
    assert same(unwrap(both, ema=True))
    assert same(unwrap({"state_dict": STATE}, ema=True))


def test_bc28_model_prefix_goes_only_when_that_matches_more():
    prefixed = {f"model.{name}": tensor for name, tensor in STATE.items()}
    for outer in ("", "module.", "_orig_mod."):
        wrapped = {outer + name: tensor for name, tensor in prefixed.items()}
        assert unwrap(wrapped).keys() == prefixed.keys()
        assert unwrap(wrapped, wanted=list(prefixed)).keys() == prefixed.keys()
        assert same(unwrap(wrapped, wanted=STATE.keys()))
    assert same(unwrap({f"model.module.{name}": tensor for name, tensor in STATE.items()}, wanted=STATE.keys()))
    partly = {"module.a": STATE["a.bias"], "b": STATE["a.bias"]}
    assert unwrap(partly).keys() == partly.keys()


def test_dict_that_holds_itself_ends():
    loop: dict[str, object] = {}
    for key in ("model", "state_dict", "module", "weights", "params", "model_ema", "state_dict_ema"):
        loop[key] = loop
    assert unwrap(loop) == {}
