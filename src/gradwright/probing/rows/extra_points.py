"""More singular points, scales and masks."""

from __future__ import annotations

from typing import Any

import torch
from mpmath import mp
from torch import Tensor, distributions
from torch.nn import functional as F

from gradwright.probing.row import Probe

INF = float("inf")
SINGLE = torch.float32


def _norm(x: Any) -> Any:
    return mp.norm(mp.matrix(x), 2)


def _vector_exp(w: Tensor) -> Any:
    """Return the rotation that ``w`` stands for, as it is usually written."""
    x, y, z = w
    zero = torch.zeros_like(x)
    k = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)
    angle = torch.linalg.vector_norm(w)
    return torch.eye(3, dtype=w.dtype) + angle.sin() / angle * k + (1 - angle.cos()) / angle**2 * (k @ k)


def _angle(r: Tensor) -> Any:
    return ((r.trace() - 1) / 2).acos() ** 2


def _unit_angle(u: Tensor, v: Tensor) -> Tensor:
    return F.cosine_similarity(u, v, dim=0).acos()


def _js(x: Tensor, y: Tensor) -> Tensor:
    p, q = x.softmax(0), y.softmax(0)
    m = (p + q) / 2
    return (p * (p / m).log()).sum() / 2 + (q * (q / m).log()).sum() / 2


def _softmax(x: Any) -> Any:
    total = mp.fsum(map(mp.exp, x))
    return [mp.exp(a) / total for a in x]


def _exact_js(x: Any, y: Any) -> Any:
    pairs = [(p, q) for p, q in zip(_softmax(x), _softmax(y)) if p and q]
    return mp.fsum(p * mp.log(2 * p / (p + q)) + q * mp.log(2 * q / (p + q)) for p, q in pairs) / 2


def _logsumexp(x: Any) -> Any:
    return mp.log(mp.fsum(map(mp.exp, x)))


