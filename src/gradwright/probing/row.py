"""A probe: one call of torch at one place, what is asked of it, and what is true there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

QUANTITIES = ("value", "gradient", "second derivative")
"""All outputs; the gradient of all inputs; and the Hessian times 1, 2, 3, ..., so that nothing cancels."""

TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""The largest relative error that counts as right unless a probe has its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """One row of the table.

    The numbers of ``at`` are rounded to ``dtype`` before anything else; torch and the truth get the same ones. What is
    not differentiated is written in the calls. An output of several elements is summed before it is differentiated.
    """

    id: str
    """A number, or a letter with a number; filters and the table of the docs use it."""
    case: str
    """What is called, and where, as a user would write it."""
    at: tuple[Any, ...]
    """The inputs: numbers, or lists of them for vectors and matrices. All are differentiated."""
    call: Callable[..., Tensor]
    """The torch call; it takes the inputs as tensors."""
    of: str = "gradient"
    """What is looked at: one of ``QUANTITIES``."""
    scalar: Callable[..., Any] | None = None
    """The same function for mpmath; it takes the inputs as numbers and nested lists. Its derivatives are the truth."""
    right: Callable[..., Any] | None = None
    """The truth in closed form; needed where ``scalar`` cannot be differentiated or there is none."""
    dtype: torch.dtype = torch.float64
    tolerance: float | None = None
    """The largest relative error that counts as right; by dtype when not given."""
    remedy: str | None = None
    """The function of ``gw.stable`` that is right, without the package; it need not exist yet."""
    remedied: Callable[..., Tensor] | None = None
    """The call that uses it: it takes the function, then the inputs. Not needed where the function takes just these."""

    def __post_init__(self) -> None:
        if self.of not in QUANTITIES:
            raise ValueError(f"probe {self.id}: got of={self.of!r}; expected one of {', '.join(QUANTITIES)}.")
        if self.scalar is None and self.right is None:
            raise ValueError(f"probe {self.id}: there is no truth; expected `scalar` or `right`; give one.")
        if self.remedied is not None and self.remedy is None:
            raise ValueError(f"probe {self.id}: `remedied` calls no function; expected `remedy`; name it.")

    @property
    def allowed(self) -> float:
        """The largest relative error that counts as right."""
        return TOLERANCES[self.dtype] if self.tolerance is None else self.tolerance

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs as tensors."""
        return tuple(torch.tensor(value, dtype=self.dtype) for value in self.at)


def looked_up(package: ModuleType, name: str, *more: Any) -> Callable[..., Any]:
    """Return a function of torch that is looked up when it is called, since a torch may lack it.

    Arguments:
        package: where it is, for example ``torch.special``.
        name: its name there.
        more: what it is given after the inputs.
    """

    def call(*inputs: Tensor) -> Any:
        return getattr(package, name)(*inputs, *more)

    return call
