"""x log x, entropy, divergences, masks and minus infinity."""

from __future__ import annotations

from typing import Any

import torch
from mpmath import mp
from torch import Tensor, distributions
from torch.nn import functional as F

from gradwright.probing.row import Probe

INF = float("inf")
_HIDDEN = torch.tensor([False, True])


def _poisson(rate: Tensor) -> Any:
    return distributions.Poisson(rate, validate_args=False).log_prob(torch.zeros_like(rate))


def _beta(x: Tensor) -> Any:
    one = torch.ones_like(x)
    return distributions.Beta(one, one, validate_args=False).log_prob(x)


def _weibull(x: Tensor) -> Any:
    one = torch.ones_like(x)
    return distributions.Weibull(one, one, validate_args=False).log_prob(x)


def _categorical_kl(x: Tensor) -> Tensor:
    p, q = (distributions.Categorical(logits=logits, validate_args=False) for logits in (x, _other(x)))
    return distributions.kl_divergence(p, q)


def _bernoulli_kl(p: Tensor) -> Tensor:
    half = distributions.Bernoulli(torch.full_like(p, 0.5), validate_args=False)
    return distributions.kl_divergence(distributions.Bernoulli(p, validate_args=False), half)


def _other(x: Tensor) -> Tensor:
    """Return the logits of ``(1/2, 1/2, 0)``."""
    return torch.zeros_like(x).masked_fill(torch.tensor([False, False, True]), -INF)


def _with_nan(x: Tensor) -> Tensor:
    return torch.tensor([0.0, float("nan")], dtype=x.dtype)


def _softmax(x: list[Any]) -> list[Any]:
    total = mp.fsum(mp.exp(a) for a in x)
    return [mp.exp(a) / total for a in x]


def _entropy_gradient(x: list[Any]) -> list[Any]:
    p = _softmax(x)
    entropy = -mp.fsum(a * mp.log(a) for a in p if a)
    return [-a * (mp.log(a) + entropy) if a else 0 for a in p]


def _kl_gradient(x: list[Any]) -> list[Any]:
    p = _softmax(x)
    divergence = mp.fsum(a * mp.log(2 * a) for a in p if a)
    return [a * (mp.log(2 * a) - divergence) if a else 0 for a in p]


def _logsumexp(x: list[Any]) -> Any:
    return mp.log(mp.fsum(mp.exp(a) for a in x))


