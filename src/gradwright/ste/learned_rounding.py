"""Rounding whose direction is learned, element by element, for quantisation after training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import ArgumentError, OptionError
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.rounding import floor

ADAROUND = "AdaRound: Nagel et al. 2020, arXiv 2004.10568; Louizos et al. 2018, arXiv 1712.01312"


def _gate(logits: Tensor, low: float, high: float) -> Tensor:
    """Compute the rectified sigmoid, for PyTorch to differentiate: what is at an edge by the formula passes."""
    gate = torch.sigmoid(logits) * (high - low) + low
    return torch.where(gate < 0, 0.0, torch.where(gate > 1, 1.0, gate))


def _gate_examples(dtype: torch.dtype) -> Sequence[Example]:
    far = torch.tensor([0.0, 30.0, -30.0, 200.0, -200.0], dtype=dtype)
    x = joined([grid(-6.0, 6.0, 24, dtype), far])
    return [
        Example((x,)),
        Example((x,), {"low": -1.0, "high": 1.0}, "an edge at zero"),
        Example((x,), {"low": 0.0, "high": 2.0}, "an upper edge at zero"),
        Example((x[:6].reshape(2, 3),), {"low": 0.0, "high": 1.0}, "a sigmoid"),
    ]


@catalogued(
    forward="out = clip(sigmoid(logits) (high - low) + low, 0, 1)",
    gradient={"logits": "g (high - low) sigmoid(logits) sigmoid(-logits) where not clipped, edges included, else 0"},
    surrogate=lambda logits, *, low=-0.1, high=1.1: _gate(logits, low, high),
    examples=_gate_examples,
    values=lambda logits, *, low=-0.1, high=1.1: _gate(logits.double(), low, high),
    paper=ADAROUND,
)
@custom_gradient
def rectified_sigmoid(logits: Tensor, *, low: float = -0.1, high: float = 1.1) -> Tensor:
    """Return a sigmoid that is stretched and clipped to [0, 1], so that it reaches both ends.

    Arguments:
        logits: floating point, of any shape.
        low, high: the ends that the sigmoid is stretched to, before it is clipped.

    Returns:
        a tensor like ``logits``.

    Raises:
        OptionError: the ends leave nothing between 0 and 1.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.ste.rectified_sigmoid(torch.tensor([-9.0, 0.0, 9.0])).tolist()
        [0.0, 0.5, 1.0]
    """
    if not (low < high and low < 1 and high > 0):
        raise OptionError(
            f"rectified_sigmoid: low is {low} and high {high}; expected low < high, low < 1 and high > 0; the usual "
            "ones are -0.1 and 1.1."
        )
    return torch.sigmoid(logits.to(working_dtype(logits.dtype))).mul(high - low).add(low).clamp(0, 1).to(logits.dtype)


@rectified_sigmoid.vjp
def _rectified_vjp(g: Tensor, logits: Tensor, low: float, high: float) -> Tensor:
    logits = logits.to(working_dtype(logits.dtype))
    least = math.log(-low / high) if low < 0 else -math.inf  # where the formula is 0
    most = math.log((1 - low) / (high - 1)) if high > 1 else math.inf  # and 1
    with torch.no_grad():  # where the gradient passes is a constant
        inside = passing(logits, least, most, "inclusive")
    # Not sigmoid (1 - sigmoid), which cancels for large logits.
    return inside(g * (torch.sigmoid(logits) * torch.sigmoid(-logits) * (high - low)))


def _adaround_examples(dtype: torch.dtype) -> Sequence[Example]:
    logits = grid(-4.0, 4.0, 24, dtype)
    x = joined([around(-2.0, -0.5, 0.0, 1.0, 1.5, dtype=dtype), grid(-3.0, 3.0, 9, dtype)])
    return [
        Example((x, logits), note="usual"),
        Example((x.reshape(4, 6), logits.reshape(4, 6)), {"low": -1.0, "high": 2.0}, "stretched"),
    ]


@catalogued(
    forward="out = floor(x) + clip(sigmoid(logits) (high - low) + low, 0, 1)",
    gradient={"x": "g everywhere", "logits": "that of rectified_sigmoid"},
    surrogate=lambda x, logits, *, low=-0.1, high=1.1: x + _gate(logits, low, high),
    examples=_adaround_examples,
    values=lambda x, logits, *, low=-0.1, high=1.1: torch.floor(x) + _gate(logits, low, high),
    paper=ADAROUND,
)
def adaround(x: Tensor, logits: Tensor, *, low: float = -0.1, high: float = 1.1) -> Tensor:
    """Round down or up as learned: a soft choice for each element (AdaRound).

    Training drives the choices to 0 or 1, with a penalty like ``(1 - |2 h - 1| ** beta).sum()`` of
    ``h = rectified_sigmoid(logits)``; afterwards the codes are ``floor(x) + (h >= 0.5)``.

    Arguments:
        x: floating point, in units of the step.
        logits: of the shape of ``x``.
        low, high: the ends that the sigmoid is stretched to.

    Returns:
        a tensor like ``x``.

    Raises:
        OptionError: the ends leave nothing between 0 and 1.
        ArgumentError: the shapes differ.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.ste.adaround(torch.tensor([1.3, 1.3]), torch.tensor([-9.0, 9.0])).tolist()
        [1.0, 2.0]
    """
    _check_shape("adaround", "logits", logits, x)
    dtype = working_dtype(x.dtype)
    gate = rectified_sigmoid(logits.to(dtype), low=low, high=high)
    return (floor(x).to(dtype) + gate).to(x.dtype)


def _check_shape(function: str, name: str, value: Tensor, x: Tensor) -> None:
    if value.shape != x.shape:
        raise ArgumentError(
            f"{function}: {name} has the shape {tuple(value.shape)}; expected that of x, {tuple(x.shape)}, one for "
            "each element; make it like torch.zeros_like(x)."
        )


def _offset_examples(dtype: torch.dtype) -> Sequence[Example]:
    eighths = torch.arange(-24, 25, dtype=torch.float64).to(dtype) / 8
    offsets = torch.tensor([-0.5, -0.375, 0.0, 0.125, 0.5], dtype=dtype)
    alone = around(-1.5, 0.0, 0.5, 1.0, dtype=dtype)
    x = joined([eighths.repeat_interleave(5), alone])
    offset = joined([offsets.repeat(49), torch.zeros_like(alone)])
    return [Example((x, offset)), Example((eighths[:6].reshape(2, 3), torch.zeros(2, 3, dtype=dtype)))]


@catalogued(
    forward="out = round(x + offset), ties to the even neighbour",
    gradient={"x": "g everywhere", "offset": "g everywhere"},
    surrogate=lambda x, offset: x + offset,
    examples=_offset_examples,
    values=lambda x, offset: torch.round(x.double() + offset.double()),
    codes=lambda x, offset: torch.arange(-8, 9, dtype=torch.float64),
    paper="SignRound (AutoRound): Cheng et al. 2023, arXiv 2309.05516",
)
@custom_gradient
def round_with_offset(x: Tensor, offset: Tensor) -> Tensor:
    """Round to the nearest integer after a learned offset is added; the gradient passes to both.

    Arguments:
        x: floating point, in units of the step.
        offset: of the shape of ``x``; between -1/2 and 1/2 it chooses among the two neighbours. The paper keeps it
            there after each step of its optimiser, which uses the signs of the gradients.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: the shapes differ.

    Example:
        >>> import torch, gradwright as gw
        >>> x, offset = torch.tensor([1.3, 1.3]), torch.tensor([0.0, 0.4], requires_grad=True)
        >>> out = gw.ste.round_with_offset(x, offset)
        >>> out.tolist(), torch.autograd.grad(out.sum(), offset)
        ([1.0, 2.0], (tensor([1., 1.]),))
    """
    _check_shape("round_with_offset", "offset", offset, x)
    dtype = working_dtype(x.dtype)
    return torch.round(x.to(dtype) + offset.to(dtype)).to(x.dtype)


@round_with_offset.vjp
def _offset_vjp(g: Tensor) -> dict[str, Tensor]:
    return {"x": g, "offset": g}
