"""What a head makes of a row of logits: the part of it that knows of losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Rows(ABC):
    """What becomes of each row of logits: some numbers, each a loss or something that a loss is made of.

    ``by_row`` are tensors with an element for each row, of which the functions here get those of the block; ``shared``
    are tensors that all rows have in common. Neither has a gradient. Subclasses are frozen dataclasses of options.
    """

    outputs: int = 1
    """How many numbers for each row."""

    @abstractmethod
    def values(self, z: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the numbers of each row, (rows, outputs), for logits of at least float32; PyTorch can follow it."""

    @abstractmethod
    def gradient(self, z: Tensor, g: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the logits for a cotangent ``g``, by operations that PyTorch can differentiate.

        It is not left to PyTorch: the rule of a function may be run inside any transform, where torch.func cannot be.
        """

    @abstractmethod
    def pull_(self, own: Tensor, g: Tensor | None, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the numbers, and turn ``own``, logits that nobody else has, into their gradient: the fast way.

        Without ``g`` what is in ``own`` afterwards does not matter.
        """


@dataclass(frozen=True)
class Bend:
    """What is done to logits first: ``softcap * tanh(z / softcap) / temperature``."""

    softcap: float | None = None
    temperature: float = 1.0

    def __call__(self, z: Tensor) -> Tensor:
        """Return the bent logits."""
        bent = z if self.softcap is None else self.softcap * torch.tanh(z / self.softcap)
        return bent if self.temperature == 1 else bent / self.temperature

    def pull(self, g: Tensor, z: Tensor) -> Tensor:
        """Return the gradient of logits for a cotangent of the bent ones."""
        bent = g if self.softcap is None else g * (1 - torch.tanh(z / self.softcap).square())
        return bent if self.temperature == 1 else bent / self.temperature

    def bend_(self, own: Tensor, *, slope: bool) -> Tensor | None:
        """Bend logits in their memory, and return the slope, where it is asked for and is not 1."""
        found: Tensor | None = None
        if self.softcap is not None:
            own.div_(self.softcap).tanh_()
            if slope:
                found = own.square().neg_().add_(1.0).div_(self.temperature)
            own.mul_(self.softcap)
        elif slope and self.temperature != 1:
            found = own.new_tensor(1 / self.temperature)
        if self.temperature != 1:
            own.div_(self.temperature)
        return found


def softmax_(own: Tensor) -> tuple[Tensor, Tensor]:
    """Turn rows of logits into their softmax, and return the logarithms of the sums of exponentials in two parts.

    They are the largest logit and minus the logarithm of its probability, which is never small. Their sum has no digits
    left for the second part where logits are large; differences of logits have.
    """
    if not own.numel():
        return own.new_full(own.shape[:1], -torch.inf), own.new_zeros(own.shape[:1])
    top, place = own.max(1)
    torch.softmax(own, 1, out=own)
    return top, -own.gather(1, place.unsqueeze(1)).squeeze(1).log()
