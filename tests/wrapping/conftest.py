"""What the tests of wrapping share."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator

import pytest
import torch

with warnings.catch_warnings():
    # The first jvp of a process makes torch compile scripts, of which torch itself warns (torch 2.13).
    warnings.simplefilter("ignore")
    torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))


@pytest.fixture(autouse=True)
def interrupts_arrive() -> Iterator[None]:
    """Programs that a shell runs in the background are made to ignore interrupts, and so are those they start."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
