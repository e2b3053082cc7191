"""Fake quantisation on evenly spaced codes: values of a grid, in floating point, with a gradient that passes.

For a step ``s`` (``scale``), a zero point ``z`` and codes from ``n`` (``low``) to ``p`` (``high``), with ``v = x / s``:

    out = (clip(round(v) + z, n, p) - z) * s

The gradient is that of the same formula with the rounding error held constant, ``round(v) = v + r`` with ``r`` fixed.
So inside the range ``out = x + r * s``, and outside ``out = (bound - z) * s``; which elements are inside is what the
mask says (:mod:`~gradwright.ste.masks`). Only arguments are kept for the backward.

That is a gradient of no single function when the step is learned (``r`` does move with ``x``), so that second
derivatives are refused then. With a constant step they are those of the surrogate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.masks import Edges, Keep, Mask, check_mask, clipped_in_place, everywhere, passing, working_dtype
from gradwright.ste.parameters import arranged, by_element, is_learned, summed_product, weighed, whole


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
    least = 2 if signed and narrow else 1
    if not whole(bits, least):
        raise OptionError(f"codes: bits is {bits!r}; expected a whole number from {least}.")
    if not signed:
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)) + int(narrow), 2 ** (bits - 1) - 1


# -------------------------------------------------------------------- the function everything here is made of


@custom_gradient(nondiff=("scale", "zero_point"))
def fake_quantize_fixed(
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | float | None,
    low: float,
    high: float,
    mask: Mask,
    edges: Edges,
    trust: float,
    reciprocal: bool,
) -> Tensor:
    """Quantise with constant parameters that are broadcast against ``x``; see :func:`fake_quantize`."""
    return _quantized(x, scale, zero_point, low, high, reciprocal)


@fake_quantize_fixed.vjp
def fake_quantize_fixed_vjp(
    g: Tensor,
    x: Tensor,
    scale: Any,
    zero_point: Any,
    low: float,
    high: float,
    mask: Mask,
    edges: Edges,
    trust: float,
    reciprocal: bool,
) -> dict[str, Tensor]:
    if mask == "none":
        return {"x": g}
    with torch.no_grad():  # where the gradient passes is a constant
        inside, *_ = _inside(x, scale, zero_point, low, high, mask, edges, trust, reciprocal)
    return {"x": inside(g.to(working_dtype(x.dtype)))}


@custom_gradient(double_backward="once")  # the gradients of x and scale are not those of one function
def fake_quantize_learned(
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | float | None,
    low: float,
    high: float,
    mask: Mask,
    edges: Edges,
    trust: float,
    reciprocal: bool,
    gradient_scale: float,
) -> Tensor:
    """Quantise with parameters that may be learned; as :func:`fake_quantize_fixed` else."""
    return _quantized(x, scale, zero_point, low, high, reciprocal)


@fake_quantize_learned.vjp
def fake_quantize_learned_vjp(
    g: Tensor,
    x: Tensor,
    scale: Any,
    zero_point: Any,
    low: float,
    high: float,
    mask: Mask,
    edges: Edges,
    trust: float,
    reciprocal: bool,
    gradient_scale: float,
    needs: Mapping[str, bool],
) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    inside, v, bound = _inside(x, scale, zero_point, low, high, mask, edges, trust, reciprocal)
    grads = {"x": inside(g)}
    if needs["scale"]:  # the slope is the rounding error inside, and the bound outside
        grads["scale"] = summed_product(g, bound.sub_(inside(v)), scale) * gradient_scale
    if needs["zero_point"]:
        grads["zero_point"] = summed_product(grads["x"] - g, scale, zero_point) * gradient_scale
    return grads


def _rounded(x: Tensor, scale: Tensor | float, reciprocal: bool) -> tuple[Tensor, Tensor]:
    """Return ``x / scale`` and the same rounded."""
    x = x.to(working_dtype(x.dtype))
    if reciprocal and not isinstance(scale, Tensor):  # rounded like a tensor's, and like that of PyTorch's kernels
        scale = torch.full((), scale, dtype=x.dtype, device=x.device)
    v = x * (1 / scale) if reciprocal else x / scale
    return v, torch.round(v)


def _quantized(x: Tensor, scale: Any, zero_point: Any, low: float, high: float, reciprocal: bool) -> Tensor:
    _, code = _rounded(x, scale, reciprocal)
    if zero_point is None:
        out = clipped_in_place(code, low, high).mul_(scale)
    else:
        out = clipped_in_place(code + zero_point, low, high).sub_(zero_point).mul_(scale)
    return out.to(x.dtype)


def _inside(
    x: Tensor,
    scale: Any,
    zero_point: Any,
    low: float,
    high: float,
    mask: Mask,
    edges: Edges,
    trust: float,
    reciprocal: bool,
) -> tuple[Keep, Tensor, Tensor]:
    """Return what keeps values where the mask passes, ``x / scale``, and the clipped codes from the zero point.

    All are new tensors. Where ``x`` is nan the second may be another number, and the third is nan.
    """
    v, code = _rounded(x, scale, reciprocal)
    shifted, zero = (code, 0.0) if zero_point is None else (code + zero_point, zero_point)
    clipped = shifted.clamp(low, high) if mask == "post-round" else clipped_in_place(shifted, low, high)
    bound = clipped if zero_point is None else clipped - zero
    if mask == "none":
        return everywhere, v, bound
    if mask == "post-round":
        return passing(shifted, low, high, edges, overwrite=True), v, bound
    if mask == "trust":
        return passing(bound * scale - x, -trust, trust, edges, overwrite=True), v, bound
    return (
        passing(v, low - zero, high - zero, edges, overwrite=True),
        v,
        bound,
    )  # not v + zero, which would be rounded again


def quantized_by_mask(
    function: str,
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | float | None,
    low: int,
    high: int,
    mask: Mask,
    edges: Edges,
    axis: int | None,
    group_size: int | None,
    gradient_scale: float = 1.0,
    trust: float | None = None,
    reciprocal: bool = False,
) -> Tensor:
    """Quantise with options that are known to be right, for a function of the catalogue whose name errors speak of."""
    grouped, (step, zero) = arranged(function, x, (scale, zero_point), axis, group_size)
    assert step is not None
    arguments = (grouped, step, zero, low, high, mask, edges, trust or 0.0, reciprocal)
    if is_learned(scale) or is_learned(zero_point):
        return fake_quantize_learned(*arguments, gradient_scale).reshape(x.shape)
    return fake_quantize_fixed(*arguments).reshape(x.shape)


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
    step = weighed(scale, gradient_scale)
    within, beyond = x + (clipped - z - v) * step, (clipped - weighed(zero, gradient_scale)) * step
    return torch.where(inside, within, beyond).reshape(shape)


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
    step, zero = (by_element(x, parameter, axis, group_size) for parameter in (scale, zero_point))
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
    step, zero = (by_element(x, parameter, axis, group_size)[..., None] for parameter in (scale, zero_point))
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
    found.append(Example((rows, torch.tensor(0.1, dtype=dtype)), {"low": n, "high": p}, "no power of two"))
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
    second_order="raises",
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
    if not low < high or low % 1 or high % 1:
        raise OptionError(
            f"fake_quantize: low is {low} and high {high}; expected low < high, whole numbers; see gw.ste.codes(bits)."
        )
    if (trust is None) is (mask == "trust"):
        raise OptionError(
            f"fake_quantize: trust is {trust} with mask={mask!r}; expected it with mask='trust' and only there."
        )
    return quantized_by_mask(
        "fake_quantize",
        x,
        scale,
        zero_point,
        low,
        high,
        mask,
        edges,
        axis,
        group_size,
        gradient_scale,
        trust,
        reciprocal,
    )
