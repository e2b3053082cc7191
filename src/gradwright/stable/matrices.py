"""What functions of matrices accept: shapes, dtypes, symmetry, and where values can be looked at at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import ArgumentError, DomainError, OptionError
from gradwright.stable.arguments import not_a_tensor

ASYMMETRY = 0.1
"""The largest difference between an entry and its mirror image, in units of the largest entry, that is averaged."""
_DTYPES = (torch.float64, torch.float32, torch.complex128, torch.complex64)


def check_matrix(name: str, argument: str, x: Any, *, square: bool = False) -> None:
    """Refuse what is no matrix, or batch of matrices, of a dtype that LAPACK knows.

    Raises:
        ArgumentError: it is something else.
    """
    if not isinstance(x, Tensor):
        raise not_a_tensor(name, argument, x, "a tensor")
    if x.dtype not in _DTYPES:
        raise ArgumentError(
            f"{name}: {argument} has dtype {x.dtype}; expected float32, float64, complex64 or complex128, since there "
            f"are no decompositions in others; cast it, for example {argument}.float()."
        )
    if x.ndim < 2:
        raise ArgumentError(
            f"{name}: {argument} has shape {tuple(x.shape)}; expected (..., {'n, n' if square else 'rows, columns'}); "
            "give it two dimensions."
        )
    if square and x.shape[-2] != x.shape[-1]:
        raise ArgumentError(
            f"{name}: {argument} has shape {tuple(x.shape)}; expected (..., n, n); give it as many rows as columns."
        )


def check_rank(name: str, rank: Any, most: int) -> None:
    """Refuse a number of vectors that there are not.

    Raises:
        OptionError: it is no whole number from 1 to ``most``.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= most:
        raise OptionError(
            f"{name}: rank is {rank!r}; expected a whole number from 1 to {most}, the smaller side of the matrix; "
            "choose how many vectors to keep."
        )


def hermitian(name: str, A: Tensor) -> None:
    """Refuse matrices that are not finite, or clearly not Hermitian, where values can be looked at.

    Raises:
        DomainError: they are not.
    """
    if not readable(A) or A.numel() == 0:
        return
    plain = A.detach()
    size = plain.abs().amax((-2, -1))
    if not bool((size < torch.inf).all()):
        raise DomainError(
            f"{name}: A has entries that are infinite or nan; expected finite numbers; find out where they come from."
        )
    off = (plain - plain.mH).abs().amax((-2, -1))
    if bool((off > ASYMMETRY * size).any()):
        kind = "Hermitian" if A.is_complex() else "symmetric"
        share = float((off / size).nan_to_num(0.0).max())
        raise DomainError(
            f"{name}: A is not {kind}: an entry differs from its mirror image by {share:.2g} of the largest entry; "
            f"expected at most {ASYMMETRY:g}, which is averaged; if the {kind} part is meant, write "
            f"{name}((A + A.mH) / 2)."
        )


def readable(A: Tensor) -> bool:
    """Tell whether values can be looked at: they are neither recorded nor under vmap, and there are any."""
    return not (torch_compat.is_recording() or torch_compat.under_vmap(A) or A.is_meta)
