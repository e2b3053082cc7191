"""Rounding whose gradient is weighed by where a value lies between two codes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.parameters import whole

# -------------------------------------------------------------------- scaled by element, for evenly spaced codes


def _to_codes(x: Tensor, bits: int) -> Tensor:
    """Return values rounded to multiples of ``1 / (2 ** bits - 1)``."""
    steps = int(2**bits - 1)
    return torch.round(x * steps) / steps


def _ewgs_cotangent(g: Tensor, x: Tensor, *, bits: int, delta: float = 1e-3) -> Tensor:
    return g * (1 + delta * torch.sign(g) * (x - _to_codes(x, bits)))


def _ewgs_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = joined([around(-0.5, 0.0, 0.5, 1.0, dtype=dtype), grid(-1.1, 1.1, 12, dtype)])
    pairs = x.repeat_interleave(4)  # so that both signs of the cotangent occur at each
    return [
        Example((pairs,), {"bits": 2, "delta": 0.25}, "two bits"),
        Example((x,), {"bits": 1}, "one bit"),
        Example((x[:6].reshape(2, 3),), {"bits": 8, "delta": 0.0}, "straight-through"),
    ]


@catalogued(
    forward="out = round(x n) / n, n = 2^bits - 1",
    gradient={"x": "g (1 + delta sign(g) (x - out))"},
    surrogate=lambda x, **_: x.clone(),
    cotangent=_ewgs_cotangent,
    examples=_ewgs_examples,
    values=lambda x, *, bits, delta=1e-3: torch.round(x * (2**bits - 1)) / (2**bits - 1),
    codes=lambda x, *, bits, delta=1e-3: torch.arange(-2.0 * 2**bits, 2 * 2**bits, dtype=torch.float64) / (2**bits - 1),
    second_order="raises",
    paper="EWGS: Lee, Kim, Ham 2021, arXiv 2104.00903",
)
@custom_gradient(double_backward="once", forward_mode="none")
def ewgs_round(x: Tensor, *, bits: int, delta: float = 1e-3) -> Tensor:
    """Round to codes in [0, 1], with gradients scaled by element (EWGS).

    A gradient that moves ``x`` towards its code is made smaller and one that moves it away larger, by ``delta`` times
    the distance. It is not linear in the cotangent ``g``, whose sign decides: there is no forward mode, and no second
    derivative.

    Arguments:
        x: floating point, of any shape, usually clipped to [0, 1] before (values outside are rounded all the same).
        bits: there are ``2 ** bits`` codes in [0, 1].
        delta: at least 0, where 0 is straight-through; the paper sets it from the Hessian.

    Returns:
        a tensor like ``x``.

    Raises:
        OptionError: an option has no value that is possible.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.75, 0.75], requires_grad=True)
        >>> out = gw.ste.ewgs_round(x, bits=1, delta=0.5)
        >>> out.tolist(), torch.autograd.grad(out, x, torch.tensor([1.0, -1.0]))
        ([1.0, 1.0], (tensor([ 0.8750, -1.1250]),))
    """
    if not whole(bits, 1):
        raise OptionError(f"ewgs_round: bits is {bits}; expected a whole number from 1; correct it.")
    if not delta >= 0:
        raise OptionError(f"ewgs_round: delta is {delta}; expected a number of at least 0; correct it.")
    return _to_codes(x.to(working_dtype(x.dtype)), bits).to(x.dtype)


@ewgs_round.vjp
def _ewgs_vjp(g: Tensor, x: Tensor, bits: int, delta: float) -> Tensor:
    x, g = x.to(working_dtype(x.dtype)), g.to(working_dtype(x.dtype))
    return g + delta * g.abs() * (x - _to_codes(x, bits))


# -------------------------------------------------------------------- the power estimator, for four-bit floating point

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The sizes that E2M1 has."""


def _step(size: Tensor) -> Tensor:
    """Return the distance of the two codes that a size lies between."""
    return torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))


def _flat(k: float, cap: float) -> float:
    """Return how near to the middle of a step, as a part of half a step, the slope is capped."""
    return math.exp(k / (1 - k) * math.log(cap * k))


