"""Linear systems whose matrix is given, ``A x = b``: one factorisation serves the solution and all its derivatives.

For a cotangent ``g`` of ``x``, that of ``b`` is ``w = A^-H g`` and that of ``A`` is ``-w x^H``; the tangent is
``A^-1 (db - dA x)`` (Giles, Collected matrix derivative results, 2008). The factors are made from a constant copy of
``A`` and handed on as constants, so that the derivatives of these formulae go by ``A`` itself and are right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import ArgumentError, kind_of
from gradwright.implicit import dense
from gradwright.implicit.options import SolveOptions
from gradwright.implicit.systems import operator_solve

NAME = "linear_solve"


def matrix_solve(A: Tensor, b: Any, options: SolveOptions) -> Tensor:
    """Return the solution of ``A x = b``, shaped as ``torch.linalg.solve`` does."""
    _check(A, b)
    vector = b.ndim == 1 or b.shape == A.shape[:-1]
    _check_shapes(A, b, vector)
    columns = b[..., None] if vector else b
    batch = torch.broadcast_shapes(A.shape[:-2], columns.shape[:-2])
    if options.method not in ("auto", "direct"):
        columns = columns.expand(*batch, *columns.shape[-2:])
        if options.assume_a == "pos":
            dense.require_hermitian(NAME, A.detach())
            A = (A + A.mH) / 2
        return _without_last(operator_solve(_product, columns, (A,), options=options, name=NAME), vector)
    if A.ndim == 2 and columns.ndim > 2:  # one matrix for a batch: all of it is columns of one right side
        rows = columns.movedim(-2, 0)
        found = _by_factors(A, rows.reshape(A.shape[0], -1), options)
        return _without_last(found.reshape(rows.shape).movedim(0, -2), vector)
    return _without_last(_by_factors(A, columns.expand(*batch, *columns.shape[-2:]), options), vector)


def _by_factors(A: Tensor, columns: Tensor, options: SolveOptions) -> Tensor:
    positive = options.assume_a == "pos"
    limit = options.limit(A.dtype)
    factors = _factors(A.detach(), options.assume_a, options.on_ill_conditioned, limit)
    # The factors stay as they are: they are broadcast when they are used.
    wide = A.expand(*columns.shape[:-2], *A.shape[-2:])
    return _solve_by(wide, columns, *factors, adjoint=False, hermitian=positive)


def _product(x: Tensor, A: Tensor) -> Tensor:
    return A @ x


def _without_last(x: Tensor, vector: bool) -> Tensor:
    return x[..., 0] if vector else x


def _check(A: Tensor, b: Any) -> None:
    if not isinstance(b, Tensor):
        raise ArgumentError(f"{NAME}: b is {kind_of(b)}; expected a tensor; write torch.tensor(...) for it.")
    for name, value in (("A", A), ("b", b)):
        if value.layout != torch.strided:
            raise ArgumentError(
                f"{NAME}: {name} is a sparse tensor; expected a dense one; pass a function that applies the matrix, "
                "`gw.implicit.linear_solve(lambda x, values: ...)(b, values)`, or `to_dense()`."
            )
        if not (value.is_floating_point() or value.is_complex()):
            raise ArgumentError(f"{NAME}: {name} is of {value.dtype}; expected floating point or complex; cast it.")
    if A.dtype != b.dtype:
        raise ArgumentError(f"{NAME}: A is of {A.dtype}, b of {b.dtype}; expected the same; cast one of them.")
    dense.require_wide(NAME, b)
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ArgumentError(
            f"{NAME}: A has the shape {tuple(A.shape)}; expected square matrices, (..., n, n); for least squares use "
            "torch.linalg.lstsq."
        )


def _check_shapes(A: Tensor, b: Tensor, vector: bool) -> None:
    rows = b.shape[-1] if vector else b.shape[-2] if b.ndim > 1 else -1
    fits = rows == A.shape[-1]
    try:
        torch.broadcast_shapes(A.shape[:-2], b.shape[:-1] if vector else b.shape[:-2])
    except RuntimeError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"{NAME}: A has the shape {tuple(A.shape)} and b {tuple(b.shape)}; expected b of the shape (..., n, k) or "
            "(n,), or that of A without its last dimension; give a batch of vectors one more (`b[..., None]`)."
        )


# -------------------------------------------------------------------- what is recorded as operators


@custom_gradient(autocast="off", op="gradwright::linear_solve_factors")
def _factors(A: Tensor, assume_a: str, on_ill_conditioned: str, limit: float) -> tuple[Tensor, Tensor, Tensor]:
    options = SolveOptions(
        assume_a=assume_a,  # type: ignore[arg-type]  # an operator knows words, not which
        on_ill_conditioned=on_ill_conditioned,  # type: ignore[arg-type]
        ill_conditioned=limit,
    )
    return dense.factorised(NAME, A, options)


@_factors.vjp
def _factors_vjp(g: Any) -> Any:
    return None  # they are constants


# Run on tensors without values it has the strides that LAPACK gives.
@_factors.fake
def _factors_fake(A: Tensor, assume_a: str) -> Any:
    return dense.unchecked_factors(A, assume_a)[0]


@custom_gradient(autocast="off", op="gradwright::linear_solve_by_factors")
def _solve_by(
    A: Tensor, b: Tensor, compact: Tensor, order: Tensor, places: Tensor, *, adjoint: bool, hermitian: bool
) -> Tensor:
    return dense.solved((compact, order, places), b, adjoint=adjoint)


@_solve_by.vjp
def _solve_by_vjp(
    g: Tensor,
    A: Tensor,
    compact: Tensor,
    order: Tensor,
    places: Tensor,
    adjoint: bool,
    hermitian: bool,
    out: Tensor,
    needs: Any,
) -> Any:
    w = _solve_by(A, g, compact, order, places, adjoint=not adjoint, hermitian=hermitian)
    if not needs["A"]:
        return {"b": w}
    less = -w
    product = out @ less.mH if adjoint else less @ out.mH
    return {"b": w, "A": (product + product.mH) / 2 if hermitian else product}


@_solve_by.jvp
def _solve_by_jvp(
    t: Any,
    A: Tensor,
    compact: Tensor,
    order: Tensor,
    places: Tensor,
    adjoint: bool,
    hermitian: bool,
    out: Tensor,
) -> Any:
    right, moved = t["b"], t["A"]
    if moved is not None:
        if hermitian:
            moved = (moved + moved.mH) / 2
        moved = (moved.mH if adjoint else moved) @ out
        right = -moved if right is None else right - moved
    if right is None:
        return None
    return _solve_by(A, right, compact, order, places, adjoint=adjoint, hermitian=hermitian)
