"""Fake quantisation whose step is learned (LSQ), or step and offset (LSQ+).

The gradient passes where the value lies within the range before it is rounded, ``n < v < p``: a value that is rounded
to the highest code from above is clipped, and only moves the step. Second derivatives are refused while something is
learned; see :mod:`gradwright.ste.uniform`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.ste.masks import clipped_in_place, passing, working_dtype
from gradwright.ste.parameters import (
    arranged,
    by_element,
    elements_sharing,
    reduced,
    shared_dims,
    summed,
    summed_product,
    weighed,
)
from gradwright.ste.uniform import codes, quantized_by_mask


def lsq_gradient_scale(x: Tensor, scale: Any, high: int) -> float:
    """Return the factor ``1 / sqrt(N p)`` for ``N`` elements that share a step and the highest code ``p``."""
    return 1 / math.sqrt(elements_sharing(x, scale) * max(high, 1))


def lsq_scale(
    x: Tensor,
    bits: int,
    *,
    signed: bool = True,
    narrow: bool = False,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Return the step that LSQ starts from, ``2 mean|x| / sqrt(p)``, without a gradient.

    Arguments:
        x: floating point: the weights, or the first batch of activations.
        bits, signed, narrow: as in :func:`codes`.
        axis: one step for each slice along it; None is one for all.
        group_size: with ``axis``, one for so many neighbours along it.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.ste.lsq_scale(torch.tensor([1.0, -2.0, 3.0]), bits=3, signed=False)
        tensor(1.5119)
    """
    _, high = codes(bits, signed=signed, narrow=narrow)
    grouped, _ = arranged("lsq_scale", x.detach(), (), axis, group_size)
    mean = reduced(torch.mean, grouped.to(working_dtype(x.dtype)).abs(), shared_dims("lsq_scale", x, axis, group_size))
    return (mean * (2 / math.sqrt(max(high, 1)))).to(x.dtype)


@custom_gradient(double_backward="once")  # the gradients of x, scale and offset are not those of one function
def _lsq_plus(
    x: Tensor, scale: Tensor | float, offset: Tensor | float, low: int, high: int, gradient_scale: float
) -> Tensor:
    return clipped_in_place(_shifted(x, scale, offset).round_(), low, high).mul_(scale).add_(offset).to(x.dtype)


@_lsq_plus.vjp
def _lsq_plus_vjp(
    g: Tensor,
    x: Tensor,
    scale: Any,
    offset: Any,
    low: int,
    high: int,
    gradient_scale: float,
    needs: Mapping[str, bool],
) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    v = _shifted(x, scale, offset)
    code = clipped_in_place(v.round(), low, high)
    inside = passing(v, low, high, "exclusive", overwrite=True)  # where x is nan, so is the code
    grads = {"x": inside(g)}
    if needs["scale"]:
        grads["scale"] = summed_product(g, code.sub_(inside(v)), scale) * gradient_scale
    if needs["offset"]:
        grads["offset"] = summed(g - grads["x"], offset) * gradient_scale
    return grads


def _shifted(x: Tensor, scale: Any, offset: Any) -> Tensor:
    """Return ``(x - offset) / scale``, a new tensor."""
    shifted: Tensor = (x.to(working_dtype(x.dtype)) - offset) / scale
    return shifted


def _lsq_plus_surrogate(
    x: Tensor,
    scale: Any,
    offset: Any = 0.0,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    axis: int | None = None,
    group_size: int | None = None,
    gradient_scale: float | None = None,
) -> Tensor:
    low, high = codes(bits, signed=signed, narrow=narrow)
    sharing = x.numel() / (scale.numel() if isinstance(scale, Tensor) else 1)
    factor = 1 / math.sqrt(sharing * max(high, 1)) if gradient_scale is None else gradient_scale
    grouped, parameters = arranged("lsq", x, (scale, offset), axis, group_size)
    step, shift = (torch.as_tensor(value, dtype=x.dtype) for value in parameters)
    v = ((grouped - shift) / step).detach()
    code = v.round().clamp(low, high)
    step, shift = weighed(step, factor), weighed(shift, factor)
    return torch.where((v > low) & (v < high), grouped + (code - v) * step, code * step + shift).reshape(x.shape)


