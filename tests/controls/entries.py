"""What a control is: a subject that is right, on inputs that tempt a checker to say otherwise."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

DOUBLE = torch.float64


@dataclass(frozen=True)
class Control:
    """A right subject; ``make`` gives the subject and its inputs anew."""

    name: str
    make: Callable[[], tuple[Any, tuple[Any, ...]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of ``check``."""
    group: str = ""
    """The module it stands in."""


def control(name: str, subject: Any, *inputs: Any, **options: Any) -> Control:
    """A control whose subject keeps no state; inputs are copied by the checker itself."""
    return Control(name, lambda: (subject, inputs), options)


def x(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 normal random values."""
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def u(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0) -> Tensor:
    """Return float64 uniform random values."""
    return low + (high - low) * torch.rand(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def z(*shape: int, seed: int = 0) -> Tensor:
    """Return complex random values."""
    return torch.randn(*shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


def t(*values: float) -> Tensor:
    """Return a float64 vector."""
    return torch.tensor(values, dtype=DOUBLE)


@cache
def all_controls() -> tuple[Control, ...]:
    """Return every entry of every module of this folder that has a list called ``CONTROLS``."""
    import tests.controls as package

    found = []
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if info.name.startswith("test_") or info.name in ("entries", "op_db", "upstream"):
            continue
        module = importlib.import_module(f"tests.controls.{info.name}")
        listed = getattr(module, "CONTROLS", [])
        found += [replace(entry, group=info.name.replace("_", " ")) for entry in listed]
    return tuple(found)
