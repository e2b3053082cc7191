"""What is kept of a call of a custom gradient in a running program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class FunctionKey:
    """Which function it is, wherever its program is run."""

    module: str
    """Name of the module that defines it, ``__main__`` for a script."""
    qualname: str
    name: str
    """How it is called in reports."""
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Unkept:
    """Stands for a value that could not be kept."""

    what: str
    """Its kind, for example ``FakeTensor``."""
    reason: str


class Elsewhere:
    """A copy in main memory of a tensor on another device; no dataclass, which would be taken for a container."""

    def __init__(self, values: Tensor, device: str) -> None:
        self.values = values
        self.device = device


@dataclass(frozen=True)
class Call:
    """One call of a function, with values as :func:`capture` made them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cotangents: tuple[Any, ...] | None = None
    """What backward was handed, one for each output; None when it did not run, or has not yet."""
    random_state: Tensor | None = None
    """The state of torch's CPU generator at the call."""
    note: str = ""
