"""Fake quantisation to FP8, E4M3 and E5M2; see :mod:`~gradwright.ste.minifloat`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, catalogued
from gradwright.errors import OptionError, unknown_choice
from gradwright.ste.formats import Format
from gradwright.ste.masks import Edges, working_dtype
from gradwright.ste.minifloat import (
    GRADIENT,
    RangeMask,
    check_range_mask,
    nearest,
    points_of,
    quantized,
    rounding_constant,
)
from gradwright.ste.parameters import arranged, by_element

FLOAT8 = {
    torch.float8_e4m3fn: Format(4, 3, 7, "nan"),
    torch.float8_e5m2: Format(5, 2, 15, "ieee"),
}


def _step(x: Tensor, scale: Any, amax: Any, form: Format) -> tuple[Any, Any]:
    """Return the step and where the range ends; with ``amax`` exactly there, whatever the division rounds to."""
    if amax is None:
        step = 1.0 if scale is None else scale
        return step, step * form.largest
    limit = torch.as_tensor(amax, dtype=working_dtype(x.dtype), device=x.device)
    step = limit / form.largest
    return torch.where(step == 0, 1.0, step), limit


def _surrogate(
    x: Tensor,
    scale: Any = None,
    *,
    amax: Any = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    saturate: bool = True,
    mask: str = "range",
    edges: str | None = None,
    axis: int | None = None,
) -> Tensor:
    form = FLOAT8[dtype]
    x, (scale, amax) = arranged("float8", x, (scale, amax), axis, None)
    step = 1.0 if scale is None else scale
    step, bound = (step, step * form.largest) if amax is None else (amax / form.largest, amax)
    step, bound = torch.as_tensor(step, dtype=x.dtype), torch.as_tensor(bound, dtype=x.dtype)
    return rounding_constant(x, step, bound, form, mask, edges or "inclusive")


def _steps(x: Tensor, scale: Any, amax: Any, axis: Any, form: Format) -> Tensor:
    if amax is not None:
        return by_element(x, amax, axis, None) / form.largest
    return by_element(x, 1.0 if scale is None else scale, axis, None)


def _values(
    x: Tensor, scale: Any = None, *, amax: Any = None, dtype: Any = torch.float8_e4m3fn, axis: Any = None, **_: Any
) -> Tensor:
    step = _steps(x, scale, amax, axis, FLOAT8[dtype])
    return nearest(x.double() / step, FLOAT8[dtype]) * step


def _codes(
    x: Tensor, scale: Any = None, *, amax: Any = None, dtype: Any = torch.float8_e4m3fn, axis: Any = None, **_: Any
) -> Tensor:
    numbers = FLOAT8[dtype].numbers()
    return torch.cat([-numbers, numbers]) * _steps(x, scale, amax, axis, FLOAT8[dtype])[..., None]


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    found = [Example((points_of(form, dtype),), {"dtype": kind}, str(kind)) for kind, form in FLOAT8.items()]
    x = points_of(FLOAT8[torch.float8_e4m3fn], dtype, 2.0**-6)
    amax = torch.tensor(7.0, dtype=dtype)
    found.append(Example((x, torch.tensor(2.0**-6, dtype=dtype)), {}, "scale"))
    found.append(Example((x,), {"amax": amax}, "amax"))
    found.append(Example((x,), {"amax": 7.0, "mask": "none"}, "amax, no mask"))
    found.append(Example((x,), {"amax": 7.0, "edges": "exclusive"}, "edges"))
    rows = torch.stack([x, x / 2])
    found.append(Example((rows,), {"amax": torch.tensor([7.0, 1.75], dtype=dtype), "axis": 0}, "per row"))
    return found


@catalogued(
    forward="out = clip(nearest(x / s), -m, m) s; m = 448 (E4M3) or 57344 (E5M2); s = amax / m where amax is given",
    gradient={**GRADIENT, "amax": "that of scale, divided by m"},
    surrogate=_surrogate,
    examples=_examples,
    values=_values,
    codes=_codes,
    second_order="raises",
    paper="Micikevicius et al. 2022, arXiv 2209.05433",
)
def float8(
    x: Tensor,
    scale: Tensor | float | None = None,
    *,
    amax: Tensor | float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    saturate: bool = True,
    mask: RangeMask = "range",
    edges: Edges | None = None,
    axis: int | None = None,
) -> Tensor:
    """Round to the numbers of an FP8 format; output and gradient stay in the dtype of ``x``.

    Arguments:
        x: floating point, of any shape.
        scale: what the format's 1 stands for, positive, 1 for None; one number or scalar tensor, or with ``axis`` one
            for each slice. It may be learned.
        amax: instead of a scale, the size that the largest number stands for, for example ``x.detach().abs().amax()``.
            The range ends exactly there.
        dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
        saturate, mask, edges: as in :func:`minifloat`.
        axis: the dimension along which ``scale`` or ``amax`` changes.

    Returns:
        a tensor of the shape and dtype of ``x``: the values of ``x.to(dtype).to(x.dtype)`` with what is out of range
        clipped first. From float64 a number is rounded once, where PyTorch rounds it to float32 first.

    Raises:
        OptionError: an option has no value that is known, or both ``scale`` and ``amax`` are given.
        ArgumentError: the shape of a parameter does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.3, 17.0, 1000.0], requires_grad=True)
        >>> out = gw.ste.float8(x)
        >>> out.tolist()
        [0.3125, 16.0, 448.0]
        >>> torch.autograd.grad(out.sum(), x)
        (tensor([1., 1., 0.]),)
    """
    mask, edges = check_range_mask("float8", mask, edges)
    if dtype not in FLOAT8:
        raise unknown_choice("float8: dtype", str(dtype), [str(known) for known in FLOAT8])
    if scale is not None and amax is not None:
        raise OptionError("float8: got both scale and amax; expected one of them; scale is amax / largest number.")
    form = FLOAT8[dtype]
    x, (scale, amax) = arranged("float8", x, (scale, amax), axis, None)
    step, bound = _step(x, scale, amax, form)
    return quantized(x, step, bound, form, saturate, mask, edges)
