"""Running sums, products, maxima and logarithms of sums of exponentials, whose gradients are recurrences from the end.

PyTorch's kernels run down each column on its own, which is slow where rows are wide; it turns tensors round and back
for the gradient of a sum, divides for that of a product, keeps indices of eight bytes for that of a maximum, and needs
a dozen passes for that of ``logcumsumexp``, which is nan behind ``-inf`` (pytorch#49724). Here

- a sum from the end is the gradient of a sum,
- ``P[k - 1] r[k]``, ``r[k] = g[k] + x[k + 1] r[k + 1]``, that of a product ``P``: nothing is divided,
- ``s[k]``, ``s[k] = g[k] + s[k + 1]`` where ``x[k + 1]`` is no larger than what came before, that of a maximum,
- ``p[k] s[k]``, ``s[k] = g[k] + (1 - p[k + 1]) s[k + 1]``, that of ``y = logcumsumexp(x)``, where ``p[k]``, the sigmoid
  of ``x[k] - y[k - 1]``, is the share of the newest term.

All of them keep argument and output, at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.fused.recurrence import neighbours, previous, recurrence, times_previous
from gradwright.fused.route import by_hand
from gradwright.fused.sweep import RUN, by_kernel, joined, spread
from gradwright.stable.arguments import require_dim, require_floating, widened

BARS = relative(1e-12, 1e-6, *HALF)


def _replaced(run: Callable[[Tensor, int], Tensor], start: float) -> Callable[..., Tensor]:
    """Return what people write: torch's function, with turns and shifts where there is no option for them."""

    def written(x: Tensor, dim: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
        if reverse:
            x = x.flip(dim)
        out = run(x, dim)
        if exclusive:
            first = torch.full_like(out.narrow(dim, 0, 1), start)
            out = torch.cat([first, out.narrow(dim, 0, out.shape[dim] - 1)], dim)
        return out.flip(dim) if reverse else out

    return written


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    x = grid(-1.5, 2.0, 30, dtype).reshape(5, 3, 2)
    return [
        Point((x, 0), note="ordinary"),
        Point((x, 1), {"reverse": True}, note="from the end"),
        Point((x.movedim(0, -1), -1), {"exclusive": True}, note="without the last"),
        Point((x, 0), {"exclusive": True, "reverse": True}, note="from the end, without the first"),
        Point((x.flatten(), 0), note="one row"),
        Point((x[:1], 0), note="one step", scale=1.0),
    ]


def _own_output(x: Tensor, dim: int, *, exclusive: bool = False, reverse: bool = False) -> int:
    """Return nothing beyond argument and output; an exclusive one keeps its output before that was moved."""
    return x.numel() * x.element_size() if exclusive else 0


def _wide() -> tuple[Any, ...]:
    return torch.randn(1024, 2048), 0


def _run(
    name: str, run: Callable[..., Tensor], start: float, x: Tensor, dim: int, exclusive: bool, reverse: bool
) -> Tensor:
    """Check the arguments of a function, run it, and move its result by one where it is exclusive."""
    require_floating(name, x=x)
    require_dim(name, dim)
    if x.dim() == 0:
        return _run(name, run, start, x.unsqueeze(0), dim, exclusive, reverse).squeeze(0)
    out = run(x, dim, reverse)
    if exclusive and out.numel():
        out = out.movedim(dim, 0)
        out = previous(out, torch.full_like(out[0], start), reverse).movedim(0, dim)
    return out


# -------------------------------------------------------------------- sum


@custom_gradient
def _sum(x: Tensor, dim: int, reverse: bool) -> Tensor:
    return by_kernel(torch.cumsum, x, dim, reverse)


@_sum.vjp
def _sum_vjp(g: Tensor, dim: int, reverse: bool) -> Tensor:
    return _sum(g, dim, not reverse)


@cheaper(
    forward="out[k] = x[0] + ... + x[k]",
    gradient={"x": "g[k] + g[k + 1] + ..."},
    replaces=_replaced(torch.cumsum, 0.0),
    goal=Goal(time=0.6, kept=1.0),
    domain="all numbers",
    bars=BARS,
    measure="tensor",
    examples=_examples,
    ordinary=_wide,
    paper="Blelloch 1990, Prefix sums and their applications",
)
def cumsum(x: Tensor, dim: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Return running sums, with the values of ``torch.cumsum``.

    Along any dimension but the last one of a large tensor it takes a third to a half of the time; along the last one
    ``torch.cumsum`` is as good.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension to sum along.
        exclusive: whether each sum is without its own element, so that the first one is zero.
        reverse: whether it runs from the end.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.cumsum(torch.tensor([1.0, 2.0, 3.0]), 0, exclusive=True, reverse=True)
        tensor([5., 3., 0.])
    """
    return _run("cumsum", _sum, 0.0, x, dim, exclusive, reverse)


# -------------------------------------------------------------------- product


@custom_gradient
def _product(x: Tensor, dim: int, reverse: bool) -> Tensor:
    return by_kernel(torch.cumprod, x, dim, reverse)


@_product.vjp
def _product_vjp(g: Tensor, x: Tensor, out: Tensor, dim: int, reverse: bool) -> Tensor:
    g, x, out = (tensor.movedim(dim, 0) for tensor in (g, x, out))
    later = recurrence(x, g, None, not reverse, True)
    return times_previous(later, out, torch.ones_like(out[0]) if len(x) else None, reverse).movedim(0, dim)


def _product_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = grid(-1.25, 1.5, 12, dtype).reshape(6, 2)
    x[2, 0] = x[1, 1] = x[4, 1] = 0.0
    return [*_examples(dtype), Point((x, 0), note="a zero, and two"), Point((x, 0), {"reverse": True}, note="turned")]


@cheaper(
    forward="out[k] = x[0] x[1] ... x[k]",
    gradient={"x": "out[k - 1] r[k], r[k] = g[k] + x[k + 1] r[k + 1]"},
    replaces=_replaced(torch.cumprod, 1.0),
    kept=_own_output,
    goal=Goal(time=0.6, kept=1.0),
    domain="all numbers, whose products stay in the range of the dtype; see gw.stable.cumprod for others",
    bars=BARS,
    measure="tensor",
    examples=_product_examples,
    ordinary=_wide,
    paper="pytorch#193012",
)
def cumprod(x: Tensor, dim: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Return running products, with the values of ``torch.cumprod`` and a gradient without a quotient.

    Zeros cost nothing, and a second derivative is as cheap as a first one. Along any dimension but the last one of a
    large tensor it takes a third to a half of the time. Along the last one ``torch.cumprod``, which divides, needs half
    of the time as long as no number is zero.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension to multiply along.
        exclusive: whether each product is without its own element, so that the first one is one.
        reverse: whether it runs from the end.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([2.0, 0.0, 3.0], requires_grad=True)
        >>> torch.autograd.grad(gw.fused.cumprod(x, 0).sum(), x)
        (tensor([1., 8., 0.]),)
    """
    return _run("cumprod", _product, 1.0, x, dim, exclusive, reverse)


# -------------------------------------------------------------------- maximum


def _largest(x: Tensor, dim: int) -> Tensor:
    return x.cummax(dim).values


@custom_gradient
def _maximum(x: Tensor, dim: int, reverse: bool) -> Tensor:
    if spread(x, dim, RUN):
        return joined(torch.maximum, x, dim, reverse)
    return by_kernel(_largest, x, dim, reverse)


@_maximum.vjp
def _maximum_vjp(g: Tensor, x: Tensor, out: Tensor, dim: int, reverse: bool) -> Tensor:
    if not (spread(x, dim, RUN) and by_hand(g)):
        return _given_to_winners(x.flip(dim), g.flip(dim), dim).flip(dim) if reverse else _given_to_winners(x, g, dim)
    g, x, out = (tensor.movedim(dim, 0) for tensor in (g, x, out))
    lost = (x != out) & ~x.isnan()
    later = recurrence(lost, g, None, not reverse, True)
    found = later.masked_fill(lost, 0.0) if torch.is_grad_enabled() else later.masked_fill_(lost, 0.0)
    return found.movedim(0, dim)


def _given_to_winners(x: Tensor, g: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(g).scatter_add(dim, x.cummax(dim).indices, g)


@cheaper(
    forward="out[k] = the largest of x[0], ..., x[k]",
    gradient={"x": "s[k] where x[k] is the largest, else 0; s[k] = g[k] + s[k + 1] unless x[k + 1] is the largest"},
    replaces=_replaced(_largest, -torch.inf),
    kept=_own_output,
    goal=Goal(time=0.6, kept=0.0),
    domain="all numbers; nan from the first one on",
    bars=BARS,
    measure="tensor",
    examples=_examples,
    ordinary=_wide,
    paper="Brent and Kung 1982, A regular layout for parallel adders",
)
def running_max(x: Tensor, dim: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Return the largest number so far, the values of ``torch.cummax`` without its indices.

    Which one is the largest is found again for the gradient, instead of being kept with eight bytes each. Of equal
    numbers the latest one has the gradient, as in PyTorch. Along the last dimension, where PyTorch is fast, that takes
    a third longer; along others of a large tensor half of the time.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension to run along.
        exclusive: whether each maximum is without its own element, so that the first one is ``-inf``.
        reverse: whether it runs from the end.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.running_max(torch.tensor([1.0, 3.0, 2.0, 4.0]), 0)
        tensor([1., 3., 3., 4.])
    """
    return _run("running_max", _maximum, -torch.inf, x, dim, exclusive, reverse)


# -------------------------------------------------------------------- logarithm of a sum of exponentials


@custom_gradient
def _log_sum(x: Tensor, dim: int, reverse: bool) -> Tensor:
    if by_hand(x):
        return joined(torch.logaddexp, x, dim, reverse)
    return by_kernel(torch.logcumsumexp, x, dim, reverse)


@_log_sum.vjp
def _log_sum_vjp(g: Tensor, x: Tensor, out: Tensor, dim: int, reverse: bool) -> Tensor:
    if not x.numel():
        return g
    dtype = x.dtype
    if dtype in HALF:  # whose rounded output has no digits for the shares
        g, x = widened(g), widened(x)
        out = _log_sum(x, dim, reverse)
    g, x, out = (tensor.movedim(dim, 0) for tensor in (g, x, out))
    later = recurrence(_shares(x, out, reverse, -1), g, None, not reverse, True)
    newest = _shares(x, out, reverse, 1)
    found = later * newest if torch.is_grad_enabled() or not by_hand(g, x) else later.mul_(newest)
    return found.movedim(0, dim).to(dtype)


def _shares(x: Tensor, out: Tensor, reverse: bool, sign: int) -> Tensor:
    """Return the share of the newest term in each sum, or of all before it where ``sign`` is -1.

    Infinite totals are made finite, so that ``-inf`` has no share, and ``inf`` has all.
    """
    info = torch.finfo(out.dtype)
    if torch.is_grad_enabled() or not by_hand(x, out):
        before = previous(out.clamp(info.min, info.max), torch.full_like(out[0], info.min), reverse)
        return torch.sigmoid(sign * (x - before))
    found = torch.empty_like(out)
    here, earlier, end = neighbours(reverse)
    torch.clamp(out[earlier], info.min, info.max, out=found[here])
    found[end] = info.min
    torch.sub(x, found, out=found)
    return (found if sign > 0 else found.neg_()).sigmoid_()


@cheaper(
    forward="out[k] = log(exp(x[0]) + ... + exp(x[k]))",
    gradient={"x": "p[k] s[k], s[k] = g[k] + (1 - p[k + 1]) s[k + 1], p[k] = sigmoid(x[k] - out[k - 1])"},
    replaces=_replaced(torch.logcumsumexp, -torch.inf),
    kept=_own_output,
    goal=Goal(time=0.2, kept=1.0),
    domain="every number; -inf as long as all are; inf from the first one that is, and the latest has the gradient",
    bars=BARS,
    measure="tensor",
    examples=_examples,
    ordinary=_wide,
    paper="pytorch#49724",
)
def logcumsumexp(x: Tensor, dim: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Return the logarithms of running sums of exponentials, in a fraction of the time of ``torch.logcumsumexp``.

    The gradient behind ``-inf`` is zero, and its error is that of the output, as in PyTorch; for sums so large that
    their digits do not suffice there is :func:`gradwright.stable.logcumsumexp`.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension to sum along.
        exclusive: whether each sum is without its own element, so that the first one is ``-inf``.
        reverse: whether it runs from the end.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is of integers or complex.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-torch.inf, 0.0, 0.0], requires_grad=True)
        >>> torch.autograd.grad(gw.fused.logcumsumexp(x, 0).sum(), x)
        (tensor([0.0000, 1.5000, 0.5000]),)
    """
    return _run("logcumsumexp", _log_sum, -torch.inf, x, dim, exclusive, reverse)
