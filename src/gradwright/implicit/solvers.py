"""Solvers made of PyTorch, for those who bring none: what ``root``, ``fixed_point`` and ``argmin`` use by default.

They work on one vector. How they get to the solution does not matter for its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gradwright.errors import ConvergenceError
from gradwright.implicit import krylov
from gradwright.implicit.convergence import directional
from gradwright.implicit.options import SolveOptions
from gradwright.implicit.status import Status

VectorFunction = Callable[[Tensor], Tensor]
JACOBIAN_UP_TO = 1000
"""Up to how many unknowns Newton's method makes the Jacobian; beyond, it solves for its steps by GMRES."""
_HALVINGS = 40


def default_tolerance(dtype: torch.dtype) -> float:
    """Return how large the last step may be, relative to ``1 + |z|``: 1.8e-12 in float64."""
    return float(torch.finfo(dtype).eps ** 0.75)


def newton(function: VectorFunction, z: Tensor, *, tol: float | None, max_steps: int) -> tuple[Tensor, list[Status]]:
    """Solve ``function(z) = 0`` for each row by Newton's method with a line search (Dennis and Schnabel, 1983)."""
    tol = default_tolerance(z.dtype) if tol is None else tol
    value = function(z)
    rows = _Rows(z)
    for _ in range(max_steps):
        rows.end(~value.any(1), converged=True)
        if rows.all_ended():
            break
        try:
            change = _change(function, z, value)
        except ConvergenceError:  # of the linear solve
            break
        longest = _sizes(change, z)
        z, value, share = _shortened(function, z, value, change, rows.ended, longest <= tol)
        rows.steps += ~rows.ended & (share > 0)
        # Where no step makes it smaller, it is as small as rounding allows, or this is a dead end.
        rows.end((share == 0) & ~(longest <= math.sqrt(tol)), converged=False)
        rows.end((share == 0) | ((share == 1) & (longest <= tol)), converged=True)
    return z, rows.statuses(value)


def anderson(
    function: VectorFunction, z: Tensor, *, tol: float | None, max_steps: int, memory: int
) -> tuple[Tensor, list[Status]]:
    """Iterate ``z - function(z)`` in each row, mixing the last few steps (Anderson, 1965; Walker and Ni, 2011).

    ``function(z)`` is ``z - f(z)``. Without memory this is plain iteration.
    """
    enough = default_tolerance(z.dtype) if tol is None else tol
    best, best_size, since = z, z.new_full((len(z),), math.inf), z.new_zeros(len(z))
    points: list[Tensor] = []
    values: list[Tensor] = []
    rows = _Rows(z)
    for _ in range(max_steps):
        value = function(z)
        size = _sizes(value, z)
        better = (size < best_size) & ~rows.ended
        best, best_size = torch.where(better[:, None], z, best), torch.where(better, size, best_size)
        since = torch.where(better, 0, since + 1)
        # Where no tolerance is given, it goes on until rounding stops it.
        rows.end((best_size <= enough) & ((since == 3) | (best_size == 0) | (tol is not None)), converged=True)
        rows.end(~torch.isfinite(size), converged=False)
        if rows.all_ended():
            break
        rows.steps += ~rows.ended
        points, values = [*points, z][-memory - 1 :], [*values, value][-memory - 1 :]
        following = z - value
        if len(values) > 1:
            by_point = torch.stack([a - b for a, b in zip(points[1:], points)], 2)
            by_value = torch.stack([a - b for a, b in zip(values[1:], values)], 2)
            weights = _least_squares(by_value, value)
            mixed = following - ((by_point - by_value) @ weights.unsqueeze(2)).squeeze(2)
            following = torch.where(torch.isfinite(mixed).all(1, keepdim=True), mixed, following)
        z = torch.where(rows.ended[:, None], z, following)
    rows.end(best_size <= enough, converged=True)
    return best, rows.statuses(function(best))


