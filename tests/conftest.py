"""What all tests share: the same random numbers every time, and one thread."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; whatever is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command, the user's code in this process too: quick, and what is patched is patched.

    Gives exit status, standard output and standard error.
    """
    from gradwright.cli import main

    def command(*arguments: object) -> tuple[int, str, str]:
        given = [str(argument) for argument in arguments]
        status = main([*given, "--no-isolation"] if given[:1] == ["check"] and len(given) > 1 else given)
        return status, *capsys.readouterr()

    return command
