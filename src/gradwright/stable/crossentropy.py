"""The cross-entropy of logits, where classes are excluded or one is certain.

PyTorch forms ``1 - p`` of the target from the rounded ``p``, so that value and gradient of a confident and right answer
are zero from ``1 - p = 1e-16`` on (6e-8 in float32), and has ``0 * inf`` where a class has the logit ``-inf``. Here
``log p = log1p(-rest)`` and ``p - 1 = -rest`` with the sum ``rest`` of the other probabilities. With class indices,
only the logits are kept for the backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, exact, relative
from gradwright.errors import ArgumentError
from gradwright.stable.arguments import require_floating, require_number, widened
from gradwright.stable.rows import LEADS
from gradwright.stable.seen import seen_below, seen_within
from gradwright.stable.softmaxes import log_shares, share_slope, shares
from gradwright.stable.targets import (
    Reduction,
    are_probabilities,
    require_class_weight,
    require_reduction,
    require_smoothing,
)

INF = math.inf


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    def rows(*values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype).requires_grad_()

    x = rows([0.5, -1.25, 2.0], [3.0, 3.0, -0.75], [0.25, 0.5, 1.5])
    indices, soft = torch.tensor([2, 0, 1]), torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25]])
    weight = torch.tensor([0.5, 2.0, 1.0], dtype=dtype)
    masked = rows([0.0, -INF, 1.0], [-INF, 2.0, 0.5], [-INF, 1.0, -INF])
    none: dict[str, Any] = {"reduction": "none"}
    return [
        Point((x, indices), note="ordinary"),
        Point((x, indices, weight), {"label_smoothing": 0.125}, note="weights, smoothed"),
        Point((x, torch.tensor([2, -1, 1]), weight), {"ignore_index": -1, "reduction": "sum"}, note="ignored"),
        Point((x, soft.to(dtype), weight), {"label_smoothing": 0.25}, note="probabilities, smoothed"),
        Point((x.detach(), soft.to(dtype)), none, note="derivatives by probabilities as well"),
        Point((x.detach().reshape(1, 3, 3).requires_grad_(), indices.unsqueeze(0)), none, note="more dimensions"),
        Point((masked, torch.tensor([2, 1, 1])), none, note="-inf", extreme=True),
        Point((masked, torch.tensor([1, 1, 0])), none, note="the target is excluded", extreme=True),
        Point(
            (masked, torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], dtype=dtype)),
            none,
            note="-inf, probabilities",
            extreme=True,
        ),
        Point((rows([0.0, 40.0, 1.0]), torch.tensor([1])), note="certain and right", extreme=True),
        Point((rows([0.0, 800.0, 1.0]), torch.tensor([0])), note="certain and wrong", extreme=True),
    ]


def _reference(
    mp: Any,
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    import numpy as np

    x, target = np.moveaxis(x, min(1, x.ndim - 1), -1), np.asarray(target)
    if soft := target.dtype == object:
        target = np.moveaxis(target, min(1, target.ndim - 1), -1)
    count = x.shape[-1]
    weight = [mp.mpf(1)] * count if weight is None else list(weight)
    smooth = mp.mpf(label_smoothing)
    losses, total = np.zeros(x.shape[:-1], dtype=object), mp.mpf(0)
    for place in np.ndindex(x.shape[:-1]):
        if not soft and target[place] == ignore_index:
            continue
        sharp = list(target[place]) if soft else [mp.mpf(int(c == target[place])) for c in range(count)]
        total += 1 if soft else weight[target[place]]
        mass = mp.fsum(mp.exp(a) for a in x[place])
        mixed = [(1 - smooth) * t + smooth / count for t in sharp]
        losses[place] = mp.fsum(w * t * (mp.log(mass) - a) for w, t, a in zip(weight, mixed, x[place]) if w * t)
    if reduction == "none":
        return losses
    return np.sum(losses) / (total if reduction == "mean" else 1)


@exact(
    forward="out = -sum(w t log(softmax(x))) with t one-hot or given, smoothed; 0 log 0 = 0",
    gradient={"x": "g (softmax(x) - t), 0 where x is -inf", "target": "-g w log(softmax(x))"},
    reference=_reference,
    domain="every number; -inf excludes a class; inf, with gradient 0, where a target is excluded",
    bars=relative(1e-14, 1e-6, *HALF),
    examples=_examples,
    elementwise=False,
    measure="tensor",
    replaces=torch.nn.functional.cross_entropy,
    ordinary=lambda: (torch.randn(1000, 1000), torch.randint(0, 1000, (1000,))),
    slower="the softmax is computed again, not kept: the backward needs half the memory",
    paper="pytorch#195677, #80488; the sum of the other probabilities",
)
def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross-entropy of logits and class indices or probabilities, like that of ``torch.nn.functional``.

    A class with the logit ``-inf`` is excluded: it has no gradient, and costs nothing unless it is (a part of) the
    target. Then the loss is inf, also by label smoothing.

    Arguments:
        x: logits: floating point, of shape (C), (N, C) or (N, C, d1, ...).
        target: class indices (int64) of that shape without C, or probabilities of that shape.
        weight: one number for each class, which has no gradient.
        ignore_index: an index that does not count.
        reduction: ``mean`` divides by the weights of the targets, or by their number where they are probabilities.
        label_smoothing: how much of the target is spread over all classes, from 0 to 1.

    Returns:
        a number, or with ``none`` a tensor of the shape of ``x`` without C.

    Raises:
        ArgumentError: a tensor has the wrong shape or dtype, or ``weight`` asks for a gradient.
        OptionError: ``reduction`` or ``label_smoothing`` is not one of those.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.0, 40.0], requires_grad=True)
        >>> loss = gw.stable.cross_entropy(x, torch.tensor(1))
        >>> loss.item(), torch.autograd.grad(loss, x)[0].tolist()  # PyTorch: 0.0, [4.2e-18, 0.0]
        (4.24835413113866e-18, [4.24835413113866e-18, -4.24835413113866e-18])
    """
    _check(x, target, weight, reduction, label_smoothing)
    dim = min(1, x.dim() - 1)
    share = label_smoothing / x.shape[dim]
    weights = None if weight is None else weight.reshape(-1, *[1] * (x.dim() - 1 - dim))
    if target.is_floating_point():
        t = target if label_smoothing == 0 else target * (1 - label_smoothing) + share
        t = t if weights is None else t * weights
        losses = -weighed_log(t, log_shares(x, dim)).sum(dim)
        return losses.mean() if reduction == "mean" else _reduced(losses, reduction)
    kept = target != ignore_index
    index = torch.where(kept, target, 0)
    wide = widened(x[:0]).dtype  # half types cannot count: float16 ends at 65504, bfloat16 has whole numbers up to 256
    counted = kept.to(wide) if weight is None else torch.where(kept, weight[index], 0.0).to(wide)
    if label_smoothing == 0:
        losses = negative_log(x, index.unsqueeze(dim), dim).squeeze(dim).to(wide)
        losses = weighed_log(counted, losses)
    else:
        logs = log_shares(x, dim)
        spread = weighed_log(torch.full_like(x, share) if weights is None else share * weights.expand_as(x), logs)
        own = weighed_log((1 - label_smoothing) * counted, logs.gather(dim, index.unsqueeze(dim)).squeeze(dim).to(wide))
        losses = torch.where(kept, -own - spread.sum(dim), 0.0)
    found = losses.sum() / counted.sum() if reduction == "mean" else _reduced(losses, reduction)
    return found.to(x.dtype)


