"""What functions of matrices accept: shapes, dtypes, symmetry, and where values can be looked at at all."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import ArgumentError, DomainError

ASYMMETRY = 0.1
"""The largest difference between an entry and its mirror image, in units of the largest entry, that is averaged."""


def square(name: str, A: object) -> None:
    """Refuse what is no tensor of square matrices of floating-point or complex numbers.

    Raises:
        ArgumentError: it is none.
    """
    if not isinstance(A, Tensor) or not (A.is_floating_point() or A.is_complex()):
        found = f"a tensor of {A.dtype}" if isinstance(A, Tensor) else f"a {type(A).__name__}"
        raise ArgumentError(
            f"{name}: A is {found}; expected a tensor of floating-point or complex numbers; convert it, for example "
            "with A.double()."
        )
    if A.dim() < 2 or A.shape[-1] != A.shape[-2]:
        raise ArgumentError(
            f"{name}: A has shape {tuple(A.shape)}; expected (..., n, n), square matrices in the last two dimensions; "
            "reshape it."
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