def _dge_surrogate(x: Tensor, k: float = 5.0, cap: float = 3.0) -> Tensor:
    """Compute the curve of the paper on each step, straight where it is steeper than the cap."""
    outside = x.abs() > 6
    x = torch.where(outside, 0.0, x)
    sign = torch.where(x < 0, -1.0, 1.0).to(x.dtype)
    step = _step(x.detach().abs())
    z = 2 * ((x * sign / step) - (x.detach() * sign / step).floor()) - 1
    steep = z.abs() < _flat(k, cap)
    curve = torch.sign(z) * torch.where(steep, 1.0, z).abs() ** (1 / k)
    return torch.where(outside, 0.0, sign * step / 2 * torch.where(steep, cap * z, curve))


def _dge_values(x: Tensor, k: float = 5.0, cap: float = 3.0) -> Tensor:
    size = x.double().abs().unsqueeze(-1)
    to_lower = torch.tensor([0.25, 1.25, 2.5, 5.0], dtype=torch.float64)  # ties at these go to the lower code
    to_higher = torch.tensor([0.75, 1.75, 3.5], dtype=torch.float64)
    index = (size > to_lower).sum(-1) + (size >= to_higher).sum(-1)
    return torch.tensor(CODES, dtype=torch.float64)[index] * torch.sign(x.double())


def _dge_codes(x: Tensor, k: float = 5.0, cap: float = 3.0) -> Tensor:
    sizes = torch.tensor(CODES, dtype=torch.float64)
    return torch.cat([sizes, -sizes])


def _dge_examples(dtype: torch.dtype) -> Sequence[Example]:
    middles = [(a + b) / 2 for a, b in itertools.pairwise(CODES)]
    far = torch.tensor([1e4, -1e4, torch.inf, -torch.inf], dtype=dtype)
    x = joined([around(*CODES, *middles, dtype=dtype), grid(-7.0, 7.0, 24, dtype), far])
    x = torch.cat([x, -x])
    return [Example((x,)), Example((x, 3.0, 2.0), note="other"), Example((x[:6].reshape(2, 3), 2.0, 0.25), note="low")]


@catalogued(
    forward="out = the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, ties to the even code; 6 beyond",
    gradient={
        "x": "g min(cap, |2r/D - 1|^(1/k - 1) / k) where |x| <= 6, else 0, with r the distance from the lower code and "
        "D that of the two codes"
    },
    surrogate=_dge_surrogate,
    examples=_dge_examples,
    values=_dge_values,
    codes=_dge_codes,
    paper="DGE: Wang et al. 2025, arXiv 2501.17116",
)
@custom_gradient
def fp4_dge(x: Tensor, k: float = 5.0, cap: float = 3.0) -> Tensor:
    """Round to four-bit floating point (E2M1), with the differentiable gradient estimator (DGE).

    The gradient is large near ties, where a small step changes the code, and ``1 / k`` at the codes.

    Arguments:
        x: floating point, of any shape, scaled so that it fits into [-6, 6]; beyond, the result is 6 and the gradient
            zero.
        k: more than 1; the larger, the nearer to the staircase.
        cap: the largest slope, positive.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is possible.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([1.0, 2.4, 2.5, 7.0], requires_grad=True)
        >>> out = gw.ste.fp4_dge(x)
        >>> out.tolist(), [f"{value:.3f}" for value in torch.autograd.grad(out.sum(), x)[0].tolist()]
        ([1.0, 2.0, 2.0, 6.0], ['0.200', '0.725', '3.000', '0.000'])
    """
    if not 1 < k < math.inf:
        raise OptionError(f"fp4_dge: k is {k}; expected a number larger than 1; the paper uses 5.")
    if not 0 < cap < math.inf:
        raise OptionError(f"fp4_dge: cap is {cap}; expected a positive number; the paper uses 3.")
    value = x.to(working_dtype(x.dtype))
    size = value.abs().clamp(max=6.0)
    step = _step(size)
    return torch.copysign(torch.round(size / step) * step, value).to(x.dtype)


@fp4_dge.vjp
def _dge_vjp(g: Tensor, x: Tensor, k: float, cap: float) -> Tensor:
    x = x.to(working_dtype(x.dtype))
    with torch.no_grad():  # where the gradient passes and which step it is are constants
        inside = passing(x, -6.0, 6.0, "inclusive")
        size = x.abs().clamp(max=8.0)
        step, sign = _step(size), torch.where(x < 0, -1.0, 1.0)
        lower = torch.floor(size / step)
    z = torch.abs(2 * (x.clamp(-8.0, 8.0) * sign / step - lower) - 1)  # not infinite, which no mask could undo
    return inside(g * (z.clamp(min=_flat(k, cap)) ** (1 / k - 1) / k))