def _reduced(losses: Tensor, reduction: Reduction) -> Tensor:
    return losses.sum() if reduction == "sum" else losses


def _check(x: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float) -> None:
    name = "cross_entropy"
    require_floating(name, x=x)
    soft = are_probabilities(name, target)
    require_number(name, label_smoothing=label_smoothing)
    require_reduction(name, reduction)
    require_smoothing(name, label_smoothing)
    if not x.dim():
        raise ArgumentError(f"{name}: x has no dimension; expected (C), (N, C) or (N, C, d1, ...); stack the logits.")
    dim = min(1, x.dim() - 1)
    wanted = x.shape if soft else x.shape[:dim] + x.shape[dim + 1 :]
    if target.shape != wanted:
        what = "probabilities" if soft else "class indices"
        raise ArgumentError(
            f"{name}: target has the shape {tuple(target.shape)}; expected {tuple(wanted)} for {what} and x of "
            f"{tuple(x.shape)}; the classes are its dimension {dim}."
        )
    require_class_weight(name, weight, x.shape[dim])


@custom_gradient
def weighed_log(weight: Tensor, logs: Tensor) -> Tensor:
    """Return ``weight * logs``, 0 where the weight is, also beside an infinite logarithm."""
    out = weight * logs
    return out if seen_within(out, -INF, INF) else torch.where(weight == 0, 0.0, out)


@weighed_log.vjp
def weighed_log_vjp(g: Tensor, weight: Tensor, logs: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    return {"weight": g * logs if needs["weight"] else None, "logs": g * weight}


@custom_gradient
def negative_log(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Return minus the logarithm of the probability of one class of each row, which keeps its dimension."""
    p = torch.softmax(x, dim, dtype=widened(x).dtype)
    own = p.gather(dim, index)
    if not seen_within(own, 1e-30, INF):  # tiny, nan, or not to be seen
        return log_shares(widened(x), dim).gather(dim, index).neg().to(x.dtype)
    if not seen_below(own, LEADS):
        rest = p.scatter_(dim, index, 0.0).sum(dim, keepdim=True)
        return torch.where(own > LEADS, rest.neg_().log1p_(), own.log()).neg_().to(x.dtype)
    return own.log_().neg_().to(x.dtype)


@negative_log.vjp
def negative_log_vjp(g: Tensor, x: Tensor, index: Tensor, dim: int, out: Tensor) -> dict[str, Tensor]:
    return {"x": negative_log_slope(torch.where(out == INF, 0.0, g), x, index, dim)}


@custom_gradient
def negative_log_slope(g: Tensor, x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Return ``g (softmax(x) - onehot(index))``, with minus the sum of the others at the index."""
    p = _written(shares(widened(x), dim), dim, index, 0.0)
    p = _written(p, dim, index, -p.sum(dim, keepdim=True))
    return (p * g).to(x.dtype)


def _written(own: Tensor, dim: int, index: Tensor, values: Any) -> Tensor:
    """Return ``own`` with values at an index, in its memory where no transform makes a batch of the index alone."""
    return own.scatter(dim, index, values) if torch_compat.transforms_active() else own.scatter_(dim, index, values)


@negative_log_slope.vjp
def negative_log_slope_vjp(h: Tensor, g: Tensor, x: Tensor, index: Tensor, dim: int) -> dict[str, Tensor]:
    slopes = negative_log_slope(torch.ones_like(g), x, index, dim)
    return {"g": (h * slopes).sum(dim, keepdim=True), "x": g * share_slope(h, shares(x, dim), dim)}
