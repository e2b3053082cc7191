"""The three quantisers of DoReFa-Net: for weights, for activations and, in the backward, for gradients.

All have ``2^k`` values that are evenly spaced, on ``[0, 1]`` or ``[-1, 1]``, and let the gradient pass through the
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.ste.bounds import on_bound
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.uniform import codes

DOREFA = "Zhou et al. 2016, DoReFa-Net, arXiv 1606.06160"

# -------------------------------------------------------------------- activations


@custom_gradient
def _dorefa_activations(x: Tensor, high: int) -> Tensor:
    return on_bound(x, 1.0, 0, high).to(x.dtype)


@_dorefa_activations.vjp
def _dorefa_activations_vjp(g: Tensor, x: Tensor) -> dict[str, Tensor]:
    dtype = working_dtype(x.dtype)
    with torch.no_grad():
        within = passing(x.to(dtype), 0.0, 1.0, "inclusive")
    return {"x": within(g.to(dtype))}


def _unit_surrogate(x: Tensor, *, bits: int) -> Tensor:
    return torch.where((x >= 0) & (x <= 1), x, 0.0 * x)


def _unit_points(dtype: torch.dtype) -> Sequence[Example]:
    x = joined([around(-1.0, 0.0, 1.0, 2.0, dtype=dtype), grid(-1.0, 2.0, 17, dtype)])
    return [Example((x,), {"bits": bits}, f"{bits} bits") for bits in (1, 2, 4, 8)]


@catalogued(
    forward="out = round(clip(x, 0, 1) (2^bits - 1)) / (2^bits - 1)",
    gradient={"x": "g where 0 <= x <= 1, else 0"},
    surrogate=_unit_surrogate,
    examples=_unit_points,
    values=lambda x, *, bits: torch.round(x.clamp(0, 1) * (2**bits - 1)) / (2**bits - 1),
    codes=lambda x, *, bits: torch.arange(2**bits, dtype=torch.float64) / (2**bits - 1),
    paper=DOREFA,
)
def dorefa_activations(x: Tensor, *, bits: int) -> Tensor:
    """Clip activations to ``[0, 1]`` and quantise them, as in DoReFa-Net.

    Arguments:
        x: floating point, of any shape.
        bits: how many; values are ``0, 1 / (2 ** bits - 1), ..., 1``.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: ``bits`` is less than 1.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, 0.4, 1.0, 3.0], requires_grad=True)
        >>> out = gw.ste.dorefa_activations(x, bits=1)
        >>> out.tolist(), torch.autograd.grad(out.sum(), x)
        ([0.0, 0.0, 1.0, 1.0], (tensor([0., 1., 1., 0.]),))
    """
    return _dorefa_activations(x, codes(bits, signed=False)[1])


# -------------------------------------------------------------------- weights


@custom_gradient(double_backward="once")  # the maximum is held constant, so that the rule is no function's gradient
def _dorefa_weights(x: Tensor, high: int) -> Tensor:
    squeezed, largest = _tanh(x)
    # Codes from -high to high in steps of two, divided once: the values are rounded correctly.
    code = squeezed.mul_(0.5 / largest).add_(0.5).mul_(high).round_()
    return code.mul_(2).sub_(high).div_(high).to(x.dtype)


@_dorefa_weights.vjp
def _dorefa_weights_vjp(g: Tensor, x: Tensor) -> dict[str, Tensor]:
    squeezed, largest = _tanh(x)
    return {"x": (1 - squeezed * squeezed) * (g.to(squeezed.dtype) / largest)}


def _tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``tanh(x)``, and the largest absolute value of it as a constant, 1 where its reciprocal is no number."""
    squeezed = torch.tanh(x.to(working_dtype(x.dtype)))
    if x.numel() == 0:
        return squeezed, squeezed.new_ones(())
    largest = squeezed.detach().abs().amax()
    return squeezed, torch.where(largest.reciprocal().isinf(), 1.0, largest)


def _squeezed_surrogate(x: Tensor, *, bits: int) -> Tensor:
    t = torch.tanh(x)
    return t / t.detach().abs().max()


def _squeezed_values(x: Tensor, *, bits: int) -> Tensor:
    t, high = torch.tanh(x), 2**bits - 1
    out: Tensor = (2 * torch.round((t / (2 * t.abs().max()) + 0.5) * high) - high) / high
    return out


def _weights(dtype: torch.dtype) -> Sequence[Example]:
    x = grid(-3.0, 2.5, 23, dtype)
    found = [Example((x,), {"bits": bits}, f"{bits} bits") for bits in (1, 2, 3, 8)]
    return [*found, Example((x[:20].reshape(4, 5) / 16,), {"bits": 4}, "small")]


