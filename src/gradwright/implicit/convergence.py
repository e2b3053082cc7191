"""Whether a solver arrived: at a point that is no solution, the derivative of the solution is not to be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradwright.errors import ConvergenceError, RuleError

TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-3}
"""How far from the solution a point may be, relative to ``1 + |z|``.

The error of a gradient is about as large as that of the point, so this stops what did not converge, not what converged
loosely: the default tolerances of SciPy pass.
"""
_PROBES = 4


class Record:
    """What one solve, or a batch of them, leaves behind; it travels beside the tensors."""

    def __init__(self) -> None:
        self.structure: Any = None
        """Of the solution."""
        self.aux: Any = None
        """What the solver returned besides; of a batch a list."""
        self.parts: list[Record] = []
        """Those of a batch."""
        self.check: Callable[[], None] | None = None
        """Raises where the solution has no derivative."""

    def require(self) -> None:
        """Refuse to differentiate what has no derivative; what was looked at once is not looked at again.

        Raises:
            ConvergenceError: the solver did not arrive.
            UndefinedGradientError: it arrived elsewhere.
        """
        for part in self.parts:
            part.require()
        if self.check is not None:
            with torch.no_grad():
                self.check()
            self.check = None


def refuse_unconverged(
    name: str, measure: Callable[[Tensor], Tensor], z: Tensor, value: Tensor, tolerance: float | None
) -> None:
    """Refuse a point where the equations hold worse than an error of ``tolerance * (1 + |z|)`` in it explains.

    ``value`` is that of the equations at ``z``, and ``measure`` returns :func:`relative_errors` of it, both perhaps for
    a batch of points.

    Raises:
        ConvergenceError: some equation does not hold.
    """
    tolerance = TOLERANCES[value.dtype] if tolerance is None else tolerance
    if not bool(torch.isfinite(z).all() & torch.isfinite(value).all()):
        raise ConvergenceError(
            f"{name}: the solver returned nan or infinite numbers, or a point where the equations give such, which has "
            "no derivative; expected a solution; look at the solver's status (has_aux=True), or start elsewhere."
        )
    if not bool(value.any()):
        return
    errors = measure(value)
    place = int(errors.argmax())
    worst, residual = float(errors.flatten()[place]), float(value.flatten()[place])
    if not worst <= tolerance:
        sample, equation = divmod(place, value.shape[-1])
        where = f" of sample {sample}" if value.ndim > 1 else ""
        raise ConvergenceError(
            f"{name}: the solver ended at a point that is not a solution, and its derivative there would be wrong: "
            f"equation {equation} of {value.shape[-1]}{where} has the residual {residual:.3g}, {worst:.3g} relative to "
            f"its scale; expected at most tol_residual = {tolerance:.3g}; let the solver iterate longer or more "
            "exactly, or set tol_residual if this is as good as it gets."
        )


def refuse_changed(name: str, change: Tensor, measure: Callable[[Tensor], Tensor], tolerance: float | None) -> None:
    """Refuse to differentiate equations that are others by now than when they were solved.

    ``change`` is the difference of their values now and then, and ``measure`` returns :func:`relative_errors` of it.

    Raises:
        RuleError: they differ by more than an error of ``tolerance * (1 + |z|)`` explains.
    """
    if not bool(change.any()):
        return
    tolerance = TOLERANCES[change.dtype] if tolerance is None else tolerance
    if not bool((measure(change) <= tolerance).all()):
        raise RuleError(
            f"{name}: at its solution it gives another value now than when it was solved (the difference is "
            f"{float(change.abs().max()):.3g}), so that the derivative would be that of another problem: something "
            "that it uses and does not receive has changed since, such as a number or a buffer; expected everything "
            "that changes among the arguments; call solve(z0, value) and write a parameter for it."
        )


def relative_errors(function: Callable[[Tensor], Tensor], z: Tensor, value: Tensor) -> Tensor:
    """Return how large each element of ``value``, which is ``function(z)``, is in its own scale.

    That is the size of ``dF_i/dz (1 + |z|)``, estimated from a few products with directions of random signs, which are
    the same each time.
    """
    scale = torch.zeros_like(value)
    push = directional(function, z)
    for seed in range(_PROBES):
        scale = torch.maximum(scale, push(_direction(z, seed) * (1 + z.abs())).abs())
    return torch.where(value == 0, 0, value.abs() / scale)  # infinite where an equation does not depend on z


def directional(function: Callable[[Tensor], Tensor], z: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the derivative of ``function`` at ``z`` along a direction.

    It is made of reverse mode, which more functions have than forward mode, and which may be used inside of it.
    """
    value, pull = torch.func.vjp(function, z)[:2]
    pushed = torch.func.vjp(lambda w: pull(w)[0], torch.zeros_like(value))[1]
    return lambda direction: pushed(direction)[0]


def _direction(z: Tensor, seed: int) -> Tensor:
    """Return numbers of both signs of sizes between 1/2 and 3/2."""
    steps = torch.arange(1, len(z) + 1, dtype=torch.float64, device=z.device)
    wave = torch.sin(steps * (12.9898 + seed) + 78.233 * seed) * 43758.5453
    noise = wave - wave.floor()
    return torch.where(noise < 0.5, 0.5 + 2 * noise, -0.5 - 2 * (noise - 0.5)).to(z.dtype)
