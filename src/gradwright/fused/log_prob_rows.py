"""What policy gradients make of a row of logits: the logarithm of one probability and, where asked for, the entropy.

With ``p`` the softmax, ``lse`` the logarithm of the sum of exponentials and ``H`` the entropy::

    out      = z[index] - lse,  H
    gradient = g1 (onehot(index) - p),  g2 (-p log p - p H)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright import stable
from gradwright.fused.rows import Rows, softmax_


@dataclass(frozen=True)
class LogProbs(Rows):
    """The logarithm of the probability of one class. By row: the class (int64), and whether the row counts (bool)."""

    entropy: bool = False

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """Two with the entropy."""
        return 2 if self.entropy else 1

    def values(self, z: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return them, (rows, 1 or 2); 0 for rows that do not count."""
        index, counts = by_row
        found = [stable.log_softmax(z, 1).gather(1, index.unsqueeze(1)).squeeze(1)]
        if self.entropy:
            found.append(stable.entropy(z))
        return torch.where(counts.unsqueeze(1), torch.stack(found, 1), 0.0)

    def gradient(self, z: Tensor, g: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the logits."""
        index, counts = by_row
        g = torch.where(counts.unsqueeze(1), g, 0.0)
        p = stable.softmax(z, 1)
        d = torch.zeros_like(p).scatter(1, index.unsqueeze(1), torch.ones_like(p[:, :1])) - p
        if not self.entropy:
            return g * d
        # A bound instead of -inf, so that it can be multiplied by a probability of zero.
        logs = stable.log_softmax(z, 1).clamp(min=-1e30)
        return g[:, :1] * d - g[:, 1:] * p * (logs + stable.entropy(z).unsqueeze(1))

    def pull_(self, own: Tensor, g: Tensor | None, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the same, with the gradient in the memory of the logits."""
        index, counts = by_row
        chosen = own.gather(1, index.unsqueeze(1)).squeeze(1)
        top, rest = softmax_(own)
        found = [chosen - top - rest]
        terms = None
        if self.entropy:
            terms = torch.special.entr(own)
            found.append(terms.sum(1))
        values = torch.where(counts.unsqueeze(1), torch.stack(found, 1), 0.0)
        if g is None:
            return values
        up = torch.where(counts.unsqueeze(1), g, 0.0)
        if terms is None:
            own.mul_(-up)
        else:
            own.mul_(-up[:, :1] - up[:, 1:] * values[:, 1:])
            own.addcmul_(terms, up[:, 1:])
        own.scatter_add_(1, index.unsqueeze(1), up[:, :1])
        return values