PROBES = (
    Probe(
        id="P1",
        case="sqrt(x * x + y * y) at 0",
        at=(0.0, 0.0),
        call=lambda x, y: (x * x + y * y).sqrt(),
        scalar=lambda x, y: mp.hypot(x, y),
        right=lambda x, y: [0, 0],
        remedy="hypot",
    ),
    Probe(
        id="P2",
        case="x.square().sum().sqrt() at 0",
        at=([0.0, 0.0],),
        call=lambda x: x.square().sum().sqrt(),
        scalar=_norm,
        right=lambda x: [0, 0],
        remedy="norm",
    ),
    Probe(
        id="P3",
        case="hypot(0, 0)",
        at=(0.0, 0.0),
        call=torch.hypot,
        scalar=mp.hypot,
        right=lambda x, y: [0, 0],
        remedy="hypot",
    ),
    *(
        Probe(
            id=key,
            case=f"cdist(x, 0) of a row [{size:g}, {size:g}]",
            dtype=SINGLE,
            at=([[size, size]],),
            call=lambda x: torch.cdist(x, torch.zeros_like(x)),
            scalar=lambda x: _norm(x[0]),
            remedy="cdist",
            remedied=lambda f, x: f(x, torch.zeros_like(x)),
        )
        for key, size in (("P4", 1e-30), ("P5", 1e30))
    ),
    *(
        Probe(
            id=key,
            case=f"angle({size:g} + {size:g}j)",
            dtype=SINGLE,
            at=(size, size),
            call=lambda x, y: torch.complex(x, y).angle(),
            scalar=lambda x, y: mp.atan2(y, x),
            remedy="angle",
            remedied=lambda f, x, y: f(torch.complex(x, y)),
        )
        for key, size in (("P6", 1e-30), ("P7", 1e30))
    ),
    Probe(
        id="P8",
        case="atan2(0, 0)",
        at=(0.0, 0.0),
        call=torch.atan2,
        right=lambda y, x: [0, 0],
        remedy="atan2",
    ),
    Probe(
        id="P9",
        case="acosh(1e25)",
        dtype=SINGLE,
        at=(1e25,),
        call=torch.acosh,
        scalar=mp.acosh,
        right=lambda x: 1 / mp.sqrt(x * x - 1),
    ),
    Probe(
        id="P10",
        case="acos(x) * sqrt(1 - x * x) at 1",
        at=(1.0,),
        call=lambda x: x.acos() * (1 - x * x).sqrt(),
        scalar=lambda x: mp.re(mp.acos(x) * mp.sqrt(1 - x * x)),
        right=lambda x: -2,
    ),
    Probe(
        id="P11",
        case="acos(cosine_similarity(u, v)) of vectors 1e-9 apart",
        at=([1.0, 0.0], [1.0, 1e-9]),
        call=_unit_angle,
        scalar=lambda u, v: mp.atan2(u[0] * v[1] - u[1] * v[0], u[0] * v[0] + u[1] * v[1]),
        remedy="angle_between",
    ),
    Probe(
        id="P12",
        case="prod([1e20, 1e20, 1e-20, 1e-20])",
        dtype=SINGLE,
        at=([1e20, 1e20, 1e-20, 1e-20],),
        call=torch.prod,
        scalar=mp.fprod,
        remedy="prod",
    ),
    Probe(
        id="P13",
        case="cumprod([1e20, 1e20, 1e-20, 1e-20], 0)[3]",
        dtype=SINGLE,
        at=([1e20, 1e20, 1e-20, 1e-20],),
        call=lambda x: x.cumprod(0)[3],
        scalar=mp.fprod,
        remedy="cumprod",
        remedied=lambda f, x: f(x, dim=0)[3],
    ),
    Probe(
        id="P14",
        case="vector_norm([1e-200, 1e-200])",
        at=([1e-200, 1e-200],),
        call=torch.linalg.vector_norm,
        scalar=_norm,
        remedy="norm",
    ),
    Probe(
        id="P15",
        case="rotation exp(w) by sin(norm(w)) / norm(w) at 0, its element [2, 1]",
        at=([0.0, 0.0, 0.0],),
        call=lambda w: _vector_exp(w)[2, 1],
        right=lambda w: [1, 0, 0],
        remedy="so3_exp",
        remedied=lambda f, w: f(w)[2, 1],
    ),
    Probe(
        id="P16",
        case="acos((trace(R) - 1) / 2) ** 2 at the identity, for R = exp(w), by R",
        at=([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],),
        call=_angle,
        # With c = (trace - 1) / 2, the derivative of acos(c) ** 2 by c is -2 at 1.
        right=lambda r: [-1, 0, 0, 0, -1, 0, 0, 0, -1],
        remedy="acos_squared",
        remedied=lambda f, r: f((r.trace() - 1) / 2),
    ),
    Probe(
        id="P17",
        case="where(y > 0, x / y, 0) at 1, 0",
        at=(1.0, 0.0),
        call=lambda x, y: torch.where(y > 0, x / y, 0.0),
        right=lambda x, y: [0, 0],
        remedy="masked",
        remedied=lambda f, x, y: f(torch.div, y > 0, x, y),
    ),
    Probe(
        id="P18",
        case="log(x).masked_fill(mask, 0) at [1, 0], 0 being masked",
        at=([1.0, 0.0],),
        call=lambda x: x.log().masked_fill(torch.tensor([False, True]), 0),
        right=lambda x: [1, 0],
        remedy="masked",
        remedied=lambda f, x: f(torch.log, torch.tensor([True, False]), x),
    ),
    Probe(
        id="P19",
        case="special.xlog1py(0, -1), by y",
        at=(-1.0,),
        call=lambda y: torch.special.xlog1py(torch.zeros_like(y), y),
        right=lambda y: 0,
        remedy="xlogy",
        remedied=lambda f, y: f(torch.zeros_like(y), 1 + y),
    ),
    Probe(
        id="P20",
        case="log(softmax([0, 800]))[0]",
        at=([0.0, 800.0],),
        call=lambda x: x.softmax(0).log()[0],
        scalar=lambda x: -mp.log1p(mp.exp(x[1] - x[0])),
        remedy="log_softmax",
        remedied=lambda f, x: f(x, dim=0)[0],
    ),
    Probe(
        id="P21",
        case="softmax([-inf, -inf])",
        of="value",
        at=([-INF, -INF],),
        call=lambda x: x.softmax(0),
        right=lambda x: [0, 0],
        remedy="softmax",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="P22",
        case="softmax([-inf, -inf])[0]",
        at=([-INF, -INF],),
        call=lambda x: x.softmax(0)[0],
        right=lambda x: [0, 0],
        remedy="softmax",
        remedied=lambda f, x: f(x, dim=0)[0],
    ),
    Probe(
        id="P23",
        case="F.kl_div([0, -inf], [1, 0])",
        of="value",
        at=([0.0, -INF],),
        call=lambda x: F.kl_div(x, torch.tensor([1.0, 0.0], dtype=x.dtype), reduction="sum"),
        right=lambda x: 0,
        remedy="kl_divergence",
        remedied=lambda f, x: f(torch.tensor([0.0, -INF], dtype=x.dtype), x, dim=0),
    ),
    Probe(
        id="P24",
        case="Jensen-Shannon divergence of softmax([0, 1, -inf]) and softmax([1, 0, -inf])",
        at=([0.0, 1.0, -INF], [1.0, 0.0, -INF]),
        call=_js,
        scalar=_exact_js,
        remedy="js_divergence",
        remedied=lambda f, x, y: f(x, y, dim=0),
    ),
    Probe(
        id="P25",
        case="logaddexp2(-inf, -inf)",
        at=(-INF, -INF),
        call=torch.logaddexp2,
        right=lambda x, y: [0, 0],
    ),
    Probe(
        id="P26",
        case="logaddexp(-inf, 0)",
        of="second derivative",
        at=(-INF, 0.0),
        call=torch.logaddexp,
        right=lambda x, y: [0, 0],
        remedy="logaddexp",
    ),
    Probe(
        id="P27",
        case="logcumsumexp([-inf, 0, 1])",
        of="second derivative",
        at=([-INF, 0.0, 1.0],),
        call=lambda x: x.logcumsumexp(0),
        scalar=lambda x: _logsumexp(x[:2]) + _logsumexp(x),
        remedy="logcumsumexp",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="P28",
        case="Gamma(1, 1).log_prob(0), by the value",
        at=(0.0,),
        call=lambda x: distributions.Gamma(1.0, 1.0, validate_args=False).log_prob(x),
        right=lambda x: -1,
    ),
    Probe(
        id="P29",
        case="Dirichlet([1, 1]).log_prob([0, 1]), by the value",
        at=([0.0, 1.0],),
        call=lambda x: distributions.Dirichlet(torch.ones_like(x), validate_args=False).log_prob(x),
        right=lambda x: [0, 0],
    ),
    Probe(
        id="P30",
        case="Binomial(3, p).log_prob(0) at p = 0",
        at=(0.0,),
        call=lambda p: distributions.Binomial(3, p, validate_args=False).log_prob(torch.zeros_like(p)),
        scalar=lambda p: 3 * mp.log1p(-p),
        right=lambda p: -3,
    ),
    Probe(
        id="P31",
        case="log(exp(x) - exp(y)) at 800, 799",
        at=(800.0, 799.0),
        call=lambda x, y: (x.exp() - y.exp()).log(),
        scalar=lambda x, y: mp.log(mp.exp(x) - mp.exp(y)),
        remedy="logsubexp",
    ),
)
