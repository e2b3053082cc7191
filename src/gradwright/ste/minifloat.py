"""Fake quantisation to small floating-point formats.

For a format (:mod:`~gradwright.ste.formats`) with the largest number ``m``, a step ``s`` (``scale``) and ``v = x / s``:

    out = clip(nearest number of the format to v, -m, m) * s

The gradient is that of the same formula with the rounding error held constant, as in
:mod:`~gradwright.ste.uniform`. Every number stays in the dtype of ``x`` or a wider one: a function that returns a
float8 tensor would have its cotangent rounded to float8 by autograd, without a scale, to zero for the most part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import unknown_choice
from gradwright.ste.formats import Format, Specials, make_format, rounded
from gradwright.ste.masks import Edges, Keep, check_mask, everywhere, passing, working_dtype
from gradwright.ste.parameters import arranged, by_element, is_learned, summed_product

RangeMask: TypeAlias = Literal["range", "none"]
RANGE_MASKS: tuple[RangeMask, ...] = ("range", "none")


# -------------------------------------------------------------------- the functions everything here is made of


@custom_gradient(nondiff=("scale", "bound"))
def minifloat_fixed(
    x: Tensor,
    scale: Tensor | float,
    bound: Tensor | float,
    mantissa_bits: int,
    smallest_normal: float,
    top_binade: float,
    largest: float,
    overflow: float,
    mask: RangeMask,
    edges: Edges,
) -> Tensor:
    """Round to a format with a constant step that is broadcast against ``x``; see :func:`minifloat`."""
    v = x.to(working_dtype(x.dtype)) / scale
    return (rounded(v, mantissa_bits, smallest_normal, top_binade, largest, overflow) * scale).to(x.dtype)


@minifloat_fixed.vjp
def minifloat_fixed_vjp(g: Tensor, x: Tensor, bound: Any, mask: RangeMask, edges: Edges) -> dict[str, Tensor]:
    if mask == "none":
        return {"x": g}
    with torch.no_grad():  # where the gradient passes is a constant
        inside = _inside(x, bound, mask, edges)
    return {"x": inside(g.to(working_dtype(x.dtype)))}


@custom_gradient(double_backward="once", nondiff=("bound",))  # the gradients are not those of one function
def minifloat_learned(
    x: Tensor,
    scale: Tensor | float,
    bound: Tensor | float,
    mantissa_bits: int,
    smallest_normal: float,
    top_binade: float,
    largest: float,
    overflow: float,
    mask: RangeMask,
    edges: Edges,
) -> Tensor:
    """Round to a format with a step that may be learned; as :func:`minifloat_fixed` else."""
    v = x.to(working_dtype(x.dtype)) / scale
    return (rounded(v, mantissa_bits, smallest_normal, top_binade, largest, overflow) * scale).to(x.dtype)


@minifloat_learned.vjp
def minifloat_learned_vjp(
    g: Tensor,
    x: Tensor,
    scale: Any,
    bound: Any,
    mantissa_bits: int,
    smallest_normal: float,
    top_binade: float,
    largest: float,
    mask: RangeMask,
    edges: Edges,
    needs: Mapping[str, bool],
) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    inside = _inside(x, bound, mask, edges)
    grads = {"x": inside(g)}
    if needs["scale"]:  # the slope is the rounding error inside, and the largest number outside
        v = x.to(working_dtype(x.dtype)) / scale
        clipped = rounded(v, mantissa_bits, smallest_normal, top_binade, largest, largest)
        grads["scale"] = summed_product(g, clipped - inside(v), scale)
    return grads


def _inside(x: Tensor, bound: Any, mask: RangeMask, edges: Edges) -> Keep:
    if mask == "none":
        return everywhere
    return passing(x.to(working_dtype(x.dtype)), -bound, bound, edges)


def quantized(x: Tensor, scale: Any, bound: Any, form: Format, saturate: bool, mask: RangeMask, edges: Edges) -> Tensor:
    """Round to a format with a step and the end of the range, each one number or broadcast against ``x``."""
    core = minifloat_learned if is_learned(scale) else minifloat_fixed
    if isinstance(bound, Tensor):
        bound = bound.detach()
    overflow = form.largest if saturate else form.overflow
    numbers = (form.mantissa_bits, form.smallest_normal, form.top_binade, form.largest, overflow)
    return core(x, scale, bound, *numbers, mask, edges)


def check_range_mask(function: str, mask: RangeMask, edges: Edges | None) -> tuple[RangeMask, Edges]:
    """Return the mask with its edges, the usual ones for None.

    Raises:
        OptionError: one of them is not known.
    """
    if mask not in RANGE_MASKS:
        raise unknown_choice(f"{function}: mask", mask, RANGE_MASKS)
    return mask, check_mask(function, mask, edges)[1]


# -------------------------------------------------------------------- any format


def _format_of(options: Mapping[str, Any]) -> Format:
    bits = options["exponent_bits"]
    bias = options.get("bias")
    usual = 2 ** (bits - 1) - 1
    return Format(bits, options["mantissa_bits"], usual if bias is None else bias, options.get("specials", "none"))


def nearest(v: Tensor, form: Format) -> Tensor:
    """Return the nearest finite number of a format by looking through all of them, ties to the even code (float64)."""
    numbers = form.numbers()
    middles = (numbers[1:] + numbers[:-1]) / 2
    size = v.abs()
    below, above = torch.searchsorted(middles, size), torch.searchsorted(middles, size, right=True)
    return torch.copysign(numbers[torch.where(below % 2 == 0, below, above)], v)


def rounding_constant(x: Tensor, scale: Tensor, bound: Tensor, form: Format, mask: str, edges: str) -> Tensor:
    """Compute the formula of the module, for PyTorch to differentiate."""
    v = (x / scale).detach()
    q = nearest(v.double(), form).to(x.dtype)
    size = x.detach().abs()
    outside = size >= bound.detach() if edges == "exclusive" else size > bound.detach()
    return torch.where(outside & torch.tensor(mask == "range"), q * scale, x + (q - v) * scale)


def _surrogate(
    x: Tensor,
    scale: Any = None,
    *,
    saturate: bool = True,
    mask: str = "range",
    edges: str | None = None,
    axis: int | None = None,
    group_size: int | None = None,
    **options: Any,
) -> Tensor:
    form = _format_of(options)
    grouped, (step,) = arranged("minifloat", x, (1.0 if scale is None else scale,), axis, group_size)
    step = torch.as_tensor(step, dtype=x.dtype)
    return rounding_constant(grouped, step, form.largest * step, form, mask, edges or "inclusive").reshape(x.shape)


def _values(x: Tensor, scale: Any = None, *, axis: Any = None, group_size: Any = None, **options: Any) -> Tensor:
    step = by_element(x, 1.0 if scale is None else scale, axis, group_size)
    return nearest(x.double() / step, _format_of(options)) * step


def _codes(x: Tensor, scale: Any = None, *, axis: Any = None, group_size: Any = None, **options: Any) -> Tensor:
    numbers = _format_of(options).numbers()
    step = by_element(x, 1.0 if scale is None else scale, axis, group_size)[..., None]
    return torch.cat([-numbers, numbers]) * step


def points_of(form: Format, dtype: torch.dtype, step: float = 1.0) -> Tensor:
    """Return ties, numbers and bounds of a format with their neighbours, and points far outside."""
    numbers = form.numbers()
    chosen = torch.cat([numbers[:9], numbers[-9:]]).unique()
    middles = (chosen[1:] + chosen[:-1]) / 2
    gap = form.largest - float(numbers[-2])
    beyond = [form.largest + gap / 2, form.largest + gap]
    centres = [sign * step * float(c) for c in [*chosen, *middles, *beyond] for sign in (1, -1)]
    far = torch.tensor([-4.0 * form.largest * step, 4.0 * form.largest * step], dtype=dtype)
    return joined([around(*centres, dtype=dtype), far[far.isfinite()]])


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    found = []
    for exponent_bits, mantissa_bits, specials in ((2, 1, "none"), (4, 3, "nan"), (3, 2, "ieee")):
        form = Format(exponent_bits, mantissa_bits, 2 ** (exponent_bits - 1) - 1, specials)  # type: ignore[arg-type]
        options = {"exponent_bits": exponent_bits, "mantissa_bits": mantissa_bits, "specials": specials}
        found.append(Example((points_of(form, dtype),), options, f"E{exponent_bits}M{mantissa_bits}"))
    small = {"exponent_bits": 2, "mantissa_bits": 1}
    x, scale = points_of(Format(2, 1, 1), dtype, 0.25), torch.tensor(0.25, dtype=dtype)
    found.append(Example((x, 0.25), {**small, "edges": "exclusive"}, "edges"))
    found.append(Example((x,), {**small, "mask": "none", "bias": 3}, "no mask, a bias"))
    found.append(Example((x, scale), small, "learned"))
    found.append(Example((x, scale), {**small, "mask": "none"}, "learned, no mask"))
    rows, scales = grid(-5, 5, 24, dtype).reshape(3, 8), torch.tensor([0.125, 0.5, 1.0], dtype=dtype)
    found.append(Example((rows, scales), {**small, "axis": 0}, "per channel"))
    groups = torch.tensor([[0.125, 0.25], [0.5, 1.0], [2.0, 0.25]], dtype=dtype)
    found.append(Example((rows, groups), {**small, "axis": 1, "group_size": 4}, "per group"))
    return found


GRADIENT = {
    "x": "g where |x| <= m s (mask 'range'; edges), everywhere for mask 'none'",
    "scale": "sum of g (q - v) where it passes, of +-m g elsewhere",
}


@catalogued(
    forward="out = clip(nearest(x / s), -m, m) s; nearest: of the format's numbers, ties to the even code",
    gradient=GRADIENT,
    surrogate=_surrogate,
    examples=_examples,
    values=_values,
    codes=_codes,
    second_order="raises",
    paper="Kuzmin et al. 2022, arXiv 2208.09225; OCP Microscaling Formats 1.0, 2023",
)
def minifloat(
    x: Tensor,
    scale: Tensor | float | None = None,
    *,
    exponent_bits: int,
    mantissa_bits: int,
    bias: int | None = None,
    specials: Specials = "none",
    saturate: bool = True,
    mask: RangeMask = "range",
    edges: Edges | None = None,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Round to a floating-point format of few bits, subnormal numbers included.

    Arguments:
        x: floating point, of any shape.
        scale: what the format's 1 stands for, positive, 1 for None; one number or scalar tensor, or with ``axis`` one
            for each slice or group. It may be learned.
        exponent_bits: 1 to 8.
        mantissa_bits: 1 to 23, the leading 1 not counted.
        bias: of the exponent; None is ``2 ** (exponent_bits - 1) - 1``.
        specials: what the highest codes stand for: ``"none"`` numbers, ``"nan"`` one nan, ``"ieee"`` infinity and nan.
        saturate: beyond the range return the largest number, not infinity or nan. The gradient is the same for both.
        mask: where the gradient of ``x`` passes: ``"range"``, at most the largest number, or ``"none"``, everywhere.
        edges: whether the largest number itself is inside; None: it is.
        axis: the dimension along which ``scale`` changes.
        group_size: with ``axis``, how many neighbours along it share a scale.

    Returns:
        a tensor of the shape and dtype of ``x``; where that dtype has fewer bits than the format, rounded to it.

    Raises:
        OptionError: there is no such format, or an option has no value that is known.
        ArgumentError: the shape of ``scale`` does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.3, 2.4, 9.0], requires_grad=True)
        >>> out = gw.ste.minifloat(x, exponent_bits=2, mantissa_bits=1)
        >>> out.tolist()
        [0.5, 2.0, 6.0]
        >>> torch.autograd.grad(out.sum(), x)
        (tensor([1., 1., 0.]),)
    """
    mask, edges = check_range_mask("minifloat", mask, edges)
    form = make_format("minifloat", exponent_bits, mantissa_bits, bias, specials, saturate)
    grouped, (step,) = arranged("minifloat", x, (1.0 if scale is None else scale,), axis, group_size)
    assert step is not None
    return quantized(grouped, step, step * form.largest, form, saturate, mask, edges).reshape(x.shape)
