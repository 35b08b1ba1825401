"""Fixtures that several rooms' tests share."""

import pytest
import torch


@pytest.fixture(scope="module")
def one_thread():
    """Run on one thread: tensors this small only lose by being shared, most on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
