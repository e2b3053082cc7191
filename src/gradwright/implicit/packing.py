"""Several tensors as one vector of real numbers, and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.errors import RuleError


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Return all elements in one vector; of a complex number its real and its imaginary part."""
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    return torch.cat([part.reshape(-1) for part in parts])


class Shapes:
    """What is needed to undo :func:`pack`."""

    def __init__(self, user: str, tensors: Sequence[Tensor]) -> None:
        self.shapes = [(t.shape, t.is_complex()) for t in tensors]
        self.sizes = [t.numel() * (2 if t.is_complex() else 1) for t in tensors]
        kinds = {(t.dtype.to_real(), t.device) for t in tensors}
        if len(kinds) > 1 or not all(dtype in (torch.float32, torch.float64) for dtype, _ in kinds):
            found = ", ".join(sorted(f"{t.dtype} on {t.device}" for t in tensors))
            raise RuleError(
                f"{user}: the unknowns are {found}; expected float32 or float64 (or complex of these), all of one "
                "dtype and on one device; convert the first argument (`z0.to(torch.float64)`)."
            )

    @property
    def count(self) -> int:
        """How many real numbers there are."""
        return sum(self.sizes)

    def unpack(self, vector: Tensor) -> list[Tensor]:
        """Return the tensors of which ``vector`` is made."""
        ends = list(itertools.accumulate(self.sizes))
        found = []
        for (shape, is_complex), size, end in zip(self.shapes, self.sizes, ends):
            part = vector[end - size : end]
            if is_complex:
                pairs = part.reshape(*shape, 2)
                found.append(torch.complex(pairs[..., 0], pairs[..., 1]))
            else:
                found.append(part.reshape(shape))
        return found
