"""Losses of sparse softmaxes: Fenchel-Young losses, whose gradient is ``p - onehot(target)``.

They are to sparsemax and 1.5-entmax what cross-entropy is to the softmax: ``H(p) + <p - onehot, x>`` with the Tsallis
entropy ``H(p) = (1 - sum(p^alpha)) / (alpha (alpha - 1))`` (Blondel, Martins and Niculae 2020). Where the target leads
by a margin, loss and gradient are exactly 0. Only the logits are kept, and the shares are found again in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError
from gradwright.fused.entmax import shares_of
from gradwright.fused.entmax_composites import entmax15_by_sorting, sparsemax_by_sorting
from gradwright.fused.route import by_hand
from gradwright.fused.simplex_rows import over_rows, shares
from gradwright.stable.arguments import not_a_tensor, require_floating, widened
from gradwright.stable.targets import Reduction, require_reduction

DOMAIN = "every number; -inf excludes a class: inf where it is the target"
PAPER = "Martins and Astudillo 2016; Blondel, Martins and Niculae 2020 (arXiv 1901.02324)"


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    rows = [[0.5, -1.25, 0.875, 0.125], [3.0, 3.0, -0.75, 2.625], [0.0, 4.0, 1.0, 3.5]]
    x = torch.tensor(rows, dtype=dtype)
    target = torch.tensor([2, 3, 0])
    return [
        Point((x, target), note="ordinary, ties"),
        Point((x, torch.tensor([0, -1, 2])), {"ignore_index": -1, "reduction": "sum"}, note="ignored"),
        Point((x.t().reshape(1, 4, 3), target.unsqueeze(0)), {"reduction": "none"}, note="more dimensions"),
    ]


def _by_hand(share: Callable[[Tensor, int], Tensor], alpha: float) -> Callable[..., Tensor]:
    def composite(x: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean") -> Tensor:
        dim = min(1, x.dim() - 1)
        p = share(x, dim)
        own = x.gather(dim, target.clamp(min=0).unsqueeze(dim)).squeeze(dim)
        entropy = (1 - (p * p if alpha == 2 else p * torch.where(p > 0, p, 1.0).sqrt()).sum(dim)) / (
            alpha * (alpha - 1)
        )
        kept = target != ignore_index
        return _reduced(torch.where(kept, (p * x).sum(dim) - own + entropy, 0.0), kept, reduction)

    return composite


def _ordinary() -> tuple[Any, ...]:
    return torch.randn(4096, 512), torch.randint(0, 512, (4096,))


@cheaper(
    forward="out = sum((p - onehot) x) + (1 - sum(p^2)) / 2 with p = sparsemax(x)",
    gradient={"x": "g (p - onehot)"},
    replaces=_by_hand(sparsemax_by_sorting, 2.0),
    kept=lambda x, target, *, ignore_index=-100, reduction="mean": 17 * target.numel() + 16,
    goal=Goal(time=0.5, peak=0.25, kept=0.05),
    domain=DOMAIN,
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples,
    ordinary=_ordinary,
    paper=PAPER,
)
def sparsemax_loss(x: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean") -> Tensor:
    """Return the loss whose gradient is ``sparsemax(x) - onehot(target)``: 0 where the target leads by 1.

    Arguments:
        x: logits: floating point, of shape (C), (N, C) or (N, C, d1, ...).
        target: class indices (int64) of that shape without C.
        ignore_index: an index that does not count.
        reduction: ``mean`` divides by the number of targets that count.

    Returns:
        a number, or with ``none`` a tensor of the shape of ``target``.

    Raises:
        ArgumentError: a tensor has the wrong shape or dtype.
        OptionError: ``reduction`` is not one of those.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.sparsemax_loss(torch.tensor([[1.0, 0.5, -1.0], [3.0, 1.0, 2.0]]), torch.tensor([1, 0]))
        tensor(0.2812)
    """
    return _mean_loss("sparsemax_loss", x, target, 2.0, ignore_index, reduction)


@cheaper(
    forward="out = sum((p - onehot) x) + (1 - sum(p^1.5)) / 0.75 with p = entmax15(x)",
    gradient={"x": "g (p - onehot)"},
    replaces=_by_hand(entmax15_by_sorting, 1.5),
    kept=lambda x, target, *, ignore_index=-100, reduction="mean": 17 * target.numel() + 16,
    goal=Goal(time=0.5, peak=0.25, kept=0.05),
    domain=DOMAIN,
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples,
    ordinary=_ordinary,
    paper=PAPER,
)
def entmax15_loss(x: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean") -> Tensor:
    """Return the loss whose gradient is ``entmax15(x) - onehot(target)``: 0 where the target leads by 2.

    Arguments:
        x: logits: floating point, of shape (C), (N, C) or (N, C, d1, ...).
        target: class indices (int64) of that shape without C.
        ignore_index: an index that does not count.
        reduction: ``mean`` divides by the number of targets that count.

    Returns:
        a number, or with ``none`` a tensor of the shape of ``target``.

    Raises:
        ArgumentError: a tensor has the wrong shape or dtype.
        OptionError: ``reduction`` is not one of those.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.entmax15_loss(torch.tensor([[1.0, 0.5, -1.0], [3.0, 1.0, 2.0]]), torch.tensor([1, 0]))
        tensor(0.3730)
    """
    return _mean_loss("entmax15_loss", x, target, 1.5, ignore_index, reduction)


def _mean_loss(name: str, x: Tensor, target: Tensor, alpha: float, ignore_index: int, reduction: Reduction) -> Tensor:
    _check(name, x, target, reduction)
    dim = min(1, x.dim() - 1)
    kept = target != ignore_index
    index = torch.where(kept, target, 0).unsqueeze(dim)
    losses = torch.where(kept, _losses(x, index, alpha, dim).squeeze(dim), 0.0)
    return _reduced(widened(losses), kept, reduction).to(x.dtype)


def _reduced(losses: Tensor, kept: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / kept.sum()


def _check(name: str, x: Tensor, target: Tensor, reduction: str) -> None:
    require_floating(name, x=x)
    if not isinstance(target, Tensor):
        raise not_a_tensor(name, "target", target, "a tensor of class indices")
    require_reduction(name, reduction)
    if not x.dim():
        raise ArgumentError(f"{name}: x has no dimension; expected (C), (N, C) or (N, C, d1, ...); stack the logits.")
    dim = min(1, x.dim() - 1)
    wanted = x.shape[:dim] + x.shape[dim + 1 :]
    if target.dtype != torch.int64:
        raise ArgumentError(f"{name}: target is {target.dtype}; expected int64 for class indices; write target.long().")
    if target.shape != wanted:
        raise ArgumentError(
            f"{name}: target has the shape {tuple(target.shape)}; expected {tuple(wanted)} for x of {tuple(x.shape)}; "
            f"the classes are its dimension {dim}."
        )


@custom_gradient
def _losses(x: Tensor, index: Tensor, alpha: float, dim: int) -> Tensor:
    """Return the loss of each row, which keeps its dimension, for one index each."""
    if not x.numel():
        return x.sum(dim, keepdim=True)

    def of_rows(x: Tensor, index: Tensor) -> Tensor:
        p = shares(x, alpha)
        d = x - x.amax(-1, keepdim=True)
        powers = p.square() if alpha == 2 else p * p.sqrt()
        entropy = (1 - powers.sum(-1, keepdim=True)) / (alpha * (alpha - 1))
        return torch.where(p > 0, p * d, 0.0).sum(-1, keepdim=True) - d.gather(-1, index) + entropy

    return over_rows(of_rows, dim, x, index)


@_losses.vjp
def _losses_vjp(g: Tensor, x: Tensor, index: Tensor, alpha: float, dim: int) -> dict[str, Tensor]:
    if not x.numel():
        return {"x": g.expand(x.shape)}
    if torch.is_grad_enabled() or not by_hand(g, x, index):
        return {"x": g * _without_target(shares_of(x, alpha, dim), index, dim)}
    return {"x": over_rows(lambda x, g, index: g * _without_target(shares(x, alpha), index, -1), dim, x, g, index)}


def _without_target(p: Tensor, index: Tensor, dim: int) -> Tensor:
    return p.scatter_add(dim, index, torch.full_like(index, -1, dtype=p.dtype))
