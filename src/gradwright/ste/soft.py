"""Rounding with the gradient of a smooth staircase.

With ``r = x - floor(x) - 1/2``, the staircase of sharpness ``a`` and its derivative are

    s(x)  = floor(x) + 1/2 + tanh(a r) / (2 tanh(a / 2))
    s'(x) = a (1 - tanh(a r) ** 2) / (2 tanh(a / 2))

It is the identity for ``a`` near 0 and rounding for large ones; it meets every integer and every half, and its
derivative is continuous. ``1 - tanh(z) ** 2`` is computed from ``exp(-2 |z|)``, so that it neither cancels nor
overflows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.parameters import whole

AGUSTSSON = "Agustsson, Theis 2020, arXiv 2006.09952"


def slope(x: Tensor, sharpness: float) -> Tensor:
    """Return the derivative of the smooth staircase."""
    r = x - (torch.floor(x) + 0.5)  # in this order it is rounded once, and near ties not at all
    e = torch.exp(-2 * sharpness * torch.abs(r))
    return (2 * sharpness / math.tanh(sharpness / 2)) * e / (1 + e).square()


def staircase(x: Tensor, sharpness: float) -> Tensor:
    """Return the values of the smooth staircase; PyTorch's derivative of it is the right one."""
    middle = torch.floor(x) + 0.5
    return middle + torch.tanh(sharpness * (x - middle)) / (2 * math.tanh(sharpness / 2))


def check_sharpness(function: str, sharpness: float) -> None:
    """Refuse a sharpness that is not positive and finite.

    Raises:
        OptionError: it is not.
    """
    if not 0 < sharpness < math.inf:
        raise OptionError(
            f"{function}: sharpness is {sharpness}; expected a positive number; write a small one for nearly the "
            "identity and a large one for nearly rounding."
        )


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    x = joined([around(-2.0, -0.5, 0.0, 0.5, 1.0, 1.5, dtype=dtype), grid(-3.3, 3.3, 12, dtype)])
    found = [Example((x, sharpness), note=f"sharpness {sharpness}") for sharpness in (4.0, 0.25, 32.0, 256.0)]
    return [*found, Example((x[:6].reshape(2, 3),), note="default")]


@catalogued(
    forward="out = floor(x) + 1/2 + tanh(a r) / (2 tanh(a/2)), r = x - floor(x) - 1/2",
    gradient={"x": "g a (1 - tanh(a r)^2) / (2 tanh(a/2))"},
    surrogate=lambda x, sharpness=4.0: staircase(x, sharpness),
    examples=_examples,
    values=lambda x, sharpness=4.0: staircase(x, sharpness),
    paper=AGUSTSSON,
)
@custom_gradient
def soft_round(x: Tensor, sharpness: float = 4.0) -> Tensor:
    """Round softly: a smooth staircase, with its own derivative.

    Arguments:
        x: floating point, of any shape.
        sharpness: near 0 the result is ``x``, for large numbers ``round(x)``.

    Returns:
        a tensor like ``x``.

    Raises:
        OptionError: the sharpness is not positive.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.0, 0.25, 0.5])
        >>> [f"{value:.3f}" for value in gw.ste.soft_round(x, 8.0).tolist()]
        ['0.000', '0.018', '0.500']
    """
    check_sharpness("soft_round", sharpness)
    return staircase(x.to(working_dtype(x.dtype)), sharpness).to(x.dtype)


@soft_round.vjp
def _soft_round_vjp(g: Tensor, x: Tensor, sharpness: float) -> Tensor:
    return g * slope(x.to(working_dtype(x.dtype)), sharpness)


@catalogued(
    forward="out = round(x), ties to the even neighbour",
    gradient={"x": "g a (1 - tanh(a r)^2) / (2 tanh(a/2)), r = x - floor(x) - 1/2"},
    surrogate=lambda x, sharpness=4.0: staircase(x, sharpness),
    examples=_examples,
    values=lambda x, sharpness=4.0: torch.round(x),
    codes=lambda x, sharpness=4.0: torch.arange(-8, 9, dtype=torch.float64),
    paper=AGUSTSSON,
)
@custom_gradient
def round_through_soft(x: Tensor, sharpness: float = 4.0) -> Tensor:
    """Round to the nearest integer, ties to even, with the derivative of :func:`soft_round`.

    Arguments:
        x: floating point, of any shape.
        sharpness: near 0 the gradient passes everywhere, for large numbers only near ties.

    Returns:
        a tensor like ``x``.

    Raises:
        OptionError: the sharpness is not positive.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.0, 0.5], requires_grad=True)
        >>> out = gw.ste.round_through_soft(x, 4.0)
        >>> out.tolist(), [f"{value:.3f}" for value in torch.autograd.grad(out.sum(), x)[0].tolist()]
        ([0.0, 0.0], ['0.147', '2.075'])
    """
    check_sharpness("round_through_soft", sharpness)
    return torch.round(x)


round_through_soft.vjp(_soft_round_vjp)


# -------------------------------------------------------------------- differentiable soft quantisation


