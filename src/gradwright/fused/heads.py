"""A linear layer and a loss of each row of its output, block by block, so that the output is never whole.

The logits of a language model are the largest tensor of a training step: rows times vocabulary, and eager PyTorch holds
them three times. Here a block of rows is multiplied, turned into its losses and, in the same memory, into the gradient
of its logits, which is multiplied again; the next block takes the same memory. What a row's loss is says a
:class:`Rows`; this module knows nothing of losses.

Two forms of the backward. *Formed*: where losses are summed with weights that are known beforehand, the gradients are
formed in the forward, three matrix products in all as in eager mode, and kept until the backward scales them. *Again*:
nothing is kept but the arguments, and the logits are computed again, four products; so it is where the incoming
gradient of each row is unknown in the forward, in a second backward through the same graph, and where it is asked for.
A backward that is itself differentiated goes through formulas that PyTorch follows, as do transforms, forward mode and
exported programs. In compiled code the same is done by an operator: :mod:`gradwright.fused.head_operators`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF
from gradwright.fused import head_operators
from gradwright.fused.head_sweep import NOTHING, Grads, Plan, blocks, counting, plan_of, swept, swept_where, top_of
from gradwright.fused.route import by_hand
from gradwright.fused.rows import Bend, Rows
from gradwright.stable.arguments import widened


class Formed:
    """Numbers and gradients of a sweep in the forward, until a backward takes them; it may write to the gradients."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[Tensor, Grads]] = {}

    def take(self) -> tuple[Tensor, Grads] | None:
        """Return them, the first time; also where two threads go backward through one graph."""
        return self.held.pop("swept", None)


def summed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    rows: Rows,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    *,
    bend: Bend,
    block: int | None = None,
    recompute: bool = False,
) -> Tensor:
    """Return the sum of the numbers of all rows, each times one of ``scale``; rows of zeros in that are left out.

    Arguments:
        x: (rows, features).
        weight: (classes, features).
        bias: (classes), or None.
        scale: (rows, outputs), at least float32.
        rows: what becomes of a row.
        by_row: tensors of so many rows.
        shared: tensors for all of them.
        bend: what is done to the logits first.
        block: rows of a block; None finds them.
        recompute: compute the logits again in the backward, instead of forming the gradients in the forward.
    """
    if head_operators.compiled():
        return head_operators.summed(
            x, weight, bias, scale, rows, by_row, shared, bend=bend, block=block, recompute=recompute
        )
    eager = by_hand(x, weight, bias, scale, *by_row, *shared)
    places = counting(scale != 0) if eager and not scale.requires_grad else None
    if places is not None:
        x, scale, *left = (tensor.index_select(0, places) for tensor in (x, scale, *by_row))
        by_row = tuple(left)
    plan = plan_of(x, weight, bias, rows, bend, block)
    if not eager:
        return (_each_plainly(x, weight, bias, plan, by_row, shared) * scale).sum()
    forms = any(plan.needs) and torch.is_grad_enabled() and not recompute
    if x.dtype in HALF:  # a gradient of 1e-4 of a probability of 1e-4 is no number of float16
        top = top_of(scale)
        return top * _summed(x, weight, bias, scale / top, plan, by_row, shared, Formed() if forms else None)
    return _summed(x, weight, bias, scale, plan, by_row, shared, Formed() if forms else None)


def each(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: Rows,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    *,
    bend: Bend,
    kept: Tensor | None = None,
    block: int | None = None,
) -> Tensor:
    """Return the numbers of each row, (rows, outputs), at least float32; the arguments are those of :func:`summed`.

    ``kept`` says which rows count (bool), or None for all; for others ``rows`` returns zeros, without computing them.
    """
    if head_operators.compiled():
        return head_operators.each(x, weight, bias, rows, by_row, shared, bend=bend, kept=kept, block=block)
    eager = by_hand(x, weight, bias, *by_row, *shared)
    places = counting(kept.unsqueeze(1)) if eager and kept is not None else None
    if places is not None:
        count = x.shape[0]
        x, *left = (tensor.index_select(0, places) for tensor in (x, *by_row))
        by_row = tuple(left)
    plan = plan_of(x, weight, bias, rows, bend, block)
    if not eager:
        return _each_plainly(x, weight, bias, plan, by_row, shared)
    found = _each(x, weight, bias, plan, by_row, shared)
    return found if places is None else found.new_zeros(count, rows.outputs).index_copy(0, places, found)