def _lsq_plus_values(
    x: Tensor,
    scale: Any,
    offset: Any = 0.0,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    axis: Any = None,
    group_size: Any = None,
    **_: Any,
) -> Tensor:
    low, high = codes(bits, signed=signed, narrow=narrow)
    step, shift = (by_element(x, parameter, axis, group_size) for parameter in (scale, offset))
    return torch.round(((x - shift) / step).clamp(low, high)) * step + shift


def _lsq_plus_codes(
    x: Tensor,
    scale: Any,
    offset: Any = 0.0,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    axis: Any = None,
    group_size: Any = None,
    **_: Any,
) -> Tensor:
    low, high = codes(bits, signed=signed, narrow=narrow)
    step, shift = (by_element(x, parameter, axis, group_size)[..., None] for parameter in (scale, offset))
    return torch.arange(low, high + 1, dtype=torch.float64) * step + shift


def codes_and_ties(low: int, high: int, step: float, dtype: torch.dtype, shift: float = 0.0) -> Tensor:
    """Return codes, ties and the bounds, with their neighbours, points in between and far outside."""
    steps = around(*[shift + k * step / 2 for k in range(2 * low - 3, 2 * high + 4)], dtype=dtype)
    return joined([steps, grid(-2.0, 2.0, 9, dtype), torch.tensor([-1e4, 1e4], dtype=dtype)])


def _steps(dtype: torch.dtype) -> Sequence[Example]:
    """Return calls with a step of every kind, without an offset."""
    x, step = codes_and_ties(-4, 3, 0.25, dtype), torch.tensor(0.25, dtype=dtype)
    rows, scales = grid(-2, 2, 24, dtype).reshape(3, 8), torch.tensor([0.125, 0.25, 0.5], dtype=dtype)
    groups = torch.tensor([[0.125, 0.25], [0.5, 1.0], [0.0625, 0.25]], dtype=dtype)
    return [
        Example((x, step), {"bits": 3}, "learned"),
        Example((x, 0.25), {"bits": 3}, "fixed"),
        Example((x, step), {"bits": 2, "signed": False}, "unsigned"),
        Example((x, step), {"bits": 2, "narrow": True}, "ternary"),
        Example((x, step.reshape(1) / 32), {"bits": 8, "gradient_scale": 0.25}, "8 bits, gradient scale"),
        Example((rows, torch.tensor(0.1, dtype=dtype)), {"bits": 3}, "no power of two"),
        Example((rows, scales), {"bits": 3, "axis": 0}, "per channel"),
        Example((rows, groups), {"bits": 3, "axis": -1, "group_size": 4}, "per group"),
    ]


@catalogued(
    forward="out = round(clip(x / s, n, p)) s",
    gradient={
        "x": "g where n < x / s < p, else 0",
        "scale": "sum of g (round(v) - v) where n < v < p, of g n below, of g p above, times 1 / sqrt(N p)",
    },
    surrogate=_lsq_plus_surrogate,
    examples=_steps,
    values=_lsq_plus_values,
    codes=_lsq_plus_codes,
    second_order="raises",
    paper="Esser et al. 2020, Learned step size quantization, arXiv 1902.08153",
)
def lsq(
    x: Tensor,
    scale: Tensor | float,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    axis: int | None = None,
    group_size: int | None = None,
    gradient_scale: float | None = None,
) -> Tensor:
    """Quantise with a learned step (LSQ): the gradient passes where the value lies within the range before rounding.

    Arguments:
        x: floating point, of any shape.
        scale: the step ``s``, positive; one number or scalar tensor, or with ``axis`` one for each slice or group;
            :func:`lsq_scale` gives the one to start from.
        bits, signed, narrow: the codes ``n`` to ``p``, as in :func:`codes`.
        axis: the dimension along which ``scale`` changes.
        group_size: with ``axis``, how many neighbours along it share a step.
        gradient_scale: the factor of the gradient of ``scale``; None is ``1 / sqrt(N p)`` for the ``N`` elements of
            ``x`` that share a step. (For activations the paper counts the features of one sample only.)

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of ``scale`` does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x, s = torch.tensor([0.3, 0.7, -2.0], requires_grad=True), torch.tensor(0.5, requires_grad=True)
        >>> out = gw.ste.lsq(x, s, bits=2, gradient_scale=1.0)
        >>> out.tolist()
        [0.5, 0.5, -1.0]
        >>> torch.autograd.grad(out.sum(), (x, s))
        (tensor([1., 0., 0.]), tensor(-0.6000))
    """
    low, high = codes(bits, signed=signed, narrow=narrow)
    factor = lsq_gradient_scale(x, scale, high) if gradient_scale is None else gradient_scale
    return quantized_by_mask("lsq", x, scale, None, low, high, "pre-round", "exclusive", axis, group_size, factor)


