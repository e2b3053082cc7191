"""A linear layer and the cross-entropy of its output, which is never whole: the head of a language model.

The logits of 2,048 tokens and 32,000 classes take 250 MiB in float32, and eager PyTorch holds them three times. Here
256 rows at a time become their losses and, in the same memory, the gradient of their logits, which goes into those of
input and weight at once. See :mod:`gradwright.fused.heads` for how, and :mod:`gradwright.fused.cross_entropy_rows` for
the formulae.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradwright.authoring.catalogue import Example
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError
from gradwright.fused.cross_entropy_rows import CrossEntropy
from gradwright.fused.head_arguments import (
    IGNORED,
    check_bend,
    check_rows,
    flat_head,
    reduced,
    require_block,
    require_classes,
    require_one_device,
)
from gradwright.stable.arguments import require_number, widened
from gradwright.stable.targets import Reduction, are_probabilities, require_class_weight, require_smoothing


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def learned(*shape: int) -> Tensor:
        return numbers(*shape).requires_grad_()

    x, w, b = learned(5, 3), learned(7, 3), learned(7)
    target = torch.tensor([0, 6, -100, 3, 3])
    weight = torch.tensor([0.5, 2.0, 1.0, 0.25, 1.0, 1.0, 4.0], dtype=dtype)
    soft = torch.softmax(numbers(5, 7), 1)
    extras: dict[str, Any] = {"z_loss": 0.125, "entropy_bonus": 0.25, "softcap": 4.0, "block": 2}
    return [
        Point((x, w, target), note="ordinary"),
        Point((x, w, target), {"linear_bias": b, "block": 2, "reduction": "sum"}, note="bias, a last block of one row"),
        Point((x, w, target), {"weight": weight, "label_smoothing": 0.125, "reduction": "none"}, note="per row"),
        Point((x, w, target), {"weight": weight, "label_smoothing": 0.125, "block": 2}, note="weights, smoothed"),
        Point((x, w, target), {"label_smoothing": 0.25, **extras}, note="every extra"),
        Point((x, w, soft), {"label_smoothing": 0.25, "weight": weight, **extras}, note="probabilities, every extra"),
        Point((x, w, soft), {"recompute": True, "linear_bias": b}, note="probabilities, computed again"),
        Point((x, w, target), {"token_weight": learned(5), "block": 3}, note="weights of tokens, with a gradient"),
        Point((learned(2, 2, 3), w, torch.tensor([[1, 2], [-100, 3]])), {"recompute": True}, note="more dimensions"),
        Point((learned(3), w, torch.tensor(2)), note="one row"),
        Point((x, w.detach(), target), note="a frozen weight"),
    ]


def _replaces(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    token_weight: Tensor | None = None,
    z_loss: float = 0.0,
    entropy_bonus: float = 0.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
    recompute: bool = False,
    block: int | None = None,
) -> Tensor:
    logits = nn.functional.linear(x, linear_weight, linear_bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    classes = logits.shape[-1]
    flat = logits.reshape(-1, classes)
    soft = target.is_floating_point()
    flat_target = target.reshape(-1, classes) if soft else target.reshape(-1)
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if not (token_weight is not None or z_loss or entropy_bonus):
        loss = nn.functional.cross_entropy(flat, flat_target, weight, reduction=reduction, **options)
        return loss.reshape(x.shape[:-1]) if reduction == "none" else loss
    losses = nn.functional.cross_entropy(flat, flat_target, weight, reduction="none", **options)
    logs = torch.log_softmax(flat, 1)
    extra = z_loss * torch.logsumexp(flat, 1).square() + entropy_bonus * (logs.exp() * logs).sum(1)
    kept = torch.ones_like(losses) if soft else (flat_target != ignore_index).to(losses.dtype)
    losses = losses + extra * kept
    if token_weight is not None:
        losses = losses * token_weight.reshape(-1)
    if reduction == "none":
        return losses.reshape(x.shape[:-1])
    if reduction == "sum":
        return losses.sum()
    counts = kept if soft or weight is None else kept * weight[flat_target.clamp(min=0)]
    return losses.sum() / counts.sum()


def _kept(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    reduction: str = "mean",
    token_weight: Tensor | None = None,
    recompute: bool = False,
    **_: Any,
) -> int:
    rows = max(x.numel() // max(x.shape[-1], 1), 1)
    numbers = x.numel() + 6 * rows + 8  # of the rows that count: input, weight, target
    if reduction != "none" and not recompute:
        learned = [t for t in (x, linear_weight, linear_bias) if t is not None and t.requires_grad]
        numbers += sum(t.numel() for t in learned)
    return 8 * numbers


def _ordinary() -> tuple[Any, ...]:
    x, w = torch.randn(2048, 512), torch.randn(32000, 512) * 0.04
    return x.requires_grad_(), w.requires_grad_(), torch.randint(0, 32000, (2048,))


@cheaper(
    forward="out = cross_entropy(softcap tanh((x @ linear_weight.T + linear_bias) / softcap), target) + extras",
    gradient={
        "x": "d @ linear_weight with d = g (softmax(z) - target), block by block",
        "linear_weight": "d.T @ x",
        "linear_bias": "d.sum(0)",
        "token_weight": "g times the loss of the token",
    },
    replaces=_replaces,
    kept=_kept,
    goal=Goal(time=1.0, peak=1 / 7),
    domain="every number; a loss of +inf where a target has the logit -inf",
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples,
    ordinary=_ordinary,
    paper="pytorch#124480; Wijmans et al. 2024, arXiv 2411.09009; Hsu et al. 2024, arXiv 2410.10989",
)
def linear_cross_entropy(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
    ignore_index: int | None = IGNORED,
    label_smoothing: float = 0.0,
    token_weight: Tensor | None = None,
    z_loss: float = 0.0,
    entropy_bonus: float = 0.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
    recompute: bool = False,
    block: int | None = None,
) -> Tensor:
    """Return ``cross_entropy(linear(x, linear_weight, linear_bias), target)`` without holding the logits.

    Where the losses are summed, the gradients are formed in the forward and kept until the backward: as many products
    of matrices as in eager mode, and the memory of the gradients and of one block of logits. With ``reduction="none"``
    the incoming gradient of each row is not known then, and the logits are computed again in the backward: a third more
    arithmetic. So weight tokens by ``token_weight`` where their weights are known.

    Arguments:
        x: the input of the layer: floating point, of shape (..., features).
        linear_weight: of shape (classes, features), in the dtype of ``x``; autocast casts both as it does for a layer.
        target: class indices (int64) of shape (...), or probabilities of shape (..., classes).
        linear_bias: of shape (classes), or None.
        weight: one number for each class, which has no gradient.
        reduction: ``mean`` divides by the weights of the targets, or by the rows where they are probabilities.
        ignore_index: an index that does not count, and costs nothing; None is -100. Where no row counts, the mean is
            nan as in PyTorch, and its gradient 0.
        label_smoothing: how much of the target is spread over all classes, from 0 to 1.
        token_weight: a number for each row, of shape (...), that multiplies its loss; ``mean`` does not divide by them.
        z_loss: adds so many times the squared logarithm of the sum of exponentials of each row that counts.
        entropy_bonus: subtracts so many times the entropy of the prediction of each row that counts.
        softcap: replaces logits by ``softcap * tanh(logits / softcap)``.
        dtype: of the loss; None is that of the logits, under autocast float32. Losses and their sum are computed in at
            least float32.
        recompute: compute the logits again in the backward and keep nothing, also where losses are summed.
        block: how many rows of logits are held at one time; None is 256, or more where classes are few.

    Returns:
        a number, or with ``none`` a tensor of shape (...).

    Raises:
        ArgumentError: a tensor has the wrong shape or dtype, or ``weight`` asks for a gradient.
        OptionError: an option is none of its choices.

    Example:
        >>> import torch, gradwright as gw
        >>> x, w = torch.ones(2, 3), torch.zeros(4, 3, requires_grad=True)
        >>> loss = gw.fused.linear_cross_entropy(x, w, torch.tensor([1, -100]))
        >>> loss.item(), torch.autograd.grad(loss, w)[0][:, 0].tolist()
        (1.3862943649291992, [0.25, -0.75, 0.25, 0.25])
    """
    name = "linear_cross_entropy"
    rows = CrossEntropy(are_probabilities(name, target), label_smoothing, z_loss, entropy_bonus)
    check_options(name, label_smoothing=label_smoothing, z_loss=z_loss, entropy_bonus=entropy_bonus)
    bend = check_bend(name, softcap)
    require_block(name, block)
    head = flat_head(name, x, linear_weight, linear_bias, dtype)
    _check_target(name, head.leading, head.classes, target, weight)
    check_rows(name, head.leading, reduction, token_weight)
    require_one_device(name, x, target=target, weight=weight, token_weight=token_weight)
    wide = widened(head.x[:0]).dtype
    shared: tuple[Tensor, ...] = () if weight is None else (weight.to(wide),)
    if rows.soft:
        by_row: tuple[Tensor, ...] = (target.reshape(-1, head.classes),)
        kept = counts = torch.ones(by_row[0].shape[0], dtype=wide, device=target.device)
    else:
        flat = target.reshape(-1)
        known = flat != (IGNORED if ignore_index is None else ignore_index)
        index = torch.where(known, flat, 0)
        require_classes(name, "target", index, head.classes)
        kept = known.to(wide)
        counts = kept if weight is None else kept * shared[0][index]
        by_row = (index, kept)
    return reduced(
        head,
        rows,
        by_row,
        shared,
        kept=kept,
        counts=counts,
        token_weight=token_weight,
        reduction=reduction,
        bend=bend,
        block=block,
        recompute=recompute,
    )


def check_options(name: str, **numbers: float) -> None:
    """Refuse what is no number, and a ``label_smoothing`` out of range.

    Raises:
        ArgumentError: an option is no number.
        OptionError: it is out of range.
    """
    require_number(name, **numbers)
    require_smoothing(name, numbers["label_smoothing"])


def _check_target(name: str, leading: torch.Size, classes: int, target: Tensor, weight: Tensor | None) -> None:
    soft = target.is_floating_point()
    wanted = (*leading, classes) if soft else tuple(leading)
    if tuple(target.shape) != wanted:
        what = "probabilities" if soft else "class indices"
        raise ArgumentError(
            f"{name}: target has the shape {tuple(target.shape)}; expected {wanted} for {what}: the shape of x without "
            f"its features{', and the classes last' if soft else ''}; reshape it."
        )
    if soft and target.requires_grad:
        raise ArgumentError(
            f"{name}: target requires grad; expected probabilities that are given; detach them, or write "
            "gw.stable.cross_entropy, which has that gradient."
        )
    require_class_weight(name, weight, classes)
