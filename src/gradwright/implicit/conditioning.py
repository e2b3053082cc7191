"""How many digits a linear system leaves: an estimate of its condition number from its factors.

The estimate is that of the 1-norm of the inverse by Hager (Condition estimates, 1984) with the further vector of Higham
(FORTRAN codes for estimating the one-norm, 1988), as LAPACK has it: a lower bound that is rarely off by more than a
factor of 3, for a few solves with the factors that are there. Rows and columns are scaled to entries of the same size
first: what units the unknowns and equations are in costs no digits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import warned
from gradwright.errors import DomainError, IllConditionedWarning, SingularMatrixError
from gradwright.implicit.options import SolveOptions

EXACT_UP_TO = 100
"""Up to this order the inverse is formed, and the condition number exact."""
STEPS = 4

Solve = Callable[[Tensor, bool], Tensor]
"""Takes columns, and whether to solve with the conjugate transpose instead."""


def condition_number(matrix: Tensor, solve: Solve) -> Tensor:
    """Return an estimate of the condition number in the 1-norm of each matrix, rows and columns scaled."""
    sizes = matrix.abs()
    rows = _nonzero(sizes.amax(-1, keepdim=True))
    sizes /= rows  # in place, since a large matrix takes longer to come by than to divide
    columns = _nonzero(sizes.amax(-2, keepdim=True))
    norm = (sizes.sum(-2, keepdim=True) / columns).amax((-2, -1))

    def inverse(x: Tensor) -> Tensor:
        return columns.mT * solve(rows * x, False)

    def adjoint(x: Tensor) -> Tensor:
        return rows * solve(columns.mT * x, True)

    found: Tensor = norm * norm_of_inverse(matrix, inverse, adjoint)
    return found


def norm_of_inverse(matrix: Tensor, inverse: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the 1-norm of the inverse of each matrix, which ``inverse`` and ``adjoint`` apply; from below if large."""
    n = matrix.shape[-1]
    if n <= EXACT_UP_TO:
        eye = torch.eye(n, dtype=matrix.dtype, device=matrix.device).expand(matrix.shape)
        return inverse(eye).abs().sum(-2).amax(-1)
    places = torch.arange(n, device=matrix.device)[:, None]
    alternating = ((1 - 2 * (places % 2)) * (1 + places / (n - 1))).to(matrix.dtype).expand(*matrix.shape[:-1], 1)
    best = inverse(alternating).abs().sum((-2, -1)) * (2 / (3 * n))
    x = torch.full_like(alternating, 1 / n)
    for _ in range(STEPS):
        y = inverse(x)
        best = torch.maximum(best, y.abs().sum((-2, -1)))
        z = adjoint(torch.where(y == 0, torch.ones_like(y), torch.sgn(y)))
        x = (places == z.abs().argmax(-2, keepdim=True)).to(matrix.dtype)
    return best


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.ones_like(x), x)


def require_finite(name: str, matrix: Tensor) -> None:
    """Refuse a matrix with nan or infinity.

    Raises:
        DomainError: there is one, and values can be looked at.
    """
    # The sum is faster to look at, and may be infinite without a reason.
    if torch_compat.anywhere(~torch.isfinite(matrix.sum())) and torch_compat.anywhere(~torch.isfinite(matrix)):
        raise DomainError(
            f"{name}: the matrix of the linear system has nan or infinite entries; expected finite ones; look at what "
            "it was computed from."
        )


def require_regular(name: str, matrix: Tensor, flags: Tensor, solve: Solve, options: SolveOptions) -> None:
    """Refuse singular matrices, and judge ill-conditioned ones as the options say.

    ``flags`` tells for which matrices the factorisation met a pivot that is zero. Where values cannot be looked at
    nothing is refused.

    Raises:
        SingularMatrixError: a matrix is singular, or so to working precision; or it is ill-conditioned, and that is
            to be an error.
    """
    if torch_compat.anywhere(flags):
        raise SingularMatrixError(
            f"{name}: the matrix of the linear system is singular (a pivot is exactly zero), so that there is no "
            "unique solution and no gradient; expected an invertible one; look for equations that depend on each "
            "other, or unknowns that no equation has."
        )
    if options.on_ill_conditioned == "ignore" or torch_compat.anywhere(flags) is None:
        return
    worst = torch.func.debug_unwrap(condition_number(matrix, solve), recurse=True).max().item()
    if worst * torch.finfo(matrix.dtype).eps >= 1:
        raise SingularMatrixError(
            f"{name}: the matrix of the linear system is singular to working precision (condition number about "
            f"{worst:.1e} in {str(matrix.dtype).removeprefix('torch.')}), so that no digit of the solution is known; "
            "expected an invertible one; compute in a wider dtype, change the equations, or say "
            "on_ill_conditioned='ignore'."
        )
    if worst > options.limit(matrix.dtype):
        message = (
            f"{name}: the matrix of the linear system is ill-conditioned: its condition number is about {worst:.1e}, "
            f"above {options.limit(matrix.dtype):.1e}, so that the solution and gradients may be off by "
            f"{worst * torch.finfo(matrix.dtype).eps:.0e} of their size; scale or change the equations, compute in a "
            "wider dtype, or say on_ill_conditioned='ignore'."
        )
        if options.on_ill_conditioned == "raise":
            raise SingularMatrixError(message)
        warned.warn(message, IllConditionedWarning)
