"""Entropy and divergences of distributions that are given by logits, where some probabilities are exactly zero.

They are made of logarithms of probabilities that are right where one leads, and of sums whose terms have one sign. With
``d = log q - log p``, ``KL(p || q) = sum p (expm1(d) - d)``, and with ``s = d / 2`` and ``m = (p + q) / 2`` the one of
Jensen and Shannon is ``sum m (s tanh s - log cosh s)``. The gradient of an entropy is that of ``softmax(x)`` for the
cotangent ``-x``, in which a constant does not count: none is left to cancel. Logarithms of probabilities are logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative
from gradwright.errors import ArgumentError
from gradwright.stable.arguments import common_dtype, require_dim, require_floating, widened
from gradwright.stable.logistic import sigmoid
from gradwright.stable.rows import by_rows
from gradwright.stable.seen import seen_within
from gradwright.stable.softmaxes import log_share_slope, log_shares, share_slope, shares
from gradwright.torch_compat import kernels

BARS = relative(1e-14, 1e-6, *HALF)
INF = math.inf
CLOSE = 0.25
"""From this divergence on, the sum of the logarithms times the probabilities has lost less than four bits."""


def _shares(mp: Any, row: list[Any]) -> list[Any]:
    shares = [mp.exp(x) for x in row]
    total = mp.fsum(shares)
    return [share / total if total else total for share in shares]


def _rows(dtype: torch.dtype, *values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=dtype)


# -------------------------------------------------------------------- entropy


def _entropy_examples(dtype: torch.dtype) -> Sequence[Example]:
    large = torch.finfo(dtype).max / 4
    return [
        Point((_rows(dtype, [0.5, -1.25, 2.0, 0.125], [3.0, 3.0, -0.75, 1.5]), -1), note="ordinary, ties"),
        Point((_rows(dtype, [0.0, 7.0, 0.5], [4.0, -9.5, 1.0]), 0), note="along the first dimension"),
        Point((_rows(dtype, [0.0, 1.0, -INF], [-INF, -INF, -INF], [-INF, 2.0, -INF]),), note="-inf", extreme=True),
        Point((_rows(dtype, [0.0, 40.0, 1.0]),), note="one leads", extreme=True),
        Point((_rows(dtype, [0.0, 800.0]),), note="saturated", extreme=True),
        Point((_rows(dtype, [large, -large, 1.0, large, 0.0]),), note="the whole range", extreme=True),
    ]


def _entropy_by_hand(x: Tensor, dim: int = -1) -> Tensor:
    logs = torch.log_softmax(x, dim)
    return -(logs.exp() * logs).sum(dim)


@exact(
    forward="out = -sum(p log(p)) with p = softmax(x)",
    gradient={"x": "-g p (log(p) + out), 0 where p is 0"},
    reference=lambda mp, x, dim=-1: by_rows(lambda row: -mp.fsum(p * mp.log(p) for p in _shares(mp, row) if p), dim, x),
    domain="every number; -inf is a probability of 0, and the entropy of a row of them is 0",
    bars=BARS,
    examples=_entropy_examples,
    elementwise=False,
    measure="tensor",
    replaces=_entropy_by_hand,
    ordinary=lambda: (torch.randn(1000, 1000),),
    paper="trl#7252; pytorch#89558",
)
def entropy(x: Tensor, dim: int = -1) -> Tensor:
    """Return the entropy of categorical distributions from their logits, in nats.

    Of probabilities it is ``-gw.stable.xlogx(p).sum(dim)``, whose derivative at a probability of 0 is infinite.

    Arguments:
        x: logits (or logarithms of probabilities): floating point, of any shape.
        dim: the dimension of the categories.

    Returns:
        a tensor without ``dim``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
        >>> out = gw.stable.entropy(x)
        >>> round(out.item(), 4), torch.autograd.grad(out, x)
        (0.6931, (tensor([-0., -0., -0.]),))
    """
    require_floating("entropy", x=x)
    require_dim("entropy", dim)
    return row_entropy(x, dim).squeeze(dim)


@custom_gradient
def row_entropy(x: Tensor, dim: int) -> Tensor:
    """Return the entropy of each row of logits, which keeps its dimension."""
    logs = log_shares(widened(x), dim)
    terms = logs.exp().mul_(logs)
    out = terms.sum(dim, keepdim=True)
    if not seen_within(out, -INF, INF):  # 0 * -inf
        out = torch.where(logs == -INF, 0.0, terms).sum(dim, keepdim=True)
    return out.neg_().to(x.dtype)


@row_entropy.vjp
def row_entropy_vjp(g: Tensor, x: Tensor, dim: int) -> Tensor:
    x = widened(x)
    lead = x.detach().amax(dim, keepdim=True) if x.numel() else x
    return -g * share_slope(_finite(x - lead), shares(x, dim), dim)


def _finite(x: Tensor) -> Tensor:
    """Return ``x`` with 0 in the place of infinities and nan, which belong to probabilities of 0."""
    return x if seen_within(x, -INF, INF) else torch.where(x.abs() < INF, x, 0.0)


# -------------------------------------------------------------------- Kullback-Leibler


def _pair_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _rows(dtype, [0.5, -1.25, 2.0, 0.125], [3.0, 3.0, -0.75, 1.5])
    y = _rows(dtype, [-0.5, 1.0, 0.25, 2.5], [-2.0, 0.5, 2.0, 1.0])
    masked = (_rows(dtype, [0.0, 1.0, -INF], [-INF, -INF, -INF]), _rows(dtype, [1.0, 0.5, -INF], [-INF, -INF, -INF]))
    return [
        Point((x, y), note="ordinary, ties"),
        Point((x, y, 0), note="along the first dimension"),
        Point(masked, note="-inf in both", extreme=True),
        Point((_rows(dtype, [0.0, -INF, 1.0]), _rows(dtype, [0.0, 0.5, -1.0])), note="-inf in p", extreme=True),
        Point((_rows(dtype, [0.0, 1.0, 40.0]), _rows(dtype, [1.0, 0.5, 41.5])), note="one leads both", extreme=True),
        Point((_rows(dtype, [0.0, 40.0, 1.0]), _rows(dtype, [30.0, 1.0, 0.5])), note="others lead", extreme=True),
        Point((_rows(dtype, [0.0, 800.0]), _rows(dtype, [-2.0, 1.0])), note="saturated", extreme=True),
    ]


def _kl_examples(dtype: torch.dtype) -> Sequence[Example]:
    impossible = (_rows(dtype, [0.0, 1.0, 0.5]), _rows(dtype, [0.0, -INF, 0.5]))
    return [*_pair_examples(dtype), Point(impossible, note="-inf in q", extreme=True)]


def _kl_reference(mp: Any, x: Any, y: Any, dim: int = -1) -> Any:
    def divergence(x: list[Any], y: list[Any]) -> Any:
        return mp.fsum(p * (mp.log(p) - mp.log(q)) for p, q in zip(_shares(mp, x), _shares(mp, y)) if p)

    return by_rows(divergence, dim, x, y)


def _kl_by_hand(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    log_p, log_q = torch.log_softmax(x, dim), torch.log_softmax(y, dim)
    return torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim)


def _two() -> tuple[Any, ...]:
    return torch.randn(1000, 1000), torch.randn(1000, 1000)


@exact(
    forward="out = sum(p (log(p) - log(q))) with p = softmax(x), q = softmax(y)",
    gradient={"x": "g p (log(p) - log(q) - out), 0 where p is 0", "y": "g (q - p), 0 where q is 0"},
    reference=_kl_reference,
    domain="every number; -inf is a probability of 0; inf, with gradient 0, where q is 0 and p is not",
    bars=BARS,
    examples=_kl_examples,
    elementwise=False,
    measure="tensor",
    replaces=_kl_by_hand,
    slower="the numbers are looked at first, for -inf and for one that leads its row, in passes of their own",
    ordinary=_two,
    paper="pytorch#89558, #103316",
)
def kl_divergence(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Return the divergence KL(p || q) of categorical distributions from their logits, in nats.

    It is not negative, and where the distributions are nearly equal it keeps the digits that their logits have.

    Arguments:
        x: logits (or logarithms of probabilities) of p: floating point, of any shape.
        y: those of q, of the same shape.
        dim: the dimension of the categories.

    Returns:
        a tensor without ``dim``.

    Raises:
        ArgumentError: they are not floating point, or of different shapes.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.kl_divergence(x, torch.tensor([0.0, 0.0, -torch.inf])), x)
        (tensor([0., 0., 0.]),)
    """
    x, y = _pair("kl_divergence", x, y, dim)
    return row_divergence(x, y, dim).squeeze(dim)