def descend(
    objective: VectorFunction,
    constraints: VectorFunction | None,
    z: Tensor,
    *,
    tol: float | None,
    max_steps: int,
) -> tuple[Tensor, Status]:
    """Minimise by Newton's method, made to go downhill, along the constraints where there are any.

    The quadratic model is made convex by a multiple of the identity, and steps are shortened until the objective, plus
    the broken constraints with a weight, decreases (Nocedal and Wright, Numerical Optimization, 2006, chapters 3, 18).
    """
    tol = default_tolerance(z.dtype) if tol is None else tol
    held: VectorFunction = constraints or (lambda z: z.new_zeros(0))
    multipliers = torch.zeros_like(held(z))

    def lagrangian(z: Tensor) -> Tensor:
        return objective(z) + multipliers @ held(z)

    residual = least = math.inf
    for step in range(max_steps):
        broken, jacobian = held(z), torch.func.jacrev(held)(z)
        slope = torch.func.grad(objective)(z)
        change, multipliers = _downhill(torch.func.jacrev(torch.func.grad(lagrangian))(z), jacobian, slope, broken)
        residual = float((slope + jacobian.T @ multipliers).norm() + broken.norm())
        if _size(change, z) <= tol:
            return z + change, Status(True, step, residual)
        weight = 1 + 2 * (float(multipliers.abs().max()) if len(multipliers) else 0.0)
        found = _lower(lambda z, weight=weight: objective(z) + weight * held(z).abs().sum(), z, change)  # type: ignore[misc]
        if found is None:
            # Near the minimum the objective does not show so small a step; the residual still does.
            near = _size(change, z) <= math.sqrt(tol)
            if not near or residual >= least:
                return z, Status(near, step, residual)
            found = z + change
        z, least = found, min(least, residual)
    return z, Status(False, max_steps, residual)


def quasi_newton(objective: VectorFunction, z: Tensor, *, tol: float | None, max_steps: int) -> tuple[Tensor, Status]:
    """Minimise by L-BFGS, for many unknowns (Liu and Nocedal, 1989)."""
    tol = default_tolerance(z.dtype) if tol is None else tol
    point = z.clone()
    optimizer = torch.optim.LBFGS(
        [point], max_iter=max_steps, tolerance_grad=tol, tolerance_change=tol**1.5, line_search_fn="strong_wolfe"
    )
    steps = 0

    def evaluate() -> Tensor:
        nonlocal steps
        steps += 1
        # `backward()` is not allowed while a transform of torch.func is active.
        value: Tensor
        point.grad, value = torch.func.grad_and_value(objective)(point.detach())
        return value

    optimizer.step(evaluate)
    slope = torch.func.grad(objective)(point)
    arrived = float(slope.abs().max()) <= math.sqrt(tol)
    return point.detach(), Status(arrived, steps, float(slope.norm()))


class _Rows:
    """Which of the rows have ended, and how."""

    def __init__(self, z: Tensor) -> None:
        self.ended = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        self.converged = self.ended.clone()
        self.steps = torch.zeros(len(z), dtype=torch.int64, device=z.device)

    def end(self, rows: Tensor, *, converged: bool) -> None:
        """End some rows; those that have ended already stay as they are."""
        if converged:
            self.converged |= rows & ~self.ended
        self.ended |= rows

    def all_ended(self) -> bool:
        """Tell whether there is nothing left to do."""
        return bool(self.ended.all())

    def statuses(self, value: Tensor) -> list[Status]:
        """Return how each row ended; ``value`` is what should be zero."""
        found = zip(self.converged.tolist(), self.steps.tolist(), value.norm(dim=1).tolist())
        return [Status(converged, steps, residual) for converged, steps, residual in found]


def _change(function: VectorFunction, z: Tensor, value: Tensor) -> Tensor:
    """Return Newton's step for each row; for many unknowns the Jacobians are not made."""
    if z.shape[1] <= JACOBIAN_UP_TO:
        return _least_change(_jacobians(function, z), value)
    pull, push = torch.func.vjp(function, z)[1], directional(function, z)

    def product(x: Tensor) -> Tensor:
        return push(x.reshape(z.shape)).reshape(-1)

    def transposed(x: Tensor) -> Tensor:
        found: Tensor = pull(x.reshape(z.shape))[0]
        return found.reshape(-1)

    # So exact that the steps still become smaller by this factor.
    options = SolveOptions(method="gmres", tol=max(1e-6, 100 * torch.finfo(z.dtype).eps))
    return krylov.solved("newton", product, transposed, -value.reshape(-1), options).reshape(z.shape)


def _jacobians(function: VectorFunction, z: Tensor) -> Tensor:
    """Return the Jacobian of each row, which depends on the same row of ``z`` only."""
    found: Tensor = torch.func.jacrev(lambda z: function(z).sum(0))(z)
    return found.movedim(1, 0)


