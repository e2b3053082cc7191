"""A linear layer of an activation that is formed again in the backward instead of kept.

``linear(act(x), weight)`` keeps ``x`` for the activation and ``act(x)`` for the layer. Here ``x`` is kept alone; the
backward forms ``act(x)`` again, in blocks of rows whose memory every block uses again, and adds each to the gradient of
the weight while it is in the cache::

    out = act(x) W' + b     dW = g' act(x)     dx = (g W) act'(x)     db = sum of the rows of g

That costs one activation more, beside three matrix products, and saves the largest tensor of the layer. An activation
whose gradient is read from its output (``gw.fused.elu``) needs none of it: the layer's own tensor is all that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError, unknown_choice
from gradwright.fused.route import MATRIX_ROWS, block_rows, by_hand, product_dtype
from gradwright.stable.arguments import require_floating, widened

F = TypeVar("F", bound=Callable[..., Any])

FORMULAE: Mapping[str, Any] = {
    "forward": "out = act(x) weight' + bias",
    "gradient": {"x": "(g weight) act'(x)", "weight": "g' act(x)", "bias": "sum of the rows of g"},
}


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    x, weight = grid(-3.0, 3.0, 24, dtype).reshape(6, 4), grid(-0.75, 0.75, 20, dtype).reshape(5, 4)
    bias = grid(-1.0, 1.0, 5, dtype)
    return [
        Point((x, weight, bias), note="ordinary"),
        Point((x.reshape(2, 3, 4).transpose(0, 1), weight.t().contiguous().t()), note="no bias, not contiguous"),
        Point((x[4], weight, bias), note="one row"),
        Point((x[:0], weight, bias), note="empty"),
    ]


def _ordinary() -> tuple[Tensor, ...]:
    return torch.randn(2048, 2048), torch.randn(512, 2048) / 45, torch.randn(512)


def _entered(replaces: Callable[..., Any], paper: str) -> Callable[[F], F]:
    return cheaper(
        **FORMULAE,
        replaces=replaces,
        goal=Goal(time=1.1, kept=0.01, peak=0.75),
        domain="every number",
        bars=relative(1e-12, 1e-6, *HALF),
        examples=_examples,
        ordinary=_ordinary,
        paper=paper,
    )


def _gelu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    return functional.linear(functional.gelu(x, approximate=approximate), weight, bias)


@_entered(_gelu_linear, "Hendrycks, Gimpel 2016, arXiv:1606.08415; recomputation: Chen et al. 2016, arXiv:1604.06174")
def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    """Return ``linear(gelu(x), weight, bias)`` and keep ``x`` alone.

    Arguments:
        x: of shape ``(..., in_features)``, floating point.
        weight: of shape ``(out_features, in_features)``, of the same dtype.
        bias: of shape ``(out_features,)``, or None.
        approximate: ``"none"`` or ``"tanh"``, as for ``torch.nn.functional.gelu``.

    Returns:
        a tensor of shape ``(..., out_features)``; under autocast of its dtype.

    Raises:
        ArgumentError: shapes or dtypes do not fit.
        OptionError: ``approximate`` is something else.

    Example:
        >>> import torch, gradwright as gw
        >>> hidden, weight = torch.ones(2, 3), torch.ones(1, 3)
        >>> gw.fused.gelu_linear(hidden, weight)
        tensor([[2.5240],
                [2.5240]])
    """
    if approximate not in ("none", "tanh"):
        raise unknown_choice("approximate", approximate, ("none", "tanh"))
    return _checked("gelu_linear", x, weight, bias, "gelu" if approximate == "none" else "gelu_tanh")


def _silu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(functional.silu(x), weight, bias)


@_entered(_silu_linear, "Elfwing, Uchibe, Doya 2017, arXiv:1702.03118; recomputation: Chen et al. 2016")
def silu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``linear(silu(x), weight, bias)`` and keep ``x`` alone.

    Arguments:
        x: of shape ``(..., in_features)``, floating point.
        weight: of shape ``(out_features, in_features)``, of the same dtype.
        bias: of shape ``(out_features,)``, or None.

    Returns:
        a tensor of shape ``(..., out_features)``; under autocast of its dtype.

    Raises:
        ArgumentError: shapes or dtypes do not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.silu_linear(torch.ones(2, 3), torch.ones(1, 3))
        tensor([[2.1932],
                [2.1932]])
    """
    return _checked("silu_linear", x, weight, bias, "silu")


def _mish_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(functional.mish(x), weight, bias)


