"""Saturation and tails."""

from __future__ import annotations

from typing import Any

import torch
from mpmath import mp
from torch import Tensor, distributions
from torch.nn import functional as F

from gradwright.probing.row import Probe

SINGLE = torch.float32


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _gelu(x: Any) -> Any:
    return x * mp.erfc(-x / mp.sqrt(2)) / 2


def _log_ndtr(x: Any) -> Any:
    return mp.log(mp.erfc(-x / mp.sqrt(2)) / 2)


def _erfcx(x: Any) -> Any:
    return mp.exp(x * x) * mp.erfc(x)


def _log1mexp(x: Any) -> Any:
    return mp.log(-mp.expm1(-x))


def _bce(x: Tensor) -> Tensor:
    return F.binary_cross_entropy(x.sigmoid(), torch.zeros_like(x))


PROBES = (
    *(
        Probe(
            id=key,
            case=f"{name}({x:g})",
            dtype=dtype,
            at=(x,),
            call=call,
            scalar=scalar,
            remedy=name,
        )
        for key, name, x, dtype, call, scalar in (
            ("59", "sigmoid", 40.0, torch.float64, torch.sigmoid, _sigmoid),
            ("60", "sigmoid", 20.0, SINGLE, torch.sigmoid, _sigmoid),
            ("61", "tanh", 20.0, torch.float64, torch.tanh, mp.tanh),
            ("62", "tanh", 10.0, SINGLE, torch.tanh, mp.tanh),
            ("63", "expm1", -40.0, torch.float64, torch.expm1, mp.expm1),
            ("64", "expm1", -20.0, SINGLE, torch.expm1, mp.expm1),
        )
    ),
    Probe(
        id="66",
        case="F.softplus(20.5)",
        at=(20.5,),
        call=F.softplus,
        scalar=lambda x: mp.log1p(mp.exp(x)),
        right=_sigmoid,
        remedy="softplus",
    ),
    Probe(
        id="67",
        case="F.softplus(20.5)",
        of="second derivative",
        at=(20.5,),
        call=F.softplus,
        scalar=lambda x: mp.log1p(mp.exp(x)),
        right=lambda x: _sigmoid(x) * _sigmoid(-x),
        remedy="softplus",
    ),
    Probe(
        id="68",
        case="F.silu(40.41)",
        of="second derivative",
        at=(40.41,),
        call=F.silu,
        scalar=lambda x: x * _sigmoid(x),
        remedy="silu",
    ),
    *(
        Probe(id=key, case=f"F.gelu({x:g})", of=of, dtype=dtype, at=(x,), call=F.gelu, scalar=_gelu, remedy="gelu")
        for key, x, dtype, of in (
            ("69", -6.0, SINGLE, "value"),
            ("70", -6.0, SINGLE, "gradient"),
            ("71", -5.5, SINGLE, "value"),
            ("72", -9.0, torch.float64, "value"),
            ("73", -9.0, torch.float64, "gradient"),
        )
    ),
    Probe(
        id="74",
        case="special.ndtr(-9)",
        of="value",
        at=(-9.0,),
        call=torch.special.ndtr,
        scalar=lambda x: mp.erfc(-x / mp.sqrt(2)) / 2,
        remedy="ndtr",
    ),
    Probe(
        id="75",
        case="Normal(0, 1).cdf(-9).log()",
        at=(-9.0,),
        call=lambda x: distributions.Normal(0.0, 1.0, validate_args=False).cdf(x).log(),
        scalar=_log_ndtr,
        remedy="log_ndtr",
    ),
    Probe(
        id="77",
        case="Cauchy(0, 1).cdf(-1e20)",
        of="value",
        at=(-1e20,),
        call=lambda x: distributions.Cauchy(0.0, 1.0, validate_args=False).cdf(x),
        scalar=lambda x: mp.atan(-1 / x) / mp.pi,
        remedy="atan2",
        remedied=lambda f, x: f(torch.ones_like(x), -x) / torch.pi,
    ),
    *(
        Probe(
            id=key,
            case=f"special.log_ndtr({x:g})",
            dtype=dtype,
            at=(x,),
            call=torch.special.log_ndtr,
            scalar=_log_ndtr,
            right=lambda x: mp.sqrt(2 / mp.pi) / _erfcx(-x / mp.sqrt(2)),
            remedy="log_ndtr",
        )
        for key, x, dtype in (
            ("79", -1e5, torch.float64),
            ("80", -1e8, torch.float64),
            ("81", -100.0, SINGLE),
            ("82", -1000.0, SINGLE),
            ("83", -1e4, SINGLE),
        )
    ),
    *(
        Probe(
            id=key,
            case=f"special.erfcx({x:g})",
            dtype=dtype,
            at=(x,),
            call=torch.special.erfcx,
            scalar=_erfcx,
            remedy="erfcx",
        )
        for key, x, dtype in (("84", 1e4, torch.float64), ("86", 1e3, SINGLE))
    ),
    Probe(
        id="87",
        case="special.i1e(1000)",
        dtype=SINGLE,
        at=(1000.0,),
        call=torch.special.i1e,
        scalar=lambda x: mp.exp(-x) * mp.besseli(1, x),
    ),
    Probe(
        id="88",
        case="special.i0e(x).log() + x at 1e4",
        of="second derivative",
        at=(1e4,),
        call=lambda x: torch.special.i0e(x).log() + x,
        scalar=lambda x: mp.log(mp.besseli(0, x)),
    ),
    Probe(
        id="89",
        case="special.i1(1e-10)",
        of="second derivative",
        at=(1e-10,),
        call=torch.special.i1,
        scalar=lambda x: mp.besseli(1, x),
    ),
    Probe(
        id="90",
        case="log1p(-exp(-x)) at 1e-10",
        at=(1e-10,),
        call=lambda x: (-(-x).exp()).log1p(),
        scalar=_log1mexp,
        right=lambda x: 1 / mp.expm1(x),
        remedy="log1mexp",
    ),
    Probe(
        id="91",
        case="log(-expm1(-x)) at 40",
        at=(40.0,),
        call=lambda x: (-(-x).expm1()).log(),
        scalar=_log1mexp,
        right=lambda x: 1 / mp.expm1(x),
        remedy="log1mexp",
    ),
    Probe(
        id="93",
        case="log(expm1(x)) at 800",
        at=(800.0,),
        call=lambda x: x.expm1().log(),
        scalar=lambda x: mp.log(mp.expm1(x)),
        right=lambda x: 1 / (1 - mp.exp(-x)),
        remedy="log_expm1",
    ),
    Probe(
        id="94",
        case="log(cosh(x)) at 800",
        at=(800.0,),
        call=lambda x: x.cosh().log(),
        scalar=lambda x: mp.log(mp.cosh(x)),
        right=mp.tanh,
        remedy="logcosh",
    ),
    Probe(
        id="95",
        case="log(sinh(x)) at 800",
        at=(800.0,),
        call=lambda x: x.sinh().log(),
        scalar=lambda x: mp.log(mp.sinh(x)),
        right=mp.coth,
        remedy="logsinh",
    ),
    Probe(
        id="96",
        case="log(i0(x)) at 800",
        at=(800.0,),
        call=lambda x: torch.special.i0(x).log(),
        scalar=lambda x: mp.log(mp.besseli(0, x)),
        right=lambda x: mp.besseli(1, x) / mp.besseli(0, x),
    ),
    Probe(
        id="98",
        case="log(1 - sigmoid(x)) at 40",
        at=(40.0,),
        call=lambda x: (1 - x.sigmoid()).log(),
        scalar=lambda x: -mp.log1p(mp.exp(x)),
        right=lambda x: -_sigmoid(x),
        remedy="log1msigmoid",
    ),
    *(
        Probe(
            id=key,
            case=f"F.binary_cross_entropy(sigmoid({x:g}), 0)",
            dtype=dtype,
            at=(x,),
            call=_bce,
            scalar=lambda x: mp.log1p(mp.exp(x)),
            right=_sigmoid,
            remedy="bce_with_logits",
            remedied=lambda f, x: f(x, torch.zeros_like(x)),
        )
        for key, x, dtype in (("99", 20.0, SINGLE), ("100", 40.0, torch.float64))
    ),
    Probe(
        id="101",
        case="F.binary_cross_entropy_with_logits(40, 1)",
        at=(40.0,),
        call=lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        scalar=lambda x: mp.log1p(mp.exp(-x)),
        right=lambda x: -_sigmoid(-x),
        remedy="bce_with_logits",
        remedied=lambda f, x: f(x, torch.ones_like(x)),
    ),
    Probe(
        id="102",
        case="exp2(1024)",
        at=(1024.0,),
        call=torch.exp2,
        scalar=lambda x: 2**x,
        remedy="exp2",
    ),
    *(
        Probe(
            id=key,
            case=f"sinc({x:g})",
            of=of,
            dtype=dtype,
            at=(x,),
            call=torch.sinc,
            scalar=lambda x: mp.sin(mp.pi * x) / (mp.pi * x),
            remedy="sinc",
        )
        for key, x, dtype, of in (
            ("104", 1e-3, SINGLE, "gradient"),
            ("105", 1e-4, SINGLE, "gradient"),
            ("106", 1e-5, torch.float64, "gradient"),
            ("107", 1e-8, torch.float64, "gradient"),
            ("108", 1e-8, torch.float64, "second derivative"),
        )
    ),
)