PROBES = (
    Probe(
        id="32",
        case="x * log(x) at 0",
        at=(0.0,),
        call=lambda x: x * x.log(),
        right=lambda x: -mp.inf,
        remedy="xlogx",
    ),
    Probe(
        id="33",
        case="xlogy(x, x) at 0",
        at=(0.0,),
        call=lambda x: torch.xlogy(x, x),
        right=lambda x: -mp.inf,
        remedy="xlogx",
    ),
    Probe(
        id="34",
        case="xlogy(0, y) at 0, by y",
        at=(0.0,),
        call=lambda y: torch.xlogy(torch.zeros_like(y), y),
        right=lambda y: 0,
        remedy="xlogy",
        remedied=lambda f, y: f(torch.zeros_like(y), y),
    ),
    Probe(
        id="35",
        case="entr(softmax([0, 1, -inf]))",
        at=([0.0, 1.0, -INF],),
        call=lambda x: torch.special.entr(x.softmax(0)),
        right=_entropy_gradient,
        remedy="entropy",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="36",
        case="entr(softmax([0, 800]))",
        at=([0.0, 800.0],),
        call=lambda x: torch.special.entr(x.softmax(0)),
        right=_entropy_gradient,
        remedy="entropy",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="37",
        case="KL of Categorical(logits=[0, 1, -inf]) from (1/2, 1/2, 0)",
        at=([0.0, 1.0, -INF],),
        call=_categorical_kl,
        right=_kl_gradient,
        remedy="kl_divergence",
        remedied=lambda f, x: f(x, _other(x), dim=0),
    ),
    Probe(
        id="38",
        case="F.kl_div([-0.5, log(1 - exp(-0.5))], [0, -inf], log_target=True)",
        of="value",
        at=([-0.5, float(mp.log(1 - mp.exp(-0.5)))],),
        call=lambda x: F.kl_div(x, torch.tensor([0.0, -INF], dtype=x.dtype), reduction="sum", log_target=True),
        right=lambda x: -x[0],
        remedy="kl_divergence",
        remedied=lambda f, x: f(torch.tensor([0.0, -INF], dtype=x.dtype), x, dim=0),
    ),
    Probe(
        id="40",
        case="KL of Bernoulli(p) from Bernoulli(1/2) at p = 0",
        at=(0.0,),
        call=_bernoulli_kl,
        right=lambda p: -mp.inf,
        remedy="bernoulli_kl",
        remedied=lambda f, p: f(p, torch.full_like(p, 0.5)),
    ),
    Probe(
        id="41",
        case="F.poisson_nll_loss(0, 0, log_input=False, eps=0)",
        at=(0.0,),
        call=lambda x: F.poisson_nll_loss(x, torch.zeros_like(x), log_input=False, eps=0),
        right=lambda x: 1,
        remedy="xlogy",
        remedied=lambda f, x: x - f(torch.zeros_like(x), x),
    ),
    Probe(
        id="42",
        case="Poisson(0).log_prob(0), by the rate",
        at=(0.0,),
        call=_poisson,
        right=lambda x: -1,
        remedy="xlogy",
        remedied=lambda f, x: f(torch.zeros_like(x), x) - x,
    ),
    Probe(id="44", case="Beta(1, 1).log_prob(0), by the value", at=(0.0,), call=_beta, right=lambda x: 0),
    Probe(id="45", case="Weibull(1, 1).log_prob(0), by the value", at=(0.0,), call=_weibull, right=lambda x: -1),
    Probe(
        id="46",
        case="LogNormal(0, 1).cdf(0)",
        at=(0.0,),
        call=lambda x: distributions.LogNormal(0.0, 1.0, validate_args=False).cdf(x),
        right=lambda x: 0,
    ),
    Probe(
        id="48",
        case="((x - y) ** 2).masked_fill(mask, 0), y being NaN under the mask",
        at=([1.0, 0.0],),
        call=lambda x: ((x - _with_nan(x)) ** 2).masked_fill(_HIDDEN, 0),
        right=lambda x: [2 * x[0], 0],
        remedy="masked",
        remedied=lambda f, x: f(lambda x, y: (x - y) ** 2, ~_HIDDEN, x, _with_nan(x)),
    ),
    Probe(
        id="49",
        case="where(x < 1, exp(x), x) at 1000",
        at=(1000.0,),
        call=lambda x: torch.where(x < 1, x.exp(), x),
        right=lambda x: 1,
        remedy="where",
        remedied=lambda f, x: f(x < 1, torch.exp, lambda x: x, x),
    ),
    Probe(
        id="50",
        case="where(x > 0, sqrt(x), x) at -1",
        at=(-1.0,),
        call=lambda x: torch.where(x > 0, x.sqrt(), x),
        right=lambda x: 1,
        remedy="where",
        remedied=lambda f, x: f(x > 0, torch.sqrt, lambda x: x, x),
    ),
    Probe(
        id="51",
        case="where(x > 0, sqrt(x), 0) at 0",
        at=(0.0,),
        call=lambda x: torch.where(x > 0, x.sqrt(), 0.0),
        right=lambda x: 0,
        remedy="masked",
        remedied=lambda f, x: f(torch.sqrt, x > 0, x),
    ),
    Probe(
        id="52",
        case="logaddexp(-inf, -inf)",
        at=(-INF, -INF),
        call=torch.logaddexp,
        right=lambda x, y: [0, 0],
        remedy="logaddexp",
    ),
    Probe(
        id="54",
        case="logsumexp([-inf, -inf])",
        at=([-INF, -INF],),
        call=lambda x: x.logsumexp(0),
        right=lambda x: [0, 0],
        remedy="logsumexp",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="55",
        case="logsumexp([inf, 1])",
        at=([INF, 1.0],),
        call=lambda x: x.logsumexp(0),
        right=lambda x: [1, 0],
        remedy="logsumexp",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="57",
        case="logcumsumexp([-inf, 0, 1])",
        at=([-INF, 0.0, 1.0],),
        call=lambda x: x.logcumsumexp(0),
        scalar=lambda x: _logsumexp(x[:2]) + _logsumexp(x),
        right=lambda x: [0, 1 + _softmax(x)[1], _softmax(x)[2]],
        remedy="logcumsumexp",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="58",
        case="logcumsumexp([-inf, -inf])",
        at=([-INF, -INF],),
        call=lambda x: x.logcumsumexp(0),
        right=lambda x: [0, 0],
        remedy="logcumsumexp",
        remedied=lambda f, x: f(x, dim=0),
    ),
)
