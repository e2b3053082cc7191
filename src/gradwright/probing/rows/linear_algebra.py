"""Linear algebra."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mpmath import mp
from torch import Tensor

from gradwright.probing.row import Probe, looked_up

Rows = list[list[float]]


def _reflection(n: int, shift: int) -> Tensor:
    """Return an orthogonal matrix: the reflection along ``(1 + shift, 2 + shift, ...)``."""
    v = torch.arange(1, n + 1, dtype=torch.float64) + shift
    return torch.eye(n, dtype=torch.float64) - 2 * torch.outer(v, v) / (v @ v)


def _symmetric(eigenvalues: Sequence[float]) -> Rows:
    q = _reflection(len(eigenvalues), 0)
    rows: Rows = (q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ q).tolist()
    return rows


def general(singular_values: Sequence[float]) -> Rows:
    """Return a matrix that is not symmetric."""
    n = len(singular_values)
    middle = torch.diag(torch.tensor(singular_values, dtype=torch.float64))
    rows: Rows = (_reflection(n, 0) @ middle @ _reflection(n, 1)).tolist()
    return rows


def weights(n: int, lean: int = 0) -> Rows:
    """Return what the elements of a matrix are weighed with before they are summed; symmetric without ``lean``."""
    return [[math.sin(1 + i + j + i * j + lean * i) for j in range(n)] for i in range(n)]


def weighed(matrix: Tensor, lean: int = 0) -> Tensor:
    """Return the sum of the elements of a matrix, each with its weight."""
    return (matrix * torch.tensor(weights(len(matrix), lean), dtype=matrix.dtype)).sum()


def by_eigh(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the usual way to write a function of a symmetric matrix."""

    def call(a: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh((a + a.mT) / 2)
        return weighed(vectors @ torch.diag(function(values)) @ vectors.mT)

    return call


def _by_svd(middle: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def call(a: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(a)
        return weighed(u @ torch.diag(middle(s)) @ vh, lean=1)

    return call


def spectral_gradient(divided_difference: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return the gradient of a weighed function of a symmetric matrix (Daleckii and Krein 1965)."""

    def gradient(a: Any) -> Any:
        values, vectors = mp.eigsy(mp.matrix(a))
        inner = vectors.T * mp.matrix(weights(len(a))) * vectors
        for i, j in itertools.product(range(len(a)), repeat=2):
            inner[i, j] *= divided_difference(values[i], values[j])
        return vectors * inner * vectors.T

    return gradient


def _of_sqrt(a: Any, b: Any) -> Any:
    return 1 / (mp.sqrt(a) + mp.sqrt(b))


def _of_log(a: Any, b: Any) -> Any:
    return 2 * mp.atanh((a - b) / (a + b)) / (a - b) if a != b else 1 / a


def polar_gradient(a: Any, weights: Any) -> Any:
    """Return the gradient of the weighed orthogonal factor (Kenney and Laub 1991)."""
    u, s, vh = mp.svd_r(mp.matrix(a))
    x = u.T * mp.matrix(weights) * vh.T
    inner = mp.matrix(len(a), len(a))
    for i, j in itertools.product(range(len(a)), repeat=2):
        inner[i, j] = (x[i, j] - x[j, i]) / (s[i] + s[j])
    return u * inner * vh


def determinant(a: Any) -> Any:
    """Return the determinant by its definition, which has no division."""
    total = mp.mpf(0)
    for order in itertools.permutations(range(len(a))):
        swaps = sum(order[i] > order[j] for i, j in itertools.combinations(range(len(a)), 2))
        total += (-1) ** swaps * mp.fprod(a[i][j] for i, j in enumerate(order))
    return total


def _complement(a: Tensor) -> Tensor:
    """Return the projector onto what is orthogonal to the columns, by a complete QR."""
    q = torch.linalg.qr(a, mode="complete").Q[:, a.shape[1] :]
    return weighed(q @ q.mT)


def _exact_complement(a: Any) -> Any:
    m = mp.matrix(a)
    projector = mp.eye(len(a)) - m * mp.inverse(m.T * m) * m.T
    return mp.fsum(w * p for row, n in zip(weights(len(a)), range(len(a))) for w, p in zip(row, projector[n, :]))


def _packed(x: Tensor) -> Tensor:
    """Return ``[[a, b], [b, c]]``."""
    return torch.stack([x[0], x[1], x[1], x[2]]).reshape(2, 2)


TWINS = _symmetric([1.0, 1.0, 2.0, 2.0, 3.0])
IDENTITY: Rows = torch.eye(4).tolist()

PROBES = (
    Probe(
        id="149",
        case="V @ diag(sqrt(L)) @ V.T by eigh, eigenvalues 1, 1, 2, 2, 3",
        at=(TWINS,),
        call=by_eigh(torch.sqrt),
        right=spectral_gradient(_of_sqrt),
        remedy="sqrtm",
        remedied=lambda f, a: weighed(f(a)),
    ),
    Probe(
        id="150",
        case="V @ diag(log(L)) @ V.T by eigh, eigenvalues 1, 1, 2, 2, 3",
        at=(TWINS,),
        call=by_eigh(torch.log),
        right=spectral_gradient(_of_log),
        remedy="logm",
        remedied=lambda f, a: weighed(f(a)),
    ),
    Probe(
        id="151",
        case="V @ diag(sqrt(L)) @ V.T by eigh, gaps of 1e-5",
        dtype=torch.float32,
        at=(_symmetric([1.0, 1.00001, 2.0, 2.00001, 3.0]),),
        call=by_eigh(torch.sqrt),
        right=spectral_gradient(_of_sqrt),
        remedy="sqrtm",
        remedied=lambda f, a: weighed(f(a)),
    ),
    Probe(
        id="153",
        case="U @ Vh by svd, singular values 2, 2, 1, 0.5",
        at=(general([2.0, 2.0, 1.0, 0.5]),),
        call=_by_svd(torch.ones_like),
        right=lambda a: polar_gradient(a, weights(4, lean=1)),
        remedy="orthogonal_factor",
        remedied=lambda f, a: weighed(f(a), lean=1),
    ),
    Probe(
        id="154",
        case="U @ Vh by svd of the identity",
        at=(IDENTITY,),
        call=_by_svd(torch.ones_like),
        right=lambda a: polar_gradient(a, weights(4, lean=1)),
        remedy="orthogonal_factor",
        remedied=lambda f, a: weighed(f(a), lean=1),
    ),
    Probe(
        id="155",
        case="U @ diag(S) @ Vh by svd of the identity",
        at=(IDENTITY,),
        call=_by_svd(lambda s: s),
        right=lambda a: weights(4, lean=1),
        remedy="low_rank",
        remedied=lambda f, a: weighed(f(a, 4), lean=1),
    ),
    Probe(
        id="157",
        case="svdvals(1e19 * [[4, 1], [1, 3]]).sum()",
        of="second derivative",
        dtype=torch.float32,
        at=([[4e19, 1e19], [1e19, 3e19]],),
        call=torch.linalg.svdvals,
        # The gradient is the orthogonal factor.
        right=lambda a: polar_gradient(a, [[1, 2], [3, 4]]),
        remedy="polar",
        remedied=lambda f, a: f(a)[1].trace(),
    ),
    *(
        Probe(
            id=key,
            case=f"det of a {n} x {n} matrix of zeros",
            of="second derivative",
            at=([[0.0] * n] * n,),
            call=torch.linalg.det,
            scalar=determinant,
            remedy="det",
        )
        for key, n in (("159", 2), ("160", 3))
    ),
    Probe(
        id="161",
        case='qr(a, mode="complete") of a tall matrix',
        at=([[1.0, 0.5], [-0.5, 2.0], [1.5, 1.0]],),
        call=_complement,
        scalar=_exact_complement,
        remedy="projector",
        remedied=lambda f, a: weighed(torch.eye(3, dtype=a.dtype) - f(a @ a.mT, 2)),
    ),
    Probe(
        id="162",
        case="ldl_factor",
        at=([4.0, 1.0, 3.0],),
        call=lambda x: torch.linalg.ldl_factor(_packed(x)).LD.tril(),
        scalar=lambda x: x[0] + x[1] / x[0] + x[2] - x[1] ** 2 / x[0],
    ),
    Probe(
        id="163",
        case="geqrf",
        at=([[3.0, 1.0], [4.0, 2.0]],),
        call=lambda a: torch.geqrf(a)[0][0, 0] ** 2,
        scalar=lambda a: a[0][0] ** 2 + a[1][0] ** 2,
    ),
    Probe(
        id="164",
        case="linalg.sqrtm",
        of="value",
        at=([[2.0, 1.0], [1.0, 3.0]],),
        call=looked_up(torch.linalg, "sqrtm"),
        scalar=lambda a: mp.sqrtm(mp.matrix(a)),
        remedy="sqrtm",
    ),
)
