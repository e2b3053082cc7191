"""A linear layer and its divergence from a teacher's, of which neither output is ever whole: distillation.

Two tensors of logits, their softmaxes and gradients take 625 MiB for 1,024 tokens and 32,000 classes in eager PyTorch.
Here a block of rows of both is multiplied and compared at a time; see :mod:`gradwright.fused.heads` for how, and
:mod:`gradwright.fused.divergence_rows` for the formulae.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from gradwright.authoring.catalogue import Example
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError, OptionError, unknown_choice
from gradwright.fused.divergence_rows import JS, KL, TV, Divergence, ReverseKL
from gradwright.fused.head_arguments import Head, check_bend, check_rows, flat_head, reduced, require_block
from gradwright.fused.rows import Bend
from gradwright.stable.arguments import require_floating, require_number, widened
from gradwright.stable.targets import Reduction

Kind: TypeAlias = Literal["kl", "reverse-kl", "js", "tv"]


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def learned(*shape: int) -> Tensor:
        return numbers(*shape).requires_grad_()

    x, w, b, logits = learned(5, 3), learned(7, 3), learned(7), numbers(5, 7)
    hidden, of_teacher = numbers(5, 4), numbers(7, 4)
    mask = torch.tensor([True, False, True, True, False])
    found = [Point((x, w, logits), {"divergence": kind}, note=kind) for kind in get_args(Kind)]
    options: dict[str, Any] = {"linear_bias": b, "teacher_bias": numbers(7), "temperature": 2.0, "block": 2}
    for kind in get_args(Kind):
        more = {**options, "mask": mask, "divergence": kind, "beta": 0.25}
        found.append(Point((x, w, hidden, of_teacher), more, note=f"{kind}, the teacher's layer, every option"))
    shaped = (learned(2, 2, 3), w.detach(), numbers(2, 2, 7))
    return [
        *found,
        Point(shaped, {"reduction": "none", "divergence": "js"}, note="per row, a frozen weight"),
        Point(
            (x, w, logits),
            {"token_weight": learned(5), "reduction": "sum", "recompute": True},
            note="weights of tokens",
        ),
    ]


def _replaces(
    x: Tensor,
    linear_weight: Tensor,
    teacher: Tensor,
    teacher_weight: Tensor | None = None,
    *,
    linear_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    divergence: str = "kl",
    beta: float = 0.5,
    temperature: float = 1.0,
    softcap: float | None = None,
    mask: Tensor | None = None,
    token_weight: Tensor | None = None,
    reduction: str = "mean",
    dtype: torch.dtype | None = None,
    recompute: bool = False,
    block: int | None = None,
) -> Tensor:
    def logs(logits: Tensor) -> Tensor:
        capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return torch.log_softmax(capped / temperature, -1)

    log_p = logs(nn.functional.linear(x, linear_weight, linear_bias))
    log_q = logs(teacher if teacher_weight is None else nn.functional.linear(teacher, teacher_weight, teacher_bias))
    p, q = log_p.exp(), log_q.exp()
    if divergence == "kl":
        losses = (q * (log_q - log_p)).sum(-1)
    elif divergence == "reverse-kl":
        losses = (p * (log_p - log_q)).sum(-1)
    elif divergence == "js":
        log_m = torch.log(beta * q + (1 - beta) * p)
        losses = (beta * q * (log_q - log_m) + (1 - beta) * p * (log_p - log_m)).sum(-1)
    else:
        losses = (p - q).abs().sum(-1) / 2
    kept = torch.ones_like(losses) if mask is None else mask.to(losses.dtype)
    losses = losses * kept if token_weight is None else losses * kept * token_weight
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.sum() / kept.sum()


def _kept(
    x: Tensor,
    linear_weight: Tensor,
    *_: Any,
    linear_bias: Tensor | None = None,
    reduction: str = "mean",
    recompute: bool = False,
    **__: Any,
) -> int:
    numbers = x.numel() + 6 * max(x.numel() // max(x.shape[-1], 1), 1) + 8  # of the rows that count: input, weight
    if reduction != "none" and not recompute:
        numbers += sum(t.numel() for t in (x, linear_weight, linear_bias) if t is not None and t.requires_grad)
    return 8 * numbers


def _ordinary() -> tuple[Any, ...]:
    x, w = torch.randn(1024, 512), torch.randn(32000, 512) * 0.04
    return x.requires_grad_(), w.requires_grad_(), torch.randn(1024, 512), torch.randn(32000, 512) * 0.04


@cheaper(
    forward="out = divergence of softmax(linear(x, linear_weight) / temperature) from the teacher's",
    gradient={
        "x": "d @ linear_weight with d the gradient of the logits, block by block",
        "linear_weight": "d.T @ x",
        "linear_bias": "d.sum(0)",
        "token_weight": "g times the divergence of the token",
    },
    replaces=_replaces,
    kept=_kept,
    goal=Goal(time=1.0, peak=0.3),
    domain="every number; classes that are -inf in both take no part",
    bars=relative(1e-12, 2e-6, *HALF),
    examples=_examples,
    ordinary=_ordinary,
    paper="Hinton et al. 2015, arXiv 1503.02531; Agarwal et al. 2024, arXiv 2306.13649",
)
def linear_distillation(
    x: Tensor,
    linear_weight: Tensor,
    teacher: Tensor,
    teacher_weight: Tensor | None = None,
    *,
    linear_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    divergence: Kind = "kl",
    beta: float = 0.5,
    temperature: float = 1.0,
    softcap: float | None = None,
    mask: Tensor | None = None,
    token_weight: Tensor | None = None,
    reduction: Reduction = "mean",
    dtype: torch.dtype | None = None,
    recompute: bool = False,
    block: int | None = None,
) -> Tensor:
    """Return the divergence of a layer's distributions from a teacher's, without holding the logits.

    It is not multiplied by the square of the temperature, as some do so that gradients keep their size: do so yourself.

    Arguments:
        x: the input of the student's layer: floating point, of shape (..., features).
        linear_weight: of shape (classes, features), in the dtype of ``x``; autocast casts both as it does for a layer.
        teacher: the input of the teacher's layer, of shape (..., its features); or, without ``teacher_weight``, the
            teacher's logits, of shape (..., classes). It has no gradient.
        teacher_weight: of shape (classes, its features), or None.
        linear_bias: of shape (classes), or None.
        teacher_bias: of shape (classes), or None.
        divergence: ``kl``, of the student from the teacher; ``reverse-kl``; ``js``, of Jensen and Shannon; ``tv``, the
            total variation, whose gradient has jumps.
        beta: the part of the teacher in the mixture of ``js``, between 0 and 1.
        temperature: what both logits are divided by.
        softcap: replaces both logits by ``softcap * tanh(logits / softcap)``, before that.
        mask: a boolean tensor of shape (...), true for rows that count.
        token_weight: a number for each row, of shape (...), that multiplies its loss; ``mean`` does not divide by them.
        reduction: ``mean`` divides by the rows that count; it is nan, with gradient 0, where none does.
        dtype: of the loss; None is that of the logits, under autocast float32. It is computed in at least float32.
        recompute: compute the logits again in the backward and keep nothing, also where losses are summed.
        block: how many rows of logits are held at one time; None is 256, or more where classes are few.

    Returns:
        a number, or with ``none`` a tensor of shape (...), in nats.

    Raises:
        ArgumentError: a tensor has the wrong shape or dtype, or one of the teacher's asks for a gradient.
        OptionError: an option is none of its choices.

    Example:
        >>> import torch, gradwright as gw
        >>> x, w = torch.ones(2, 3), torch.zeros(4, 3, requires_grad=True)
        >>> teacher = torch.tensor([[0.0, 0.0, 0.0, 100.0], [0.0, 0.0, 0.0, 0.0]])
        >>> gw.fused.linear_distillation(x, w, teacher, reduction="none")
        tensor([1.3863, 0.0000], grad_fn=<ViewBackward0>)
    """
    name = "linear_distillation"
    if divergence not in get_args(Kind):
        raise unknown_choice(f"{name}: divergence", divergence, get_args(Kind))
    require_number(name, beta=beta)
    if not 0 < beta < 1:
        raise OptionError(f"{name}: beta is {beta}; expected a number between 0 and 1; write 'kl' for its limit at 0.")
    bend = check_bend(name, softcap, temperature)
    require_block(name, block)
    head = flat_head(name, x, linear_weight, linear_bias, dtype)
    check_rows(name, head.leading, reduction, token_weight)
    given, shared = _teacher(name, head, teacher, teacher_weight, teacher_bias)
    _check_mask(name, mask, head.leading)
    count = given.shape[0]
    kept = torch.ones(count, device=x.device) if mask is None else mask.reshape(-1)
    kept = kept.to(widened(head.x[:0]).dtype)
    return reduced(
        head,
        _rows(divergence, bend, beta),
        (given,),
        shared,
        kept=kept,
        counts=kept,
        token_weight=token_weight,
        reduction=reduction,
        bend=bend,
        block=block,
        recompute=recompute,
    )


def _rows(divergence: Kind, bend: Bend, beta: float) -> Divergence:
    if divergence == "kl":
        return KL(bend)
    if divergence == "reverse-kl":
        return ReverseKL(bend)
    return JS(bend, beta) if divergence == "js" else TV(bend)


def _check_mask(name: str, mask: object, leading: torch.Size) -> None:
    if mask is None or (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == leading):
        return
    what = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
    raise ArgumentError(
        f"{name}: mask is {what}; expected a boolean tensor of shape {tuple(leading)}, true for rows that count; write "
        "`mask.bool()` or reshape it."
    )


def _teacher(
    name: str, head: Head, teacher: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return what the teacher has for each row, and what it has for all."""
    tensors = {"teacher": teacher, "teacher_weight": weight, "teacher_bias": bias}
    present = {argument: tensor for argument, tensor in tensors.items() if tensor is not None}
    require_floating(name, **present)
    for argument, tensor in present.items():
        if tensor.requires_grad:
            raise ArgumentError(
                f"{name}: {argument} requires grad; expected a teacher that is given; detach it, or exchange student "
                "and teacher."
            )
    if weight is None and bias is not None:
        raise ArgumentError(
            f"{name}: teacher_bias is given without teacher_weight; expected both, or the teacher's logits; add it to "
            "the logits."
        )
    wanted = (*head.leading, head.classes if weight is None else teacher.shape[-1] if teacher.dim() else 0)
    if tuple(teacher.shape) != wanted:
        what = "logits" if weight is None else "inputs of its layer"
        raise ArgumentError(
            f"{name}: teacher has the shape {tuple(teacher.shape)}; expected {wanted} for {what} beside x of "
            f"{(*head.leading, head.x.shape[-1])}; reshape it."
        )
    if weight is None:
        return teacher.reshape(-1, head.classes), ()
    layer = flat_head(name, teacher, weight, bias, prefix="teacher_")
    if layer.classes != head.classes:
        raise ArgumentError(
            f"{name}: teacher_weight has {layer.classes} classes and linear_weight {head.classes}; expected as many; "
            "cut or pad the vocabulary."
        )
    return layer.x, (layer.weight,) if layer.bias is None else (layer.weight, layer.bias)
