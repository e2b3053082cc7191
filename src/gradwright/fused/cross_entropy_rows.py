"""What the cross-entropy makes of a row of logits: its loss, and the gradient of that in the memory of the logits.

With targets ``a`` that add up to ``A`` (one-hot or given, smoothed, times the weights of the classes), ``p`` the
softmax, ``lse`` the logarithm of the sum of exponentials and ``H`` the entropy of ``p``::

    loss     = A lse - sum(a z) + z_loss lse^2 - entropy H
    gradient = (A + 2 z_loss lse + entropy H) p - a - entropy (-p log p)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright import stable
from gradwright.fused.rows import Rows, softmax_


@dataclass(frozen=True)
class CrossEntropy(Rows):
    """The loss of one row.

    By row: the class (int64) and how much the row counts, 0 or 1; or, with ``soft``, the probabilities alone. Shared:
    the weights of the classes, or nothing.
    """

    soft: bool = False
    smoothing: float = 0.0
    z_loss: float = 0.0
    entropy: float = 0.0

    def values(self, z: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the losses, (rows, 1)."""
        target = by_row[0]
        weight = shared[0] if shared else None
        share = self.smoothing / z.shape[1]
        top = z.amax(1, keepdim=True)
        z = z - top  # large logits have no digits left for the logarithm of the sum
        lse = stable.logsumexp(z, 1)
        extra = self._extra(z, top.squeeze(1) + lse)
        if self.soft:
            a = self._soft(target.to(z.dtype), weight)
            return (a.sum(1) * lse - (a * z).sum(1) + extra).unsqueeze(1)
        counts = by_row[1]
        own = (1 - self.smoothing) * (1.0 if weight is None else weight[target])
        loss = own * (lse - z.gather(1, target.unsqueeze(1)).squeeze(1))
        if share:
            spread = z.shape[1] * lse - z.sum(1) if weight is None else weight.sum() * lse - z @ weight
            loss = loss + share * spread
        # Not a product: the loss of a row that does not count may be infinite.
        return torch.where(counts > 0, loss + extra, 0.0).unsqueeze(1)

    def gradient(self, z: Tensor, g: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the logits."""
        target, weight = by_row[0], shared[0] if shared else None
        p = stable.softmax(z, 1)
        if self.soft:
            a = self._soft(target.to(z.dtype), weight)
        else:
            g = torch.where(by_row[1].unsqueeze(1) > 0, g, 0.0)
            own = (1 - self.smoothing) * (z.new_ones(()) if weight is None else weight[target])
            a = torch.zeros_like(p).scatter(1, target.unsqueeze(1), own.expand(z.shape[0]).unsqueeze(1))
            if self.smoothing:
                a = a + self.smoothing / z.shape[1] * (1.0 if weight is None else weight)
        slope = a.sum(1, keepdim=True)
        if self.z_loss:
            slope = slope + 2 * self.z_loss * stable.logsumexp(z, 1, keepdim=True)
        d = slope * p - a
        if self.entropy:
            # A bound instead of -inf, so that it can be multiplied by a probability of zero.
            logs = stable.log_softmax(z, 1).clamp(min=-1e30)
            d = d + self.entropy * p * (logs + stable.entropy(z).unsqueeze(1))
        return g * d

    def _extra(self, z: Tensor, lse: Tensor) -> Tensor:
        extra = self.z_loss * lse.square() if self.z_loss else torch.zeros_like(lse)
        return extra - self.entropy * stable.entropy(z) if self.entropy else extra

    def _soft(self, target: Tensor, weight: Tensor | None) -> Tensor:
        if self.smoothing:
            target = target * (1 - self.smoothing) + self.smoothing / target.shape[1]
        return target if weight is None else target * weight

    def pull_(self, own: Tensor, g: Tensor | None, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the same, with the gradient in the memory of the logits."""
        target, weight = by_row[0], shared[0] if shared else None
        share = self.smoothing / own.shape[1]
        index = None if self.soft else target.unsqueeze(1)
        if self.soft or share:  # sums of large logits have no digits left for the logarithm of the sum
            shift = own.amax(1)
            own.sub_(shift.unsqueeze(1))
        else:
            shift = own.new_zeros(())
        if index is None:
            a = self._soft(target.to(own.dtype), weight)
            pulled = torch.bmm(a.unsqueeze(1), own.unsqueeze(2)).reshape(-1)
            top, rest = softmax_(own)
            total = a.sum(1)
            loss = total * rest - pulled
        else:
            weights = own.new_ones(()) if weight is None else weight[target]
            total = (1 - self.smoothing) * weights
            sharp = total.expand(own.shape[0])
            chosen = own.gather(1, index).squeeze(1)
            others = share * (own.sum(1) if weight is None else own @ weight) if share else None
            top, rest = softmax_(own)
            loss = total * (top - chosen + rest)
            if others is not None:
                spread = share * (own.shape[1] if weight is None else weight.sum())
                loss, total = loss + spread * rest - others, total + spread
        lse, slope = shift + top + rest, total
        entropies = None
        if self.z_loss:
            loss, slope = loss + self.z_loss * lse.square(), slope + 2 * self.z_loss * lse
        if self.entropy:
            entropies = torch.special.entr(own)
            entropy = entropies.sum(1)
            loss, slope = loss - self.entropy * entropy, slope + self.entropy * entropy
        if index is not None:
            loss = torch.where(by_row[1] > 0, loss, 0.0)
        if g is None:
            return loss.unsqueeze(1)
        up = g if index is None else torch.where(by_row[1].unsqueeze(1) > 0, g, 0.0)
        own.mul_(up * slope.expand(own.shape[0]).unsqueeze(1))
        if entropies is not None:
            own.addcmul_(entropies, up, value=-self.entropy)
        if index is None:
            own.addcmul_(a, up, value=-1)
            return loss.unsqueeze(1)
        if share and weight is None:
            own.sub_(share * up)
        elif share and weight is not None:
            own.addr_(up.squeeze(1), weight, alpha=-share)
        own.scatter_add_(1, index, -up * sharp.unsqueeze(1))
        return loss.unsqueeze(1)
