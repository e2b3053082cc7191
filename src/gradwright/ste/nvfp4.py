"""Fake quantisation to NVFP4: blocks of 16 E2M1 elements, an E4M3 scale for each, and one scale for the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.ste.blocks import ELEMENTS, by_block, check_blocks, from_blocks, in_blocks
from gradwright.ste.formats import Format, rounded
from gradwright.ste.masks import working_dtype
from gradwright.ste.minifloat import nearest

E2M1, E4M3 = ELEMENTS["e2m1"], ELEMENTS["e4m3"]
FULL_SCALE = E2M1.largest * E4M3.largest
"""The largest size in units of the scale of the tensor."""


def _cast(v: Tensor, form: Format) -> Tensor:
    return rounded(v, form.mantissa_bits, form.smallest_normal, form.top_binade, form.largest, form.largest)


@custom_gradient(nondiff=("tensor_scale",))
def two_level(x: Tensor, tensor_scale: Tensor | float | None, axis: int, block: int) -> Tensor:
    """Round to NVFP4; see :func:`nvfp4`."""
    blocks = in_blocks(x.to(working_dtype(x.dtype)), axis, block)
    sizes = blocks.abs().amax(-1, keepdim=True)
    if tensor_scale is None:
        # Of a tensor without elements no largest size exists; any scale does.
        largest = sizes.amax() if sizes.numel() else sizes.new_zeros(())
        tensor_scale = (largest / FULL_SCALE).float().to(blocks.dtype)
        tensor_scale = torch.where(tensor_scale == 0, 1.0, tensor_scale)
    scale = _cast(sizes / tensor_scale / E2M1.largest, E4M3).clamp(min=E4M3.smallest)
    code = _cast(blocks / (scale * tensor_scale), E2M1)
    # The product of code and block scale is exact, so that only the last one is rounded.
    out = from_blocks(code * scale * tensor_scale, axis, x.shape[axis])
    return out.to(x.dtype, copy=True)  # forward mode fails on views whose layout the tangent has not (torch 2.13)


@two_level.vjp
def two_level_vjp(g: Tensor) -> dict[str, Tensor]:
    return {"x": g}


def _surrogate(x: Tensor, **_: Any) -> Tensor:
    return x.clone()


def _scales(x: Tensor, tensor_scale: Any, axis: int, block: int) -> tuple[Tensor, Tensor]:
    """Return the scale of the tensor and that of the block of each element."""
    if tensor_scale is None:
        tensor_scale = (x.detach().double().abs().max() / FULL_SCALE).float().double()
        tensor_scale = torch.where(tensor_scale == 0, 1.0, tensor_scale)
    tensor_scale = torch.as_tensor(tensor_scale, dtype=torch.float64)

    def scale_of(line: Tensor) -> Tensor:
        return nearest(line.abs().max() / tensor_scale / 6, E4M3).clamp(min=2.0**-9)

    return tensor_scale, by_block(x, axis, block, scale_of)


def _values(x: Tensor, *, tensor_scale: Any = None, axis: int = -1, block: int = 16) -> Tensor:
    whole, scales = _scales(x, tensor_scale, axis, block)
    return nearest(x.double() / (scales * whole), E2M1) * scales * whole


def _codes(x: Tensor, *, tensor_scale: Any = None, axis: int = -1, block: int = 16) -> Tensor:
    whole, scales = _scales(x, tensor_scale, axis, block)
    numbers = E2M1.numbers()
    return torch.cat([-numbers, numbers]) * scales[..., None] * whole


def _block(scale: float, dtype: torch.dtype) -> Tensor:
    """Return a block of 16 whose largest size is 6 in units of a scale, with ties of E2M1 and their neighbours."""
    ties = around(*[t * scale for t in (0.25, 1.25, 2.5, 5.0)], dtype=dtype)
    rest = torch.tensor([0.0, -3.5 * scale, 1.75 * scale, -6.0 * scale], dtype=dtype)
    return torch.cat([ties * (1 - 2 * (torch.arange(12) % 2)), rest])


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    step = 2.0**-8  # the scale of the tensor, where its largest size is 2688 of them
    top = torch.full((16,), FULL_SCALE * step, dtype=dtype)
    blocks = [_block(scale * step, dtype) for scale in (1.0, 448.0, 2.0**-6, 2.0**-9, 1.125)]
    tie = torch.full((16,), 6 * 1.0625 * step, dtype=dtype)  # its scale is a tie of E4M3
    tiny = grid(-0.1, 0.1, 16, dtype) * step * 2.0**-6
    x = torch.stack([top, *blocks, tie, tiny, torch.zeros(16, dtype=dtype)])
    return [
        Example((x,), {}, "every kind of scale"),
        Example((x[1:3],), {"tensor_scale": step}, "a given scale"),
        Example((x[:, :5].T.contiguous(),), {"axis": 0, "block": 4}, "short last block"),
        Example((x[:4].reshape(2, 2, 16),), {"axis": -1}, "three dimensions"),
    ]


@catalogued(
    forward="out = clip(nearest(x / (b t)), -6, 6) b t; b = max(2^-9, E4M3(a / (6 t))) for each block",
    gradient={"x": "g everywhere"},
    surrogate=_surrogate,
    examples=_examples,
    values=_values,
    codes=_codes,
    paper="NVIDIA 2025, arXiv 2509.25149",
)
def nvfp4(x: Tensor, *, tensor_scale: Tensor | float | None = None, axis: int = -1, block: int = 16) -> Tensor:
    """Round to NVFP4: E2M1 elements, an E4M3 scale for each block of 16, a float32 scale for the tensor.

    The scale of the block is ``b = E4M3(a / (6 t))`` for its largest size ``a``, at least the smallest number of E4M3,
    ``2 ** -9``. Where it is rounded down, the largest elements are a little beyond 6 and become 6; the gradient passes
    there too. Both scales are held constant.

    Arguments:
        x: floating point, of at least one dimension.
        tensor_scale: ``t``; None takes the largest size in ``x`` divided by 6 * 448, in float32. It has no gradient.
        axis: the dimension along which blocks lie; the one that a matrix product sums over.
        block: how many elements share a scale; the last block may have fewer.

    Returns:
        a tensor of the shape and dtype of ``x``. Infinity or nan in ``x`` makes all of it nan; with a
        given ``tensor_scale`` nan makes its block nan, and infinity counts as the largest number.

    Raises:
        OptionError: there is no such axis or block.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([0.4, -3.0, 7.5, 10.5], requires_grad=True)
        >>> out = gw.ste.nvfp4(x)
        >>> out.tolist()
        [0.0, -2.625, 7.0, 10.5]
        >>> torch.autograd.grad(out.sum(), x)
        (tensor([1., 1., 1., 1.]),)
    """
    check_blocks("nvfp4", x, axis, block)
    return two_level(x, tensor_scale, axis, block)
