"""More saturation and tails."""

from __future__ import annotations

from typing import Any

import torch
from mpmath import mp
from torch import Tensor
from torch.nn import functional as F

from gradwright.probing.row import Probe

SINGLE = torch.float32
HALF = torch.float16
BRAIN = torch.bfloat16


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x))


def _ndtr(x: Any) -> Any:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _log_ndtr(x: Any) -> Any:
    return mp.log(_ndtr(x))


def _gelu(x: Any) -> Any:
    return x * _ndtr(x)


def _mish(x: Any) -> Any:
    return x * mp.tanh(_softplus(x))


def _sinc(x: Any) -> Any:
    return mp.sin(mp.pi * x) / (mp.pi * x)


def _density(x: Any) -> Any:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def _mills(x: Any) -> Any:
    return _ndtr(-x) / _density(x)


def _by_hand_mills(x: Tensor) -> Any:
    return torch.special.ndtr(-x) / ((-x * x / 2).exp() / (2 * torch.pi) ** 0.5)


def _ndtri_exp_slope(x: Any) -> Any:
    """Return the derivative of the normal quantile of ``exp(x)``."""
    y = mp.findroot(lambda y: _log_ndtr(y) - x, -mp.sqrt(-2 * x))
    return mp.exp(x) / _density(y)