def _sharpness(alpha: float) -> float:
    """Return the sharpness whose staircase is that of DSQ: there, ``1 - alpha`` is ``tanh`` at the end of a step."""
    return math.log(2 / alpha - 1)


def _position(x: Tensor, low: float, high: float, bits: int) -> tuple[Tensor, float]:
    """Return where values lie in units of the step, from the lowest code, and the step."""
    step = (high - low) / (2**bits - 1)
    return (x - low) / step, step


def _dsq_surrogate(x: Tensor, low: float, high: float, *, bits: int, alpha: float = 0.4) -> Tensor:
    """Compute the formulae of the paper, with its own constants."""
    step = (high - low) / (2**bits - 1)
    k, s = math.log(2 / alpha - 1) / step, 1 / (1 - alpha)
    outside = (x < low) | (x > high)
    x = torch.where(outside, low, x)
    i = torch.floor((x - low) / step).detach()
    phi = s * torch.tanh(k * (x - (low + (i + 0.5) * step)))
    return torch.where(outside, 0.0, low + step * (i + (phi + 1) / 2))


def _dsq_values(x: Tensor, low: float, high: float, *, bits: int, alpha: float = 0.4) -> Tensor:
    step = (high - low) / int(2**bits - 1)
    return low + torch.round((x.clamp(low, high) - low) / step) * step


def _dsq_codes(x: Tensor, low: float, high: float, *, bits: int, alpha: float = 0.4) -> Tensor:
    code = torch.arange(2**bits, dtype=torch.float64)
    return low + code * ((high - low) / int(2**bits - 1))


def _dsq_examples(dtype: torch.dtype) -> Sequence[Example]:
    far = torch.tensor([-1e4, 1e4, torch.inf, -torch.inf], dtype=dtype)
    ties = torch.tensor([-0.5, 0.0, 0.5], dtype=dtype)
    x = joined([around(-0.75, -0.25, 0.25, 0.75, dtype=dtype), ties, grid(-1.5, 1.5, 12, dtype), far])
    return [
        Example((x, -0.75, 0.75), {"bits": 2}, "two bits"),
        Example((x, -0.75, 0.75), {"bits": 2, "alpha": 0.01}, "nearly rounding"),
        Example((x, -0.5, 0.5), {"bits": 1, "alpha": 0.2}, "one bit"),
        Example((x[:6].reshape(2, 3), 0.0, 3.75), {"bits": 4}, "unsigned"),
    ]


@catalogued(
    forward="out = low + step round((clip(x, low, high) - low) / step), step = (high - low) / (2^bits - 1)",
    gradient={
        "x": "g s k step/2 (1 - tanh(k (x - m))^2) where low <= x <= high, else 0, with m the middle of the step, "
        "s = 1 / (1 - alpha), k = ln(2/alpha - 1) / step"
    },
    surrogate=_dsq_surrogate,
    examples=_dsq_examples,
    values=_dsq_values,
    codes=_dsq_codes,
    paper="DSQ: Gong et al. 2019, arXiv 1908.05033",
)
@custom_gradient
def dsq(x: Tensor, low: float, high: float, *, bits: int, alpha: float = 0.4) -> Tensor:
    """Quantise a range evenly, with the gradient of a staircase of hyperbolic tangents (DSQ).

    The staircase is that of :func:`soft_round` with ``sharpness = ln(2 / alpha - 1)``, on the grid of the range.

    Arguments:
        x: floating point, of any shape.
        low, high: the lowest and the highest code, in units of ``x``. Unless ``low`` is 0, ``x - low`` is rounded, so
            that the numbers next to a tie are ties too.
        bits: there are ``2 ** bits`` codes.
        alpha: between 0, where the staircase is rounding, and 1, where it is straight; the paper uses less than 1/2.

    Returns:
        a tensor like ``x``.

    Raises:
        OptionError: an option has no value that is possible.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-9.0, 0.1, 0.6])
        >>> gw.ste.dsq(x, -0.75, 0.75, bits=2).tolist()
        [-0.75, 0.25, 0.75]
    """
    if not low < high:
        raise OptionError(f"dsq: low is {low} and high {high}; expected low < high; exchange them.")
    if not whole(bits, 1):
        raise OptionError(f"dsq: bits is {bits}; expected a whole number from 1; correct it.")
    if not 0 < alpha < 1:
        raise OptionError(f"dsq: alpha is {alpha}; expected a number between 0 and 1; the usual one is 0.4.")
    v, step = _position(x.to(working_dtype(x.dtype)), low, high, bits)
    return torch.round(v).clamp(0, 2**bits - 1).mul(step).add(low).to(x.dtype)


@dsq.vjp
def _dsq_vjp(g: Tensor, x: Tensor, low: float, high: float, bits: int, alpha: float) -> Tensor:
    x = x.to(working_dtype(x.dtype))
    with torch.no_grad():  # where the gradient passes is a constant
        inside = passing(x, low, high, "inclusive")
    v, _ = _position(x, low, high, bits)
    return inside(g * slope(v.clamp(-1, 2**bits), _sharpness(alpha)))  # not infinite, which the mask could not undo
