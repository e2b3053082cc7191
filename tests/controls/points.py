"""Awkward points: kinks, ties, edges of the domain, scales, offsets, bad conditioning."""

from __future__ import annotations

import torch

from tests.controls.entries import Control, control, t, u, x

F = torch.nn.functional

KINKED = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "leaky relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda a: F.threshold(a, 0.0, 0.0),
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "abs": torch.abs,
    "sign": torch.sign,
    "clamp": lambda a: a.clamp(-0.5, 0.5),
    "clamp from below": lambda a: a.clamp(min=0),
    "maximum with zero": lambda a: torch.maximum(a, torch.zeros_like(a)),
    "hinge": lambda a: (1 - a).clamp(min=0).sum(),
    "Huber": lambda a: F.huber_loss(a, torch.zeros_like(a), delta=0.5),
    "smooth L1": lambda a: F.smooth_l1_loss(a, torch.zeros_like(a)),
    "L1": lambda a: F.l1_loss(a, torch.zeros_like(a)),
    "norm of each row": lambda a: a.reshape(-1, 1).norm(dim=-1),
    "where": lambda a: torch.where(a > 0, a * a, a),
    "round": torch.round,
    "frac": torch.frac,
}
CORNERS = t(0.0, 0.5, -0.5, 1.0, -3.0, 3.0)
NEAR = t(1e-9, -1e-9, 3e-7, 0.5 + 1e-8, -0.5 - 1e-8, 2.0)

TIED = {
    "max": lambda a: a.max(),
    "min": lambda a: a.min(),
    "amax": lambda a: a.amax(),
    "amin": lambda a: a.amin(),
    "max along a dimension": lambda a: a.reshape(2, -1).max(dim=1)[0],
    "median": lambda a: a.median(),
    "sort": lambda a: a.sort()[0],
    "topk": lambda a: a.topk(2)[0],
    "kthvalue": lambda a: a.kthvalue(2)[0],
    "cummax": lambda a: a.cummax(0)[0],
    "cummin": lambda a: a.cummin(0)[0],
    "max pool": lambda a: F.max_pool1d(a[None, None], 2)[0, 0],
    "quantile": lambda a: a.quantile(0.5),
    "infinity norm": lambda a: a.norm(float("inf")),
    "logcumsumexp": lambda a: a.logcumsumexp(0),
}
TIES = t(1.0, 1.0, 0.5, 1.0, -2.0, 0.5)
CLOSE = t(1.0, 1 + 1e-9, 0.5, 3.0, -2.0, 0.5 + 5e-7)

EDGES = [
    ("sqrt at 0 and next to it", torch.sqrt, t(0.0, 1e-12, 1e-7, 1.0)),
    ("log close to 0", torch.log, t(1e-300, 1e-12, 1e-7, 1.0)),
    ("log1p close to -1", torch.log1p, t(-1 + 1e-9, 0.0, 1.0)),
    ("asin close to 1", torch.asin, t(1 - 1e-9, -1 + 1e-9, 0.0)),
    ("acos close to 1", torch.acos, t(1 - 1e-9, 0.5)),
    ("acosh close to 1", torch.acosh, t(1 + 1e-9, 2.0)),
    ("atanh close to 1", torch.atanh, t(1 - 1e-9, 0.0)),
    ("erfinv close to 1", torch.erfinv, t(1 - 1e-9, -1 + 1e-7, 0.0)),
    ("logit close to its ends", torch.logit, t(1e-9, 1 - 1e-9, 0.5)),
    ("reciprocal close to 0", torch.reciprocal, t(1e-5, -1e-9, 1e-150)),
    ("rsqrt close to 0", torch.rsqrt, t(1e-12, 1.0)),
    ("tan close to its pole", torch.tan, t(1.5707963, 0.1)),
    ("xlogy at 0", lambda a: torch.xlogy(a, a + 1), t(1e-12, 1.0)),
    ("power zero point one close to 0", lambda a: a**0.1, t(1e-9, 1.0)),
    ("cube root close to 0", lambda a: a.sign() * a.abs() ** (1 / 3), t(1e-9, -1e-9, 8.0)),
    ("atan2 next to the cut", lambda a: torch.atan2(a, a * 0 - 1), t(1e-9, -1e-9)),
    ("entropy close to 0", lambda a: torch.special.entr(a), t(1e-12, 0.3, 1.0)),
    (
        "binary cross entropy close to its ends",
        lambda a: F.binary_cross_entropy(a, a.detach().round()),
        t(1e-6, 0.9999),
    ),
]