@catalogued(
    forward="out = 2 round((2^bits - 1) (tanh(x) / (2 max|tanh(x)|) + 1/2)) / (2^bits - 1) - 1",
    gradient={"x": "g (1 - tanh(x)^2) / max|tanh(x)|, where the maximum is a constant"},
    surrogate=_squeezed_surrogate,
    examples=_weights,
    values=_squeezed_values,
    codes=lambda x, *, bits: torch.arange(1 - 2**bits, 2**bits, 2, dtype=torch.float64) / (2**bits - 1),
    second_order="raises",
    paper=DOREFA,
)
def dorefa_weights(x: Tensor, *, bits: int) -> Tensor:
    """Squeeze weights to ``[-1, 1]`` by ``tanh`` and quantise them, as in DoReFa-Net.

    (For one bit the paper uses the sign times the mean absolute value instead; here the formula is one for all.)

    Arguments:
        x: the weights, floating point, of any shape; the maximum is that of the whole tensor.
        bits: how many; values are evenly spaced from -1 to 1, and zero is none of them.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: ``bits`` is less than 1.

    Example:
        >>> import torch, gradwright as gw
        >>> w = torch.tensor([-2.0, 0.1, 0.5], requires_grad=True)
        >>> gw.ste.dorefa_weights(w, bits=1).tolist()
        [-1.0, 1.0, 1.0]
    """
    return _dorefa_weights(x, codes(bits, signed=False)[1])


# -------------------------------------------------------------------- gradients


@custom_gradient(double_backward="once", forward_mode="none")
def _dorefa_gradients(x: Tensor, high: int, noise: bool, generator: torch.Generator | None) -> Tensor:
    return x.clone()


@_dorefa_gradients.vjp
def _dorefa_gradients_vjp(g: Tensor, high: int, noise: bool, generator: Any) -> dict[str, Tensor]:
    if g.numel() == 0:
        return {"x": g}
    wide = g.to(working_dtype(g.dtype))
    largest = wide.abs().amax(tuple(range(1, g.dim())), keepdim=True) if g.dim() > 1 else wide.abs().amax()
    ratio = high / (2 * largest)
    # The ratio to zero or next to zero is infinite, and that times the zeros in the cotangent would be nan.
    code = wide * torch.where(ratio.isinf(), 0.0, ratio) + high / 2
    if noise:
        code = code + (torch.rand(code.shape, dtype=code.dtype, device=code.device, generator=generator) - 0.5)
    return {"x": (code.round().clamp(0, high) * 2 - high) / high * largest}


def _declared_cotangent(g: Tensor, x: Tensor, *, bits: int, noise: bool = False, generator: Any = None) -> Tensor:
    high = 2**bits - 1
    largest = g.abs().reshape(g.shape[0], -1).max(1).values if g.dim() > 1 else g.abs().max()
    largest = largest.reshape(-1, *[1] * (g.dim() - 1)) if g.dim() > 1 else largest
    quantized: Tensor = 2 * largest * (torch.round((g / (2 * largest) + 0.5) * high) / high - 0.5)
    return quantized


def _gradients(dtype: torch.dtype) -> Sequence[Example]:
    x = grid(-1.0, 1.0, 24, dtype)
    return [
        Example((x.reshape(4, 3, 2),), {"bits": 4, "noise": False}, "4 bits"),
        Example((x.reshape(4, 6),), {"bits": 8, "noise": False}, "8 bits"),
        Example((x,), {"bits": 2, "noise": False}, "one dimension"),
    ]


@catalogued(
    forward="out = x",
    gradient={"x": "2 m (round((2^bits - 1) (g / (2 m) + 1/2) + noise) / (2^bits - 1) - 1/2), m = max|g|"},
    surrogate=lambda x, **_: x.clone(),
    examples=_gradients,
    values=lambda x, **_: x,
    cotangent=_declared_cotangent,
    second_order="raises",
    paper=DOREFA,
)
def dorefa_gradients(x: Tensor, *, bits: int, noise: bool = True, generator: torch.Generator | None = None) -> Tensor:
    """Return ``x``; the gradient that comes back through it is quantised, as in DoReFa-Net.

    The rule is not linear in the gradient. There is no forward mode, and a second derivative raises.

    Arguments:
        x: floating point, of any shape. The largest gradient ``m`` is that of each slice along the first dimension
            (each sample of a batch), and of the whole tensor if it has only one dimension.
        bits: how many, for values that are evenly spaced from ``-m`` to ``m``; zero is none of them.
        noise: add noise from ``[-1/2, 1/2)`` before rounding, so that the gradient is right on average; without it
            small gradients are all rounded to the two values next to zero.
        generator: of the noise; None is the default one.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: ``bits`` is less than 1.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.zeros(3, requires_grad=True)
        >>> out = gw.ste.dorefa_gradients(x, bits=2, noise=False)
        >>> torch.autograd.grad(out, x, torch.tensor([3.0, 0.9, -1.2]))
        (tensor([ 3.,  1., -1.]),)
    """
    return _dorefa_gradients(x, codes(bits, signed=False)[1], noise, generator)
