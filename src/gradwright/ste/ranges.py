"""Fake quantisation whose range is learned: by its bounds, or by a threshold that is rounded to a power of two (TQT).

The gradient passes where the code is one, ``n <= round(v) <= p``. What is learned moves the step, by the chain rule;
where that is rounded (a zero point, an exponent), the gradient passes through the rounding. Second derivatives are
refused while something is learned; see :mod:`gradwright.ste.uniform`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid
from gradwright.ste.learned import codes_and_ties
from gradwright.ste.masks import working_dtype
from gradwright.ste.parameters import arranged, by_element
from gradwright.ste.rounding import ceil
from gradwright.ste.rounding import round as round_through
from gradwright.ste.uniform import codes, quantized_by_mask


def _held(step: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """Return a value after a staircase whose gradient passes (for surrogates, in float64)."""
    return value + (step(value) - value).detach()


def _range_surrogate(
    x: Tensor,
    minimum: Tensor,
    maximum: Tensor,
    *,
    bits: int,
    signed: bool = False,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    low, high = codes(bits, signed=signed)
    grouped, (least, most) = arranged("learned_range", x, (minimum, maximum), axis, group_size)
    assert isinstance(least, Tensor)
    assert isinstance(most, Tensor)
    step = (most - least) / (high - low)
    zero = _held(torch.round, low - least / step)
    code = (grouped / step).detach().round() + zero.detach()
    error = (code - zero - grouped / step).detach()  # is held constant
    beyond = (code.clamp(low, high) - zero) * step
    return torch.where((code >= low) & (code <= high), grouped + error * step, beyond).reshape(x.shape)


def _range_parameters(
    x: Tensor, minimum: Any, maximum: Any, bits: int, signed: bool, axis: Any, group_size: Any
) -> tuple[Tensor, Tensor, int, int]:
    low, high = codes(bits, signed=signed)
    least, most = (by_element(x, parameter, axis, group_size) for parameter in (minimum, maximum))
    step = (most - least) / (high - low)
    return step, torch.round(low - least / step), low, high


def _range_values(
    x: Tensor, minimum: Any, maximum: Any, *, bits: int, signed: bool = False, axis: Any = None, group_size: Any = None
) -> Tensor:
    step, zero, low, high = _range_parameters(x, minimum, maximum, bits, signed, axis, group_size)
    return ((torch.round(x / step) + zero).clamp(low, high) - zero) * step


def _range_codes(
    x: Tensor, minimum: Any, maximum: Any, *, bits: int, signed: bool = False, axis: Any = None, group_size: Any = None
) -> Tensor:
    step, zero, low, high = _range_parameters(x, minimum, maximum, bits, signed, axis, group_size)
    return (torch.arange(low, high + 1, dtype=torch.float64) - zero[..., None]) * step[..., None]


def _ranges(dtype: torch.dtype) -> Sequence[Example]:
    # Steps are powers of two: 0.25 from -1.25 to 2.5 with 4 bits, whose zero point is 5.
    least, most = torch.tensor(-1.25, dtype=dtype), torch.tensor(2.5, dtype=dtype)
    x = codes_and_ties(-5, 10, 0.25, dtype)
    rows = grid(-2, 2, 24, dtype).reshape(3, 8)
    lows, highs = torch.tensor([-0.5, -0.25, -1.0], dtype=dtype), torch.tensor([0.25, 1.25, 0.5], dtype=dtype)
    return [
        Example((x, least, most), {"bits": 4}, "unsigned"),
        Example((x, least, most), {"bits": 4, "signed": True}, "signed"),
        Example((x, least - 0.0625, most - 0.0625), {"bits": 4}, "the zero point is rounded"),
        Example((rows, lows, highs), {"bits": 2, "axis": 0}, "per channel"),
        Example((rows.T, lows, highs), {"bits": 2, "axis": 1, "signed": True}, "another axis"),
    ]


@catalogued(
    forward="s = (max - min) / (p - n), z = round(n - min / s), out = (clip(round(x / s) + z, n, p) - z) s",
    gradient={
        "x": "g where n <= round(x / s) + z <= p, else 0",
        "minimum": "ds and dz of fake_quantize by the chain rule, round(z) taken as z",
        "maximum": "likewise",
    },
    surrogate=_range_surrogate,
    examples=_ranges,
    values=_range_values,
    codes=_range_codes,
    second_order="raises",
    paper="Bhalgat et al. 2020, arXiv 2004.09576 (min/max parametrisation); Krishnamoorthi 2018, arXiv 1806.08342",
)
def learned_range(
    x: Tensor,
    minimum: Tensor | float,
    maximum: Tensor | float,
    *,
    bits: int,
    signed: bool = False,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Quantise to a learned range from ``minimum`` to ``maximum``; zero is always a value.

    The zero point is rounded, so that the range moves by up to half a step; a range without zero has a zero point
    that is no code.

    Arguments:
        x: floating point, of any shape.
        minimum, maximum: the bounds, ``minimum < maximum`` (which is not looked at); numbers or scalar tensors, or with
            ``axis`` one for each slice or group.
        bits, signed: the codes ``n`` to ``p``, as in :func:`codes`.
        axis: the dimension along which they change.
        group_size: with ``axis``, how many neighbours along it share a range.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of a parameter does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-2.0, 0.4, 9.0])
        >>> low, high = (torch.tensor(b, requires_grad=True) for b in (-0.5, 1.0))
        >>> out = gw.ste.learned_range(x, low, high, bits=2)
        >>> out.tolist()
        [-0.5, 0.5, 1.0]
        >>> [round(g.item(), 4) for g in torch.autograd.grad(out.sum(), (low, high))]
        [0.9333, 1.0667]
    """
    low, high = codes(bits, signed=signed)
    dtype = working_dtype(x.dtype)
    least, most = (torch.as_tensor(bound, dtype=dtype, device=x.device) for bound in (minimum, maximum))
    step = (most - least) / (high - low)
    zero = round_through(low - least / step)
    return quantized_by_mask("learned_range", x, step, zero, low, high, "post-round", "inclusive", axis, group_size)


