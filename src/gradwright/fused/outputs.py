"""Smooth activations whose gradient is read from their output, which the next layer keeps anyway.

PyTorch keeps the input as well, so that a stack of layers holds both (pytorch#63644). With ``y`` the output::

    softplus    slope = sigmoid(beta x) = 1 - exp(-beta y)
    elu         slope = y + alpha            where y <= 0, else 1
    celu        slope = 1 + y / alpha        where y <= 0, else 1
    selu        slope = y + scale alpha      where y <= 0, else scale

Reading is as good as the output is exact. ``1 - exp(-y)`` loses nothing. ``y + alpha`` is off by half a unit in the
last place of ``alpha``: nothing beside the slope 1 of other elements in float32, but the tail of negative arguments has
fewer digits, as with ``inplace=True`` in PyTorch. Where the output does not tell, or not to the digits of the dtype,
the call is PyTorch's own, which keeps the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.fused.route import block_rows, by_hand
from gradwright.stable.arguments import require_floating, require_number, widened
from gradwright.torch_compat import kernels

ORDINARY = 2.0**10
"""Constants beyond this, or below its inverse, may push an output out of the normal range of a half type."""
LEAST_THRESHOLD = {torch.float64: 37.5, torch.float32: 17.5, torch.bfloat16: 17.5, torch.float16: 17.5}
"""From here on ``exp(-threshold)`` is below a quarter of the unit of the dtype that is computed in: the output at the
threshold rounds to the argument, so that it tells on which side it was, and ``1 - exp(-y)`` beyond it is 1."""
LARGEST_ALPHA = 4.0
"""Beyond this the rounding of ``y`` near ``-alpha`` is more than 3e-7 of the slope 1 in float32."""
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946
"""The constants of Klambauer et al. 2017, as PyTorch has them."""


def _examples(*calls: dict[str, Any], tail: float) -> Callable[[torch.dtype], Sequence[Example]]:
    """Return points of both signs, not contiguous ones, and both tails, for each set of constants."""

    def examples(dtype: torch.dtype) -> Sequence[Example]:
        middle = grid(-3.0, 3.0, 12, dtype)
        ends = torch.tensor([-40.0, -tail, -0.0078125, 0.0078125, tail, 20.125, 40.0], dtype=dtype)
        return [
            point
            for kwargs in calls
            for point in (
                Point((middle,), kwargs, note="ordinary"),
                Point((middle.reshape(3, 4).t(),), kwargs, note="not contiguous"),
                Point((ends,), kwargs, note="tails", extreme=True),
            )
        ]

    return examples


# -------------------------------------------------------------------- softplus


@cheaper(
    forward="out = log(1 + exp(beta x)) / beta, x where beta x > threshold",
    gradient={"x": "g (1 - exp(-beta out)), g where beta x > threshold"},
    replaces=functional.softplus,
    goal=Goal(time=1.1),
    domain="every number",
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples({"threshold": 40.0}, {"beta": 2.0}, {"beta": -0.5, "threshold": 40.0}, {"threshold": 1}, tail=9),
    ordinary=lambda: (torch.randn(2048, 2048),),
    slower="expm1 alone takes twice as long as PyTorch's kernel; between the two products of a block that is nothing",
    paper="pytorch#63644; sigmoid(x) = -expm1(-softplus(x))",
)
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return ``log(1 + exp(beta x)) / beta`` and keep nothing but it.

    Where ``beta x > threshold`` it is ``x``, with the slope 1 and no curvature, as in PyTorch. The output tells which
    side it was where ``exp(-threshold)`` is below the precision that is computed in: from 17.5 on, in float64 from
    37.5 on. With a lower threshold, with ``beta`` 0, above 1024 or below 1 / 1024, PyTorch's own function is called,
    which keeps the input. (So in float64 the default does; give ``threshold=40`` to have the output alone.)

    Arguments:
        x: floating point, of any shape.
        beta: how steep it is; may be negative.
        threshold: of ``beta x``.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point, or another argument is no number.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, 0.0, 30.0], requires_grad=True)
        >>> y = gw.fused.softplus(x)
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([0.2689, 0.5000, 1.0000]),)
    """
    require_floating("softplus", x=x)
    require_number("softplus", beta=beta, threshold=threshold)
    if threshold >= LEAST_THRESHOLD.get(x.dtype, torch.inf) and 1 / ORDINARY <= abs(beta) <= ORDINARY:
        return _softplus(x, beta, threshold)
    return functional.softplus(x, beta, threshold)


@custom_gradient
def _softplus(x: Tensor, beta: float, threshold: float) -> Tensor:
    return functional.softplus(x, beta, threshold)


@_softplus.vjp
def _softplus_vjp(g: Tensor, out: Tensor, beta: float, threshold: float) -> dict[str, Tensor]:
    return {"x": _softplus_pulled(g, out, beta, threshold)}


@custom_gradient
def _softplus_pulled(g: Tensor, y: Tensor, beta: float, threshold: float) -> Tensor:
    """Return ``g (1 - exp(-beta y))``, which beyond the threshold is ``g``."""
    if y.dim() == 0 or not by_hand(g, y):
        return (g * -kernels.expm1(widened(y) * -beta)).to(y.dtype)
    pulled = torch.empty_like(y)
    step = block_rows(y.shape[0], y[:1].numel(), 4 if y.dtype in HALF else y.itemsize, y.device)
    for start in range(0, y.shape[0], step):
        rows = slice(start, start + step)
        if y.dtype in HALF:
            pulled[rows] = (y[rows].float() * -beta).expm1_().mul_(g[rows]).neg_()
        else:
            torch.mul(y[rows], -beta, out=pulled[rows]).expm1_().mul_(g[rows]).neg_()
    return pulled