# -------------------------------------------------------------------- in blocks, with one buffer


@custom_gradient(autocast="off")  # which casts products of float32, and layers are cast already
def _summed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    plan: Plan,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    formed: Formed | None,
) -> Tensor:
    if formed is None:
        values, _ = swept(x, weight, bias, plan, None, NOTHING, by_row, shared)
    else:
        found = swept(x, weight, bias, plan, scale, plan.needs, by_row, shared)
        values, formed.held["swept"] = found[0], found
    return (values * scale).sum()


@_summed.vjp
def _summed_vjp(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    plan: Plan,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    formed: Formed | None,
    needs: dict[str, bool],
) -> dict[str, Tensor | None]:
    if torch.is_grad_enabled() or not by_hand(g, x, weight, bias, scale):
        of_scale = g * _each_plainly(x, weight, bias, plan, by_row, shared) if needs["scale"] else None
        return {**_pulled_plainly(g * scale, x, weight, bias, plan, by_row, shared, needs), "scale": of_scale}
    found = formed.take() if formed is not None else None
    values, grads = found or swept(x, weight, bias, plan, scale, _wanted(needs), by_row, shared)
    scaled = [None if grad is None else grad.mul_(g).to(like.dtype) for grad, like in zip(grads, (x, weight, x))]
    return {**dict(zip(("x", "weight", "bias"), scaled)), "scale": values * g if needs["scale"] else None}


def _wanted(needs: dict[str, bool]) -> tuple[bool, bool, bool]:
    return needs["x"], needs["weight"], needs["bias"]


@custom_gradient(autocast="off")
def _each(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
) -> Tensor:
    return swept(x, weight, bias, plan, None, NOTHING, by_row, shared)[0]


@_each.vjp
def _each_vjp(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    needs: dict[str, bool],
) -> dict[str, Tensor | None]:
    if torch.is_grad_enabled() or not by_hand(g, x, weight, bias):
        return _pulled_plainly(g, x, weight, bias, plan, by_row, shared, needs)
    # Padding and prompts have a cotangent of zero: their results went into no loss.
    _, grads = swept_where(g != 0, x, weight, bias, plan, g, _wanted(needs), by_row, shared)
    return {name: None if grad is None else grad.to(x.dtype) for name, grad in zip(("x", "weight", "bias"), grads)}


# -------------------------------------------------------------------- as formulas that PyTorch follows


def _each_plainly(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
) -> Tensor:
    parts = [
        _block(x[here], weight, bias, plan, tuple(tensor[here] for tensor in by_row), shared)
        for here in blocks(x.shape[0], plan.block)
    ]
    return torch.cat(parts)


@custom_gradient(autocast="off")
def _block(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
) -> Tensor:
    """Return the numbers of the rows of one block, of which only the arguments are kept."""
    return plan.rows.values(plan.bend(_logits(x, weight, bias)), by_row, shared)


@_block.vjp
def _block_vjp(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    needs: dict[str, bool],
) -> dict[str, Tensor | None]:
    z = _logits(x, weight, bias)
    d = plan.bend.pull(plan.rows.gradient(plan.bend(z), g, by_row, shared), z)
    return {
        "x": d.to(x.dtype) @ weight if needs["x"] else None,
        "weight": d.to(x.dtype).t() @ x if needs["weight"] else None,
        "bias": d.sum(0).to(x.dtype) if needs["bias"] else None,
    }


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return widened(torch.nn.functional.linear(x, weight, bias))


def _pulled_plainly(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    needs: dict[str, bool],
) -> dict[str, Tensor | None]:
    """Return the gradients for a cotangent of each number of each row, in a way that can itself be differentiated."""
    parts = [
        _block_vjp(g[here], x[here], weight, bias, plan, tuple(t[here] for t in by_row), shared, needs)
        for here in blocks(x.shape[0], plan.block)
    ]
    found: dict[str, Tensor | None] = {}
    for name in ("x", "weight", "bias"):
        grads = [grad for part in parts if (grad := part[name]) is not None]
        found[name] = None if not grads else torch.cat(grads) if name == "x" else torch.stack(grads).sum(0)
    return found