SCALES = [
    ("times 2 at 1e8", lambda a: 2 * a, t(1e8, 1.0, -1e8)),
    ("square at 1e8 and 1e-8", lambda a: a * a, t(1e8, 1.0, 1e-8)),
    ("cube at 1e100", lambda a: a**3, t(1e100, 1.0)),
    ("tiny factor", lambda a: 1e-30 * a.sin(), x(3)),
    ("huge factor", lambda a: 1e200 * a.sin(), x(3)),
    ("offset of 1e8", lambda a: a.sin() + 1e8, x(3)),
    ("offset of 1e15", lambda a: a + 1e15, x(3)),
    ("cancelling offset", lambda a: (a + 1e6) - 1e6, x(3)),
    ("fast oscillation", lambda a: torch.sin(1e5 * a), x(3)),
    ("sin at 1e10", torch.sin, t(1e10, 0.5)),
    ("sigmoid far out", torch.sigmoid, t(-700.0, -40.0, 0.0, 40.0, 700.0)),
    ("softplus far out", F.softplus, t(-50.0, 0.0, 19.999, 20.001, 300.0)),
    ("tanh far out", torch.tanh, t(-40.0, -19.0, 0.0, 19.0, 40.0)),
    ("exp far out", torch.exp, t(-745.0, -100.0, 0.0, 700.0)),
    ("logsumexp far out", lambda a: a.logsumexp(0), t(-1e4, 0.0, 1e4)),
    ("softmax far out", lambda a: a.softmax(0), t(-1e3, 0.0, 1e3)),
    ("erfc far out", torch.erfc, t(-10.0, 5.0, 26.0)),
    ("underflow", lambda a: (a * 1e-160) ** 2, x(3)),
    ("subnormal inputs", lambda a: 3 * a, t(5e-324, 1e-310, 1e-300)),
    ("mixed magnitudes", lambda a: a.exp().sum(), t(-20.0, 0.0, 20.0)),
    ("product with zeros", lambda a: a.prod(), t(0.0, 2.0, 0.0, 3.0)),
    ("product with one zero", lambda a: a.prod(), t(0.0, 2.0, 5.0, 3.0)),
    ("cumulative product with zeros", lambda a: a.cumprod(0), t(1.0, 0.0, 2.0, 0.0, 3.0)),
    ("polynomial next to a double root", lambda a: (a - 1) ** 2, t(1.0, 1 + 1e-8)),
    ("difference of squares", lambda a: a**2 - (a - 1e-8) ** 2, t(1.0, 2.0)),
    ("standard deviation of nearly equal values", lambda a: a.std(), 1 + 1e-6 * x(5)),
    ("layer norm of two elements", lambda a: F.layer_norm(a, (2,)), x(3, 2)),
    ("group norm of two elements", lambda a: F.group_norm(a, 2), x(3, 4)),
    ("correlation of two points", torch.corrcoef, x(3, 2)),
    ("normalise a tiny vector", lambda a: F.normalize(a, dim=0), 1e-7 * x(4)),
    ("cosine similarity of parallel vectors", lambda a: F.cosine_similarity(a, 2 * a, dim=0), x(5)),
    ("high power", lambda a: a**50, u(4, low=0.5, high=1.5)),
    ("step of a staircase", lambda a: torch.floor(a * 10) / 10 + a, u(5)),
    ("modulo", lambda a: a % 1.0, u(5, low=0.1, high=0.9)),
    ("fmod", lambda a: torch.fmod(a, 0.7), u(5, low=0.1, high=0.6)),
    ("floor division", lambda a: torch.div(a, 0.3, rounding_mode="floor") + a, u(5)),
    ("value rounded to float32 inside", lambda a: a.float().sin().double(), x(4)),
    ("value rounded to float16 inside", lambda a: a.half().sin().double(), x(4)),
    ("hypot of tiny values", lambda a: torch.hypot(a, 2 * a), 1e-9 * u(4, low=1, high=2)),
    ("many elements, one kink each", torch.relu, x(5000)),
    ("many elements", torch.exp, x(5000)),
    ("floor of many elements", torch.floor, 3 * x(3000)),
    ("staircase of many elements", lambda a: torch.div(a, 0.3, rounding_mode="floor"), x(3000)),
]

CONTROLS: list[Control] = [
    *(control(f"{name} at its corners", function, CORNERS) for name, function in KINKED.items()),
    *(control(f"{name} next to its corners", function, NEAR) for name, function in KINKED.items()),
    *(control(f"{name} of ties", function, TIES) for name, function in TIED.items()),
    *(control(f"{name} of close values", function, CLOSE) for name, function in TIED.items()),
    *(control(name, function, point) for name, function, point in EDGES),
    *(control(name, function, point) for name, function, point in SCALES),
]
