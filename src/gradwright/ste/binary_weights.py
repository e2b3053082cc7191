"""Signs times the mean size: weights of one bit and a scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.ste.binary import signs
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.parameters import mean_size, shared_dims

FORWARD = "out = a sign(x), a = mean |x|, sign(0) = +1"


def _scaled(function: str, x: Tensor, axis: int | None) -> Tensor:
    wide = x.to(working_dtype(x.dtype))
    return (mean_size(x, shared_dims(function, x, axis)).to(wide.dtype) * signs(wide)).to(x.dtype)


def _plain_mean(x: Tensor, axis: int | None) -> Tensor:
    """Return the mean size of the slice of each element, slice by slice."""
    x = x.detach().double().abs()
    if axis is None:
        return x.mean().expand(x.shape)
    parts = x.movedim(axis, 0)
    return torch.stack([part.mean().expand(part.shape) for part in parts]).movedim(0, axis)


def _values(x: Tensor, *, axis: int | None = None) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0) * _plain_mean(x, axis)


def _codes(x: Tensor, *, axis: int | None = None) -> Tensor:
    return mean_size(x, shared_dims("codes", x, axis))[..., None] * torch.tensor([-1.0, 1.0], dtype=torch.float64)


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    x = joined([around(-1.0, 0.0, 1.0, dtype=dtype), grid(-2.5, 2.5, 7, dtype)])
    rows = x.reshape(4, 4)
    return [
        Example((x,), {}, "per tensor"),
        Example((rows,), {"axis": 0}, "per row"),
        Example((rows.reshape(2, 2, 4),), {"axis": -1}, "per column"),
    ]


def _slopes(x: Tensor, axis: int | None) -> tuple[Tensor, Callable[[Tensor], Tensor], int]:
    """Return the scale, what keeps values where |x| is at most 1, and how many elements share a scale."""
    dims = shared_dims("mean_size", x, axis)
    scale = mean_size(x, dims).to(working_dtype(x.dtype))
    return scale, passing(x.to(scale.dtype), -1.0, 1.0, "inclusive"), math.prod([x.shape[d] for d in dims])


# -------------------------------------------------------------------- XNOR-Net


def _xnor_surrogate(x: Tensor, *, axis: int | None = None) -> Tensor:
    scale = _plain_mean(x, axis)
    count = x.numel() if axis is None else x.numel() // x.shape[axis]
    return torch.where(x.detach().abs() > 1, x / count, x * (1 / count + scale))


@catalogued(
    forward=FORWARD,
    gradient={"x": "g (1/N + a) where |x| <= 1, g/N elsewhere; N elements share a"},
    surrogate=_xnor_surrogate,
    examples=_examples,
    values=_values,
    codes=_codes,
    second_order="raises",
    paper="Rastegari et al. 2016, arXiv 1603.05279",
)
@custom_gradient(double_backward="once")  # the slope depends on all of x: it is the gradient of no function
def xnor_weights(x: Tensor, *, axis: int | None = None) -> Tensor:
    """Return signs times the mean size, with the gradient that XNOR-Net declares.

    The paper takes ``da/dx_i = 1/N`` and leaves the other elements' share in it out: this is not the gradient of
    ``mean |x| * hardtanh``. :func:`magnitude_sign` leaves the scale out of the gradient altogether.

    Arguments:
        x: weights, floating point, of any shape.
        axis: the dimension that has one scale for each slice, 0 for the outputs of a layer; None for one scale.

    Returns:
        two values for each scale, a tensor like ``x``.

    Raises:
        OptionError: ``x`` has no such axis.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-3.0, 0.5, 0.0, 0.5], requires_grad=True)
        >>> out = gw.ste.xnor_weights(x)
        >>> out.tolist()
        [-1.0, 1.0, 1.0, 1.0]
        >>> torch.autograd.grad(out.sum(), x)
        (tensor([0.2500, 1.2500, 1.2500, 1.2500]),)
    """
    return _scaled("xnor_weights", x, axis)


@xnor_weights.vjp
def xnor_weights_vjp(g: Tensor, x: Tensor, axis: int | None) -> Tensor:
    scale, inside, count = _slopes(x, axis)
    g = g.to(scale.dtype)
    return inside(g) * scale + g / max(count, 1)


# -------------------------------------------------------------------- the scale held constant


def _magnitude_surrogate(x: Tensor, *, axis: int | None = None) -> Tensor:
    return torch.where(x.detach().abs() > 1, 0.0, x * _plain_mean(x, axis))


@catalogued(
    forward=FORWARD,
    gradient={"x": "a g where |x| <= 1, else 0"},
    surrogate=_magnitude_surrogate,
    examples=_examples,
    values=_values,
    codes=_codes,
    second_order="raises",
    paper="Liu et al. 2018 (Bi-Real Net), arXiv 1808.00278",
)
@custom_gradient(double_backward="once")  # the slope depends on all of x: it is the gradient of no function
def magnitude_sign(x: Tensor, *, axis: int | None = None) -> Tensor:
    """Return signs times the mean size; the gradient is that of hardtanh times the mean size, held constant.

    Arguments:
        x: weights, floating point, of any shape.
        axis: the dimension that has one scale for each slice, 0 for the outputs of a layer; None for one scale.

    Returns:
        two values for each scale, a tensor like ``x``.

    Raises:
        OptionError: ``x`` has no such axis.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-3.0, 0.5, 0.0, -0.5], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.magnitude_sign(x).sum(), x)
        (tensor([0., 1., 1., 1.]),)
    """
    return _scaled("magnitude_sign", x, axis)


@magnitude_sign.vjp
def magnitude_sign_vjp(g: Tensor, x: Tensor, axis: int | None) -> Tensor:
    scale, inside, _ = _slopes(x, axis)
    return inside(g.to(scale.dtype)) * scale
