"""Iterative methods, which only apply the operator: conjugate gradients and restarted GMRES.

They are written so that ``vmap`` follows them: what has converged of a batch stands still while the rest goes on, and
the course of the program asks only whether all have. What they return has been checked against the equation.

References: Hestenes and Stiefel, Methods of conjugate gradients, 1952; Saad and Schultz, GMRES, 1986.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import ConvergenceError, RuleError, SingularMatrixError
from gradwright.implicit.options import SolveOptions

Operator = Callable[[Tensor], Tensor]


def solved(name: str, matvec: Operator, rmatvec: Operator, b: Tensor, options: SolveOptions) -> Tensor:
    """Solve for the vector ``b`` by the method that the options name.

    Raises:
        ConvergenceError: the residual did not become small enough.
        SingularMatrixError: an operator that is declared positive definite is not.
    """
    if torch_compat.anywhere(torch.isnan(b)) is None:
        raise RuleError(
            f"{name}: an iterative method must look at values, which are hidden where a program is recorded and in the "
            "old vmap behind is_grads_batched=True; expected a call outside of torch.export and make_fx, and "
            "torch.func.vmap; say method='direct' if the size allows."
        )
    finite = torch.isfinite(b).all()
    right = torch.where(finite, b, torch.zeros_like(b))  # nan has no solution, and must not hold up the others
    method = options.resolved(b.numel())
    if callable(method):
        found = method(matvec, rmatvec, right)
    elif method == "cg":
        found = _cg(name, matvec, right, options)
    else:
        found = _gmres(matvec, right, options)
    _require_converged(name, matvec, right, found, options)
    return torch.where(finite, found, torch.full_like(found, torch.nan))


def _require_converged(name: str, matvec: Operator, b: Tensor, x: Tensor, options: SolveOptions) -> None:
    allowed = options.tolerance(b.dtype)
    residual, size = _norm(b - matvec(x)), _norm(b)
    # Twice: what an iteration stops by is the same number up to rounding.
    if torch_compat.anywhere(~(residual <= 2 * allowed * size)):
        worst = torch.func.debug_unwrap(residual / _nonzero(size), recurse=True).max().item()
        raise ConvergenceError(
            f"{name}: the linear solve did not converge: the residual is {worst:.1e} of b, above {allowed:.1e}; "
            "expected a solution; raise max_steps or tol, or say method='direct' if the size allows; a singular "
            "operator has no solution."
        )


def _cg(name: str, matvec: Operator, b: Tensor, options: SolveOptions) -> Tensor:
    target = options.tolerance(b.dtype) * _norm(b)
    x, r, p = torch.zeros_like(b), b, b
    rho = _dot(r, r)
    for _ in range(options.steps(b.numel())):
        active = rho.sqrt() > target
        if not torch_compat.anywhere(active):
            break
        image = matvec(p)
        curvature = _dot(p, image)
        if torch_compat.anywhere(active & ~(curvature > 0)):
            raise SingularMatrixError(
                f"{name}: the operator is not positive definite, but is declared so by assume_a='pos'; expected "
                "positive eigenvalues; leave assume_a away, or look for a direction in which nothing changes."
            )
        step = torch.where(active, rho / _nonzero(curvature), 0.0)
        x, r = x + step * p, r - step * image
        before, rho = rho, torch.where(active, _dot(r, r), rho)
        p = torch.where(active, r + rho / _nonzero(before) * p, p)
    return x


def _gmres(matvec: Operator, b: Tensor, options: SolveOptions) -> Tensor:
    target = options.tolerance(b.dtype) * _norm(b)
    x, r, left = torch.zeros_like(b), b, options.steps(b.numel())
    while left > 0:
        active = _norm(r) > target
        if not torch_compat.anywhere(active):
            break
        steps = min(options.restart, left, b.numel())
        left -= steps
        before = _norm(r)
        x = x + _cycle(matvec, r, target, steps)
        r = b - matvec(x)
        if not torch_compat.anywhere(active & (_norm(r) < 0.99 * before)):
            break  # no progress
    return x


def _cycle(matvec: Operator, r: Tensor, target: Tensor, steps: int) -> Tensor:
    """Return the correction in the Krylov space of ``r`` that leaves the smallest residual.

    The residual of the least squares problem is ``|r| / |z|`` with the left null vector ``z`` of the Hessenberg matrix
    that begins with 1, which grows by one entry in each step.
    """
    beta = _norm(r)
    basis = [r / _nonzero(beta)]
    columns: list[Tensor] = []
    z = torch.ones_like(r[:1])
    for _ in range(steps):
        image = matvec(basis[-1])
        size = _norm(image)
        known = torch.stack(basis, -1)
        column = known.mH @ image
        rest = image - known @ column
        again = known.mH @ rest  # a second time, since rounding leaves parts of the basis
        column, rest = column + again, rest - known @ again
        height = _norm(rest)
        # What is left of rounding is no new direction.
        ended = height <= 10 * torch.finfo(r.dtype).eps * size
        basis.append(torch.where(ended, torch.zeros_like(rest), rest / _nonzero(height)))
        height = torch.where(ended, torch.zeros_like(height), height)
        columns.append(torch.cat([column, height[None].to(r.dtype)]))
        following = -(z * column).sum() / torch.where(ended, torch.ones_like(height), height)
        z = torch.cat([z, following[None]])
        if not torch_compat.anywhere(~ended & (beta / _norm(z) > target)):
            break
    hessenberg = torch.stack(
        [torch.nn.functional.pad(column, (0, len(columns) + 1 - column.shape[0])) for column in columns], -1
    )
    right = torch.nn.functional.pad(beta[None].to(r.dtype), (0, len(columns)))
    weights = torch.linalg.pinv(hessenberg) @ right
    correction: Tensor = torch.stack(basis[:-1], -1) @ weights
    return correction


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).sum().real


def _norm(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x)
    return found


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.ones_like(x), x)
