"""Solvers made of PyTorch, for those who bring none: what ``root``, ``fixed_point`` and ``argmin`` use by default.

They work on one vector. How they get to the solution does not matter for its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gradwright.implicit.status import Status

VectorFunction = Callable[[Tensor], Tensor]
_HALVINGS = 40


def default_tolerance(dtype: torch.dtype) -> float:
    """Return how large the last step may be, relative to ``1 + |z|``: 1.8e-12 in float64."""
    return float(torch.finfo(dtype).eps ** 0.75)


def newton(function: VectorFunction, z: Tensor, *, tol: float | None, max_steps: int) -> tuple[Tensor, Status]:
    """Solve ``function(z) = 0`` by Newton's method with a line search (Dennis and Schnabel, 1983)."""
    tol = default_tolerance(z.dtype) if tol is None else tol
    value = function(z)
    for step in range(max_steps):
        if not bool(value.any()):
            return z, Status(True, step, 0.0)
        change = _least_change(torch.func.jacrev(function)(z), value)
        longest = _size(change, z)
        found = _shortened(function, z, value, change)
        if found is None:  # no step makes it smaller: it is as small as rounding allows, or this is a dead end
            return z, Status(longest <= math.sqrt(tol), step, float(value.norm()))
        z, value, share = found
        if share == 1 and longest <= tol:
            return z, Status(True, step + 1, float(value.norm()))
    return z, Status(False, max_steps, float(value.norm()))


def anderson(
    function: VectorFunction, z: Tensor, *, tol: float | None, max_steps: int, memory: int
) -> tuple[Tensor, Status]:
    """Iterate ``z - function(z)``, mixing the last few steps (Anderson, 1965; Walker and Ni, 2011).

    ``function(z)`` is ``z - f(z)``. Without memory this is plain iteration.
    """
    enough = default_tolerance(z.dtype) if tol is None else tol
    best, best_size, since = z, math.inf, 0
    points: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(max_steps):
        value = function(z)
        size = _size(value, z)
        best, best_size, since = (z, size, 0) if size < best_size else (best, best_size, since + 1)
        # Where no tolerance is given, it goes on until rounding stops it.
        if not math.isfinite(size) or best_size == 0 or (best_size <= enough and (tol is not None or since == 3)):
            return best, Status(best_size <= enough, step, float(function(best).norm()))
        points, values = [*points, z][-memory - 1 :], [*values, value][-memory - 1 :]
        z = z - value
        if len(values) > 1:
            by_point = torch.stack([a - b for a, b in zip(points[1:], points)], 1)
            by_value = torch.stack([a - b for a, b in zip(values[1:], values)], 1)
            weights = torch.linalg.lstsq(by_value, value.unsqueeze(1), driver=_driver(value)).solution.squeeze(1)
            mixed = z - (by_point - by_value) @ weights
            z = mixed if bool(torch.isfinite(mixed).all()) else z
    return best, Status(best_size <= enough, max_steps, float(function(best).norm()))


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


def _least_change(jacobian: Tensor, value: Tensor) -> Tensor:
    """Return the step to the root of the linear model; where there is none, or many, the shortest of the best."""
    found: Tensor
    found, failed = torch.linalg.solve_ex(jacobian, -value)
    if bool(failed) or not bool(torch.isfinite(found).all()):
        found = torch.linalg.pinv(jacobian.nan_to_num()) @ -value
    return found


def _shortened(
    function: VectorFunction, z: Tensor, value: Tensor, change: Tensor
) -> tuple[Tensor, Tensor, float] | None:
    """Return the first of ever shorter steps that makes the values smaller."""
    share = 1.0
    for _ in range(_HALVINGS):
        point = z + share * change
        there = function(point)
        if float(there.norm()) <= (1 - 1e-4 * share) * float(value.norm()):
            return point, there, share
        share /= 2
    return None


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


def _size(change: Tensor, z: Tensor) -> float:
    """Return the largest step of an unknown, relative to one and to its own size."""
    return float((change.abs() / (1 + z.abs())).max()) if len(z) else 0.0


def _driver(tensor: Tensor) -> str:
    """Return a method for least squares that bears dependent columns, where there is one (LAPACK has)."""
    return "gelsd" if tensor.device.type == "cpu" else "gels"