# -------------------------------------------------------------------- the threshold (TQT)


def _threshold_step(x: Tensor, log2_threshold: Tensor, bits: int, signed: bool, axis: Any, group_size: Any) -> Tensor:
    return 2.0 ** (by_element(x, log2_threshold, axis, group_size).ceil() - bits + int(signed))


def _tqt_surrogate(
    x: Tensor,
    log2_threshold: Tensor,
    *,
    bits: int,
    signed: bool = True,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    low, high = codes(bits, signed=signed)
    grouped, (exponent,) = arranged("tqt", x, (log2_threshold,), axis, group_size)
    assert isinstance(exponent, Tensor)
    step = torch.exp(math.log(2) * (_held(torch.ceil, exponent) - bits + int(signed)))
    v = (grouped / 2.0 ** (exponent.ceil() - bits + int(signed))).detach()
    code = v.round()
    within, beyond = grouped + (code - v) * step, code.clamp(low, high) * step
    return torch.where((code >= low) & (code <= high), within, beyond).reshape(x.shape)


def _tqt_values(
    x: Tensor, log2_threshold: Tensor, *, bits: int, signed: bool = True, axis: Any = None, group_size: Any = None
) -> Tensor:
    step = _threshold_step(x, log2_threshold, bits, signed, axis, group_size)
    return torch.round(x / step).clamp(*codes(bits, signed=signed)) * step


def _tqt_codes(
    x: Tensor, log2_threshold: Tensor, *, bits: int, signed: bool = True, axis: Any = None, group_size: Any = None
) -> Tensor:
    low, high = codes(bits, signed=signed)
    step = _threshold_step(x, log2_threshold, bits, signed, axis, group_size)
    return torch.arange(low, high + 1, dtype=torch.float64) * step[..., None]


def _thresholds(dtype: torch.dtype) -> Sequence[Example]:
    exponent = around(0.0, dtype=dtype)  # the threshold 1 and its neighbours: the next one doubles the step
    x = codes_and_ties(-4, 3, 0.25, dtype)
    rows, exponents = grid(-2, 2, 24, dtype).reshape(3, 8), torch.tensor([-0.5, 0.25, 1.0], dtype=dtype)
    groups = torch.tensor([[0.0, 0.5], [-0.75, 1.0], [2.0, -3.0]], dtype=dtype)
    return [
        Example((x, exponent[0]), {"bits": 3}, "threshold 1"),
        *[Example((x, e), {"bits": 3}, "next to it") for e in exponent[1:]],
        Example((x, exponent[0]), {"bits": 4, "signed": False}, "unsigned"),
        Example((rows, exponents), {"bits": 8, "axis": 0}, "per channel"),
        Example((rows, groups), {"bits": 3, "axis": 1, "group_size": 4}, "per group"),
    ]


@catalogued(
    forward="s = 2^ceil(log2 t) / 2^(bits - 1), out = clip(round(x / s), n, p) s; / 2^bits if unsigned",
    gradient={
        "x": "g where n <= round(x / s) <= p, else 0",
        "log2_threshold": "s ln 2 times sum of g (round(v) - v) where it passes, of g n below, of g p above",
    },
    surrogate=_tqt_surrogate,
    examples=_thresholds,
    values=_tqt_values,
    codes=_tqt_codes,
    second_order="raises",
    paper="Jain et al. 2020, Trained quantization thresholds, arXiv 1903.08066",
)
def tqt(
    x: Tensor,
    log2_threshold: Tensor | float,
    *,
    bits: int,
    signed: bool = True,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Quantise with a step that is a power of two and a learned threshold (TQT).

    Arguments:
        x: floating point, of any shape.
        log2_threshold: logarithm of the threshold ``t`` to the base 2; a number or scalar tensor, or with ``axis`` one
            for each slice or group. It is what is learned: its gradient does not depend on the scale of ``t``.
        bits, signed: the codes ``n`` to ``p``, as in :func:`codes`.
        axis: the dimension along which they change.
        group_size: with ``axis``, how many neighbours along it share a range.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of a parameter does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x, log2_t = torch.tensor([0.3, -5.0]), torch.tensor(-0.4, requires_grad=True)
        >>> out = gw.ste.tqt(x, log2_t, bits=3)
        >>> out.tolist()
        [0.25, -1.0]
        >>> torch.autograd.grad(out.sum(), log2_t)
        (tensor(-0.7278),)
    """
    low, high = codes(bits, signed=signed)
    exponent = ceil(torch.as_tensor(log2_threshold, dtype=working_dtype(x.dtype), device=x.device))
    step = torch.exp2(exponent - (bits - int(signed)))
    return quantized_by_mask("tqt", x, step, None, low, high, "post-round", "inclusive", axis, group_size)
