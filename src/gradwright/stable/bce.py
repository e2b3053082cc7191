"""Binary cross-entropy of logits, whose gradient does not vanish for what is classified rightly.

PyTorch computes ``(1 - t) x + log(1 + exp(-x))``, where for ``t = 0`` the terms cancel, and takes the gradient from
``sigmoid(x) - t``, which is zero from 37 on (17 in float32) for ``t = 1``. Here every term of the value has one sign,
``(1 - t) softplus(x) + t softplus(-x)``, and so have those of the gradient for a target of 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, ulps
from gradwright.errors import ArgumentError, unknown_choice
from gradwright.stable.arguments import require_floating, scaled, widened
from gradwright.stable.log_logistic import softplus
from gradwright.stable.logistic import logistic_slope

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    logits = torch.cat([grid(-6.0, 6.0, 5, dtype), torch.tensor([-80.0, -40.0, 40.0, 80.0], dtype=dtype)])
    ends = torch.tensor([0.0, 1.0], dtype=dtype).repeat_interleave(len(logits))
    both = logits.repeat(2)
    soft = torch.tensor([0.25, 0.75, 0.875, 0.125, 0.5], dtype=dtype)
    constant = {"reduction": "none"}
    weights = torch.tensor([2.0, 0.5, 1.0, 0.0, 3.0], dtype=dtype)
    return [
        Point((logits[:5].requires_grad_(), soft), constant, note="soft targets"),
        Point((both.requires_grad_(), ends), constant, note="hard targets", extreme=True),
        Point((grid(-6.0, 6.0, 5, dtype), soft), constant, note="targets that learn"),
        Point(
            (grid(-6.0, 6.0, 5, dtype), soft, weights),
            {**constant, "pos_weight": torch.tensor([2.0, 0.5, 1.0, 3.0, 4.0], dtype=dtype)},
            note="weights that learn",
        ),
    ]


def _reference(mp: Any, x: Any, t: Any, weight: Any, pos_weight: Any, reduction: str) -> Any:
    loss = (1 - t) * mp.log1p(mp.exp(x)) + (1 if pos_weight is None else pos_weight) * t * mp.log1p(mp.exp(-x))
    return loss if weight is None else weight * loss


def _ordinary() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1_000_000, generator=generator)
    return logits.requires_grad_(), (torch.rand(1_000_000, generator=generator) < 0.5).float()


@exact(
    forward="out = w ((1 - t) log(1 + exp(x)) + p t log(1 + exp(-x))), reduced",
    gradient={
        "input": "g w ((1 - t) sigmoid(x) - p t sigmoid(-x))",
        "target": "g w (p softplus(-x) - softplus(x)); -g w x where p = 1",
        "weight": "g times the loss of each element",
        "pos_weight": "g w t softplus(-x)",
    },
    reference=_reference,
    domain="every finite logit; targets of any value, right to the last digits from 0 to 1",
    bars=ulps(4),
    examples=_examples,
    replaces=functional.binary_cross_entropy_with_logits,
    ordinary=_ordinary,
    slower="two sigmoids, so that terms have one sign, and log1p in passes of its own; PyTorch has one of each, fused",
    paper="pytorch#195677, #195685; jax#40825",
)
def bce_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    pos_weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the cross-entropy of targets and the probabilities ``sigmoid(input)``.

    Arguments:
        input: logits, floating point, of any shape.
        target: probabilities, like ``input``.
        weight: of each element, broadcast.
        pos_weight: of the positive outcome, broadcast.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Returns:
        one number, or with ``"none"`` a tensor like ``input``.

    Raises:
        ArgumentError: an argument is not floating point, or its shape does not fit.
        OptionError: ``reduction`` is none of the three.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([40.0], dtype=torch.float64)
        >>> torch.func.grad(gw.stable.bce_with_logits)(x, torch.ones_like(x))
        tensor([-4.2484e-18], dtype=torch.float64)
    """
    name = "bce_with_logits"
    require_floating(name, input=input, target=target)
    if reduction not in get_args(Reduction):
        raise unknown_choice(f"{name}: reduction", reduction, get_args(Reduction))
    if target.shape != input.shape:
        raise ArgumentError(
            f"{name}: target has shape {tuple(target.shape)}; expected that of input, {tuple(input.shape)}; reshape it."
        )
    for argument, factor in (("weight", weight), ("pos_weight", pos_weight)):
        if factor is not None:
            require_floating(name, **{argument: factor})
            _require_broadcast(name, argument, factor, input.shape)
    x, t = widened(input), widened(target)
    loss = _loss(x, t) if pos_weight is None else (1 - t) * softplus(x) + t * pos_weight * softplus(x, -1.0).neg()
    loss = loss if weight is None else loss * weight
    if reduction != "none":
        # The gradient of a mean would be a tensor of that size; that of a quotient of numbers is a number.
        loss = loss.sum() / (loss.numel() if reduction == "mean" else 1)
    return loss.to(input.dtype)


def _require_broadcast(name: str, argument: str, factor: Tensor, shape: torch.Size) -> None:
    pairs = zip(reversed(factor.shape), reversed(shape))
    if factor.dim() > len(shape) or any(size not in (1, whole) for size, whole in pairs):
        raise ArgumentError(
            f"{name}: {argument} has shape {tuple(factor.shape)}; expected one that is broadcast to that of input, "
            f"{tuple(shape)}; reshape it."
        )


@custom_gradient
def _loss(x: Tensor, t: Tensor) -> Tensor:
    """Return the loss without weights: ``(1 - t) max(x, 0) + t max(-x, 0) + log1p(exp(-abs(x)))``."""
    linear = scaled(x.relu(), 1 - t).add_(scaled(x.neg().relu_(), t))
    return linear.add_(x.abs().neg_().exp_().log1p_())


@_loss.vjp
def _loss_vjp(g: Tensor, x: Tensor, t: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    return {"x": _loss_pulled(g, x, t) if needs["x"] else None, "t": -g * x if needs["t"] else None}


@custom_gradient
def _loss_pulled(weight: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """Return ``weight ((1 - t) sigmoid(x) - t sigmoid(-x))``; ``softplus_backward`` is such a product in one pass."""
    aten = torch.ops.aten
    pulled = aten.softplus_backward(1 - t, x, 1, 40)
    return scaled(pulled.sub_(aten.softplus_backward(t, x, -1, 40)), weight)


@_loss_pulled.vjp
def _loss_pulled_vjp(g: Tensor, weight: Tensor, x: Tensor, t: Tensor) -> dict[str, Tensor]:
    """The second derivative is that of the logistic function, whatever the target."""
    return {"weight": _loss_pulled(g, x, t), "x": logistic_slope(g * weight, x), "t": -g * weight}
