"""Random forwards: stochastic rounding, and uniform noise in the place of rounding.

Random numbers come from a ``generator``, or from PyTorch's own for None, in the forward alone: a backward pass draws
none, so that it may run twice. Under ``vmap`` say ``randomness="different"`` or ``"same"``; PyTorch refuses otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import ArgumentError
from gradwright.ste.masks import working_dtype
from gradwright.ste.parameters import check_broadcast


def check_noise(function: str, noise: Tensor | None, x: Tensor) -> None:
    """Refuse noise that is not given for each element.

    Raises:
        ArgumentError: it has another shape than ``x``.
    """
    if noise is not None and noise.shape != x.shape:
        raise ArgumentError(
            f"{function}: noise has the shape {tuple(noise.shape)}; expected that of x, {tuple(x.shape)}; draw it like "
            "torch.rand_like(x)."
        )


def uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a number from 0 to 1, without 1, for each element, in their order and not in that of the memory."""
    if generator is None:  # torch.compile does not take a None together with shapes that change (torch 2.13)
        return torch.rand_like(like, memory_format=torch.contiguous_format)
    return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a normal number for each element, in their order and not in that of the memory."""
    if generator is None:
        return torch.randn_like(like, memory_format=torch.contiguous_format)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


# -------------------------------------------------------------------- stochastic rounding


def _rounding_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = joined([around(-2.0, -0.5, 0.0, 0.5, 1.0, dtype=dtype), grid(-3.3, 3.3, 9, dtype)])
    return [Example((x,)), Example((x[:6].reshape(2, 3),), {"training": False}, "evaluation")]


def _both_neighbours(x: Tensor, **_: Any) -> Tensor:
    return torch.stack([x.floor(), x.ceil()], -1)


@catalogued(
    forward="out = floor(x) + 1 with probability x - floor(x), else floor(x); in evaluation round(x)",
    gradient={"x": "g everywhere"},
    surrogate=lambda x, **_: x.clone(),
    examples=_rounding_examples,
    codes=_both_neighbours,
    random="E[out] = x; the error of the probability is at most 2 ** -24 (2 ** -53 in float64)",
    paper="Gupta et al. 2015, arXiv 1502.02551",
)
@custom_gradient
def stochastic_round(x: Tensor, *, generator: torch.Generator | None = None, training: bool = True) -> Tensor:
    """Round up or down at random so that the mean is ``x``; the gradient passes as if nothing had happened.

    Small updates survive on a coarse grid: what nearest rounding loses each time arrives with its probability.

    Arguments:
        x: floating point, of any shape.
        generator: draws the numbers; None for PyTorch's own.
        training: whether to draw; otherwise round to the nearest integer, ties to even.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.full((10000,), 0.25, requires_grad=True)
        >>> out = gw.ste.stochastic_round(x, generator=torch.Generator().manual_seed(0))
        >>> sorted(set(out.tolist())), abs(out.mean().item() - 0.25) < 0.02
        ([0.0, 1.0], True)
        >>> float(torch.autograd.grad(out.sum(), x)[0].mean())
        1.0
    """
    if not training:
        return torch.round(x)
    value = x.to(working_dtype(x.dtype))
    down = torch.floor(value)
    return (down + (uniform(value, generator) < value - down)).to(x.dtype)


@stochastic_round.vjp
def _stochastic_round_vjp(g: Tensor) -> Tensor:
    return g


# -------------------------------------------------------------------- additive noise


def _noise_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = joined([around(-1.0, 0.0, 0.5, dtype=dtype), grid(-2.0, 2.0, 11, dtype)])
    noise, scale = grid(-0.4, 0.4, len(x), dtype), torch.tensor(0.25, dtype=dtype)
    return [
        Example((x, scale), {"noise": noise}, "learned scale"),
        Example((x, 0.5), {"noise": noise}, "fixed scale"),
        Example((x[:18].reshape(2, 9), scale.repeat(9)), {"noise": noise[:18].reshape(2, 9)}, "per channel"),
    ]


def _added(
    x: Tensor, scale: Any = 1.0, *, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    if noise is None:
        noise = uniform(x, generator) - 0.5
    out: Tensor = x + scale * noise
    return out


@catalogued(
    forward="out = x + scale noise, with noise uniform between -1/2 and 1/2",
    gradient={"x": "g", "scale": "sum of g noise", "noise": "g scale"},
    surrogate=_added,
    examples=_noise_examples,
    values=_added,
    random="E[out] = x, and the variance is scale ** 2 / 12, that of rounding to steps of scale",
    saved=4.0,
    paper="Ballé, Laparra, Simoncelli 2017, arXiv 1611.01704; DiffQ: Défossez et al. 2021, arXiv 2104.09987",
)
def uniform_noise(
    x: Tensor,
    scale: Tensor | float = 1.0,
    *,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """Add uniform noise as wide as a rounding step, in the place of rounding; all gradients are exact.

    The noise is kept for the backward, and only where ``scale`` has a gradient: 4 bytes an element (8 in float64).
    Keeping a generator's state and drawing again would cost 5 kB a call and the time of drawing, and go wrong wherever
    the backward runs on another device.

    Arguments:
        x: floating point, of any shape.
        scale: the step; a number, or a tensor that broadcasts, which may be learned.
        generator: draws the noise; None for PyTorch's own.
        noise: numbers of the shape of ``x`` to be used instead of drawn ones.

    Returns:
        a tensor like ``x``.

    Raises:
        ArgumentError: the noise has another shape than ``x``, or ``scale`` does not broadcast to it.

    Example:
        >>> import torch, gradwright as gw
        >>> x, scale = torch.ones(3), torch.tensor(0.5, requires_grad=True)
        >>> out = gw.ste.uniform_noise(x, scale, noise=torch.tensor([0.25, -0.5, 0.0]))
        >>> out.tolist(), torch.autograd.grad(out.sum(), scale)
        ([1.125, 0.75, 1.0], (tensor(-0.2500),))
    """
    check_noise("uniform_noise", noise, x)
    check_broadcast("uniform_noise", "scale", scale, x)
    value = x.to(working_dtype(x.dtype))
    if noise is None:
        noise = uniform(value, generator) - 0.5
    return (value + scale * noise.to(value.dtype)).to(x.dtype)
