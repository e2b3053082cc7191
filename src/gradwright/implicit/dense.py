"""The direct way: factors of a matrix, made once and used for the system, for its conjugate transpose, and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import ArgumentError, SingularMatrixError
from gradwright.implicit.conditioning import require_finite, require_regular
from gradwright.implicit.options import SolveOptions

Factors: TypeAlias = tuple[Tensor, Tensor, Tensor]

ASYMMETRY = 1e-3
"""How far a matrix that is declared Hermitian may be from it, relative to its largest entry: more is no rounding."""


def require_wide(name: str, b: Tensor) -> None:
    """Refuse half types, for which there are no factorisations.

    Raises:
        ArgumentError: ``b`` is of one.
    """
    if b.real.dtype.itemsize < 4:
        raise ArgumentError(
            f"{name}: b is of {b.dtype}, in which no linear system is solved; expected float32 or wider; write "
            "b.float(), and cast the result back."
        )


def factorised(name: str, matrix: Tensor, options: SolveOptions) -> Factors:
    """Return the factors of square matrices: ``LU`` in one, the order in which it has the rows, and where each went.

    With ``assume_a="pos"`` it is ``L`` of Cholesky instead, and the other two are empty.

    Raises:
        SingularMatrixError: a matrix is singular, or not what it is assumed to be.
        DomainError: an entry is not finite.
    """
    with torch.no_grad():
        if not matrix.numel():
            return unchecked_factors(matrix, options.assume_a)[0]
        require_finite(name, matrix)
        if options.assume_a == "pos":
            require_hermitian(name, matrix)
        factors, failed = unchecked_factors(matrix, options.assume_a)
        if options.assume_a == "pos" and torch_compat.anywhere(failed):
            raise SingularMatrixError(
                f"{name}: the matrix of the linear system is not positive definite, but is declared so by "
                "assume_a='pos'; expected positive eigenvalues; leave assume_a away, or look for a direction in which "
                "nothing changes."
            )
        require_regular(name, matrix, failed, lambda x, adjoint: solved(factors, x, adjoint=adjoint), options)
    return factors


def unchecked_factors(matrix: Tensor, assume_a: str) -> tuple[Factors, Tensor]:
    """Return the factors, and for which matrices they are of no use."""
    if assume_a == "pos":
        lower, info = torch.linalg.cholesky_ex((matrix + matrix.mH) / 2)
        nothing = torch.empty(0, dtype=torch.int64, device=matrix.device)
        return (lower, nothing, nothing.clone()), info != 0
    compact, pivots, info = torch.linalg.lu_factor_ex(matrix)
    # Within two vmaps it cannot leave the factors away (torch 2.13).
    swaps = torch.lu_unpack(compact, pivots, unpack_data=torch_compat.transforms_active())[0]
    # As a product it is exact, and faster than to look for the ones.
    order = (torch.arange(matrix.shape[-1], dtype=swaps.real.dtype, device=matrix.device) @ swaps.real).long()
    return (compact, order, order.argsort()), info != 0


def solved(factors: Sequence[Tensor], b: Tensor, *, adjoint: bool) -> Tensor:
    """Solve with the factors of a matrix, or of its conjugate transpose, for the columns ``b``.

    ``torch.linalg.lu_solve`` is not used: where a batch of factors is broadcast against one of right sides, as ``vmap``
    does, it reads foreign memory and returns other numbers (torch 2.13; ``test_lu_solve_is_still_wrong``).
    """
    compact, order, places = factors
    if not order.shape[-1]:
        below = torch.linalg.solve_triangular(compact, b, upper=False)
        return torch.linalg.solve_triangular(compact.mH, below, upper=True)  # type: ignore[no-any-return]
    if adjoint:
        below = torch.linalg.solve_triangular(compact.mH, b, upper=False)
        mixed = torch.linalg.solve_triangular(compact.mH, below, upper=True, unitriangular=True)
        return torch.take_along_dim(mixed, places[..., None], -2)
    mixed = torch.take_along_dim(b, order[..., None], -2)
    below = torch.linalg.solve_triangular(compact, mixed, upper=False, unitriangular=True)
    return torch.linalg.solve_triangular(compact, below, upper=True)  # type: ignore[no-any-return]


def require_hermitian(name: str, matrix: Tensor) -> None:
    """Refuse a matrix that is declared Hermitian and is not.

    Raises:
        SingularMatrixError: it is not.
    """
    sizes = matrix.abs().amax((-2, -1))
    if torch_compat.anywhere((matrix - matrix.mH).abs().amax((-2, -1)) > ASYMMETRY * sizes):
        raise SingularMatrixError(
            f"{name}: the matrix of the linear system is not Hermitian, but is declared so by assume_a='pos'; expected "
            "a matrix that is its own conjugate transpose; leave assume_a away."
        )
