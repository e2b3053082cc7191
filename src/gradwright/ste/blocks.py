"""Fake quantisation in blocks that share a scale: the MX formats.

``x`` is cut along one axis into blocks; the last one may be short. The scale ``S`` of a block comes from the largest
size in it, so that the gradient passes everywhere: nothing, or next to nothing, is clipped. Where something can be, the
mask ``"range"`` leaves the gradient of clipped elements out.

The scale is no part of the gradient: it is held constant. Second derivatives are zero, as the surrogate's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError, unknown_choice
from gradwright.ste.formats import Format, binade, rounded
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.minifloat import RangeMask, check_range_mask, nearest

Element: TypeAlias = Literal["e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "int8"]
ScaleMode: TypeAlias = Literal["floor", "ceil", "even", "rceil"]

ELEMENTS: dict[str, Format] = {
    "e4m3": Format(4, 3, 7, "nan"),
    "e5m2": Format(5, 2, 15, "ieee"),
    "e3m2": Format(3, 2, 3),
    "e2m3": Format(2, 3, 1),
    "e2m1": Format(2, 1, 1),
    "int8": Format(1, 6, 1),  # evenly spaced by 1/64, from -127/64 to 127/64
}
SCALE_MODES: tuple[ScaleMode, ...] = get_args(ScaleMode)

E8M0_SMALLEST, E8M0_LARGEST = 2.0**-127, 2.0**127


# -------------------------------------------------------------------- blocks


def in_blocks(x: Tensor, axis: int, size: int) -> Tensor:
    """Return the blocks of ``x`` along the last dimension, the one before it counting them; a short one has zeros."""
    x = x.movedim(axis, -1)
    missing = -x.shape[-1] % size
    if missing:
        x = torch.nn.functional.pad(x, (0, missing))
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def from_blocks(blocks: Tensor, axis: int, length: int) -> Tensor:
    """Return what :func:`in_blocks` had."""
    flat = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
    return flat[..., :length].movedim(-1, axis)


def check_blocks(function: str, x: Tensor, axis: int, block: int) -> None:
    """Refuse an axis that ``x`` does not have, and blocks without elements.

    Raises:
        OptionError: one of them.
    """
    if not -x.dim() <= axis < x.dim():
        raise OptionError(f"{function}: axis={axis} for a tensor of {x.dim()} dimensions; expected one of them.")
    if block < 1:
        raise OptionError(f"{function}: block is {block!r}; expected a whole number from 1.")


def _shared_scale(blocks: Tensor, form: Format, mode: ScaleMode) -> Tensor:
    """Return the power of two that the elements of each block are divided by; nan where one of them is not finite."""
    amax = blocks.abs().amax(-1, keepdim=True).double()  # wider, so that no size is subnormal and nothing is rounded
    power = binade(amax)
    threshold = {  # the size from which the next power of two is taken, in units of the power below
        "floor": 2.0,
        "ceil": 1.0,
        "even": 2.0 - 2.0 ** -(form.mantissa_bits + 1),
        "rceil": form.largest / form.top_binade,
    }[mode]
    above = amax >= power * threshold if mode == "even" else amax > power * threshold
    scale = torch.where(above, 2 * power, power) / form.top_binade
    scale = torch.where(amax.isfinite(), scale.clamp(E8M0_SMALLEST, E8M0_LARGEST), torch.nan)
    return scale.to(blocks.dtype)


# -------------------------------------------------------------------- MX


@custom_gradient
def scaled_blocks(x: Tensor, axis: int, block: int, element: Element, mode: ScaleMode, mask: RangeMask) -> Tensor:
    """Round to an MX format; see :func:`mx`."""
    form = ELEMENTS[element]
    blocks = in_blocks(x.to(working_dtype(x.dtype)), axis, block)
    scale = _shared_scale(blocks, form, mode)
    numbers = (form.mantissa_bits, form.smallest_normal, form.top_binade, form.largest, form.largest)
    out = from_blocks(rounded(blocks / scale, *numbers) * scale, axis, x.shape[axis])
    return out.to(x.dtype, copy=True)  # forward mode fails on views whose layout the tangent has not (torch 2.13)


@scaled_blocks.vjp
def scaled_blocks_vjp(
    g: Tensor, x: Tensor, axis: int, block: int, element: Element, mode: ScaleMode, mask: RangeMask
) -> Tensor:
    if mask == "none":
        return g
    with torch.no_grad():  # where the gradient passes is a constant
        blocks = in_blocks(x.to(working_dtype(x.dtype)), axis, block)
        form = ELEMENTS[element]
        v = from_blocks(blocks / _shared_scale(blocks, form, mode), axis, x.shape[axis])
        inside = passing(v, -form.largest, form.largest, "inclusive")
    return inside(g.to(v.dtype))


def _plain_scale(x: Tensor, form: Format, mode: str) -> Tensor:
    """Return the scale of one block by logarithms, for numbers where these are exact enough."""
    amax = float(x.abs().max())
    if amax == 0:
        return torch.tensor(E8M0_SMALLEST, dtype=torch.float64)
    size, top = torch.tensor(amax, dtype=torch.float64), torch.tensor(form.top_binade, dtype=torch.float64)
    if mode == "even":
        step = torch.exp2(size.log2().floor()) * 2.0**-form.mantissa_bits
        size = torch.floor(size / step + 0.5) * step
    exponent = {
        "floor": size.log2().floor() - top.log2(),
        "even": size.log2().floor() - top.log2(),
        "ceil": size.log2().ceil() - top.log2(),
        "rceil": (size / form.largest).log2().ceil(),
    }[mode]
    return torch.exp2(exponent.clamp(-127, 127))


def by_block(x: Tensor, axis: int, block: int, scale_of: Any) -> Tensor:
    """Return the scale of the block of each element, block by block."""
    lines = x.detach().double().movedim(axis, -1)
    found = [
        scale_of(part).expand(len(part)) for line in lines.reshape(-1, lines.shape[-1]) for part in line.split(block)
    ]
    return torch.cat(found).reshape(lines.shape).movedim(-1, axis)


def _mx_scales(x: Tensor, options: dict[str, Any]) -> Tensor:
    form, mode = ELEMENTS[options.get("element", "e4m3")], options.get("scale_mode", "floor")
    axis, block = options.get("axis", -1), options.get("block", 32)
    return by_block(x, axis, block, lambda line: _plain_scale(line, form, mode))


def _mx_surrogate(x: Tensor, **options: Any) -> Tensor:
    form = ELEMENTS[options.get("element", "e4m3")]
    bound = (_mx_scales(x, options) * form.largest).to(x.dtype)
    clipped = (x.detach().abs() > bound) & torch.tensor(options.get("mask") == "range")
    return torch.where(clipped, bound, x.clone())


def _mx_values(x: Tensor, **options: Any) -> Tensor:
    scales = _mx_scales(x, options)
    return nearest(x.double() / scales, ELEMENTS[options.get("element", "e4m3")]) * scales


def _mx_codes(x: Tensor, **options: Any) -> Tensor:
    numbers = ELEMENTS[options.get("element", "e4m3")].numbers()
    return torch.cat([-numbers, numbers]) * _mx_scales(x, options)[..., None]


def _line(form: Format, largest: float, dtype: torch.dtype) -> Tensor:
    """Return a block whose largest size is given, with ties of its format, zero, and sizes next to the largest."""
    scale = float(_plain_scale(torch.tensor([largest], dtype=torch.float64), form, "floor"))
    numbers = form.numbers()[[1, 2, 3, 4, -4, -3, -2]]
    ties = [float(m) * scale for m in (numbers[1:] + numbers[:-1]) / 2]
    below = [form.largest * scale, largest / 2]
    points = torch.cat([around(*[t for t in (*ties, *below) if t < largest], dtype=dtype), torch.zeros(1, dtype=dtype)])
    signs = 1 - 2 * (torch.arange(len(points)) % 2)
    return torch.cat([points * signs, torch.tensor([largest], dtype=dtype)])[-32:]


def _mx_examples(dtype: torch.dtype) -> Sequence[Example]:
    found: list[Example] = []
    for element, form in ELEMENTS.items():
        modes = {"e2m1": SCALE_MODES, "e4m3": ("floor", "even")}.get(element, ("floor",))
        sizes = (1.0, 1.25, form.largest / form.top_binade, 1.9375) if len(modes) > 1 else (1.25, 1.9375)
        lines = [_line(form, size * 2.0**-3, dtype) for size in sizes]
        x = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True)
        found.extend(Example((x,), {"element": element, "scale_mode": mode}, f"{element}, {mode}") for mode in modes)
    low = torch.stack([_line(ELEMENTS["e2m1"], size, dtype)[-20:] for size in (1.75, 1.9375)])
    found.append(Example((low,), {"element": "e2m1", "mask": "range"}, "clipped by the scale"))
    found.append(Example((low.T.contiguous(),), {"element": "e2m1", "axis": 0, "block": 8}, "short last block"))
    found.append(Example((grid(-3, 3, 30, dtype).reshape(2, 5, 3),), {"axis": 1, "block": 2}, "middle axis"))
    return found


@catalogued(
    forward="out = clip(nearest(x / S), -m, m) S; S a power of two for each block",
    gradient={"x": "g everywhere; with mask 'range' g where |x| <= m S"},
    surrogate=_mx_surrogate,
    examples=_mx_examples,
    values=_mx_values,
    codes=_mx_codes,
    paper="OCP Microscaling Formats 1.0, 2023; Rouhani et al. 2023, arXiv 2310.10537",
)
def mx(
    x: Tensor,
    *,
    element: Element = "e4m3",
    axis: int = -1,
    block: int = 32,
    scale_mode: ScaleMode = "floor",
    mask: RangeMask = "none",
) -> Tensor:
    """Round to an MX format: blocks of 32 elements that share a power of two (E8M0).

    With the largest size ``a`` of a block, the largest element ``m`` and its power of two ``t``, ``S`` is

    - ``"floor"``: ``2 ** floor(log2 a) / t``; what lies between ``m S`` and ``2 t S`` is clipped;
    - ``"ceil"``: ``2 ** ceil(log2 a) / t``; nothing is clipped;
    - ``"even"``: as ``"floor"``, of ``a`` rounded to the mantissa of the elements (ties up). Clipped is what is rounded
      down to ``m`` anyway, and with E4M3, whose highest code is nan, up to ``1.11 m``;
    - ``"rceil"``: the smallest power of two with ``a <= m S``; nothing is clipped.

    It is at least ``2 ** -127`` and at most ``2 ** 127``.

    Arguments:
        x: floating point, of at least one dimension.
        element: ``"e4m3"``, ``"e5m2"`` (MXFP8), ``"e3m2"``, ``"e2m3"`` (MXFP6), ``"e2m1"`` (MXFP4) or ``"int8"``
            (MXINT8: whole multiples of 1/64 up to 127/64).
        axis: the dimension along which blocks lie; the one that a matrix product sums over.
        block: how many elements share a scale; the last block may have fewer.
        scale_mode: how the scale follows from the largest size; see above.
        mask: ``"none"``: the gradient passes everywhere; ``"range"``: not where an element is clipped.

    Returns:
        a tensor of the shape and dtype of ``x``. A block with infinity or nan in it is all nan. In float16 what is
        rounded up beyond 65504 becomes infinity, as in any cast.

    Raises:
        OptionError: an option has no value that is known.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.4, -3.0, 7.5], requires_grad=True)
        >>> out = gw.ste.mx(x, element="e2m1")
        >>> out.tolist(), gw.ste.mx(x, element="e2m1", scale_mode="ceil").tolist()
        ([0.5, -3.0, 6.0], [0.0, -3.0, 8.0])
        >>> torch.autograd.grad(out.sum(), x)
        (tensor([1., 1., 1.]),)
    """
    if element not in ELEMENTS:
        raise unknown_choice("mx: element", element, list(ELEMENTS))
    if scale_mode not in SCALE_MODES:
        raise unknown_choice("mx: scale_mode", scale_mode, SCALE_MODES)
    check_range_mask("mx", mask, None)
    check_blocks("mx", x, axis, block)
    return scaled_blocks(x, axis, block, element, scale_mode, mask)
