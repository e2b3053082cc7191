"""Softmax and its logarithm, with masks: nothing that is masked has a gradient, and no row is nan.

A row without any number (all masked, or all ``-inf``) has probability 0 throughout, the logarithm ``-inf``, and the
gradient 0 (pytorch#41508, #196170). Where one number leads its row, the gradient of PyTorch is a difference of equal
numbers: here differences to the leading cotangent are formed first, ``p_i ((g_i - g_m) - sum_j p_j (g_j - g_m))``, and
the leading element of ``g - p sum(g)`` is minus the sum of the others.
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
from gradwright.stable.arguments import require_dim, require_floating, widened
from gradwright.stable.rows import LEADS, by_rows, check_mask, first_of, led, masked
from gradwright.stable.seen import seen_below, seen_within
from gradwright.torch_compat.kernels import log_softmax_backward, softmax_backward

INF = math.inf
BARS = relative(1e-14, 1e-6, *HALF)
NAMED = "pass mask= by its name, after the dimension"


def examples(dtype: torch.dtype) -> Sequence[Example]:
    """Return rows where one number leads, ties, masks, and the whole range."""

    def rows(*values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    large = torch.finfo(dtype).max / 4
    keep = torch.tensor([[True, False, True, True], [False, False, False, False]])
    return [
        Point((rows([0.5, -1.25, 2.0, 0.125], [3.0, 3.0, -0.75, 1.5]), -1), note="ordinary, ties"),
        Point((rows([0.0, 7.0, 0.5], [4.0, -9.5, 1.0]), 0), note="along the first dimension"),
        Point((rows([-INF, 1.0, 0.0], [-INF, -INF, -INF], [0.5, -INF, 0.25]), 1), note="-inf", extreme=True),
        Point((rows([0.5, 1.0, 2.0, 0.25], [1.0, 2.0, 3.0, 4.0]), 1, keep), note="masked"),
        Point((rows([0.0, 40.0, 1.0]), 1), note="one leads", extreme=True),
        Point((rows([0.0, 800.0], [-800.0, -1.0]), 1), note="saturated", extreme=True),
        Point((rows([large, -large, 1.0, large, 0.0, -0.0]), 1), note="the whole range", extreme=True),
    ]


def _row_shares(mp: Any, row: list[Any]) -> list[Any]:
    shares = [mp.exp(x) for x in row]
    total = mp.fsum(shares)
    return [share / total if total else total for share in shares]


def _without_masked(mp: Any, x: Any, mask: Any) -> Any:
    import numpy as np

    return x if mask is None else np.where(mask, x, -mp.inf)


def _softmax_reference(mp: Any, x: Any, dim: int, mask: Any = None) -> Any:
    return by_rows(lambda row: _row_shares(mp, row), dim, _without_masked(mp, x, mask))


def _log_softmax_reference(mp: Any, x: Any, dim: int, mask: Any = None) -> Any:
    return by_rows(lambda row: [mp.log(share) for share in _row_shares(mp, row)], dim, _without_masked(mp, x, mask))


def _ordinary() -> tuple[Any, ...]:
    return torch.randn(1000, 1000), -1


def _masked_by_hand(x: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
    return torch.softmax(masked(x, mask), dim)


def _log_masked_by_hand(x: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
    return torch.log_softmax(masked(x, mask), dim)


@exact(
    forward="out = exp(x) / sum(exp(x)) over what is not masked; 0 elsewhere, and in a row where all is masked",
    gradient={"x": "out (g - sum(out g)), exactly 0 where masked"},
    reference=_softmax_reference,
    domain="every number; -inf is the same as masked, +inf takes its row (in equal shares, if there are several)",
    bars=BARS,
    examples=examples,
    elementwise=False,
    measure="tensor",
    replaces=_masked_by_hand,
    slower="the numbers are looked at first, for -inf and for one that leads its row, in passes of their own",
    ordinary=_ordinary,
    paper="pytorch#41508, #196170; differences to the leading cotangent",
)
def softmax(x: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
    """Return the softmax along a dimension, with a mask; a row in which all is masked is 0 with gradient 0.

    What flows back into an element whose probability is exactly 0 is ignored, even where it is nan or infinite.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension whose elements sum to 1.
        mask: boolean, of a shape that broadcasts to that of ``x``: True where an element takes part. All do without it.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point, or ``mask`` is not boolean or of another shape.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.zeros(2, 2)
        >>> mask = torch.tensor([[True, True], [False, False]])
        >>> gw.stable.softmax(x, -1, mask)
        tensor([[0.5000, 0.5000],
                [0.0000, 0.0000]])
    """
    require_floating("softmax", x=x)
    require_dim("softmax", dim, advice=NAMED)
    if mask is not None:
        check_mask("softmax", x, mask)
    return shares(masked(x, mask), dim)


@exact(
    forward="out = x - log(sum(exp(x))) over what is not masked; -inf elsewhere",
    gradient={"x": "g - exp(out) sum(g), exactly 0 where masked, and without the g there"},
    reference=_log_softmax_reference,
    domain="every number; -inf is the same as masked, +inf takes its row (in equal shares, if there are several)",
    bars=BARS,
    examples=examples,
    elementwise=False,
    measure="tensor",
    replaces=_log_masked_by_hand,
    slower="the numbers are looked at first, for -inf and for one that leads its row, in passes of their own",
    ordinary=_ordinary,
    paper="pytorch#41508, #196170; log1p of the sum without the leading number",
)
def log_softmax(x: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
    """Return the logarithm of the softmax along a dimension, with a mask; masked elements are ``-inf``.

    What flows back into an element that is ``-inf`` is ignored, even where it is nan or infinite: losses may multiply
    by a probability of 0. A row in which all is masked is ``-inf`` with gradient 0.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension whose probabilities sum to 1.
        mask: boolean, of a shape that broadcasts to that of ``x``: True where an element takes part. All do without it.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point, or ``mask`` is not boolean or of another shape.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.0, 40.0], dtype=torch.float64, requires_grad=True)
        >>> gw.stable.log_softmax(x, 0).tolist()  # PyTorch: [-40.0, 0.0]
        [-40.0, -4.248354255291589e-18]
    """
    require_floating("log_softmax", x=x)
    require_dim("log_softmax", dim, advice=NAMED)
    if mask is not None:
        check_mask("log_softmax", x, mask)
    return log_shares(masked(x, mask), dim)


# -------------------------------------------------------------------- the softmax and its derivatives


@custom_gradient
def shares(x: Tensor, dim: int) -> Tensor:
    """Return the softmax; 0 in a row of ``-inf``."""
    out = torch.softmax(x, dim)
    if seen_below(first_of(out, dim), 2.0):
        return out
    _, _, found, rest = led(widened(x), dim)
    return (found / (1 + rest)).to(x.dtype)


@shares.vjp
def shares_vjp(g: Tensor, out: Tensor, dim: int) -> Tensor:
    return share_slope(g, out, dim)


@custom_gradient
def share_slope(g: Tensor, p: Tensor, dim: int) -> Tensor:
    """Return ``p (g - sum(p g))``, for ``p`` that sum to 1, or are all 0. The matrix of this map is symmetric."""
    if p.dim() and seen_below(p, INF):
        q = widened(p)
        out = softmax_backward(widened(g), q, dim)
        if seen_below(first_of(out, dim).abs(), INF):  # else an infinite cotangent may have met a probability of 0
            # Rows sum to 0. What they sum to is the rounding of sum(p g), which is large where those that lead agree.
            out.addcmul_(q, out.sum(dim, keepdim=True), value=-1)
            out = out if seen_below(p, LEADS) else _balanced(out, torch.nonzero(p > LEADS, as_tuple=True), dim)
            return out.to(p.dtype)
    q = widened(p)
    c = _to_leading(widened(g), q, dim)
    return (q * (c - (q * c).sum(dim, keepdim=True))).to(p.dtype)


@share_slope.vjp
def share_slope_vjp(h: Tensor, g: Tensor, p: Tensor, dim: int) -> dict[str, Tensor]:
    a, b = _to_leading(g, p, dim), _to_leading(h, p, dim)
    s, t = (p * a).sum(dim, keepdim=True), (p * b).sum(dim, keepdim=True)
    return {"g": share_slope(h, p, dim), "p": b * (a - s) - a * t}


def _to_leading(g: Tensor, p: Tensor, dim: int, lowest: float = 0.0) -> Tensor:
    """Return the differences to what belongs to the largest ``p``; 0 where ``p`` is the lowest that it can be."""
    if not p.numel():
        return g
    leading = g.gather(dim, p.argmax(dim, keepdim=True))
    return torch.where(p > lowest, g - leading, 0.0)


def _rest(own: Tensor, heads: tuple[Tensor, ...], dim: int) -> Tensor:
    """Return the sums of the rows that have a head, without it, in the order of the heads; ``own`` is overwritten."""
    own[heads] = 0.0
    return own.sum(dim, keepdim=True).expand_as(own)[heads]


def _balanced(gradient: Tensor, heads: tuple[Tensor, ...], dim: int) -> Tensor:
    """Return a gradient whose rows sum to 0, with minus the sum of the others at the heads; it is overwritten."""
    return gradient.index_put_(heads, -_rest(gradient, heads, dim))


# -------------------------------------------------------------------- its logarithm


@custom_gradient
def log_shares(x: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the softmax; ``-inf`` in a row of ``-inf``."""
    out = torch.log_softmax(x, dim)
    if seen_below(out, math.log(LEADS)) or not x.numel():
        return out
    if x.dim() and seen_below(out, INF):
        heads = torch.nonzero(out > math.log(LEADS), as_tuple=True)
        rest = _rest(torch.softmax(x, dim, dtype=widened(x).dtype), heads, dim)
        return out.index_put_(heads, rest.neg_().log1p_().to(x.dtype))
    _, z, _, rest = led(widened(x), dim)
    return (z - rest.log1p()).to(x.dtype)


