"""Linear systems that several tests solve, with their solutions by formulae that share nothing with the library.

Solutions are ``inv(A) @ b``: the derivatives of ``torch.linalg.solve`` are wrong in nested forward mode
(``test_torch_linalg``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

func = torch.func

SECOND: dict[str, Callable[..., Any]] = {
    "hessian": func.hessian,
    "forward over forward": lambda f: func.jacfwd(func.jacfwd(f)),
    "reverse over reverse": lambda f: func.jacrev(func.jacrev(f)),
    "reverse over forward": lambda f: func.jacrev(func.jacfwd(f)),
}


def regular(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return well-conditioned matrices without any symmetry, of shape ``(..., n, n)``."""
    return torch.randn(*shape, dtype=dtype) + 3 * torch.eye(shape[-1], dtype=dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return Hermitian and positive definite matrices."""
    A = regular(*shape, dtype=dtype)
    return A @ A.mH / 4 + torch.eye(shape[-1], dtype=dtype)


def product(x: Tensor, A: Tensor) -> Tensor:
    """Apply a matrix."""
    return A @ x


def solution(A: Tensor, b: Tensor) -> Tensor:
    """Return the solution for a vector."""
    return torch.linalg.inv(A) @ b


def banded(x: Tensor, bands: Tensor) -> Tensor:
    """Apply a tridiagonal matrix that is given as ``scipy.linalg.solve_banded`` has it."""
    above = torch.nn.functional.pad(bands[0, 1:] * x[1:], (0, 1))
    below = torch.nn.functional.pad(bands[2, :-1] * x[:-1], (1, 0))
    return above + bands[1] * x + below


def from_bands(bands: Tensor) -> Tensor:
    """Return the tridiagonal matrix."""
    return torch.diag(bands[1]) + torch.diag(bands[0, 1:], 1) + torch.diag(bands[2, :-1], -1)


def some_bands(n: int = 5) -> Tensor:
    """Return a tridiagonal matrix that is diagonally dominant and not symmetric."""
    bands = torch.randn(3, n, dtype=torch.float64)
    bands[1] += 5
    return bands


def real(x: Tensor) -> Tensor:
    """Return a smooth real number of a solution, whose second derivatives are not zero."""
    return (torch.sin(x.real) + (x.imag**2 if x.is_complex() else 0.0)).sum()
