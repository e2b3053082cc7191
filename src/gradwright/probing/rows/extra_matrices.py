"""More linear algebra and writes by index."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from mpmath import mp
from torch import Tensor
from torch.nn import functional as F

from gradwright.probing.row import Probe, looked_up
from gradwright.probing.rows.linear_algebra import (
    TWINS,
    by_eigh,
    determinant,
    general,
    polar_gradient,
    spectral_gradient,
    weighed,
    weights,
)

TWICE = torch.tensor([0, 0])
POINTS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, -1.0]]
TWO_EQUAL = general([2.0, 2.0, 1.0, 0.5])


def _of_exp(a: Any, b: Any) -> Any:
    return mp.exp((a + b) / 2) * mp.sinh((a - b) / 2) / ((a - b) / 2) if a != b else mp.exp(a)


def _of_inverse_sqrt(a: Any, b: Any) -> Any:
    return -1 / (mp.sqrt(a) * mp.sqrt(b) * (mp.sqrt(a) + mp.sqrt(b)))


def _of_projector(a: Any, b: Any) -> Any:
    """Return the divided difference of what is 1 for the eigenvalues near 1 and 0 for those above."""
    low = (a < mp.mpf("1.5")), (b < mp.mpf("1.5"))
    return (low[0] - low[1]) / (a - b) if low[0] != low[1] else mp.mpf(0)


def _lowest_two(a: Tensor) -> Tensor:
    v = torch.linalg.eigh((a + a.mT) / 2).eigenvectors[:, :2]
    return weighed(v @ v.mT)


def _truncated(a: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(a)
    return weighed(u[:, :2] @ torch.diag(s[:2]) @ vh[:2], lean=1)


def _exact_truncated(a: Any) -> Any:
    u, s, vh = mp.svd_r(mp.matrix(a))
    kept = u[:, :2] * mp.diag(s[:2]) * vh[:2, :]
    return mp.fsum(w * kept[i, j] for i, row in enumerate(weights(4, lean=1)) for j, w in enumerate(row))


def _kabsch(p: Tensor) -> Tensor:
    """Return the rotation of the points ``p`` onto where they are, weighed."""
    covariance = torch.tensor(POINTS, dtype=p.dtype).mT @ p
    u, _, vh = torch.linalg.svd(covariance)
    sign = torch.det(u @ vh).sign().detach()
    return weighed(u @ torch.diag(torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign])) @ vh, lean=1)


def _kabsch_gradient(p: Any) -> Any:
    points = mp.matrix(POINTS)
    return points * polar_gradient((points.T * mp.matrix(p)).tolist(), weights(3, lean=1))


def _write(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[TWICE] = x
    return out


def _attention(q: Tensor, k: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None, None], k[None, None], torch.eye(2, dtype=q.dtype)[None, None])[..., 0]


def _exact_attention(q: Any, k: Any) -> Any:
    scores = [[mp.exp(mp.fdot(row, key) / mp.sqrt(2)) for key in k] for row in q]
    return mp.fsum(row[0] / mp.fsum(row) for row in scores)


PROBES = (
    Probe(
        id="M1",
        case="det([[1, 2], [2, 4]])",
        at=([[1.0, 2.0], [2.0, 4.0]],),
        call=torch.linalg.det,
        scalar=determinant,
        remedy="det",
    ),
    Probe(
        id="M2",
        case="det of diag(2, 1, 0)",
        at=([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]],),
        call=torch.linalg.det,
        scalar=determinant,
        remedy="det",
    ),
    Probe(
        id="M3",
        case="linalg.logm",
        of="value",
        at=([[2.0, 1.0], [1.0, 3.0]],),
        call=looked_up(torch.linalg, "logm"),
        scalar=lambda a: mp.logm(mp.matrix(a)),
        remedy="logm",
    ),
    Probe(
        id="M4",
        case="V @ diag(exp(L)) @ V.T by eigh, eigenvalues 1, 1, 2, 2, 3",
        at=(TWINS,),
        call=by_eigh(torch.exp),
        right=spectral_gradient(_of_exp),
        remedy="expm",
        remedied=lambda f, a: weighed(f(a)),
    ),
    Probe(
        id="M5",
        case="V @ diag(1 / sqrt(L)) @ V.T by eigh, eigenvalues 1, 1, 2, 2, 3",
        at=(TWINS,),
        call=by_eigh(torch.rsqrt),
        right=spectral_gradient(_of_inverse_sqrt),
        remedy="invsqrtm",
        remedied=lambda f, a: weighed(f(a)),
    ),
    Probe(
        id="M6",
        case="V2 @ V2.T of the two lowest eigenvectors by eigh, eigenvalues 1, 1, 2, 2, 3",
        at=(TWINS,),
        call=_lowest_two,
        right=spectral_gradient(_of_projector),
        remedy="projector",
        remedied=lambda f, a: weighed(f(a, 2, which="smallest")),
    ),
    Probe(
        id="M7",
        case="the best matrix of rank 2 by svd, singular values 2, 2, 1, 0.5",
        at=(TWO_EQUAL,),
        call=_truncated,
        scalar=_exact_truncated,
        remedy="low_rank",
        remedied=lambda f, a: weighed(f(a, 2), lean=1),
    ),
    Probe(
        id="M8",
        case="Kabsch alignment of points whose covariance has equal singular values",
        at=(POINTS,),
        call=_kabsch,
        right=_kabsch_gradient,
        remedy="kabsch",
        remedied=lambda f, p: weighed(f(p, torch.tensor(POINTS, dtype=p.dtype))[0], lean=1),
    ),
    Probe(
        id="M9",
        case="ones.index_copy(0, [0, 0], source), by the source",
        at=([1.0, 2.0],),
        call=lambda x: torch.ones_like(x).index_copy(0, TWICE, x),
        right=lambda x: [0, 1],
        remedy="index_copy",
        remedied=lambda f, x: f(torch.ones_like(x), 0, TWICE, x),
    ),
    Probe(
        id="M10",
        case="x[[0, 0]] = values, by the values",
        at=([1.0, 2.0],),
        call=_write,
        right=lambda x: [0, 1],
        remedy="index_put",
        remedied=lambda f, x: f(torch.zeros_like(x), (TWICE,), x),
    ),
    Probe(
        id="M11",
        case='ones.scatter_reduce(0, [0, 0], [0, 6], "prod"), by the source',
        at=([0.0, 6.0],),
        call=lambda x: torch.ones_like(x).scatter_reduce(0, TWICE, x, "prod"),
        scalar=lambda x: x[0] * x[1] + 1,
    ),
    Probe(
        id="M12",
        case='ones.scatter_reduce(0, [0, 0], [0, 0], "prod"), by the source',
        of="second derivative",
        at=([0.0, 0.0],),
        call=lambda x: torch.ones_like(x).scatter_reduce(0, TWICE, x, "prod"),
        scalar=lambda x: x[0] * x[1] + 1,
    ),
    Probe(
        id="M13",
        case="cdist(x, y)",
        at=([[0.0, 1.0], [2.0, 0.5]], [[1.0, -1.0]]),
        call=torch.cdist,
        scalar=lambda x, y: mp.fsum(mp.hypot(a[0] - b[0], a[1] - b[1]) for a in x for b in y),
        remedy="cdist",
    ),
    Probe(
        id="M14",
        case="F.pdist(x)",
        at=([[0.0, 1.0], [2.0, 0.5], [1.0, -1.0]],),
        call=F.pdist,
        scalar=lambda x: mp.fsum(mp.hypot(a[0] - b[0], a[1] - b[1]) for a, b in itertools.combinations(x, 2)),
        remedy="pdist",
    ),
    Probe(
        id="M15",
        case="F.scaled_dot_product_attention(q, k, identity) on a CPU",
        at=([[0.5, -0.3], [0.2, 0.8]], [[0.1, 0.7], [-0.4, 0.6]]),
        call=_attention,
        scalar=_exact_attention,
    ),
    Probe(
        id="M16",
        case="F.max_unpool2d of windows that share their largest number",
        at=([[1.0, 2.0], [3.0, 4.0]],),
        call=lambda x: F.max_unpool2d(x[None], torch.tensor([[[0, 0], [1, 2]]]), (2, 2)),
        right=lambda x: [0, 1, 1, 1],
    ),
)