@_softplus_pulled.vjp
def _softplus_pulled_vjp(u: Tensor, g: Tensor, y: Tensor, beta: float, threshold: float) -> dict[str, Tensor]:
    scaled = widened(y) * beta
    curved = torch.where(scaled > threshold, 0.0, u * widened(g) * beta * torch.exp(-scaled))
    return {"g": _softplus_pulled(u, y, beta, threshold), "y": curved.to(y.dtype)}


# -------------------------------------------------------------------- exponential linear units


@cheaper(
    forward="out = x where x > 0, else alpha (exp(x) - 1)",
    gradient={"x": "g where out > 0, else g (out + alpha)"},
    replaces=functional.elu,
    goal=Goal(time=1.1),
    domain="every number",
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples({}, {"alpha": 0.5}, {"alpha": 3.0}, {"alpha": 0.0}, {"alpha": -0.5}, tail=7),
    ordinary=lambda: (torch.randn(2048, 2048),),
    paper="Clevert, Unterthiner, Hochreiter 2015, arXiv:1511.07289; pytorch#63644",
)
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return ``x`` where it is positive, else ``alpha (exp(x) - 1)``, and keep nothing but that.

    The gradient is off by at most 3e-7 in float32 (of ``g``), so that at ``x = -10`` three digits of it are right. In
    half types, which have too few digits for that, with a negative ``alpha``, above 4, or between 0 and 1 / 1024,
    PyTorch's own function is called, which keeps the input.

    Arguments:
        x: floating point, of any shape.
        alpha: minus the limit on the negative side.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point, or ``alpha`` is no number.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
        >>> torch.autograd.grad(gw.fused.elu(x).sum(), x)
        (tensor([0.3679, 1.0000, 1.0000]),)
    """
    require_floating("elu", x=x)
    require_number("elu", alpha=alpha)
    if x.dtype not in HALF and (alpha == 0 or 1 / ORDINARY <= alpha <= LARGEST_ALPHA):
        return _exponential(x, alpha, 1.0, 1.0)
    return functional.elu(x, alpha)


@cheaper(
    forward="out = x where x > 0, else alpha (exp(x / alpha) - 1)",
    gradient={"x": "g where out > 0, else g (1 + out / alpha)"},
    replaces=functional.celu,
    goal=Goal(time=1.1),
    domain="every number",
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples({}, {"alpha": 0.5}, {"alpha": 3.0}, {"alpha": -4.0}, tail=7),
    ordinary=lambda: (torch.randn(2048, 2048),),
    paper="Barron 2017, arXiv:1704.07483; pytorch#63644",
)
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return ``x`` where it is positive, else ``alpha (exp(x / alpha) - 1)``, and keep nothing but that.

    The gradient is off by at most 3e-7 in float32 (of ``g``). In half types, which have too few digits for that, and
    with an ``alpha`` below 1 / 1024 or above 1024, PyTorch's own function is called, which keeps the input.

    Arguments:
        x: floating point, of any shape.
        alpha: minus the limit on the negative side; not 0.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point, or ``alpha`` is no number.
        RuntimeError: ``alpha`` is 0 (PyTorch's own).

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
        >>> torch.autograd.grad(gw.fused.celu(x, alpha=0.5).sum(), x)
        (tensor([0.1353, 1.0000, 1.0000]),)
    """
    require_floating("celu", x=x)
    require_number("celu", alpha=alpha)
    if x.dtype not in HALF and 1 / ORDINARY <= alpha <= ORDINARY:
        return _exponential(x, alpha, 1.0, 1.0 / alpha)
    return functional.celu(x, alpha)


@cheaper(
    forward="out = scale x where x > 0, else scale alpha (exp(x) - 1)",
    gradient={"x": "g scale where out > 0, else g (out + scale alpha)"},
    replaces=functional.selu,
    goal=Goal(time=1.1),
    domain="every number; scale = 1.0507 and alpha = 1.6733",
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples({}, tail=7),
    ordinary=lambda: (torch.randn(2048, 2048),),
    paper="Klambauer, Unterthiner, Mayr, Hochreiter 2017, arXiv:1706.02515; pytorch#63644",
)
def selu(x: Tensor) -> Tensor:
    """Return ``elu(x, 1.6733)`` times 1.0507, and keep nothing but that.

    The gradient is off by at most 3e-7 in float32 (of ``g``). In half types, which have too few digits for that,
    PyTorch's own function is called, which keeps the input.

    Arguments:
        x: floating point, of any shape.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, 2.0], requires_grad=True)
        >>> torch.autograd.grad(gw.fused.selu(x).sum(), x)
        (tensor([0.6468, 1.0507]),)
    """
    require_floating("selu", x=x)
    return functional.selu(x) if x.dtype in HALF else _exponential(x, SELU_ALPHA, SELU_SCALE, 1.0)


@custom_gradient
def _exponential(x: Tensor, alpha: float, scale: float, inner: float) -> Tensor:
    """Return ``scale x`` where ``x`` is positive, else ``scale alpha (exp(inner x) - 1)``."""
    out: Tensor = torch.ops.aten.elu(x, alpha, scale, inner)
    return out


@_exponential.vjp
def _exponential_vjp(g: Tensor, out: Tensor, alpha: float, scale: float, inner: float) -> dict[str, Tensor]:
    return {"x": torch.ops.aten.elu_backward(g, alpha, scale, inner, True, out)}
