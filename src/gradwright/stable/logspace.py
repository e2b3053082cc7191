"""Sums and differences of numbers that are kept as their logarithms, where ``-inf`` is the number zero.

PyTorch divides zero by zero where every term is zero, or the first ones of a running sum are (pytorch#31829, #49724,
#196704). Here a term that is zero has no weight, and so no gradient; a weight is formed from differences,
``exp(x - y)``, of which none overflows. ``+inf`` takes all the weight, in equal shares where there are several.
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
from gradwright.stable.rows import by_rows, dimensions, flattened, led
from gradwright.stable.seen import seen_within
from gradwright.stable.softmaxes import shares

BARS = relative(1e-14, 1e-6, *HALF)
INF = math.inf


def _row_examples(dtype: torch.dtype) -> Sequence[Example]:
    def rows(*values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    large = torch.finfo(dtype).max / 4
    return [
        Point((rows([0.5, -1.25, 2.0, 0.125], [3.0, 3.0, -0.75, 1.5]), -1), note="ordinary, ties"),
        Point((rows([0.0, 7.0, 0.5], [4.0, -9.5, 1.0]), 0), note="along the first dimension"),
        Point((rows([-INF, 1.0, 0.5], [-INF, -INF, -INF], [-0.5, -INF, 0.25]), 1), note="-inf", extreme=True),
        Point((rows([0.0, -40.0, -41.0]), 1), note="one leads, the sum is near 1", extreme=True),
        Point((rows([-800.0, 0.0, 1.0], [1.0, 801.0, -3.0]), 1), note="saturated", extreme=True),
        Point((rows([large, -large, 1.0, large, 0.0, -0.0]), 1), note="the whole range", extreme=True),
    ]


def _sums(dtype: torch.dtype) -> Sequence[Example]:
    x = torch.tensor([[0.25, -1.5], [-INF, 2.0], [0.5, 3.0], [-INF, -1.0]], dtype=dtype)
    return [*_row_examples(dtype), Point((x.reshape(2, 2, 2), (0, -1), True), note="two dimensions", extreme=True)]


def _logsumexp_reference(mp: Any, x: Any, dim: Any, keepdim: bool = False) -> Any:
    import numpy as np

    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    total = np.sum(np.frompyfunc(mp.exp, 1, 1)(x), axis=dims, keepdims=keepdim)
    return np.frompyfunc(mp.log, 1, 1)(total)


@exact(
    forward="out = log(sum(exp(x)))",
    gradient={"x": "g softmax(x); 0 where x is -inf, and where all are"},
    reference=_logsumexp_reference,
    domain="every number; -inf where all are (or there is none), inf where one is",
    bars=BARS,
    examples=_sums,
    elementwise=False,
    measure="tensor",
    replaces=torch.logsumexp,
    ordinary=lambda: (torch.randn(1000, 1000), -1),
    paper="pytorch#31829, #49724; max + log1p of the others",
)
def logsumexp(x: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> Tensor:
    """Return the logarithm of a sum of exponentials, with gradient 0 where every number is ``-inf``.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension or dimensions to sum over.
        keepdim: whether they stay, with size 1.

    Returns:
        a tensor of the dtype of ``x``, without ``dim``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-torch.inf, -torch.inf], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.logsumexp(x, 0), x)
        (tensor([0., 0.]),)
    """
    require_floating("logsumexp", x=x)
    require_dim("logsumexp", dim, several=True)
    dims = dimensions(dim, x.dim())
    out = log_total(flattened(x, dims), -1).squeeze(-1)
    if keepdim:
        for place in sorted(dims):
            out = out.unsqueeze(place)
    return out


@custom_gradient
def log_total(x: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the sum of the exponentials of each row, which keeps its dimension."""
    out = torch.logsumexp(x, dim, keepdim=True)
    if not x.numel() or seen_within(out.abs(), 0.5, INF):
        return out
    lead, _, _, rest = led(widened(x), dim)
    return (lead + rest.log1p()).to(x.dtype)


@log_total.vjp
def log_total_vjp(g: Tensor, x: Tensor, out: Tensor, dim: int) -> Tensor:
    return torch.where(out == -INF, 0.0, g) * shares(x, dim)


def _logcumsumexp_reference(mp: Any, x: Any, dim: int) -> Any:
    def running(row: list[Any]) -> list[Any]:
        return [mp.log(mp.fsum(mp.exp(x) for x in row[: k + 1])) for k in range(len(row))]

    return by_rows(running, dim, x)


