import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """These tests are small: a second thread gains nothing, and beside another process its waiting costs a lot."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)
