"""Singular points and scale."""

from __future__ import annotations

from typing import Any

import torch
from mpmath import mp
from torch import Tensor
from torch.nn import functional as F

from gradwright.probing.row import Probe
from gradwright.torch_compat.kernels import weight_norm

HALF = torch.float16
SINGLE = torch.float32


def _norm(x: list[Any]) -> Any:
    return mp.norm(mp.matrix(x), 2)


def _quaternion_log(q: Tensor) -> Any:
    return 2 * q[0].acos() * q[1] / torch.linalg.vector_norm(q[1:])


def _slerp(q: Tensor) -> Any:
    angle = (q @ q).acos()
    return ((0.5 * angle).sin() * q + (0.5 * angle).sin() * q) / angle.sin()


PROBES = (
    Probe(
        id="1",
        case="sqrt(x * x) at 0",
        at=(0.0,),
        call=lambda x: (x * x).sqrt(),
        scalar=lambda x: mp.sqrt(x * x),
        right=lambda x: 0,
        remedy="hypot",
        remedied=lambda f, x: f(x, torch.zeros_like(x)),
    ),
    Probe(
        id="4",
        case="vector_norm([0, 0])",
        of="second derivative",
        at=([0.0, 0.0],),
        call=lambda x: torch.linalg.vector_norm(x),
        right=lambda x: [0, 0],
        remedy="norm",
    ),
    *(
        Probe(
            id=key,
            case=f"vector_norm([{size:g}, {size:g}])",
            dtype=SINGLE,
            at=([size, size],),
            call=lambda x: torch.linalg.vector_norm(x),
            scalar=_norm,
            right=lambda x: [1 / mp.sqrt(2), 1 / mp.sqrt(2)],
            remedy="norm",
        )
        for key, size in (("5", 1e-30), ("6", 1e30))
    ),
    Probe(
        id="7",
        case="vector_norm([1e30, 1e30])",
        of="value",
        dtype=SINGLE,
        at=([1e30, 1e30],),
        call=lambda x: torch.linalg.vector_norm(x),
        scalar=_norm,
        remedy="norm",
    ),
    Probe(
        id="8",
        case="vector_norm([1e-4], 3)",
        dtype=HALF,
        at=([1e-4],),
        call=lambda x: torch.linalg.vector_norm(x, 3),
        scalar=lambda x: abs(x[0]),
        remedy="norm",
        remedied=lambda f, x: f(x, 3),
    ),
    Probe(
        id="9",
        case="var(x).sqrt() of [2, 2, 2]",
        at=([2.0, 2.0, 2.0],),
        call=lambda x: x.var().sqrt(),
        right=lambda x: [0, 0, 0],
        remedy="std",
    ),
    Probe(
        id="10",
        case="weight_norm(v, g) of a row of zeros",
        at=([[0.0, 0.0]], [[1.0]]),
        call=lambda v, g: weight_norm(v, g, 0),
        right=lambda v, g: [0, 0, 0],
        remedy="weight_norm",
        remedied=lambda f, v, g: f(v, g, 0),
    ),
    Probe(
        id="11",
        case="F.normalize([3e-30, 4e-30], dim=0); the eps is documented",
        of="value",
        dtype=SINGLE,
        at=([3e-30, 4e-30],),
        call=lambda x: F.normalize(x, dim=0),
        scalar=lambda x: [x[0] / _norm(x), x[1] / _norm(x)],
        remedy="normalize",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="12",
        case="cosine_similarity([1e-25, 0], [1e-25, 1e-25]); the eps is documented",
        of="value",
        dtype=SINGLE,
        at=([1e-25, 0.0], [1e-25, 1e-25]),
        call=lambda x, y: F.cosine_similarity(x, y, dim=0),
        scalar=lambda x, y: (x[0] * y[0] + x[1] * y[1]) / (_norm(x) * _norm(y)),
        remedy="cosine_similarity",
        remedied=lambda f, x, y: f(x, y, dim=0),
    ),
    Probe(
        id="14",
        case="acos(x) ** 2 at 1",
        at=(1.0,),
        call=lambda x: x.acos() ** 2,
        scalar=lambda x: mp.re(mp.acos(x) ** 2),
        right=lambda x: -2,
        remedy="acos_squared",
    ),
    Probe(
        id="15",
        case="acosh(x) ** 2 at 1",
        at=(1.0,),
        call=lambda x: x.acosh() ** 2,
        scalar=lambda x: mp.re(mp.acosh(x) ** 2),
        right=lambda x: 2,
        remedy="acosh_squared",
    ),
    Probe(
        id="16",
        case="acos(u @ v) of equal unit vectors, by u",
        at=([1.0, 0.0],),
        call=lambda u: (u @ u.detach()).acos(),
        right=lambda u: [0, 0],
        remedy="angle_between",
        remedied=lambda f, u: f(u, u.detach()),
    ),
    *(
        Probe(
            id=key,
            case=f"atan2({size:g}, {size:g})",
            dtype=dtype,
            at=(size, size),
            call=torch.atan2,
            scalar=mp.atan2,
            right=lambda y, x: [x / (x * x + y * y), -y / (x * x + y * y)],
            remedy="atan2",
        )
        for key, size, dtype in (("17", 1e-30, SINGLE), ("18", 1e30, SINGLE), ("19", 2e-3, HALF))
    ),
    Probe(
        id="22",
        case="asinh(1e25)",
        dtype=SINGLE,
        at=(1e25,),
        call=torch.asinh,
        scalar=mp.asinh,
        right=lambda x: 1 / mp.sqrt(1 + x * x),
        remedy="asinh",
    ),
    Probe(
        id="26",
        case="prod([1e-30, 1e-30, 1e30])",
        dtype=SINGLE,
        at=([1e-30, 1e-30, 1e30],),
        call=torch.prod,
        scalar=mp.fprod,
        right=lambda x: [x[1] * x[2], x[0] * x[2], x[0] * x[1]],
        remedy="prod",
    ),
    Probe(
        id="30",
        case="2 * acos(q0) * q1 / norm(q1, q2, q3), the quaternion logarithm, at the identity",
        at=([1.0, 0.0, 0.0, 0.0],),
        call=_quaternion_log,
        right=lambda q: [0, 2, 0, 0],
        remedy="quaternion_log",
        remedied=lambda f, q: f(q)[0],
    ),
    Probe(
        id="31",
        case="slerp(q, q, 0.5) by sines of acos(q @ q)",
        of="value",
        at=([1.0, 0.0, 0.0, 0.0],),
        call=_slerp,
        right=lambda q: q,
        remedy="slerp",
        remedied=lambda f, q: f(q, q, 0.5),
    ),
)
