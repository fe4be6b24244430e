import os

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from foveal.weights import saving
from foveal.weights.errors import WeightsError
from foveal.weights.loading import load_weights
from foveal.weights.reading import read_checkpoint
from foveal.weights.saving import save, state_hash


class Trio(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.conv = nn.Conv2d(3, 5, 3)


def test_bc36_tied_and_strided_tensors_survive(tmp_path):
    model, other = Trio(), Trio()
    model.b.weight = model.a.weight
    model.c.weight.data = model.c.weight.data.t().contiguous().t()
    model.to(memory_format=torch.channels_last)
    assert not model.c.weight.is_contiguous()
    assert not model.conv.weight.is_contiguous()
    save(model, tmp_path / "w.safetensors", {"arch": "trio"})
    assert "b.weight" not in load_file(tmp_path / "w.safetensors")
    report = load_weights(other, tmp_path / "w.safetensors")
    assert other.b.weight is other.a.weight
    assert other.c.weight is not other.a.weight
    assert report.metadata == {"arch": "trio"}
    for (name, tensor), (again, loaded) in zip(model.state_dict().items(), other.state_dict().items(), strict=True):
        assert name == again
        assert torch.equal(tensor, loaded)
    assert state_hash(model) == state_hash(other)


def test_bc36_views_of_one_memory_are_stored_by_value(tmp_path):
    model = nn.Module()
    base = torch.arange(12.0)
    views = {"whole": base, "table": base.view(3, 4), "part": base[2:5], "turned": base.view(3, 4).t()}
    for name, view in views.items():
        model.register_buffer(name, view)
    model.register_buffer("none", torch.zeros(0))
    model.register_buffer("nothing", torch.zeros(0))
    save(model, tmp_path / "w.safetensors")
    state, _ = read_checkpoint(tmp_path / "w.safetensors")
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_dtypes_survive(tmp_path, dtype):
    model = nn.Module()
    model.register_buffer("x", torch.tensor([[0, 1], [1, 1]]).to(dtype))
    model.register_buffer("scalar", torch.tensor(1).to(dtype))
    save(model, tmp_path / "w.safetensors")
    state, _ = read_checkpoint(tmp_path / "w.safetensors")
    assert all(tensor.dtype == dtype and torch.equal(tensor, model.state_dict()[n]) for n, tensor in state.items())


def test_missing_folder_is_made_and_folder_as_path_refused(tmp_path):
    save(Trio(), tmp_path / "a" / "b" / "w.safetensors")
    assert os.listdir(tmp_path / "a" / "b") == ["w.safetensors"]
    (tmp_path / "plain").touch()
    assert (tmp_path / "a" / "b" / "w.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with pytest.raises(WeightsError, match="is a folder; give the path of the file"):
        save(Trio(), tmp_path / "a")


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def half(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    path = tmp_path / "w.safetensors"
    save(Trio(), path)
    before = path.read_bytes()
    monkeypatch.setattr(saving, "save_file", half)
    with pytest.raises(OSError, match="disk full"):
        save(Trio(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["w.safetensors"]


def test_saving_over_a_file_that_is_being_read(tmp_path):
    first, second, path = Trio(), Trio(), tmp_path / "w.safetensors"
    save(first, path)
    state, _ = read_checkpoint(path)
    save(second, path)
    assert torch.equal(state["a.weight"], first.a.weight)
    assert torch.equal(read_checkpoint(path)[0]["a.weight"], second.a.weight)


def test_what_safetensors_cannot_hold_is_refused(tmp_path):
    class Extra(nn.Module):
        def get_extra_state(self):
            return {"step": 3}

    with pytest.raises(WeightsError, match=r"'_extra_state'.*dict"):
        save(Extra(), tmp_path / "w.safetensors")
    with pytest.raises(TypeError, match="metadata must map text to text"):
        save(Trio(), tmp_path / "w.safetensors", {"epoch": 3})  # type: ignore[dict-item]
    assert os.listdir(tmp_path) == []


def test_damaged_ties_are_a_weights_error(tmp_path):
    for text in ("{", "[1]", '{"x": "none"}'):
        save(Trio(), tmp_path / "w.safetensors", {"foveal.tied": text})
        with pytest.raises(WeightsError, match="damaged"):
            read_checkpoint(tmp_path / "w.safetensors")


def test_state_hash_sees_names_shapes_dtypes_and_values_not_strides():
    def hashed(name="x", value=None):
        model = nn.Module()
        model.register_buffer(name, torch.arange(6.0).reshape(2, 3) if value is None else value)
        return state_hash(model)

    same = torch.arange(6.0).reshape(2, 3)
    assert hashed() == hashed(value=same.t().contiguous().t())
    others = [hashed("y"), hashed(value=same.reshape(3, 2)), hashed(value=same.double()), hashed(value=same + 1)]
    others += [hashed(value=torch.zeros(0)), hashed(value=torch.tensor(1.0)), hashed()]
    assert len(set(others)) == 7
    model = Trio()
    digest = state_hash(model)
    assert len(digest) == 64
    assert state_hash(model.to(memory_format=torch.channels_last)) == digest
