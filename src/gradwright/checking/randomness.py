"""Random numbers that a subject draws: the same ones at every call, and the caller's streams left alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def fixed_random_state(seed: int, state: torch.Tensor | None = None) -> Iterator[None]:
    """Seed torch's and Python's generators inside the block (NumPy's too when it is loaded), restore them after.

    ``state`` is one of torch's CPU generator, to be used instead of the seed.
    """
    with preserved_random_state():
        torch.manual_seed(seed)
        if state is not None:
            torch.set_rng_state(state)
        random.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        yield


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Put the states of torch's, Python's and NumPy's global generators back after the block."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def generator_states() -> list[Any]:
    """Return the states of the global generators, to be compared: they change when numbers are drawn."""
    numpy = sys.modules.get("numpy")
    states: list[Any] = [torch.get_rng_state().tolist(), random.getstate()]
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states.append((name, keys.tolist(), rest))
    return states
