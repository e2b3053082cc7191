"""Fake quantisation on evenly spaced codes: values of a grid, in floating point, with a gradient that passes.

For a step ``s`` (``scale``), a zero point ``z`` and codes from ``n`` (``low``) to ``p`` (``high``), with ``v = x / s``:

    out = (clip(round(v) + z, n, p) - z) * s

The gradient is that of the same formula with the rounding error held constant, ``round(v) = v + r`` with ``r`` fixed.
So inside the range ``out = x + r * s``, and outside ``out = (bound - z) * s``; which elements are inside is what the
mask says (:mod:`~gradwright.ste.masks`). Only arguments are kept for the backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import ArgumentError, OptionError
from gradwright.ste.masks import Edges, Keep, Mask, check_mask, everywhere, passing, working_dtype


def codes(bits: int, *, signed: bool = True, narrow: bool = False) -> tuple[int, int]:
    """Return the lowest and the highest code of so many bits.

    Arguments:
        bits: at least 1.
        signed: from ``-2 ** (bits - 1)``; otherwise from 0.
        narrow: leave out the lowest signed code, so that codes are symmetric about zero.

    Example:
        >>> import gradwright as gw
        >>> gw.ste.codes(4), gw.ste.codes(4, narrow=True), gw.ste.codes(4, signed=False)
        ((-8, 7), (-7, 7), (0, 15))
    """
    if bits < 1 or (bits == 1 and signed and narrow):
        raise OptionError(f"codes: bits is {bits!r}; expected a whole number from {2 if signed and narrow else 1}.")
    if not signed:
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)) + int(narrow), 2 ** (bits - 1) - 1


# -------------------------------------------------------------------- the function everything here is made of


def _rounded(x: Tensor, scale: Tensor | float, reciprocal: bool) -> tuple[Tensor, Tensor]:
    """Return ``x / scale`` and the same rounded."""
    x = x.to(working_dtype(x.dtype))
    v = x * (1 / scale) if reciprocal else x / scale
    return v, torch.round(v)


@custom_gradient
def quantized(
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | float | None,
    low: float,
    high: float,
    mask: Mask,
    edges: Edges,
    gradient_scale: float,
    trust: float,
    reciprocal: bool,
) -> Tensor:
    """Quantise with parameters that are broadcast against ``x``; see :func:`fake_quantize`."""
    _, code = _rounded(x, scale, reciprocal)
    if zero_point is None:
        return code.clamp_(low, high).mul_(scale).to(x.dtype)
    return (code + zero_point).clamp_(low, high).sub_(zero_point).mul_(scale).to(x.dtype)


@quantized.vjp
def quantized_vjp(
    g: Tensor,
    x: Tensor,
    scale: Any,
    zero_point: Any,
    low: float,
    high: float,
    mask: Mask,
    edges: Edges,
    gradient_scale: float,
    trust: float,
    reciprocal: bool,
    needs: Mapping[str, bool],
) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    if mask == "none" and not needs["scale"]:
        return {"x": g}
    zero = 0.0 if zero_point is None else zero_point
    with torch.no_grad():  # the rounding error is a constant
        v, code = _rounded(x, scale, reciprocal)
        shifted = code if zero_point is None else code + zero
        clipped = shifted.clamp(low, high)
        tested, least, most = v, low - zero, high - zero  # not v + zero, which is rounded again
        if mask == "trust":
            tested, least, most = (clipped - zero) * scale - x, -trust, trust
        elif mask == "post-round":
            tested, least, most = shifted, low, high

    inside: Keep = everywhere if mask == "none" else passing(tested, least, most, edges, overwrite=tested is not v)
    grads = {"x": inside(g)}
    if needs["scale"]:
        bound = clipped if zero_point is None else clipped - zero_point
        # Inside it is the rounding error, a constant; outside the bound, which moves with the zero point.
        slope = bound - inside(v) if zero_point is None else inside(bound.detach() - v) + bound - inside(bound)
        grads["scale"] = _product(g, slope, scale) * gradient_scale
    if needs["zero_point"]:
        grads["zero_point"] = _product(grads["x"] - g, scale, zero_point) * gradient_scale
    return grads


def _product(a: Tensor, b: Tensor, parameter: Tensor) -> Tensor:
    """Return the product that is summed over the elements which share the parameter."""
    if parameter.numel() == 1 and a.shape == b.shape and not torch.compiler.is_compiling():
        return torch.dot(a.reshape(-1), b.reshape(-1)).reshape(parameter.shape)  # in one pass over the memory
    return a * b


# -------------------------------------------------------------------- what users call


def _surrogate(
    x: Tensor,
    scale: Any,
    zero_point: Any = None,
    *,
    low: float,
    high: float,
    mask: Mask = "post-round",
    edges: Edges | None = None,
    axis: int | None = None,
    group_size: int | None = None,
    gradient_scale: float = 1.0,
    trust: float | None = None,
    reciprocal: bool = False,
) -> Tensor:
    """Compute the formula of the module, for PyTorch to differentiate."""
    shape = x.shape
    x, (scale, zero_point) = arranged("fake_quantize", x, (scale, zero_point), axis, group_size)
    scale = torch.as_tensor(scale, dtype=x.dtype)
    zero = torch.zeros((), dtype=x.dtype) if zero_point is None else torch.as_tensor(zero_point, dtype=x.dtype)
    mask, edges = check_mask("fake_quantize", mask, edges)
    v, z = (x * (1 / scale) if reciprocal else x / scale).detach(), zero.detach()
    clipped = (v.round() + z).clamp(low, high)
    tested, least, most = {
        "none": (v * 0, -1.0, 1.0),
        "range": (v, low - z, high - z),
        "pre-round": (v, low - z, high - z),
        "post-round": (v.round() + z, low, high),
        "trust": ((clipped - z) * scale.detach() - x.detach(), -(trust or 0.0), trust or 0.0),
    }[mask]
    inside = (tested >= least) & (tested <= most) if edges == "inclusive" else (tested > least) & (tested < most)
    step = _weighed(scale, gradient_scale)
    within, beyond = x + (clipped - z - v) * step, (clipped - _weighed(zero, gradient_scale)) * step
    return torch.where(inside, within, beyond).reshape(shape)


def _weighed(parameter: Tensor, factor: float) -> Tensor:
    return parameter * factor + (parameter * (1 - factor)).detach()


def _by_element(x: Tensor, parameter: Any, axis: int | None, group_size: int | None) -> Tensor:
    """Return a parameter once for each element of ``x``."""
    grouped, (spread,) = arranged("fake_quantize", x, (parameter,), axis, group_size)
    return (
        torch.as_tensor(0.0 if spread is None else spread, dtype=torch.float64).expand(grouped.shape).reshape(x.shape)
    )


def _values(
    x: Tensor,
    scale: Any,
    zero_point: Any = None,
    *,
    low: int,
    high: int,
    axis: Any = None,
    group_size: Any = None,
    **_: Any,
) -> Tensor:
    step, zero = (_by_element(x, parameter, axis, group_size) for parameter in (scale, zero_point))
    return ((torch.round(x.double() / step) + zero).clamp(low, high) - zero) * step


def _codes(
    x: Tensor,
    scale: Any,
    zero_point: Any = None,
    *,
    low: int,
    high: int,
    axis: Any = None,
    group_size: Any = None,
    **_: Any,
) -> Tensor:
    step, zero = (_by_element(x, parameter, axis, group_size)[..., None] for parameter in (scale, zero_point))
    return (torch.arange(low, high + 1, dtype=torch.float64) - zero) * step


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    step, n, p = 0.25, -4, 3
    edges = around(*[k * step / 2 for k in range(2 * n - 3, 2 * p + 4)], dtype=dtype)
    x = joined([edges, grid(-2.0, 2.0, 9, dtype), torch.tensor([-1e4, 1e4], dtype=dtype)])
    scale, zero = torch.tensor(step, dtype=dtype), torch.tensor(1.0, dtype=dtype)
    found = [Example((x, step), {"low": n, "high": p}, "fixed")]
    for mask in ("none", "range", "pre-round", "post-round"):
        found.append(Example((x, scale), {"low": n, "high": p, "mask": mask}, f"learned, {mask}"))
        found.append(Example((x, scale, zero), {"low": n, "high": p, "mask": mask}, f"with a zero point, {mask}"))
    found.append(Example((x, scale), {"low": n, "high": p, "mask": "pre-round", "edges": "inclusive"}, "edges"))
    found.append(Example((x, scale), {"low": n, "high": p, "mask": "trust", "trust": 0.5}, "trust"))
    rows, scales = grid(-2, 2, 24, dtype).reshape(3, 8), torch.tensor([0.125, 0.25, 0.5], dtype=dtype)
    found.append(Example((rows, scales), {"low": n, "high": p, "axis": 0}, "per channel"))
    groups = torch.tensor([[0.125, 0.25], [0.5, 1.0], [0.0625, 0.25]], dtype=dtype)
    found.append(Example((rows, groups), {"low": n, "high": p, "axis": -1, "group_size": 4}, "per group"))
    found.append(Example((rows, scales), {"low": n, "high": p, "axis": 0, "gradient_scale": 0.5}, "gradient scale"))
    return found


@catalogued(
    forward="out = (clip(round(x / s) + z, n, p) - z) s",
    gradient={
        "x": "g where the mask passes, else 0",
        "scale": "sum of g (round(v) - v) where it passes, of g (clipped code - z) elsewhere",
        "zero_point": "sum of -s g where it does not pass",
    },
    surrogate=_surrogate,
    examples=_examples,
    values=_values,
    codes=_codes,
    paper="Jacob et al. 2017, arXiv 1712.05877; Krishnamoorthi 2018, arXiv 1806.08342",
)
def fake_quantize(
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | float | None = None,
    *,
    low: int,
    high: int,
    mask: Mask = "post-round",
    edges: Edges | None = None,
    axis: int | None = None,
    group_size: int | None = None,
    gradient_scale: float = 1.0,
    trust: float | None = None,
    reciprocal: bool = False,
) -> Tensor:
    """Quantise to evenly spaced codes and back; scale and zero point may be learned.

    Arguments:
        x: floating point, of any shape.
        scale: the step, positive; one number or scalar tensor, or with ``axis`` one for each slice or group. Its
            gradient is the one for a learned step.
        zero_point: the code of zero, a whole number or a tensor shaped like ``scale``.
        low, high: the lowest and the highest code; :func:`codes` gives them for a number of bits.
        mask: where the gradient of ``x`` passes; see :mod:`gradwright.ste.masks`.
        edges: whether a value exactly at the bound of the mask is inside; None takes what is usual for the mask.
        axis: the dimension along which ``scale`` and ``zero_point`` change.
        group_size: with ``axis``, how many neighbours along it share a parameter; their shape is then that of ``x``
            with this dimension divided.
        gradient_scale: a factor for the gradients of the parameters.
        trust: for ``mask="trust"``, the largest error that passes, in units of ``x``.
        reciprocal: multiply by ``1 / scale``, as PyTorch's own kernels do, instead of dividing: other ties.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of a parameter does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.1, 0.6, 9.0], requires_grad=True)
        >>> out = gw.ste.fake_quantize(x, 0.25, low=-8, high=7)
        >>> out.tolist()
        [0.0, 0.5, 1.75]
        >>> torch.autograd.grad(out.sum(), x)
        (tensor([1., 1., 0.]),)
    """
    mask, edges = check_mask("fake_quantize", mask, edges)
    if not low < high:
        raise OptionError(f"fake_quantize: low is {low} and high {high}; expected low < high; see gw.ste.codes(bits).")
    if (trust is None) is (mask == "trust"):
        raise OptionError(
            f"fake_quantize: trust is {trust} with mask={mask!r}; expected it with mask='trust' and only there."
        )
    grouped, (step, zero) = arranged("fake_quantize", x, (scale, zero_point), axis, group_size)
    assert step is not None
    out = quantized(grouped, step, zero, low, high, mask, edges, gradient_scale, trust or 0.0, reciprocal)
    return out.reshape(x.shape)


def arranged(
    function: str, x: Tensor, parameters: Sequence[Tensor | float | None], axis: int | None, group_size: int | None
) -> tuple[Tensor, list[Tensor | float | None]]:
    """Return ``x`` and parameters in shapes that broadcast: by tensor, by slice along an axis, or by group.

    Raises:
        ArgumentError: the shape of a parameter does not fit.
        OptionError: ``group_size`` without ``axis``, or one that does not divide the dimension.
    """
    if axis is None:
        if group_size is not None:
            raise OptionError(f"{function}: group_size={group_size} without axis; expected both; write axis=-1.")
        return x, list(parameters)
    if not -x.dim() <= axis < x.dim():
        raise OptionError(f"{function}: axis={axis} for a tensor of {x.dim()} dimensions; expected one of them.")
    axis %= x.dim()
    wanted: tuple[int, ...] = (x.shape[axis],)
    if group_size is not None:
        if group_size < 1 or x.shape[axis] % group_size:
            raise OptionError(
                f"{function}: group_size={group_size} for {x.shape[axis]} elements along axis {axis}; expected a "
                "divisor of them."
            )
        wanted = (*x.shape[:axis], x.shape[axis] // group_size, *x.shape[axis + 1 :])
        x = x.reshape(*wanted[: axis + 1], group_size, *wanted[axis + 1 :])
    found: list[Tensor | float | None] = []
    for parameter in parameters:
        if isinstance(parameter, Tensor) and parameter.numel() != 1:
            if tuple(parameter.shape) != wanted:
                raise ArgumentError(
                    f"{function}: a parameter has the shape {tuple(parameter.shape)}; expected one number or "
                    f"{wanted} for x {tuple(x.shape)} with axis={axis} and group_size={group_size}."
                )
            if group_size is None:
                parameter = parameter.reshape([-1 if d == axis else 1 for d in range(x.dim())])
            else:
                parameter = parameter.unsqueeze(axis + 1)
        found.append(parameter)
    return x, found
