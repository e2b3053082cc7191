"""How a solver of gradwright's own ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """What ``has_aux=True`` gives beside a solution, where no solver was decorated."""

    converged: bool
    """Whether the solver stopped by its tolerance."""
    steps: int
    residual: float
    """The norm of what should be zero: of the residual, of ``z - f(z)``, of the gradient (and the constraints)."""
