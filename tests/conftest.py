"""What all tests share: the same random numbers every time, and one thread."""

from __future__ import annotations

import random

import pytest
import torch

# Tests use tiny tensors and run in several processes; more threads only make them wait for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    torch.manual_seed(20260)
    random.seed(20260)


@pytest.fixture
def generator() -> torch.Generator:
    """A generator of its own for a test that draws inputs."""
    return torch.Generator().manual_seed(7)