@_entered(_mish_linear, "Misra 2019, arXiv:1908.08681; recomputation: Chen et al. 2016")
def mish_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``linear(mish(x), weight, bias)`` and keep ``x`` alone.

    Arguments:
        x: of shape ``(..., in_features)``, floating point.
        weight: of shape ``(out_features, in_features)``, of the same dtype.
        bias: of shape ``(out_features,)``, or None.

    Returns:
        a tensor of shape ``(..., out_features)``; under autocast of its dtype.

    Raises:
        ArgumentError: shapes or dtypes do not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.mish_linear(torch.ones(2, 3), torch.ones(1, 3))
        tensor([[2.5953],
                [2.5953]])
    """
    return _checked("mish_linear", x, weight, bias, "mish")


def _checked(name: str, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    require_floating(name, x=x, weight=weight)
    if bias is not None:
        require_floating(name, bias=bias)
    if weight.dim() != 2:
        raise ArgumentError(
            f"{name}: weight has {weight.dim()} dimensions; expected 2, (out_features, in_features); reshape it."
        )
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ArgumentError(
            f"{name}: x has shape {tuple(x.shape)}; expected (..., {weight.shape[1]}), as weight has so many "
            "in_features; transpose the one that is turned."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ArgumentError(
            f"{name}: bias has shape {tuple(bias.shape)}; expected ({weight.shape[0]},), one number for each of "
            "weight's out_features; reshape it."
        )
    for argument, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and product_dtype(tensor) != product_dtype(x):
            raise ArgumentError(
                f"{name}: {argument} is {tensor.dtype} and x is {x.dtype}; expected one dtype; convert one of them, or "
                "use torch.autocast."
            )
    return _activated_linear(x, weight, bias, activation)


# -------------------------------------------------------------------- the layer


@custom_gradient
def _activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    # Cast here: what autocast casts by itself without a graph it hands on, without one, to later layers of this weight.
    dtype = product_dtype(x)
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if not by_hand(x, weight, bias):
        return functional.linear(_activated(x, activation).to(dtype), weight, bias)
    flat = _as_rows(x)
    out = flat.new_empty(flat.shape[0], weight.shape[0], dtype=dtype)
    for rows, block in _activated_blocks(flat, activation, MATRIX_ROWS):
        if bias is None:
            torch.mm(block.to(dtype), weight.t(), out=out[rows])
        else:
            torch.addmm(bias, block.to(dtype), weight.t(), out=out[rows])
    return out.view(*x.shape[:-1], weight.shape[0])


@_activated_linear.vjp
def _activated_linear_vjp(
    g: Tensor, x: Tensor, weight: Tensor, activation: str, needs: Mapping[str, bool]
) -> dict[str, Tensor | None]:
    flat, cotangent = _as_rows(x), _as_rows(g)
    own = by_hand(g, x, weight) and not torch.is_grad_enabled()  # with a graph, the formula is differentiated again
    weigh, pull = (_weight_gradient_in_blocks, _pulled_in_place) if own else (_weight_gradient, _pulled)
    cotangent = cotangent.contiguous() if own else cotangent
    found: dict[str, Tensor | None] = {"x": None, "weight": None, "bias": None}
    if needs["weight"]:
        found["weight"] = weigh(cotangent, flat, activation).to(weight.dtype)
    if needs["x"]:
        found["x"] = pull(torch.mm(cotangent, weight.to(g.dtype)).to(x.dtype), flat, activation).reshape(x.shape)
    if needs["bias"]:
        found["bias"] = cotangent.sum(0)
    return found


def _as_rows(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _weight_gradient(g: Tensor, x: Tensor, activation: str) -> Tensor:
    return torch.mm(g.t(), _activated(x, activation).to(g.dtype))


def _weight_gradient_in_blocks(g: Tensor, x: Tensor, activation: str) -> Tensor:
    total = g.new_empty(g.shape[1], x.shape[1])
    # Half types have no digits for sums of blocks: a product of all rows at once sums in float32.
    least = max(x.shape[0], 1) if g.dtype in HALF else MATRIX_ROWS
    beta = 0
    for rows, block in _activated_blocks(x, activation, least):
        torch.addmm(total, g[rows].t(), block.to(g.dtype), beta=beta, out=total)
        beta = 1
    return total if beta else total.zero_()


def _activated_blocks(x: Tensor, activation: str, least: int) -> Iterator[tuple[slice, Tensor]]:
    """Give ``act(x)`` in blocks of at least so many rows; each block is written over by the next one."""
    step = max(least, block_rows(x.shape[0], x.shape[1], x.itemsize, x.device))
    buffer = x.new_empty(min(step, x.shape[0]), x.shape[1])
    for start in range(0, x.shape[0], step):
        rows = slice(start, min(start + step, x.shape[0]))
        block = buffer[: rows.stop - start]
        _activate_into(block, x[rows], activation)
        yield rows, block


# -------------------------------------------------------------------- the activations


def _approximation(activation: str) -> str:
    return "tanh" if activation == "gelu_tanh" else "none"


def _activated(x: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return functional.silu(x)
    if activation == "mish":
        return functional.mish(x)
    return functional.gelu(x, approximate=_approximation(activation))


def _activate_into(out: Tensor, x: Tensor, activation: str) -> None:
    if activation == "silu":
        torch.ops.aten.silu.out(x, out=out)
    elif activation == "mish":
        torch.ops.aten.mish.out(x, out=out)
    else:
        torch.ops.aten.gelu.out(x, approximate=_approximation(activation), out=out)


def _pulled(g: Tensor, x: Tensor, activation: str) -> Tensor:
    """Return ``g act'(x)``, in a form that PyTorch differentiates."""
    if activation not in ("silu", "mish"):
        pulled: Tensor = torch.ops.aten.gelu_backward(g, x, approximate=_approximation(activation))
        return pulled
    wide = widened(x)
    rising = torch.sigmoid(wide)
    if activation == "silu":
        slope = rising * (1 + wide * (1 - rising))
    else:
        gate = torch.tanh(functional.softplus(wide))
        slope = gate + wide * rising * (1 - gate * gate)
    return (g * slope).to(x.dtype)


def _pulled_in_place(own: Tensor, x: Tensor, activation: str) -> Tensor:
    """Return the same in the memory of the first argument, which nobody else has."""
    if activation == "silu":
        torch.ops.aten.silu_backward.grad_input(own, x, grad_input=own)
    elif activation == "mish":  # its kernel returns memory of its own
        step = block_rows(x.shape[0], x.shape[1], x.itemsize, x.device)
        for start in range(0, x.shape[0], step):
            rows = slice(start, start + step)
            own[rows] = torch.ops.aten.mish_backward(own[rows], x[rows])
    else:
        torch.ops.aten.gelu_backward.grad_input(own, x, approximate=_approximation(activation), grad_input=own)
    return own
