"""How a linear system is solved: the method, its accuracy, and what happens where few digits can be right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from gradwright.errors import OptionError, unknown_choice

Named: TypeAlias = Literal["auto", "direct", "cg", "gmres"]
Method: TypeAlias = Named | Callable[..., Any]
Assumed: TypeAlias = Literal["gen", "pos"]
IllConditioned: TypeAlias = Literal["warn", "raise", "ignore"]

CHOICES: dict[str, tuple[str, ...]] = {
    "method": ("auto", "direct", "cg", "gmres"),
    "assume_a": ("gen", "pos"),
    "on_ill_conditioned": ("warn", "raise", "ignore"),
}


@dataclass(frozen=True)
class SolveOptions:
    """The options of a linear solve.

    Arguments:
        method: ``"direct"`` forms the matrix and factorises it once, for all derivatives; ``"gmres"`` and ``"cg"``
            only apply the operator, ``"cg"`` where it is Hermitian and positive definite; ``"auto"`` is direct up to
            ``direct_up_to`` unknowns, and beyond ``"gmres"``, or ``"cg"`` with ``assume_a="pos"``; where these do not
            converge it is direct after all, up to 5,000. A function is called
            as ``method(matvec, rmatvec, b)`` and returns ``x``; ``rmatvec`` applies the conjugate transpose.
        tol: how large the residual of an iterative method may be, relative to ``b``; by default ``eps ** (2 / 3)`` of
            the dtype.
        max_steps: how often an iterative method may apply the operator; by default as often as there are unknowns,
            and 1,000 times at least.
        restart: after how many steps GMRES starts anew.
        assume_a: ``"pos"`` for Hermitian and positive definite operators, as in SciPy.
        on_ill_conditioned: what happens where the condition number, of the matrix with its rows and columns scaled,
            is above ``ill_conditioned``; and for ``root``, ``fixed_point`` and ``argmin`` where one more step of
            Newton's method would change a gradient by 5 %, as near a fold. With ``"ignore"`` neither is estimated, and
            with methods that are not direct neither can be.
        ill_conditioned: by default ``eps ** (-2 / 3)``: 2.7e10 in float64, 4e4 in float32.
        direct_up_to: up to how many unknowns ``"auto"`` is direct.
    """

    method: Method = "auto"
    tol: float | None = None
    max_steps: int | None = None
    restart: int = 50
    assume_a: Assumed = "gen"
    on_ill_conditioned: IllConditioned = "warn"
    ill_conditioned: float | None = None
    direct_up_to: int = 1000

    def check(self, name: str) -> None:
        """Refuse values that are not known; ``name`` is that of the user's function.

        Raises:
            OptionError: an option has none of its choices, or a number is out of its range.
        """
        for option, known in CHOICES.items():
            value = getattr(self, option)
            if value not in known and not (option == "method" and callable(value)):
                raise unknown_choice(f"{name}: {option}", value, known)
        if self.method == "cg" and self.assume_a == "gen":
            raise OptionError(
                f"{name}: method='cg' is right only for Hermitian and positive definite operators; expected to be told "
                "that this one is; say assume_a='pos', or method='gmres' if it is not."
            )
        for option, lowest in (("max_steps", 1), ("restart", 1), ("direct_up_to", 0)):
            number = getattr(self, option)
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < lowest):
                raise OptionError(f"{name}: {option} is {number!r}; expected a whole number from {lowest} on.")
        for option, lowest in (("tol", 0), ("ill_conditioned", 1)):
            number = getattr(self, option)
            if number is not None and not (isinstance(number, (int, float)) and lowest < number < math.inf):
                raise OptionError(f"{name}: {option} is {number!r}; expected a number above {lowest}.")

    def resolved(self, size: int) -> Method:
        """Return the method for so many unknowns."""
        if self.method != "auto":
            return self.method
        if size <= self.direct_up_to:
            return "direct"
        return "cg" if self.assume_a == "pos" else "gmres"

    def tolerance(self, dtype: torch.dtype) -> float:
        """Return how large the residual may be, relative to the right side."""
        return torch.finfo(dtype).eps ** (2 / 3) if self.tol is None else self.tol

    def steps(self, size: int) -> int:
        """Return how often an iterative method may apply the operator."""
        return max(1000, size) if self.max_steps is None else self.max_steps

    def limit(self, dtype: torch.dtype) -> float:
        """Return the condition number from which on a matrix is ill-conditioned."""
        return torch.finfo(dtype).eps ** (-2 / 3) if self.ill_conditioned is None else self.ill_conditioned
