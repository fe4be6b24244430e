"""What holds for every test: nothing is fetched, and a person's own cache and settings play no part."""

import pytest
import torch


@pytest.fixture(autouse=True)
def sealed(monkeypatch, tmp_path_factory):
    """Folders of tests that need another setting change it themselves."""
    monkeypatch.setenv("FOVEAL_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("FOVEAL_HOME", str(tmp_path_factory.getbasetemp() / "foveal-home"))
    for name in ("FOVEAL_DATA", "FOVEAL_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def one_thread():
    """Small models are fastest on one thread, on a busy machine by far."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
