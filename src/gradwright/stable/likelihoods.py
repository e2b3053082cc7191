"""Losses of probabilities and rates, element by element, where something is certain.

The divergence of nearly equal probabilities is a sum of ``p (u - log1p(u))``, which are not negative, instead of a
difference of two logarithms, and its slope is one logarithm,
``logit p - logit q = log1p((p - q) / (q (1 - p)))``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative, whole_range
from gradwright.stable.arguments import common_dtype, require_floating, widened_pair
from gradwright.stable.rows import pairs
from gradwright.stable.seen import seen_within
from gradwright.stable.xlogs import over

BARS = relative(1e-14, 1e-6, *HALF)
INF = math.inf
TERMS = {torch.float64: 17, torch.float32: 8}
"""Of the series of ``u - log1p(u)`` up to half: the next one is below the last digit."""


def _poisson_examples(dtype: torch.dtype) -> Sequence[Example]:
    rate, count = grid(0.3, 6.0, 9, dtype), torch.arange(9, dtype=dtype).flip(0)
    none, ends = torch.zeros(2, dtype=dtype), whole_range(dtype, 4).abs()
    return [
        Point((rate, count), note="ordinary"),
        Point(
            (none.clone().requires_grad_(), none),
            value=0.0,
            first={"rate": 1.0},
            second={"rate": 0.0},
            note="none expected, none seen",
        ),
        Point((rate[:3], count[:2].unsqueeze(1)), note="broadcast"),
        Point((ends.requires_grad_(), torch.ones_like(ends)), orders=1, note="the whole range", extreme=True),
    ]


@exact(
    forward="out = rate - target log(rate)",
    gradient={"rate": "g (rate - target) / rate, 1 where both are 0", "target": "-g log(rate)"},
    reference=lambda mp, rate, target: rate - (target * mp.log(rate) if target else 0),
    domain="rate >= 0, else nan",
    bars=BARS,
    examples=_poisson_examples,
    replaces=lambda rate, target: torch.nn.functional.poisson_nll_loss(rate, target, False, eps=0.0, reduction="none"),
    ordinary=lambda: (torch.rand(1000000), torch.rand(1000000)),
    paper="the limit of rate -> 0",
)
@custom_gradient
def poisson_nll(rate: Tensor, target: Tensor) -> Tensor:
    """Return the negative log-likelihood of counts, without the term that depends on the counts alone.

    A rate of 0 is sure of a count of 0: there the value is 0 and the derivative 1, without the ``eps`` of PyTorch.

    Arguments:
        rate: floating point, of any shape, not negative.
        target: the counts, of a shape that can be broadcast with it.

    Returns:
        a tensor of the broadcast shape.

    Raises:
        ArgumentError: one of them is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> rate = torch.tensor([0.0, 2.0], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.poisson_nll(rate, torch.tensor([0.0, 4.0])).sum(), rate)
        (tensor([ 1., -1.]),)
    """
    require_floating("poisson_nll", rate=rate, target=target)
    wide, count = widened_pair(rate, target)
    out = wide - count * wide.log()
    if not seen_within(out, -INF, INF):
        out = wide - torch.xlogy(count, wide)
    return out.to(common_dtype(rate, target))


@poisson_nll.vjp
def poisson_nll_vjp(g: Tensor, rate: Tensor, target: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    rate, target = widened_pair(rate, target)
    return {
        "rate": g * excess_ratio(rate, target) if needs["rate"] else None,
        "target": -g * rate.log() if needs["target"] else None,
    }


@custom_gradient
def excess_ratio(rate: Tensor, target: Tensor) -> Tensor:
    """Return ``1 - target / rate`` as one quotient; 1 where both are 0."""
    out = (rate - target).div_(rate)
    return out if seen_within(out, -INF, INF) else torch.where(target == 0, 1.0, out)


@excess_ratio.vjp
def excess_ratio_vjp(g: Tensor, rate: Tensor, target: Tensor) -> dict[str, Tensor]:
    return {"rate": g * over(over(target, rate), rate), "target": -g / rate}


def _bernoulli_examples(dtype: torch.dtype) -> Sequence[Example]:
    p, q = grid(0.06, 0.09, 9, dtype), grid(0.72, 0.84, 9, dtype).flip(0)  # where second derivatives do not cancel
    near = torch.cat([around(0.25, dtype=dtype)[1:], around(0.125, 0.375, dtype=dtype)])
    equal, none = torch.full((1,), 0.25, dtype=dtype), {"p": 0.0, "q": 0.0}
    return [
        Point((p, q), note="ordinary"),
        Point((near.clone().requires_grad_(), equal), note="nearly equal, and where the formula changes"),
        Point((equal, near.clone().requires_grad_()), note="nearly equal the other way round"),
        Point((equal, equal.clone()), value=0.0, first=none, orders=1, note="equal"),
        Point(
            pairs(dtype, [(0.3, 0.3125), (0.001, 0.0015), (0.7, 0.69), (0.625, 0.25)]),
            orders=1,
            note="near, and where the formula changes",
        ),
        Point(
            pairs(dtype, [(0.0, 0.5), (1.0, 0.25)]),
            value=[math.log(2.0), math.log(4.0)],
            first={"p": [-INF, INF], "q": [2.0, -4.0]},
            orders=1,
            note="certain",
            extreme=True,
        ),
        Point(
            pairs(dtype, [(0.0, 0.0), (1.0, 1.0)]),
            value=0.0,
            first={"p": 0.0, "q": [1.0, -1.0]},
            orders=1,
            note="both certain",
            extreme=True,
        ),
        Point(pairs(dtype, [(0.5, 0.0), (0.0, 1.0)]), value=INF, orders=0, note="impossible", extreme=True),
        Point(pairs(dtype, [(1e-2, 1e-3), (1e-3, 1e-2)]), note="small", extreme=True),
    ]


def _bernoulli_by_hand(p: Tensor, q: Tensor) -> Tensor:
    return torch.xlogy(p, p / q) + torch.xlogy(1 - p, (1 - p) / (1 - q))


@exact(
    forward="out = p log(p / q) + (1 - p) log((1 - p) / (1 - q))",
    gradient={"p": "g (logit(p) - logit(q)), 0 where both are 0 or 1", "q": "g (q - p) / (q (1 - q))"},
    reference=lambda mp, p, q: sum(a * (mp.log(a) - mp.log(b)) if a else a for a, b in ((p, q), (1 - p, 1 - q))),
    domain="0 <= p <= 1 and 0 <= q <= 1, else nan; inf where q excludes what p does not",
    bars=BARS,
    examples=_bernoulli_examples,
    replaces=_bernoulli_by_hand,
    slower="a series in the value, for probabilities that are nearly equal",
    ordinary=lambda: (torch.rand(1000000), torch.rand(1000000)),
    paper="pytorch#15288; Loader 2000 (the deviance of a binomial distribution)",
)
@custom_gradient
def bernoulli_kl(p: Tensor, q: Tensor) -> Tensor:
    """Return the divergence KL(p || q) of two Bernoulli distributions, from the probabilities of success.

    Where they are nearly equal it keeps its digits, and is never negative.

    Arguments:
        p: floating point, of any shape, from 0 to 1.
        q: the same, of a shape that can be broadcast with it.

    Returns:
        a tensor of the broadcast shape.

    Raises:
        ArgumentError: one of them is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> p = torch.tensor(0.0, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.bernoulli_kl(p, torch.tensor(0.5)), p)  # PyTorch: -0.6931
        (tensor(-inf),)
    """
    require_floating("bernoulli_kl", p=p, q=q)
    wide_p, wide_q = widened_pair(p, q)
    gap = wide_q - wide_p
    return (_deviance(wide_p, wide_q, gap) + _deviance(1 - wide_p, 1 - wide_q, -gap)).to(common_dtype(p, q))


def _deviance(p: Tensor, q: Tensor, gap: Tensor) -> Tensor:
    """Return ``gap - p log(q / p)`` with ``gap = q - p``, which is ``p (u - log1p(u))`` with ``u = gap / p``.

    Up to half, with ``r = u / (2 + u)``, that is ``p r (u - 2 r ** 2 (1 / 3 + r ** 2 / 5 + ...))``. What lies beyond
    half, ``c``, is added: ``p (u - c - log((1 + u) / (1 + c)))``, which is exactly 0 up to there, else positive.
    """
    p = torch.where(p < 0, math.nan, p)
    whole = p.clamp(min=torch.finfo(p.dtype).tiny)
    u = gap / whole
    c = u.clamp(-0.5, 0.5)
    r = c / (2 + c)
    y = r * r
    count = TERMS[p.dtype]
    series = torch.full_like(y, 1 / (2 * count + 1))
    for n in range(count - 1, 0, -1):
        series.mul_(y).add_(1 / (2 * n + 1))
    near = r.mul_(c - y.mul_(2).mul_(series)).mul_(p)
    logs = u.clamp(min=0.5).sub_(0.5).div_(1.5).log1p_().add_((q / whole).clamp(max=0.5).mul_(2).log_())
    return torch.where(p == 0, gap, near.add_(whole * u.sub_(c)).sub_(p * logs))


@bernoulli_kl.vjp
def bernoulli_kl_vjp(g: Tensor, p: Tensor, q: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    p, q = widened_pair(p, q)
    return {
        "p": g * logit_difference(p, q) if needs["p"] else None,
        "q": g * scaled_difference(p, q) if needs["q"] else None,
    }


@custom_gradient
def logit_difference(p: Tensor, q: Tensor) -> Tensor:
    """Return ``logit(p) - logit(q)``; 0 where they are equal."""
    gap = p - q
    ratio = gap.abs() / (torch.minimum(p, q) * (1 - torch.maximum(p, q)))
    return torch.where(gap == 0, 0.0, ratio.log1p() * gap.sign())


@logit_difference.vjp
def logit_difference_vjp(g: Tensor, p: Tensor, q: Tensor) -> dict[str, Tensor]:
    return {"p": g / (p * (1 - p)), "q": -g / (q * (1 - q))}


@custom_gradient
def scaled_difference(p: Tensor, q: Tensor) -> Tensor:
    """Return ``(q - p) / (q (1 - q))``, which is ``1 / (1 - q)`` where ``p`` is 0 and ``-1 / q`` where it is 1."""
    found = (q - p) / (q * (1 - q))
    return torch.where(p == 0, 1 / (1 - q), torch.where(p == 1, -1 / q, found))


@scaled_difference.vjp
def scaled_difference_vjp(g: Tensor, p: Tensor, q: Tensor) -> dict[str, Tensor]:
    bend = over(over(p, q), q) + over(over(1 - p, 1 - q), 1 - q)
    return {"p": -g / (q * (1 - q)), "q": g * bend}
