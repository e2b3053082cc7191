"""What torch has right, so that a step back shows."""

from __future__ import annotations

from typing import Any

import torch
from mpmath import mp
from torch import Tensor, distributions
from torch.nn import functional as F

from gradwright.probing.row import Probe
from gradwright.probing.rows.linear_algebra import determinant

INF = float("inf")
SQUARE = [[2.0, 1.0], [1.0, 3.0]]


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _mish(x: Any) -> Any:
    return x * mp.tanh(mp.log1p(mp.exp(x)))


def _masked_attention(q: Tensor) -> Tensor:
    mask = torch.tensor([[True, True], [False, False]])
    return F.scaled_dot_product_attention(q[None, None], q[None, None], q[None, None], attn_mask=mask)[0, 0, 1]


def _exact_grid_sample(x: Any, grid: Any) -> Any:
    right, down = ((g + 1) / 2 for g in grid)
    top = x[0][0] * (1 - right) + x[0][1] * right
    return top * (1 - down) + (x[1][0] * (1 - right) + x[1][1] * right) * down


PROBES = (
    Probe(
        id="R1",
        case="vector_norm([0, 0])",
        at=([0.0, 0.0],),
        call=torch.linalg.vector_norm,
        right=lambda x: [0, 0],
        remedy="norm",
    ),
    *(
        Probe(
            id=key,
            case="std of [2, 2, 2]",
            of=of,
            at=([2.0, 2.0, 2.0],),
            call=torch.std,
            right=lambda x: [0, 0, 0],
            remedy="std",
        )
        for key, of in (("R2", "gradient"), ("R3", "second derivative"))
    ),
    Probe(
        id="R4",
        case="pdist of two equal points",
        at=([[1.0, 2.0], [1.0, 2.0]],),
        call=F.pdist,
        right=lambda x: [0, 0, 0, 0],
        remedy="pdist",
    ),
    Probe(
        id="R5",
        case="abs(0 + 0j)",
        at=(0.0, 0.0),
        call=lambda x, y: torch.complex(x, y).abs(),
        right=lambda x, y: [0, 0],
    ),
    Probe(
        id="R6",
        case="pow(0, y) at 0, by y",
        at=(0.0,),
        call=lambda y: torch.zeros_like(y) ** y,
        right=lambda y: 0,
    ),
    Probe(id="R7", case="special.entr(0)", at=(0.0,), call=torch.special.entr, right=lambda x: mp.inf),
    Probe(
        id="R8",
        case="Categorical(logits=[0, 0, -inf]).entropy()",
        at=([0.0, 0.0, -INF],),
        call=lambda x: distributions.Categorical(logits=x, validate_args=False).entropy(),
        right=lambda x: [0, 0, 0],
        remedy="entropy",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="R9",
        case="F.scaled_dot_product_attention of a row that is masked as a whole",
        at=([[0.5, -0.3], [0.2, 0.8]],),
        call=_masked_attention,
        right=lambda q: [0, 0, 0, 0],
    ),
    Probe(id="R10", case="F.elu(-40)", at=(-40.0,), call=F.elu, scalar=mp.expm1, right=mp.exp),
    *(
        Probe(
            id=key,
            case=f"F.softplus({x:g})",
            of=of,
            dtype=dtype,
            at=(x,),
            call=F.softplus,
            scalar=lambda x: mp.log1p(mp.exp(x)),
            remedy="softplus",
        )
        for key, x, of, dtype in (
            ("R11", -40.0, "gradient", torch.float64),
            ("R12", -40.0, "second derivative", torch.float64),
            ("R13", 20.5, "gradient", torch.float32),
        )
    ),
    Probe(
        id="R14",
        case="special.log_ndtr(-100)",
        at=(-100.0,),
        call=torch.special.log_ndtr,
        scalar=lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2),
        remedy="log_ndtr",
    ),
    Probe(
        id="R15",
        case="erfinv at the number below 1",
        at=(1 - 2**-53,),
        call=torch.erfinv,
        right=lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(mp.erfinv(x) ** 2),
    ),
    *(
        Probe(
            id=key,
            case="special.i0(0)",
            of=of,
            at=(0.0,),
            call=torch.special.i0,
            scalar=lambda x: mp.besseli(0, x),
        )
        for key, of in (("R16", "gradient"), ("R17", "second derivative"))
    ),
    Probe(
        id="R18",
        case="special.polygamma(2, -1.5)",
        of="value",
        at=(-1.5,),
        call=lambda x: torch.special.polygamma(2, x),
        scalar=lambda x: mp.psi(2, x),
    ),
    Probe(
        id="R19",
        case="svdvals of the identity, summed",
        at=([[1.0, 0.0], [0.0, 1.0]],),
        call=torch.linalg.svdvals,
        right=lambda a: a,
        remedy="polar",
        remedied=lambda f, a: f(a)[1].trace(),
    ),
    Probe(
        id="R20",
        case="det of a 3 x 3 matrix of zeros",
        at=([[0.0] * 3] * 3,),
        call=torch.linalg.det,
        scalar=determinant,
        remedy="det",
    ),
    Probe(
        id="R21",
        case="cholesky(a).diagonal().log().sum() at a condition of 4e14",
        at=(1e-14,),
        call=lambda x: torch.linalg.cholesky(torch.stack([x + 1, x, x, x]).reshape(2, 2)).diagonal().log(),
        scalar=lambda x: mp.log((x + 1) * x - x * x) / 2,
    ),
    Probe(
        id="R22",
        case="matrix_exp",
        of="value",
        at=(SQUARE,),
        call=torch.matrix_exp,
        scalar=lambda a: mp.expm(mp.matrix(a)),
        remedy="expm",
    ),
    Probe(
        id="R23",
        case="logdet",
        at=(SQUARE,),
        call=torch.logdet,
        scalar=lambda a: mp.log(determinant(a)),
    ),
    Probe(
        id="R24",
        case="amax of a tie",
        at=([1.0, 1.0],),
        call=torch.amax,
        right=lambda x: [mp.mpf(1) / 2, mp.mpf(1) / 2],
    ),
    Probe(
        id="R25",
        case="cumprod([2, 0, 3], 0)",
        at=([2.0, 0.0, 3.0],),
        call=lambda x: x.cumprod(0),
        scalar=lambda x: x[0] + x[0] * x[1] + x[0] * x[1] * x[2],
        remedy="cumprod",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="R26",
        case="prod([0, 0, 3])",
        of="second derivative",
        at=([0.0, 0.0, 3.0],),
        call=torch.prod,
        scalar=mp.fprod,
        remedy="prod",
    ),
    Probe(
        id="R27",
        case='zeros.scatter_reduce(0, [0, 0], [1, 2], "amax"), by the source',
        at=([1.0, 2.0],),
        call=lambda x: torch.zeros_like(x).scatter_reduce(0, torch.tensor([0, 0]), x, "amax"),
        right=lambda x: [0, 1],
    ),
    Probe(
        id="R28",
        case="x.scatter(0, [0, 0], 5), by x",
        at=([1.0, 2.0],),
        call=lambda x: x.scatter(0, torch.tensor([0, 0]), 5.0),
        right=lambda x: [0, 1],
        remedy="scatter",
        remedied=lambda f, x: f(x, 0, torch.tensor([0, 0]), 5.0),
    ),
    Probe(
        id="R29",
        case="F.binary_cross_entropy_with_logits(-40, 0)",
        at=(-40.0,),
        call=lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
        scalar=lambda x: mp.log1p(mp.exp(x)),
        right=_sigmoid,
        remedy="bce_with_logits",
        remedied=lambda f, x: f(x, torch.zeros_like(x)),
    ),
    Probe(
        id="R30",
        case="F.logsigmoid(40)",
        at=(40.0,),
        call=F.logsigmoid,
        scalar=lambda x: -mp.log1p(mp.exp(-x)),
        right=lambda x: _sigmoid(-x),
        remedy="logsigmoid",
    ),
    Probe(id="R31", case="F.mish(-40)", at=(-40.0,), call=F.mish, scalar=_mish),
    Probe(
        id="R32",
        case="logsumexp([-inf, 0, 1])",
        of="second derivative",
        at=([-INF, 0.0, 1.0],),
        call=lambda x: x.logsumexp(0),
        scalar=lambda x: mp.log(mp.fsum(map(mp.exp, x))),
        remedy="logsumexp",
        remedied=lambda f, x: f(x, dim=0),
    ),
    Probe(
        id="R33",
        case="F.grid_sample(x, grid)",
        of="second derivative",
        at=([[1.0, 2.0], [4.0, 3.0]], [0.25, -0.5]),
        call=lambda x, grid: F.grid_sample(x[None, None], grid[None, None, None], align_corners=True),
        scalar=_exact_grid_sample,
    ),
)
