"""Settings of the process that user code may change: everybody else finds them as they were.

A module that sets the default dtype when it is imported relies on it when its functions run; they get it, the functions
of other modules do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from gradwright.checking.randomness import preserved_random_state

MANY = 100_000
"""From so many elements on, several threads may be worth their cost."""
_chosen: dict[str, torch.dtype] = {}
"""The default dtype that a top-level module or package set while it was imported, by its name."""
checks_running: list[None] = []
"""One for each check that is running, so that what is called, and on what, is not the choice of the program."""


@contextmanager
def preserved_settings() -> Iterator[None]:
    """Put grad mode, default dtype and working directory back after the block."""
    grad, dtype, directory = torch.is_grad_enabled(), torch.get_default_dtype(), _working_directory()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        if directory is not None and _working_directory() != directory:
            os.chdir(directory)


@contextmanager
def neutral(elements: int = 0) -> Iterator[None]:
    """Record gradients whatever the caller's mode is, and put back all that user code may change in the block.

    Arguments:
        elements: size of all tensors together. Where they are few, one thread is used: handing them to several costs
            tens of times more than the work itself on a busy machine.
    """
    threads = torch.get_num_threads()
    with preserved_random_state(), torch.inference_mode(False), torch.enable_grad(), preserved_settings():
        if elements < MANY:
            torch.set_num_threads(1)
        checks_running.append(None)
        try:
            yield
        finally:
            checks_running.pop()
            torch.set_num_threads(threads)


@contextmanager
def importing(name: str) -> Iterator[None]:
    """Keep the settings that a module makes while it is imported for :func:`as_in`, and from everybody else."""
    with preserved_settings():
        before = torch.get_default_dtype()
        yield
        if torch.get_default_dtype() != before:
            _chosen[name.partition(".")[0]] = torch.get_default_dtype()


@contextmanager
def as_in(module: ModuleType) -> Iterator[None]:
    """Run the block under the settings that a module made when it was imported."""
    with preserved_settings():
        torch.set_default_dtype(_chosen.get(module.__name__.partition(".")[0], torch.get_default_dtype()))
        yield


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # somebody removed it
        return None
