"""Writes by index, sequences and missing second derivatives."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from mpmath import mp
from torch import Tensor
from torch.nn import functional as F

from gradwright.probing.row import Probe

TWICE = torch.tensor([0, 0])
TARGET = [1, 2]
LOG_PROBABILITIES = [[float(mp.log(p)) for p in row] for row in ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7])]
QUERIES = [[0.5, -0.3], [0.2, 0.8]]
KEYS = [[0.1, 0.7], [-0.4, 0.6]]
VALUES = [[1.0, 0.2], [-0.5, 0.3]]


def _ctc(x: Tensor) -> Tensor:
    return F.ctc_loss(x, torch.tensor(TARGET), torch.tensor(3), torch.tensor(2), reduction="sum")


def _exact_ctc(x: Any) -> Any:
    """Return the loss as the sum over all sequences of labels that collapse to the target."""
    total = mp.mpf(0)
    for labels in itertools.product(range(3), repeat=3):
        collapsed = [label for label, _ in itertools.groupby(labels) if label != 0]
        if collapsed == TARGET:
            total += mp.exp(mp.fsum(x[t][label] for t, label in enumerate(labels)))
    return -mp.log(total)


def _distance(x: Any, y: Any, p: Any) -> Any:
    return mp.fsum(abs(a - b) ** p for a, b in zip(x, y)) ** (1 / mp.mpf(p))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])


def _exact_attention(q: Any, k: Any, v: Any) -> Any:
    total = mp.mpf(0)
    for row in q:
        weights = [mp.exp(mp.fdot(row, key) / mp.sqrt(2)) for key in k]
        total += mp.fdot(weights, [mp.fsum(value) for value in v]) / mp.fsum(weights)
    return total


def _bag(table: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(torch.tensor([[0, 1]]), table, per_sample_weights=weights[None], mode="sum")


def _linear_cross_entropy(x: Tensor, w: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(x, w, torch.tensor([0, 1]), reduction="sum", options=options)


def _exact_linear_cross_entropy(x: Any, w: Any) -> Any:
    scores = [[mp.fdot(row, weights) for weights in w] for row in x]
    return mp.fsum(mp.log(mp.fsum(map(mp.exp, row))) - row[label] for row, label in zip(scores, (0, 1)))


PROBES = (
    Probe(
        id="165",
        case="zeros.scatter(0, [0, 0], src), by src",
        at=([1.0, 2.0],),
        call=lambda x: torch.zeros_like(x).scatter(0, TWICE, x),
        right=lambda x: [0, 1],
        remedy="scatter",
        remedied=lambda f, x: f(torch.zeros_like(x), 0, TWICE, x),
    ),
    Probe(
        id="166",
        case="zeros.index_put([[0, 0]], values), by the values",
        at=([1.0, 2.0],),
        call=lambda x: torch.zeros_like(x).index_put((TWICE,), x),
        right=lambda x: [0, 1],
        remedy="index_put",
        remedied=lambda f, x: f(torch.zeros_like(x), (TWICE,), x),
    ),
    Probe(
        id="169",
        case="zeros.put([0, 0], source), by the source",
        at=([1.0, 2.0],),
        call=lambda x: torch.zeros_like(x).put(TWICE, x),
        right=lambda x: [0, 1],
        remedy="put",
        remedied=lambda f, x: f(torch.zeros_like(x), TWICE, x),
    ),
    Probe(
        id="171",
        case='ones.index_reduce(0, [0, 0], [0, 0], "prod"), by the source',
        of="second derivative",
        at=([0.0, 0.0],),
        call=lambda x: torch.ones_like(x).index_reduce(0, TWICE, x, "prod"),
        scalar=lambda x: x[0] * x[1] + 1,
    ),
    *(
        Probe(
            id=key, case="F.ctc_loss(log_probs, [1, 2])", of=of, at=(LOG_PROBABILITIES,), call=_ctc, scalar=_exact_ctc
        )
        for key, of in (("172", "gradient"), ("173", "second derivative"))
    ),
    *(
        Probe(
            id=key,
            case=f"cdist(x, y, {p:g})",
            of="second derivative",
            at=([[0.0, 1.0], [2.0, 0.5]], [[1.0, -1.0]]),
            call=lambda x, y, p=p: torch.cdist(x, y, p),
            scalar=lambda x, y, p=p: mp.fsum(_distance(a, b, p) for a in x for b in y),
            remedy="cdist",
            remedied=lambda f, x, y, p=p: f(x, y, p),
        )
        for key, p in (("174", 2.0), ("175", 1.5))
    ),
    Probe(
        id="176",
        case="F.pdist(x)",
        of="second derivative",
        at=([[0.0, 1.0], [2.0, 0.5], [1.0, -1.0]],),
        call=F.pdist,
        scalar=lambda x: mp.fsum(_distance(a, b, 2) for a, b in itertools.combinations(x, 2)),
        remedy="pdist",
    ),
    Probe(
        id="177",
        case="F.scaled_dot_product_attention(q, k, v) on a CPU",
        of="second derivative",
        at=(QUERIES, KEYS, VALUES),
        call=_attention,
        scalar=_exact_attention,
    ),
    Probe(
        id="178",
        case="F.embedding_bag(per_sample_weights=...)",
        of="second derivative",
        at=([[1.0, 2.0], [3.0, 4.0]], [0.5, 2.0]),
        call=_bag,
        scalar=lambda table, weights: mp.fsum(w * mp.fsum(row) for w, row in zip(weights, table)),
    ),
    Probe(
        id="179",
        case="F.linear_cross_entropy(options=...)",
        of="second derivative",
        at=(QUERIES, [[0.1, 0.7], [-0.4, 0.6], [1.0, 0.2]]),
        call=_linear_cross_entropy,
        scalar=_exact_linear_cross_entropy,
    ),
)