def _least_change(jacobian: Tensor, value: Tensor) -> Tensor:
    """Return the step to the root of the linear model; where there is none, or many, the shortest of the best."""
    found: Tensor
    found, failed = torch.linalg.solve_ex(jacobian, -value)
    bad = (failed != 0) | ~torch.isfinite(found).all(-1)
    if bool(bad.any()):
        other = (torch.linalg.pinv(jacobian.nan_to_num()) @ -value.unsqueeze(-1)).squeeze(-1)
        found = torch.where(bad.unsqueeze(-1), other, found)
    return found


def _shortened(
    function: VectorFunction, z: Tensor, value: Tensor, change: Tensor, ended: Tensor, last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first of ever shorter steps that makes the values of a row smaller, where there is one.

    The share of the whole step is returned too: 0 for rows without such a step, and for those that have ended. In rows
    where the step is the ``last`` only the whole of it is tried: what it does is lost in rounding anyway.
    """
    share, size = torch.ones_like(z[:, 0]), value.norm(dim=1)
    z_found, value_found, taken = z, value, torch.zeros_like(share)
    left = ~ended
    for _ in range(_HALVINGS):
        point = z + share[:, None] * change
        there = function(point)
        smaller = left & (there.norm(dim=1) <= (1 - 1e-4 * share) * size)
        z_found = torch.where(smaller[:, None], point, z_found)
        value_found = torch.where(smaller[:, None], there, value_found)
        taken = torch.where(smaller, share, taken)
        left = left & ~smaller & ~last
        if not bool(left.any()):
            break
        share = share / 2
    return z_found, value_found, taken


def _least_squares(matrix: Tensor, b: Tensor) -> Tensor:
    """Solve for each row, also where columns depend on each other, as those of a row that has ended."""
    # LAPACK has a method for that; on other devices the columns are kept apart by a little of the identity.
    matrix, b = matrix.nan_to_num(), b.nan_to_num().unsqueeze(-1)
    found: Tensor
    if matrix.device.type == "cpu":
        found = torch.linalg.lstsq(matrix, b, driver="gelsd").solution
        return found.squeeze(-1)
    square = matrix.mT @ matrix
    size = square.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] + torch.finfo(b.dtype).tiny
    eye = torch.eye(square.shape[-1], dtype=b.dtype, device=b.device)
    found = torch.linalg.solve(square + 10 * torch.finfo(b.dtype).eps * size * eye, matrix.mT @ b)
    return found.squeeze(-1)


def _downhill(hessian: Tensor, jacobian: Tensor, slope: Tensor, broken: Tensor) -> tuple[Tensor, Tensor]:
    """Return the step of the quadratic model and the multipliers."""
    count = len(slope)
    hessian = (hessian + hessian.T) / 2
    basis = torch.linalg.qr(jacobian.T, mode="complete").Q[:, len(broken) :] if len(broken) else None
    shown = hessian if basis is None else basis.T @ hessian @ basis
    values = torch.linalg.eigvalsh(shown) if len(shown) else hessian.new_ones(1)
    least = 1e-8 * max(1.0, float(values.abs().max()))
    if float(values[0]) < least:
        hessian = hessian + (least - float(values[0]) + 1e-3 * float(values.abs().max())) * torch.eye(
            count, dtype=hessian.dtype, device=hessian.device
        )
    corner = hessian.new_zeros(len(broken), len(broken))
    matrix = torch.cat([torch.cat([hessian, jacobian.T], 1), torch.cat([jacobian, corner], 1)])
    found = _least_change(matrix, torch.cat([slope, broken]))
    return found[:count], found[count:]


def _lower(merit: VectorFunction, z: Tensor, change: Tensor) -> Tensor | None:
    """Return the first of ever shorter steps that makes a number smaller."""
    before, share = float(merit(z)), 1.0
    for _ in range(_HALVINGS):
        point = z + share * change
        if float(merit(point)) < before:
            return point
        share /= 2
    return None


def _sizes(change: Tensor, z: Tensor) -> Tensor:
    """Return the largest step of an unknown in each row, relative to one and to its own size."""
    relative = change.abs() / (1 + z.abs())
    return relative.amax(-1) if z.shape[-1] else relative.sum(-1)


def _size(change: Tensor, z: Tensor) -> float:
    """Return the largest step of an unknown, relative to one and to its own size."""
    return float(_sizes(change, z))