def _offsets(dtype: torch.dtype) -> Sequence[Example]:
    # Differences to an offset are rounded. Those here are not, or not across an edge, since x is the larger of the two.
    step, offset = torch.tensor(0.25, dtype=dtype), torch.tensor(0.5, dtype=dtype)
    x = joined([codes_and_ties(0, 7, 0.25, dtype, 0.5)[6:], grid(-1.0, 3.0, 9, dtype)])
    rows, scales = grid(-2, 2, 24, dtype).reshape(3, 8), torch.tensor([0.125, 0.25, 0.5], dtype=dtype)
    offsets = torch.tensor([0.5, -0.25, 0.125], dtype=dtype)
    groups = torch.tensor([[0.125, 0.25], [0.5, 1.0], [0.0625, 0.25]], dtype=dtype)
    return [
        Example((x, step, offset), {"bits": 3, "signed": False}, "unsigned"),
        Example((x, 0.25, 0.5), {"bits": 3, "signed": False}, "fixed"),
        Example((grid(-2, 2, 23, dtype), step, -offset), {"bits": 3, "gradient_scale": 0.5}, "gradient scale"),
        Example((rows, scales, offsets), {"bits": 2, "signed": False, "axis": 0}, "per channel"),
        Example((rows, groups, groups / 2), {"bits": 3, "axis": -1, "group_size": 4}, "per group"),
    ]


@catalogued(
    forward="out = round(clip((x - b) / s, n, p)) s + b",
    gradient={
        "x": "g where n < (x - b) / s < p, else 0",
        "scale": "sum of g (round(v) - v) where n < v < p, of g n below, of g p above, times 1 / sqrt(N p)",
        "offset": "sum of g where not n < v < p, times 1 / sqrt(N p)",
    },
    surrogate=_lsq_plus_surrogate,
    examples=_offsets,
    values=_lsq_plus_values,
    codes=_lsq_plus_codes,
    second_order="raises",
    paper="Bhalgat et al. 2020, LSQ+, arXiv 2004.09576",
)
def lsq_plus(
    x: Tensor,
    scale: Tensor | float,
    offset: Tensor | float,
    *,
    bits: int,
    signed: bool = True,
    narrow: bool = False,
    axis: int | None = None,
    group_size: int | None = None,
    gradient_scale: float | None = None,
) -> Tensor:
    """Quantise with a learned step and a learned offset (LSQ+), for activations that are not symmetric.

    Arguments:
        x: floating point, of any shape.
        scale, bits, signed, narrow, axis, group_size: as in :func:`lsq`.
        offset: the value ``b`` of the code 0, shaped like ``scale``. It is no code: zero need not be a value.
        gradient_scale: the factor of the gradients of ``scale`` and ``offset``; None is that of :func:`lsq`.

    Returns, raises:
        as :func:`lsq`.

    Example:
        >>> import torch, gradwright as gw
        >>> x, b = torch.tensor([-0.3, 0.4, 9.0]), torch.tensor(-0.25, requires_grad=True)
        >>> out = gw.ste.lsq_plus(x, 0.5, b, bits=2, signed=False, gradient_scale=1.0)
        >>> out.tolist()
        [-0.25, 0.25, 1.25]
        >>> torch.autograd.grad(out.sum(), b)
        (tensor(2.),)
    """
    low, high = codes(bits, signed=signed, narrow=narrow)
    factor = lsq_gradient_scale(x, scale, high) if gradient_scale is None else gradient_scale
    grouped, (step, shift) = arranged("lsq_plus", x, (scale, offset), axis, group_size)
    assert step is not None
    assert shift is not None
    return _lsq_plus(grouped, step, shift, low, high, factor).reshape(x.shape)