PROBES = (
    *(
        Probe(id=key, case=f"{name}({x:g})", of=of, dtype=dtype, at=(x,), call=call, scalar=scalar, remedy=remedy)
        for key, name, x, of, dtype, call, scalar, remedy in (
            ("T1", "sigmoid", 10.0, "gradient", HALF, torch.sigmoid, _sigmoid, "sigmoid"),
            ("T2", "sigmoid", 8.0, "gradient", BRAIN, torch.sigmoid, _sigmoid, "sigmoid"),
            ("T3", "sigmoid", 40.0, "second derivative", torch.float64, torch.sigmoid, _sigmoid, "sigmoid"),
            ("T4", "tanh", 5.0, "gradient", HALF, torch.tanh, mp.tanh, "tanh"),
            ("T5", "tanh", 20.0, "second derivative", torch.float64, torch.tanh, mp.tanh, "tanh"),
            ("T6", "expm1", -40.0, "second derivative", torch.float64, torch.expm1, mp.expm1, "expm1"),
            ("T7", "exp2", 128.0, "gradient", SINGLE, torch.exp2, lambda x: 2**x, "exp2"),
            ("T8", "F.softplus", 30.0, "second derivative", SINGLE, F.softplus, _softplus, "softplus"),
            ("T9", "F.silu", 20.0, "second derivative", SINGLE, F.silu, lambda x: x * _sigmoid(x), "silu"),
            ("T10", "F.mish", 25.0, "second derivative", torch.float64, F.mish, _mish, "mish"),
            (
                "T11",
                "F.logsigmoid",
                40.0,
                "second derivative",
                torch.float64,
                F.logsigmoid,
                lambda x: -_softplus(-x),
                "logsigmoid",
            ),
            ("T12", "special.ndtr", -6.0, "value", SINGLE, torch.special.ndtr, _ndtr, "ndtr"),
            (
                "T13",
                "special.log_ndtr",
                -1e4,
                "second derivative",
                torch.float64,
                torch.special.log_ndtr,
                _log_ndtr,
                "log_ndtr",
            ),
            (
                "T14",
                "special.log_ndtr",
                -30.0,
                "second derivative",
                SINGLE,
                torch.special.log_ndtr,
                _log_ndtr,
                "log_ndtr",
            ),
            ("T15", "sinc", 1e-3, "second derivative", SINGLE, torch.sinc, _sinc, "sinc"),
            ("T16", "sinc", 0.02, "gradient", HALF, torch.sinc, _sinc, "sinc"),
        )
    ),
    Probe(
        id="T17",
        case="log(-expm1(-x)) at 20",
        dtype=SINGLE,
        at=(20.0,),
        call=lambda x: (-(-x).expm1()).log(),
        scalar=lambda x: mp.log(-mp.expm1(-x)),
        right=lambda x: 1 / mp.expm1(x),
        remedy="log1mexp",
    ),
    Probe(
        id="T18",
        case="log(exp(x) - 1) at 1e-10",
        at=(1e-10,),
        call=lambda x: (x.exp() - 1).log(),
        scalar=lambda x: mp.log(mp.expm1(x)),
        right=lambda x: 1 / (1 - mp.exp(-x)),
        remedy="inverse_softplus",
    ),
    Probe(
        id="T19",
        case="x + softplus(-2 * x) - log(2) at -10.5, the log of cosh",
        at=(-10.5,),
        call=lambda x: x + F.softplus(-2 * x) - torch.tensor(2.0).log(),
        scalar=lambda x: mp.log(mp.cosh(x)),
        right=mp.tanh,
        remedy="logcosh",
    ),
    Probe(
        id="T20",
        case="logit(sigmoid(x)) at 40",
        at=(40.0,),
        call=lambda x: x.sigmoid().logit(),
        right=lambda x: 1,
    ),
    Probe(
        id="T21",
        case="1 - tanh(x) ** 2 at 20",
        at=(20.0,),
        call=lambda x: 1 - x.tanh() ** 2,
        scalar=lambda x: mp.sech(x) ** 2,
    ),
    Probe(
        id="T22",
        case="log(erfc(x)) at 30",
        at=(30.0,),
        call=lambda x: x.erfc().log(),
        scalar=lambda x: mp.log(mp.erfc(x)),
        remedy="log_ndtr",
        remedied=lambda f, x: f(-x * 2**0.5),
    ),
    Probe(
        id="T23",
        case="ndtr(-x) / density(x) at 40, the Mills ratio",
        at=(40.0,),
        call=_by_hand_mills,
        scalar=_mills,
        remedy="mills_ratio",
    ),
    Probe(
        id="T24",
        case="special.ndtri(exp(x)) at -1000",
        at=(-1000.0,),
        call=lambda x: torch.special.ndtri(x.exp()),
        right=_ndtri_exp_slope,
        remedy="ndtri_exp",
    ),
    Probe(
        id="T25",
        case="softmax([0, 40])[1]",
        at=([0.0, 40.0],),
        call=lambda x: x.softmax(0)[1],
        scalar=lambda x: _sigmoid(x[1] - x[0]),
        remedy="softmax",
        remedied=lambda f, x: f(x, dim=0)[1],
    ),
    Probe(
        id="T26",
        case="log_softmax([0, 40])[1]",
        at=([0.0, 40.0],),
        call=lambda x: x.log_softmax(0)[1],
        scalar=lambda x: -_softplus(x[0] - x[1]),
        remedy="log_softmax",
        remedied=lambda f, x: f(x, dim=0)[1],
    ),
    Probe(
        id="T27",
        case="F.cross_entropy([0, 40], 1)",
        at=([0.0, 40.0],),
        call=lambda x: F.cross_entropy(x, torch.tensor(1)),
        scalar=lambda x: _softplus(x[0] - x[1]),
        remedy="cross_entropy",
        remedied=lambda f, x: f(x, torch.tensor(1)),
    ),
    Probe(
        id="T28",
        case="sin(x) / x at 0",
        at=(0.0,),
        call=lambda x: x.sin() / x,
        right=lambda x: 0,
        remedy="sin_over_x",
    ),
    Probe(
        id="T29",
        case="(1 - cos(x)) / (x * x) at 1e-5",
        at=(1e-5,),
        call=lambda x: (1 - x.cos()) / (x * x),
        scalar=lambda x: (1 - mp.cos(x)) / (x * x),
        remedy="one_minus_cos_over_x2",
    ),
    Probe(
        id="T30",
        case="expm1(x) / x at 0",
        at=(0.0,),
        call=lambda x: x.expm1() / x,
        right=lambda x: mp.mpf(1) / 2,
        remedy="expm1_over_x",
    ),
    Probe(
        id="T31",
        case="log1p(x) / x at 0",
        at=(0.0,),
        call=lambda x: x.log1p() / x,
        right=lambda x: -mp.mpf(1) / 2,
        remedy="log1p_over_x",
    ),
    Probe(
        id="T32",
        case="log1p(x) / x at 1e-8",
        at=(1e-8,),
        call=lambda x: x.log1p() / x,
        scalar=lambda x: mp.log1p(x) / x,
        remedy="log1p_over_x",
    ),
    Probe(
        id="T33",
        case="log(x) / (x - 1) at 1",
        at=(1.0,),
        call=lambda x: x.log() / (x - 1),
        right=lambda x: -mp.mpf(1) / 2,
        remedy="log_over_x_minus_1",
    ),
    Probe(
        id="T34",
        case="x / tan(x) at 0",
        of="second derivative",
        at=(0.0,),
        call=lambda x: x / x.tan(),
        right=lambda x: -mp.mpf(2) / 3,
        remedy="x_over_tan",
    ),
    Probe(
        id="T35",
        case="tanh(x) / x at 0",
        of="second derivative",
        at=(0.0,),
        call=lambda x: x.tanh() / x,
        right=lambda x: -mp.mpf(2) / 3,
        remedy="tanh_over_x",
    ),
    Probe(
        id="T36",
        case="sinh(x) / x at 0",
        of="second derivative",
        at=(0.0,),
        call=lambda x: x.sinh() / x,
        right=lambda x: mp.mpf(1) / 3,
        remedy="sinh_over_x",
    ),
    Probe(
        id="T37",
        case="(x - sin(x)) / x ** 3 at 1e-4",
        at=(1e-4,),
        call=lambda x: (x - x.sin()) / x**3,
        scalar=lambda x: (x - mp.sin(x)) / x**3,
        remedy="x_minus_sin_over_x3",
    ),
)