def _pair(name: str, x: Tensor, y: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return both in their common dtype."""
    require_floating(name, x=x, y=y)
    require_dim(name, dim)
    if x.shape != y.shape:
        raise ArgumentError(
            f"{name}: x has the shape {tuple(x.shape)} and y {tuple(y.shape)}; expected the same; expand one of them."
        )
    dtype = common_dtype(x, y)
    return x.to(dtype), y.to(dtype)


@custom_gradient
def row_divergence(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return KL(p || q) of rows of logits, which keep their dimension."""
    a, b = log_shares(widened(x), dim), log_shares(widened(y), dim)
    p = a.exp()
    d = b - a
    out = (p * d).sum(dim, keepdim=True).neg_()
    if not seen_within(out, CLOSE, INF):
        d = torch.where(p > 0, d, 0.0)
        terms = torch.where((p > 0) & (d.abs() < 0.5), p * _expm1_minus(d), (b.exp() - p) - p * d)
        out = terms.sum(dim, keepdim=True)
    return out.to(common_dtype(x, y))


def _expm1_minus(d: Tensor) -> Tensor:
    """Return ``expm1(d) - d`` for ``d`` up to half, and something finite beyond."""
    d = d.clamp(-0.5, 0.5)
    series = torch.ones_like(d)
    for n in range(16, 2, -1):
        series = 1 + series * d / n
    return d * d * 0.5 * series


@row_divergence.vjp
def row_divergence_vjp(
    g: Tensor, x: Tensor, y: Tensor, dim: int, out: Tensor, needs: dict[str, bool]
) -> dict[str, Tensor | None]:
    x, y = widened(x), widened(y)
    g = torch.where(out == INF, 0.0, g)
    found: dict[str, Tensor | None] = {"x": None, "y": None}
    p = shares(x, dim)
    if needs["x"]:
        found["x"] = g * share_slope(_finite(x - y), p, dim)
    if needs["y"]:
        apart = seen_within(out, CLOSE, INF)
        found["y"] = g * (shares(y, dim) - p if apart else share_difference(y, x, dim))
    return found


@custom_gradient
def share_difference(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return ``softmax(x) - softmax(y)``, with all digits where they are nearly equal."""
    a, b = log_shares(widened(x), dim), log_shares(widened(y), dim)
    d = torch.where(a == b, 0.0, a - b)
    return (torch.maximum(a, b).exp() * -kernels.expm1(-d.abs()) * d.sign()).to(common_dtype(x, y))


@share_difference.vjp
def share_difference_vjp(g: Tensor, x: Tensor, y: Tensor, dim: int) -> dict[str, Tensor]:
    return {"x": share_slope(g, shares(x, dim), dim), "y": -share_slope(g, shares(y, dim), dim)}


# -------------------------------------------------------------------- Jensen-Shannon


def _js_reference(mp: Any, x: Any, y: Any, dim: int = -1) -> Any:
    def divergence(x: list[Any], y: list[Any]) -> Any:
        rows = list(zip(_shares(mp, x), _shares(mp, y)))
        return mp.fsum(a * mp.log(2 * a / (p + q)) for p, q in rows for a in (p, q) if a) / 2

    return by_rows(divergence, dim, x, y)


def _js_by_hand(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    log_p, log_q = torch.log_softmax(x, dim), torch.log_softmax(y, dim)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    return 0.5 * (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(dim)


@exact(
    forward="out = (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2, p = softmax(x), q = softmax(y)",
    gradient={"x": "g p (log(p / m) - KL(p || m)) / 2, 0 where p is 0", "y": "the same for q"},
    reference=_js_reference,
    domain="every number; -inf is a probability of 0",
    bars=BARS,
    examples=_pair_examples,
    elementwise=False,
    measure="tensor",
    replaces=_js_by_hand,
    slower="the slope is made of differences to the leading probability, which keep their digits where q is tiny",
    ordinary=_two,
    paper="Lin 1991; terms by s = (log q - log p) / 2",
)
def js_divergence(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Return the Jensen-Shannon divergence of categorical distributions from their logits, in nats: 0 to ``log 2``.

    Arguments:
        x: logits (or logarithms of probabilities) of the one: floating point, of any shape.
        y: those of the other, of the same shape.
        dim: the dimension of the categories.

    Returns:
        a tensor without ``dim``.

    Raises:
        ArgumentError: they are not floating point, or of different shapes.

    Example:
        >>> import torch, gradwright as gw
        >>> x, y = torch.tensor([0.0, -torch.inf]), torch.tensor([-torch.inf, 0.0])
        >>> gw.stable.js_divergence(x, y)
        tensor(0.6931)
    """
    x, y = _pair("js_divergence", x, y, dim)
    return row_mean_divergence(x, y, dim).squeeze(dim)


@custom_gradient
def row_mean_divergence(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return the Jensen-Shannon divergence of rows of logits, which keep their dimension."""
    # Logarithms of half types would be rounded before they are compared.
    a, b = log_shares(widened(x), dim), log_shares(widened(y), dim)
    p, q = a.exp(), b.exp()
    log_m = torch.logaddexp(a, b).sub_(math.log(2.0))
    out = (p * (a - log_m)).add_(q * (b - log_m)).sum(dim, keepdim=True)
    if not seen_within(out, CLOSE, INF):
        d = torch.where(a == b, 0.0, b - a).abs().clamp(max=800.0)  # beyond, nothing changes
        s = 0.5 * d
        near = s * s.tanh() - (2 * (0.5 * s).sinh().square()).log1p()
        w = (-d).exp()
        far = math.log(2.0) - w.log1p() - d * w / (1 + w)
        out = ((p + q) * torch.where(s < 1, near, far)).sum(dim, keepdim=True)
    return (0.5 * out).to(common_dtype(x, y))


@row_mean_divergence.vjp
def row_mean_divergence_vjp(
    g: Tensor, x: Tensor, y: Tensor, dim: int, needs: dict[str, bool]
) -> dict[str, Tensor | None]:
    x, y = widened(x), widened(y)
    half = -0.5 * g
    return {
        "x": half * share_slope(log_of_mean(x, y, dim), shares(x, dim), dim) if needs["x"] else None,
        "y": half * share_slope(log_of_mean(y, x, dim), shares(y, dim), dim) if needs["y"] else None,
    }


@custom_gradient
def log_of_mean(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return ``log((p + q) / p)`` less that of the leading ``p``, with all digits; 0 where p is 0.

    With ``d = log q - log p`` that is ``log1p(sigmoid(d_lead) expm1(d - d_lead))``, where the difference is one of
    logits; where it is large, the two logarithms do not cancel. That sigmoid is not near 1: the leading p is not small.
    """
    if not x.numel():
        return torch.zeros_like(x)
    a, b = log_shares(x, dim), log_shares(y, dim)
    lead = a.argmax(dim, keepdim=True)
    d = _log_ratio(a, b)
    first = d.gather(dim, lead)
    gap = y - x
    apart = gap - gap.gather(dim, lead)  # nan where both are infinite: then the other way
    near = (torch.sigmoid(first) * kernels.expm1(apart.clamp(max=1.0))).log1p()
    zero = torch.zeros_like(d)
    far = torch.logaddexp(d, zero) - torch.logaddexp(first, torch.zeros_like(first))
    return torch.where(a == -INF, zero, torch.where(apart < 1, near, far))


@log_of_mean.vjp
def log_of_mean_vjp(g: Tensor, x: Tensor, y: Tensor, dim: int) -> dict[str, Tensor]:
    # That of the leading one is taken as a constant: share_slope does not depend on it.
    a, b = log_shares(x, dim), log_shares(y, dim)
    slope = g * sigmoid(_log_ratio(a, b))
    return {"x": -log_share_slope(slope, a, dim), "y": log_share_slope(slope, b, dim)}


def _log_ratio(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return ``log q - log p``; 0 where p is 0."""
    ratio = log_q - log_p
    return ratio if seen_within(ratio, -INF, INF) else torch.where(log_p == -INF, 0.0, ratio)
