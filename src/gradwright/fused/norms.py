"""RMS normalisation in blocks of rows that stay in the cache, which keeps its arguments alone.

Written in plain PyTorch, as ``torch.nn.functional.rms_norm`` is on a CPU too, each step reads and writes the whole
tensor, and keeps a second one of that size. Here a block of rows goes through all steps at once, forward and backward,
and what is allocated at full size is the output and the gradient (the norm: Zhang and Sennrich 2019, arXiv 1910.07467;
the blocks: Hsu et al. 2024, arXiv 2410.10989). With ``r = rsqrt(mean(x x) + eps)``, ``h = x r``, the weight ``w`` and
``u = g w``

    out = h w        dx = r (u - h mean(u h))        dw = sum over rows of g h

where ``r`` is found once more in the backward: that is one pass within the cache.

``layer_norm`` is not in the catalogue: the kernel of PyTorch does all that already, and no arrangement of PyTorch's
operations was faster. It is here so that both norms take a residual alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError, OptionError, kind_of, unknown_choice
from gradwright.fused.norm_rows import Cast, formula, in_blocks, several_blocks, slopes, slopes_in_blocks
from gradwright.fused.route import by_hand
from gradwright.stable.arguments import require_floating, require_number

CASTS: tuple[Cast, ...] = ("output", "normalized")
Shape: TypeAlias = int | Sequence[int]


def trailing_dims(name: str, x: Tensor, normalized_shape: Shape, **parameters: Tensor | None) -> int:
    """Return how many dimensions one row has, refusing shapes that do not fit.

    Raises:
        ArgumentError: ``normalized_shape`` is not the end of the shape of ``x``, or a parameter has another shape.
    """
    sizes: Any = (normalized_shape,) if isinstance(normalized_shape, (int, torch.SymInt)) else normalized_shape
    if not isinstance(sizes, Sequence) or not sizes or not all(isinstance(n, (int, torch.SymInt)) for n in sizes):
        kind = repr(normalized_shape) if isinstance(sizes, Sequence) else kind_of(normalized_shape)
        raise ArgumentError(
            f"{name}: normalized_shape is {kind}; expected the sizes of the last dimensions, at least one."
        )
    sizes = tuple(sizes)
    if tuple(x.shape[-len(sizes) :]) != sizes:
        raise ArgumentError(
            f"{name}: x has shape {tuple(x.shape)}; expected it to end with normalized_shape, {sizes}; correct one."
        )
    for parameter, tensor in parameters.items():
        if tensor is not None and tuple(tensor.shape) != sizes:
            raise ArgumentError(
                f"{name}: {parameter} has shape {tuple(tensor.shape)}; expected normalized_shape, {sizes}; reshape it."
            )
    return len(sizes)


def _given(**tensors: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


@custom_gradient
def _rms(x: Tensor, weight: Tensor | None, dims: int, eps: float, offset: float, cast: Cast) -> Tensor:
    blocks = by_hand(x, weight) and several_blocks(x, dims)
    return (in_blocks if blocks else formula)(x, weight, dims, eps, offset, cast)


@_rms.vjp
def _rms_vjp(
    g: Tensor, x: Tensor, weight: Tensor | None, dims: int, eps: float, offset: float, needs: dict[str, bool]
) -> dict[str, Tensor | None]:
    if not torch.is_grad_enabled() and by_hand(g, x, weight) and several_blocks(x, dims):
        dx, dw = slopes_in_blocks(g, x, weight, dims, eps, offset, needs)
    else:
        dx, dw = slopes(g, x, weight, dims, eps, offset)
    return {"x": dx, "weight": dw}


def _by_pytorch(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    offset: float = 0.0,
    cast: Cast = "output",
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the same, where dtypes are too wide for ``cast`` to matter."""
    total = x if residual is None else x + residual
    scale = weight if weight is None or not offset else weight + offset
    out = torch.nn.functional.rms_norm(total, tuple(normalized_shape), scale, eps)
    return out if residual is None else (out, total)


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    x = grid(-2.0, 2.0, 24, dtype).reshape(3, 8)
    weight = grid(0.5, 1.5, 8, dtype)
    eighths = (torch.arange(24, dtype=torch.float64).mul(7).remainder(23).sub(11) / 8).to(dtype).reshape(3, 8)
    rows_of_zeros = eighths * torch.tensor([[0.0], [1.0], [0.0]], dtype=dtype)
    return [
        Point((x, (8,), weight, 1e-6), note="ordinary"),
        Point((x.reshape(2, 3, 4), (3, 4)), note="two dimensions in a row, no weight"),
        Point((x.reshape(8, 3).t(), (8,), weight, 1e-3), {"offset": 1.0}, note="not contiguous, one is added"),
        Point(
            (eighths, (8,), weight, 1e-5),
            {"residual": eighths.flip(0) / 2, "cast": "normalized"},
            note="residual, rounded before the weight",
        ),
        Point((rows_of_zeros, (8,), weight, 0.25), note="rows of zeros"),
        Point((x[0], (8,), weight), {"residual": x[0] * 2}, note="one row that is all"),
    ]


@overload
def rms_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = ...,
    eps: float | None = ...,
    *,
    residual: None = ...,
    offset: float = ...,
    cast: Cast = ...,
) -> Tensor: ...


