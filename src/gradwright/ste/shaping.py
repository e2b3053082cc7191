"""Functions that leave values as they are and change the gradient on its way back.

The result shares the memory of ``x``, as ``x.view_as(x)`` does: nothing is copied. PyTorch refuses to edit it in place
while gradients are recorded, and to use it after ``x`` was edited; where you must, edit a ``.clone()`` of it. Forward
mode and transforms make a copy.

Reversal, scaling and stopping are linear in the cotangent ``g``: they compose with every transform. Clipping and noise
are not, and there is no forward mode and no second derivative for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.clipping import clamp_inward, inward_cotangent
from gradwright.ste.masks import working_dtype
from gradwright.ste.parameters import check_broadcast
from gradwright.ste.stochastic import check_noise, normal


def _same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _identity(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.clone()


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise OptionError(f"{name} is {value}; expected a positive number; correct it, or leave the function away.")


def _with(*options: dict[str, Any]) -> Callable[[torch.dtype], Sequence[Example]]:
    """Return examples with each of the options, for rules that do not look at ``x``."""

    def examples(dtype: torch.dtype) -> Sequence[Example]:
        x = grid(-2.0, 2.0, 12, dtype).reshape(3, 4)
        return [Example((x,), each, ", ".join(map(str, each))) for each in options]

    return examples


# -------------------------------------------------------------------- reversed, scaled, stopped


@catalogued(
    forward="out = x",
    gradient={"x": "-strength g"},
    surrogate=lambda x, strength=1.0: x * -strength,
    examples=_with({}, {"strength": 0.25}, {"strength": 0.0}),
    values=_same,
    paper="Ganin, Lempitsky 2015, arXiv 1409.7495; Ganin et al. 2016, arXiv 1505.07818",
)
@custom_gradient(nondiff=("strength",))
def reverse_gradient(x: Tensor, strength: Tensor | float = 1.0) -> Tensor:
    """Return ``x``; its gradient is reversed, so that what lies before works against what lies behind.

    Arguments:
        x: floating point, of any shape.
        strength: what the reversed gradient is multiplied by; a number, or a tensor that broadcasts. The papers let it
            grow from 0 to 1 with the progress ``p`` of the training, ``2 / (1 + exp(-10 p)) - 1``.

    Returns:
        ``x``, in the same memory.

    Raises:
        ArgumentError: ``strength`` does not broadcast to the shape of ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.ones(2, requires_grad=True)
        >>> torch.autograd.grad(gw.ste.reverse_gradient(x, 0.5).sum(), x)
        (tensor([-0.5000, -0.5000]),)
    """
    check_broadcast("reverse_gradient", "strength", strength, x)
    return x.view_as(x)


@reverse_gradient.vjp
def _reverse_vjp(g: Tensor, strength: Tensor | float) -> dict[str, Tensor]:
    return {"x": g * -strength}


@catalogued(
    forward="out = x",
    gradient={"x": "factor g"},
    surrogate=lambda x, factor: x * factor,
    examples=_with({"factor": 0.5}, {"factor": 3.0}, {"factor": 0.0}),
    values=_same,
    paper="in wide use, for example Esser et al. 2019 (LSQ), arXiv 1902.08153",
)
@custom_gradient(nondiff=("factor",))
def scale_gradient(x: Tensor, factor: Tensor | float) -> Tensor:
    """Return ``x``; its gradient is multiplied by a factor.

    Arguments:
        x: floating point, of any shape.
        factor: a number, or a tensor that broadcasts.

    Returns:
        ``x``, in the same memory.

    Raises:
        ArgumentError: ``factor`` does not broadcast to the shape of ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.ones(2, requires_grad=True)
        >>> torch.autograd.grad(gw.ste.scale_gradient(x, 0.25).sum(), x)
        (tensor([0.2500, 0.2500]),)
    """
    check_broadcast("scale_gradient", "factor", factor, x)
    return x.view_as(x)


@scale_gradient.vjp
def _scale_vjp(g: Tensor, factor: Tensor | float) -> dict[str, Tensor]:
    return {"x": g * factor}


@catalogued(
    forward="out = x",
    gradient={"x": "0"},
    surrogate=lambda x: x * 0.0,
    examples=_with({}),
    values=_same,
    paper="the stop_gradient of other frameworks",
)
@custom_gradient
def stop_gradient(x: Tensor) -> Tensor:
    """Return ``x``; nothing before it gets a gradient from here.

    Unlike that of ``x.detach()``, the result still belongs to the graph, so that a loss made of it alone can be
    differentiated.

    Arguments:
        x: floating point, of any shape.

    Returns:
        ``x``, in the same memory.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.ones(2, requires_grad=True)
        >>> torch.autograd.grad((x * gw.ste.stop_gradient(x)).sum(), x)
        (tensor([1., 1.]),)
    """
    return x.view_as(x)


@stop_gradient.vjp
def _stop_vjp(g: Tensor) -> Tensor:
    return torch.zeros_like(g)


# -------------------------------------------------------------------- clipped


def _clip_cotangent(g: Tensor, x: Tensor, limit: float) -> Tensor:
    return torch.where(g > limit, limit, torch.where(g < -limit, -limit, g))


@catalogued(
    forward="out = x",
    gradient={"x": "g clipped to -limit and limit"},
    surrogate=_identity,
    cotangent=_clip_cotangent,
    examples=_with({"limit": 2.0**-7}, {"limit": 1.0}),
    values=_same,
    second_order="raises",
    paper="the per-layer form of clipping by value; cf. Graves 2013, arXiv 1308.0850",
)
@custom_gradient(double_backward="once", forward_mode="none")
def clip_gradient(x: Tensor, limit: float) -> Tensor:
    """Return ``x``; each element of its gradient is clipped.

    Not linear in the cotangent: a loss that is multiplied, for example for mixed precision, is clipped elsewhere.

    Arguments:
        x: floating point, of any shape.
        limit: positive; the largest size of an element. A nan stays.

    Returns:
        ``x``, in the same memory.

    Raises:
        OptionError: the limit is not positive.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.ones(2, requires_grad=True)
        >>> torch.autograd.grad(gw.ste.clip_gradient(x, 1.0), x, torch.tensor([0.5, -3.0]))
        (tensor([ 0.5000, -1.0000]),)
    """
    _check_positive("clip_gradient: limit", limit)
    return x.view_as(x)


@clip_gradient.vjp
def _clip_vjp(g: Tensor, limit: float) -> Tensor:
    return g.clamp(-limit, limit)


def _rows(g: Tensor, axis: int | None) -> tuple[Tensor, list[int]]:
    """Return what each norm is taken of as a row, and the shape in which one number for each broadcasts again."""
    if axis is None:
        return g.reshape(1, -1), [1] * g.dim()
    shape = [1] * g.dim()
    shape[axis] = g.shape[axis]
    return g.movedim(axis, 0).reshape(g.shape[axis], -1), shape


def _norm_cotangent(g: Tensor, x: Tensor, limit: float, *, axis: int | None = None) -> Tensor:
    rows, shape = _rows(g, axis)
    norm = rows.square().sum(1).sqrt().reshape(shape)
    return torch.where(norm > limit, g * (limit / norm), g)


@catalogued(
    forward="out = x",
    gradient={"x": "g min(1, limit / |g|), with the norm over the tensor or over each slice"},
    surrogate=_identity,
    cotangent=_norm_cotangent,
    examples=_with({"limit": 2.0**-6}, {"limit": 1.0}, {"limit": 2.0**-6, "axis": 0}, {"limit": 2.0**-6, "axis": -1}),
    values=_same,
    second_order="raises",
    paper="Pascanu, Mikolov, Bengio 2013, arXiv 1211.5063",
)
@custom_gradient(double_backward="once", forward_mode="none")
def clip_gradient_norm(x: Tensor, limit: float, *, axis: int | None = None) -> Tensor:
    """Return ``x``; its gradient is made shorter where its Euclidean norm is larger than a limit.

    Not linear in the cotangent: a loss that is multiplied, for example for mixed precision, is clipped elsewhere.

    Arguments:
        x: floating point, of any shape.
        limit: positive; the largest norm.
        axis: None for one norm of the whole tensor; else one for each slice along this dimension, so that ``axis=0``
            clips each row, or each sample of a batch.

    Returns:
        ``x``, in the same memory.

    Raises:
        OptionError: the limit is not positive, or ``x`` has no such dimension.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.ones(2, 2, requires_grad=True)
        >>> out = gw.ste.clip_gradient_norm(x, 1.0, axis=0)
        >>> torch.autograd.grad(out, x, torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        (tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]]),)
    """
    _check_positive("clip_gradient_norm: limit", limit)
    if axis is not None and not -x.dim() <= axis < x.dim():
        raise OptionError(
            f"clip_gradient_norm: axis={axis} for a tensor of {x.dim()} dimensions; expected one of them, or None."
        )
    return x.view_as(x)


@clip_gradient_norm.vjp
def _clip_norm_vjp(g: Tensor, limit: float, axis: int | None) -> Tensor:
    g = g.to(working_dtype(g.dtype))
    if not g.numel():
        return g
    rows, shape = _rows(g, axis)
    largest = rows.abs().amax(1, keepdim=True)
    # The squares of large numbers overflow and those of small ones vanish; those of numbers up to 1 are harmless.
    norm = (torch.linalg.vector_norm(rows / largest, dim=1, keepdim=True) * largest).reshape(shape)
    return torch.where(norm > limit, g * (limit / norm), g)  # where all is zero the norm is nan


# -------------------------------------------------------------------- noise


def _noise_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = grid(-2.0, 2.0, 12, dtype).reshape(3, 4)
    return [Example((x, 0.5), {"noise": x.flip(0, 1)}, "given noise"), Example((x, 0.0), note="no noise")]


def _noise_cotangent(
    g: Tensor, x: Tensor, std: float, *, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    return g if noise is None else g + std * noise


@catalogued(
    forward="out = x",
    gradient={"x": "g + std noise"},
    surrogate=_identity,
    cotangent=_noise_cotangent,
    examples=_noise_examples,
    values=_same,
    second_order="raises",
    random="the noise is normal with mean 0 and deviation 1, so E[gradient] = g; the values are not random",
    paper="Neelakantan et al. 2015, arXiv 1511.06807",
)
@custom_gradient(double_backward="once", forward_mode="none")
def noisy_gradient(
    x: Tensor, std: float, *, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """Return ``x``; normal noise is added to its gradient, anew in every backward pass.

    Not linear in the cotangent: even where that is zero there is noise.

    Arguments:
        x: floating point, of any shape.
        std: the deviation of the noise, at least 0. The paper lets it fall with the step ``t`` of the training,
            ``sqrt(eta / (1 + t) ** 0.55)``.
        generator: draws the noise; None for PyTorch's own.
        noise: numbers of the shape of ``x`` to be used instead of drawn ones.

    Returns:
        ``x``, in the same memory.

    Raises:
        OptionError: the deviation is negative.
        ArgumentError: the noise has another shape than ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.ones(2, requires_grad=True)
        >>> out = gw.ste.noisy_gradient(x, 0.5, noise=torch.tensor([1.0, -1.0]))
        >>> torch.autograd.grad(out.sum(), x)
        (tensor([1.5000, 0.5000]),)
    """
    if not std >= 0:
        raise OptionError(f"noisy_gradient: std is {std}; expected a number of at least 0; correct it.")
    check_noise("noisy_gradient", noise, x)
    return x.view_as(x)


@noisy_gradient.vjp
def _noisy_vjp(g: Tensor, std: float, generator: torch.Generator | None, noise: Tensor | None) -> dict[str, Tensor]:
    g = g.to(working_dtype(g.dtype))
    return {"x": g + std * (normal(g, generator) if noise is None else noise)}


# -------------------------------------------------------------------- one-sided


def _bound_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = joined([around(0.0, 0.5, dtype=dtype), grid(-1.0, 2.0, 9, dtype)])
    return [Example((x.repeat_interleave(4), 0.5))]  # so that both signs of the cotangent occur at each


@catalogued(
    forward="out = max(x, bound)",
    gradient={"x": "g where x >= bound or g < 0, else 0"},
    surrogate=_identity,
    cotangent=inward_cotangent,
    examples=_bound_examples,
    values=lambda x, bound: torch.where(x < bound, bound, x.double()),
    second_order="raises",
    paper="Ballé, Laparra, Simoncelli 2017, arXiv 1611.01704",
)
def lower_bound(x: Tensor, bound: float) -> Tensor:
    """Return what is larger, ``x`` or a bound; what is below still gets the gradients that raise it.

    As in learned compression, where scales and variances must stay positive: an element that fell below the bound is
    not stuck there. It is :func:`clamp_inward` with ``low`` alone, and not linear in the cotangent.

    Arguments:
        x: floating point, of any shape.
        bound: the least value of the result.

    Returns:
        a tensor like ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-1.0, -1.0], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.lower_bound(x, 0.5), x, torch.tensor([1.0, -1.0]))
        (tensor([ 0., -1.]),)
    """
    return clamp_inward(x, bound)