@exact(
    forward="out[k] = log(sum(exp(x[:k + 1])))",
    gradient={"x": "sum over k >= i of g[k] exp(x[i] - out[k]); 0 where x[i] is -inf"},
    reference=_logcumsumexp_reference,
    domain="every number; -inf as long as all are, inf from the first one that is",
    bars=BARS,
    examples=_row_examples,
    elementwise=False,
    measure="tensor",
    replaces=torch.logcumsumexp,
    ordinary=lambda: (torch.randn(1000, 1000), -1),
    paper="pytorch#49724, #196704",
)
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Return the logarithms of running sums of exponentials, with gradient 0 for a prefix of ``-inf``.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension to sum along.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-torch.inf, 0.0, 0.0], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.logcumsumexp(x, 0).sum(), x)
        (tensor([0.0000, 1.5000, 0.5000]),)
    """
    require_floating("logcumsumexp", x=x)
    require_dim("logcumsumexp", dim)
    return running_totals(x, dim)


@custom_gradient
def running_totals(x: Tensor, dim: int) -> Tensor:
    """Return the logarithms of running sums of exponentials."""
    return torch.logcumsumexp(x, dim)


@running_totals.vjp
def running_totals_vjp(g: Tensor, x: Tensor, dim: int) -> Tensor:
    return pulled_back(g, x, dim)


@custom_gradient
def pulled_back(g: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return ``sum over k >= i of g[k] w[k, i]``, ``w[k, i] = exp(x[i] - out[k])`` being the weights of the sum."""
    own, peaks, sums = _weights(x, dim)
    later = _decayed(widened(g) / sums, peaks, dim, later=True)
    return torch.where(own > 0, own * later, 0.0).to(x.dtype)


@pulled_back.vjp
def pulled_back_vjp(h: Tensor, g: Tensor, x: Tensor, dim: int) -> dict[str, Tensor]:
    return {"g": running_means(h, x, dim), "x": _weights_slope(h, g, x, dim)}


@custom_gradient
def running_means(t: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return ``sum over i <= k of w[k, i] t[i]``, the transpose of :func:`pulled_back`."""
    own, peaks, sums = _weights(x, dim)
    weighed = torch.where(own > 0, own * widened(t), 0.0)
    return (_decayed(weighed, peaks, dim) / sums).to(x.dtype)


@running_means.vjp
def running_means_vjp(h: Tensor, t: Tensor, x: Tensor, dim: int) -> dict[str, Tensor]:
    return {"t": pulled_back(h, x, dim), "x": _weights_slope(t, h, x, dim)}


def _weights_slope(t: Tensor, g: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return ``sum over k >= i of g[k] w[k, i] (t[i] - mean[k])``, the gradient of ``sum(g * running_means(t, x))``.

    A constant in ``t`` does not count: without what belongs to the largest number, less cancels.
    """
    if x.numel():
        t = t - t.gather(dim, x.argmax(dim, keepdim=True))
    return t * pulled_back(g, x, dim) - pulled_back(g * running_means(t, x, dim), x, dim)


def _weights(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``exp(x[k] - peak[k])``, the largest numbers so far, and the sums of ``exp(x[i] - peak[k])`` so far.

    The weights ``w[k, i] = exp(x[i] - peak[i]) exp(peak[i] - peak[k]) / sum[k]`` are made of differences of the
    arguments alone, which are exact where it matters; the totals are rounded, the more the larger they are.
    """
    x = widened(x)
    info = torch.finfo(x.dtype)
    x = x.clamp(max=info.max)
    peaks = x.cummax(dim).values.clamp(min=info.min)
    own = (x - peaks).exp()
    return own, peaks, _decayed(own, peaks, dim).clamp(min=1.0)  # 0 for a prefix of -inf


def _decayed(values: Tensor, peaks: Tensor, dim: int, *, later: bool = False) -> Tensor:
    """Return the sums of ``values[i] exp(peaks[i] - peaks[k])`` over ``i <= k``, or over ``k`` for each ``i <= k``.

    They are made of sums over 1, 2, 4, ... elements. Peaks never fall, so that no exponential overflows.
    """
    count, step = peaks.shape[dim] if peaks.dim() else 1, 1
    while step < count:
        decay = (peaks.narrow(dim, 0, count - step) - peaks.narrow(dim, step, count - step)).exp()
        early, late = values.narrow(dim, 0, count - step), values.narrow(dim, step, count - step)
        if later:
            parts = (torch.addcmul(early, decay, late), values.narrow(dim, count - step, step))
        else:
            parts = (values.narrow(dim, 0, step), torch.addcmul(late, decay, early))
        values = torch.cat(parts, dim)
        step *= 2
    return values
