"""What decompositions share: parts of matrices, and how a derivative that does not exist is refused.

Their values are those of LAPACK, also where they are not unique. A derivative that does not exist is never replaced by
another one: :func:`refuse` raises where the numbers can be looked at, which is everywhere but in recorded code
(``torch.compile``, ``torch.export``, ``make_fx``); there the affected matrices of the batch get nan. It costs one look
at a number in each backward, for which an accelerator has to be waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.errors import UndefinedGradientError
from gradwright.torch_compat import anywhere as anywhere


def hermitian_part(x: Tensor) -> Tensor:
    """Return half the sum of a matrix and its conjugate transpose."""
    return (x + x.mH) * 0.5


def skew_part(x: Tensor) -> Tensor:
    """Return half the difference of a matrix and its conjugate transpose."""
    return (x - x.mH) * 0.5


def resolution(size: int, dtype: torch.dtype) -> float:
    """Return how near two singular values or eigenvalues may be, in terms of the largest one, to count as the same.

    Rounding moves each of them by a few units in the last place of the largest one; nearer ones cannot be told apart.
    """
    return 8 * torch.finfo(dtype).eps * math.sqrt(max(size, 1))


def reciprocal(x: Tensor) -> Tensor:
    """Return ``1 / x``, and 0 where ``x`` is too small for that."""
    safe = x.abs() >= torch.finfo(x.dtype).smallest_normal
    return torch.where(safe, 1 / torch.where(safe, x, 1.0), 0.0)


def is_zero(x: Tensor) -> Tensor:
    """Tell of each matrix whether every element is zero."""
    return (x == 0).all(-1).all(-1)


def largest(x: Tensor) -> Tensor:
    """Return the largest absolute value in each matrix, 0 where there is none."""
    with torch.no_grad():
        return x.abs().amax((-2, -1)) if x.shape[-1] and x.shape[-2] else x.real.new_zeros(x.shape[:-2])


def refuse(
    results: Sequence[Tensor], bad: Tensor, numbers: Callable[[], Sequence[Tensor]], message: Callable[..., str]
) -> list[Tensor]:
    """Return ``results``, the derivatives of a batch of matrices, where none of them is ``bad``.

    Arguments:
        results: derivatives, with the dimensions of the batch first.
        bad: for which matrices of the batch they do not exist.
        numbers: returns what there is to tell about each matrix.
        message: takes those numbers, of the first matrix that is bad, and returns what is wrong.

    Raises:
        UndefinedGradientError: some matrix is bad, and values can be looked at. Where they cannot, it gets nan.
    """
    seen = anywhere(bad)
    if seen is None:
        # As a factor, so that derivatives of the result are nan as well.
        factor = torch.where(bad, torch.nan, 1.0)
        return [result * _leading(factor, result) for result in results]
    if seen:
        # In one tensor, so that all of it has the dimensions of vmaps in the same places: in front.
        told = torch.stack([torch.where(bad, number.detach().double(), torch.nan) for number in numbers()], -1)
        told = torch.func.debug_unwrap(told, recurse=True)
        place = tuple(told[..., 0].isfinite().nonzero()[0].tolist())
        where = f" In the batch it is matrix {place}." if place else ""
        raise UndefinedGradientError(message(*told[place].tolist()) + where)
    return list(results)


def _leading(factor: Tensor, like: Tensor) -> Tensor:
    """Return a factor for each matrix of a batch, with the dimensions of a result that has others behind."""
    for _ in range(like.ndim - factor.ndim):
        factor = factor[..., None]
    return factor.to(like.real.dtype)


# -------------------------------------------------------------------- for examples and references


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """Return the complex dtype whose parts have a real dtype."""
    return torch.complex128 if dtype == torch.float64 else torch.complex64


def planted(singular: Sequence[float], rows: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Return a matrix with given singular values, one for each column."""
    columns = len(singular)
    u, v = _orthonormal(rows, columns, 2 * seed, dtype), _orthonormal(columns, columns, 2 * seed + 1, dtype)
    return ((u * torch.tensor(singular, dtype=torch.float64)) @ v.mH).to(dtype)


def planted_hermitian(eigenvalues: Sequence[float], seed: int, dtype: torch.dtype) -> Tensor:
    """Return a symmetric or Hermitian matrix with given eigenvalues."""
    v = _orthonormal(len(eigenvalues), len(eigenvalues), seed, dtype)
    return hermitian_part((v * torch.tensor(eigenvalues, dtype=torch.float64)) @ v.mH).to(dtype)


def _orthonormal(rows: int, columns: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    q: Tensor = torch.linalg.qr(torch.randn(rows, columns, dtype=wide, generator=generator))[0]
    return q


def each(function: Callable[[Any], Any], matrices: Any) -> Any:
    """Return what a function returns for each matrix of a batch, as a NumPy array."""
    import numpy as np

    if matrices.ndim == 2:
        return function(matrices)
    return np.stack([each(function, matrix) for matrix in matrices])


def from_array(mp: Any, array: Any) -> Any:
    """Return a NumPy array of numbers as a matrix of mpmath."""
    return mp.matrix(array.tolist())


def to_array(matrix: Any) -> Any:
    """Return a matrix of mpmath as a NumPy array of numbers."""
    import numpy as np

    return np.array(matrix.tolist(), dtype=object)
