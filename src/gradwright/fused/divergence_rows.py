"""What distillation makes of a row of logits and one of a teacher's: a divergence of their distributions.

With ``p`` the softmax of the student's logits, ``q`` that of the teacher's and ``m = beta q + (1 - beta) p``::

    kl          sum q (log q - log p)                                  gradient  p - q
    reverse-kl  sum p (log p - log q)                                  gradient  p (d - sum p d), d = log p - log q
    js          beta sum q (log q - log m) + (1 - beta) sum p (log p - log m)
                                              gradient  (1 - beta) p (d - sum p d), d = log p - log m
    tv          sum |p - q| / 2                                        gradient  p (s - sum p s), s = sign(p - q) / 2
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.fused.rows import Bend, Rows

LEAST = -1e30
"""Stands for a logarithm of zero, so that it can be multiplied by zero. (A row of -inf has none: it is nan.)"""


@dataclass(frozen=True)
class Divergence(Rows):
    """A divergence from a teacher, whose logits have no gradient.

    By row: the teacher's logits, or its hidden states where its weight and perhaps its bias are shared.
    """

    bend: Bend

    def values(self, z: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the divergences, (rows, 1)."""
        log_p, log_q = (torch.log_softmax(x, 1).clamp(min=LEAST) for x in (z, self._teacher(z, by_row, shared)))
        return self._value(log_p, log_q).unsqueeze(1)

    def gradient(self, z: Tensor, g: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the logits."""
        log_p, log_q = (torch.log_softmax(x, 1).clamp(min=LEAST) for x in (z, self._teacher(z, by_row, shared)))
        return g * self._slope(log_p, log_q)

    def pull_(self, own: Tensor, g: Tensor | None, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        """Return the same, with the gradient in the memory of the logits."""
        teacher = self._teacher(own, by_row, shared)
        other = torch.log_softmax(teacher, 1, out=teacher if shared else torch.empty_like(teacher))
        torch.log_softmax(own, 1, out=own)
        value = self._pull_(own.clamp_(min=LEAST), other.clamp_(min=LEAST)).unsqueeze(1)
        if g is not None:
            own.mul_(g)
        return value

    def _teacher(self, z: Tensor, by_row: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
        logits = torch.nn.functional.linear(by_row[0], *shared) if shared else by_row[0]
        return self.bend(logits.to(z.dtype))

    @abstractmethod
    def _value(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return the divergence of each row."""

    @abstractmethod
    def _slope(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return the gradient of the student's logits."""

    @abstractmethod
    def _pull_(self, own: Tensor, other: Tensor) -> Tensor:
        """Return the divergences for the logarithms of probabilities.

        Those of the student are turned into the gradient of its logits; both may be written to.
        """


class KL(Divergence):
    """The divergence of the student from the teacher, which covers all that the teacher does."""

    def _value(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return (log_q.exp() * (log_q - log_p)).sum(1)

    def _slope(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return log_p.exp() - log_q.exp()

    def _pull_(self, own: Tensor, other: Tensor) -> Tensor:
        gap = other - own
        value = _dot(other.exp_(), gap)
        own.exp_().sub_(other)
        return value


class ReverseKL(Divergence):
    """The divergence of the teacher from the student, which seeks what the teacher does most."""

    def _value(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return (log_p.exp() * (log_p - log_q)).sum(1)

    def _slope(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return _centred(log_p.exp(), log_p - log_q)

    def _pull_(self, own: Tensor, other: Tensor) -> Tensor:
        gap = torch.sub(own, other, out=other)
        return _centre_(own.exp_(), gap)


@dataclass(frozen=True)
class JS(Divergence):
    """The divergence of Jensen and Shannon: of both from their mixture."""

    beta: float

    def _mixture(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return torch.logaddexp(log_q + math.log(self.beta), log_p + math.log1p(-self.beta))

    def _value(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        log_m = self._mixture(log_p, log_q)
        of_p = (log_p.exp() * (log_p - log_m)).sum(1)
        return self.beta * (log_q.exp() * (log_q - log_m)).sum(1) + (1 - self.beta) * of_p

    def _slope(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return (1 - self.beta) * _centred(log_p.exp(), log_p - self._mixture(log_p, log_q))

    def _pull_(self, own: Tensor, other: Tensor) -> Tensor:
        log_m = self._mixture(own, other)
        of_q = _dot(other.exp(), other.sub_(log_m))
        gap = torch.sub(own, log_m, out=log_m)
        of_p = _centre_(own.exp_(), gap)
        own.mul_(1 - self.beta)
        return self.beta * of_q + (1 - self.beta) * of_p


class TV(Divergence):
    """The total variation: half the sum of the differences of probabilities."""

    def _value(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return (log_p.exp() - log_q.exp()).abs().sum(1) / 2

    def _slope(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        p = log_p.exp()
        return _centred(p, torch.sign(p - log_q.exp()) / 2)

    def _pull_(self, own: Tensor, other: Tensor) -> Tensor:
        gap = torch.sub(own.exp_(), other.exp_(), out=other)
        value = gap.abs().sum(1) / 2
        _centre_(own, gap.sign_().div_(2))
        return value


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the scalar product of each row."""
    return torch.bmm(a.unsqueeze(1), b.unsqueeze(2)).reshape(-1)


def _centred(p: Tensor, d: Tensor) -> Tensor:
    return p * (d - (p * d).sum(1, keepdim=True))


def _centre_(p: Tensor, d: Tensor) -> Tensor:
    """Turn ``p`` into ``p (d - sum p d)``, and return the sums; ``d`` is written to as well."""
    mean = _dot(p, d)
    p.mul_(d.sub_(mean.unsqueeze(1)))
    return mean