@log_shares.vjp
def log_shares_vjp(g: Tensor, out: Tensor, dim: int) -> Tensor:
    return log_share_slope(g, out, dim)


@custom_gradient
def log_share_slope(g: Tensor, logs: Tensor, dim: int) -> Tensor:
    """Return ``g - exp(logs) sum(g)``, with 0 for ``g`` where ``logs`` is ``-inf``."""
    if not seen_within(logs, -INF, INF):
        g = torch.where(logs == -INF, 0.0, g)
    if logs.dim() and seen_below(logs, INF):
        out = log_softmax_backward(g, logs, dim)
        bound = math.log(LEADS)
        return out if seen_below(logs, bound) else _balanced(out, torch.nonzero(logs > bound, as_tuple=True), dim)
    wide, q = widened(g), widened(logs)
    found = wide - q.exp() * wide.sum(dim, keepdim=True)
    top = q.argmax(dim, keepdim=True)
    rest = found.scatter(dim, top, 0.0).sum(dim, keepdim=True)
    leads = q.gather(dim, top) > math.log(LEADS)
    return found.scatter(dim, top, torch.where(leads, -rest, found.gather(dim, top))).to(logs.dtype)


@log_share_slope.vjp
def log_share_slope_vjp(h: Tensor, g: Tensor, logs: Tensor, dim: int) -> dict[str, Tensor]:
    kept = logs > -INF
    p = logs.exp()
    c = _to_leading(h, logs, dim, -INF)
    c = torch.where(kept, c - (p * c).sum(dim, keepdim=True), 0.0)
    total = torch.where(kept, g, 0.0).sum(dim, keepdim=True)
    return {"g": c, "logs": -total * p * c}