@overload
def rms_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = ...,
    eps: float | None = ...,
    *,
    residual: Tensor,
    offset: float = ...,
    cast: Cast = ...,
) -> tuple[Tensor, Tensor]: ...


@cheaper(
    forward="out = (x + residual) / sqrt(mean((x + residual)^2) + eps) * (weight + offset)",
    gradient={
        "x": "r (u - h mean(u h)), with r = 1 / sqrt(mean(x^2) + eps), h = x r, u = g (weight + offset)",
        "weight": "sum over rows of g h",
        "residual": "that of x",
    },
    replaces=_by_pytorch,
    goal=Goal(time=0.45, peak=0.34, kept=0.001),
    domain="rows whose squares are in the range of float32, or of x if that is wider; with eps=0 not a row of zeros",
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples,
    ordinary=lambda: (torch.randn(4096, 2048), (2048,), 1 + 0.1 * torch.randn(2048), 1e-6),
    observed=lambda out: out if isinstance(out, Tensor) else torch.stack(out),
    paper="Zhang and Sennrich 2019, arXiv 1910.07467; Hsu et al. 2024, arXiv 2410.10989",
)
def rms_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    offset: float = 0.0,
    cast: Cast = "output",
) -> Tensor | tuple[Tensor, Tensor]:
    """Divide each row by its root mean square, with a weight, and with a residual that is added before.

    Arguments:
        x: floating point. Half types are computed with in float32.
        normalized_shape: the sizes of the last dimensions, which are one row.
        weight: of that shape; None for ones.
        eps: what is added to the mean of the squares; None for that of the dtype that is computed in.
        residual: added to ``x`` first; the sum is returned as well.
        offset: added to ``weight``; 1.0 in Gemma, whose weights start at zero.
        cast: what is rounded to the dtype of ``x``: the output, as in PyTorch and Gemma, or what has been normalised,
            before the weight comes to it, as in Llama. The numbers are then theirs to rounding, and so is the dtype of
            the output: with ``normalized`` it is the common one of ``x`` and ``weight``.

    Returns:
        the normalised rows, with the shape of ``x``; with ``residual`` these and ``x + residual``.

    Raises:
        ArgumentError: a tensor has another dtype or shape.
        OptionError: ``cast`` is not known, or there is an offset and no weight.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.rms_norm(torch.tensor([[3.0, 4.0, 0.0, 0.0]]), 4, torch.tensor([1.0, 1.0, 1.0, 2.0]))
        tensor([[1.2000, 1.6000, 0.0000, 0.0000]])
        >>> normed, total = gw.fused.rms_norm(torch.ones(1, 2), 2, residual=torch.ones(1, 2))
        >>> normed, total
        (tensor([[1., 1.]]), tensor([[2., 2.]]))
    """
    require_floating("rms_norm", x=x, **_given(weight=weight, residual=residual))
    require_number("rms_norm", eps=0.0 if eps is None else eps, offset=offset)
    if cast not in CASTS:
        raise unknown_choice("rms_norm: cast", cast, CASTS)
    if weight is None and offset:
        raise OptionError(
            f"rms_norm: offset is {offset} and there is no weight; expected one; pass it, or leave offset."
        )
    total = x if residual is None else x + residual
    dims = trailing_dims("rms_norm", total, normalized_shape, weight=weight)
    least = torch.finfo(torch.float32 if total.dtype in HALF else total.dtype).eps if eps is None else eps
    out = _rms(total, weight, dims, least, offset, cast)
    return out if residual is None else (out, total)


@overload
def layer_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = ...,
    bias: Tensor | None = ...,
    eps: float = ...,
    *,
    residual: None = ...,
) -> Tensor: ...


@overload
def layer_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = ...,
    bias: Tensor | None = ...,
    eps: float = ...,
    *,
    residual: Tensor,
) -> tuple[Tensor, Tensor]: ...


def layer_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Do as ``torch.nn.functional.layer_norm``, with a residual that is added before.

    It is PyTorch's own kernel, which nothing here is faster or smaller than: at 4096 rows of 2048 numbers it takes as
    long as :func:`rms_norm`.

    Arguments:
        x: floating point.
        normalized_shape: the sizes of the last dimensions, which are one row.
        weight, bias: of that shape; None for ones and zeros.
        eps: what is added to the variance.
        residual: added to ``x`` first; the sum is returned as well.

    Returns:
        the normalised rows, with the shape of ``x``; with ``residual`` these and ``x + residual``.

    Raises:
        ArgumentError: a tensor has another dtype or shape.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.layer_norm(torch.tensor([[1.0, 3.0]]), 2, residual=torch.tensor([[0.0, 2.0]]))
        (tensor([[-1.0000,  1.0000]]), tensor([[1., 5.]]))
    """
    require_floating("layer_norm", x=x, **_given(weight=weight, bias=bias, residual=residual))
    total = x if residual is None else x + residual
    dims = trailing_dims("layer_norm", total, normalized_shape, weight=weight, bias=bias)
    out = torch.nn.functional.layer_norm(total, total.shape[total.dim() - dims :], weight, bias, eps)
    return out if residual is None else (out, total)
