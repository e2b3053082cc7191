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
compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF
from gradwright.fused.route import MATRIX_ROWS, by_hand
from gradwright.fused.rows import Bend, Rows
from gradwright.stable.arguments import widened

BLOCK_BYTES = 32 * 1024**2
"""What a block of logits may hold where more rows than the fewest fit: the C library reuses memory up to here."""

Grads: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor | None]"
"""The gradients of input, weight and bias."""


NOTHING = (False, False, False)
"""That no gradient is wanted."""


@dataclass(frozen=True)
class Plan:
    """How one call is carried out."""

    rows: Rows
    bend: Bend
    block: int
    """Rows of a block."""
    needs: tuple[bool, bool, bool]
    """Whether input, weight and bias require a gradient."""


class Formed:
    """Gradients that were formed in the forward, until a backward takes them; it may write to them."""

    def __init__(self) -> None:
        self.held: dict[str, Grads] = {}

    def take(self) -> Grads | None:
        """Return them, the first time; also where two threads go backward through one graph."""
        return self.held.pop("grads", None)


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
    eager = by_hand(x, weight, bias, scale, *by_row, *shared)
    places = _counting(scale != 0) if eager and not scale.requires_grad else None
    if places is not None:
        x, scale, *left = (tensor.index_select(0, places) for tensor in (x, scale, *by_row))
        by_row = tuple(left)
    plan = _plan(x, weight, bias, rows, bend, block)
    if not eager:
        return (_each_plainly(x, weight, bias, plan, by_row, shared) * scale).sum()
    forms = any(plan.needs) and torch.is_grad_enabled() and not recompute
    if x.dtype in HALF:  # a gradient of 1e-4 of a probability of 1e-4 is no number of float16
        top = scale.detach().abs().amax() if scale.numel() else scale.new_ones(())
        top = torch.where(top > 0, top, 1.0)
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
    eager = by_hand(x, weight, bias, *by_row, *shared)
    places = _counting(kept.unsqueeze(1)) if eager and kept is not None else None
    if places is not None:
        count = x.shape[0]
        x, *left = (tensor.index_select(0, places) for tensor in (x, *by_row))
        by_row = tuple(left)
    plan = _plan(x, weight, bias, rows, bend, block)
    if not eager:
        return _each_plainly(x, weight, bias, plan, by_row, shared)
    found = _each(x, weight, bias, plan, by_row, shared)
    return found if places is None else found.new_zeros(count, rows.outputs).index_copy(0, places, found)


def _counting(marked: Tensor) -> Tensor | None:
    """Return the places of the rows in which something is marked; None where that are all."""
    places = marked.any(1).nonzero().squeeze(1)
    return None if len(places) == len(marked) else places


def _plan(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows, bend: Bend, block: int | None) -> Plan:
    needs = (x.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad)
    return Plan(rows, bend, block or block_of(x.shape[0], weight.shape[0], widened(x[:0]).itemsize), needs)


def block_of(rows: int, classes: int, itemsize: int) -> int:
    """Return how many rows a block has: enough for a fast product, more where they are short, blocks of equal size.

    Example:
        >>> block_of(2048, 32000, 4), block_of(2049, 32000, 4), block_of(4096, 1000, 4)
        (256, 257, 4096)
    """
    most = max(MATRIX_ROWS, BLOCK_BYTES // max(classes * itemsize, 1))
    blocks = max(-(-rows // most), 1)
    return max(-(-rows // blocks), 1)


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
        values, _ = _swept(x, weight, bias, plan, None, NOTHING, by_row, shared)
    else:
        values, formed.held["grads"] = _swept(x, weight, bias, plan, scale, plan.needs, by_row, shared)
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
    of_scale = g * _each_plainly(x, weight, bias, plan, by_row, shared) if needs["scale"] else None
    if torch.is_grad_enabled() or not by_hand(g, x, weight, bias, scale):
        return {**_pulled_plainly(g * scale, x, weight, bias, plan, by_row, shared, needs), "scale": of_scale}
    grads = formed.take() if formed is not None else None
    if grads is None:
        _, grads = _swept(x, weight, bias, plan, scale, _wanted(needs), by_row, shared)
    scaled = [None if grad is None else grad.mul_(g).to(like.dtype) for grad, like in zip(grads, (x, weight, x))]
    return {**dict(zip(("x", "weight", "bias"), scaled)), "scale": of_scale}


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
    return _swept(x, weight, bias, plan, None, NOTHING, by_row, shared)[0]


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
    places = _counting(g != 0)
    if places is None:
        _, grads = _swept(x, weight, bias, plan, g, _wanted(needs), by_row, shared)
    else:  # padding and prompts, whose results went into no loss
        inputs, cotangent, *left = (tensor.index_select(0, places) for tensor in (x, g, *by_row))
        _, grads = _swept(inputs, weight, bias, plan, cotangent, _wanted(needs), left, shared)
        grads = (None if grads[0] is None else torch.zeros_like(x).index_copy_(0, places, grads[0]), *grads[1:])
    return {name: None if grad is None else grad.to(x.dtype) for name, grad in zip(("x", "weight", "bias"), grads)}


def _swept(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    g: Tensor | None,
    wanted: tuple[bool, bool, bool],
    by_row: Sequence[Tensor],
    shared: Sequence[Tensor],
) -> tuple[Tensor, Grads]:
    """Return the numbers of all rows and, for a cotangent of these, the gradients that are wanted.

    Those of weight and bias are sums over blocks: in at least float32.
    """
    count, classes = x.shape[0], weight.shape[0]
    wide = widened(x[:0]).dtype
    logits = x.new_empty(min(plan.block, count), classes)
    own = logits if wide == x.dtype else torch.empty_like(logits, dtype=wide)
    values = torch.empty(count, plan.rows.outputs, dtype=wide, device=x.device)
    sums = _Sums(x, weight, wanted)
    for here in _blocks(count, plan.block):
        inputs = x[here]
        z, wide_z = logits[: inputs.shape[0]], own[: inputs.shape[0]]
        if bias is None:
            torch.mm(inputs, weight.t(), out=z)
        else:
            torch.addmm(bias, inputs, weight.t(), out=z)
        if wide_z is not z:
            wide_z.copy_(z)
        cotangent = g[here] if g is not None and any(wanted) else None
        slope = plan.bend.bend_(wide_z, slope=cotangent is not None)
        values[here] = plan.rows.pull_(wide_z, cotangent, [tensor[here] for tensor in by_row], shared)
        if cotangent is not None:
            if slope is not None:
                wide_z.mul_(slope)
                del slope  # before the next block needs the memory
            if wide_z is not z:
                z.copy_(wide_z)
            sums.add(here, z, inputs)
    return values, sums.grads


class _Sums:
    """The gradients while blocks are added to them."""

    def __init__(self, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]) -> None:
        wide = widened(x[:0]).dtype
        self.weight = weight
        self.x = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else None
        self.of_weight = torch.empty(weight.shape, dtype=wide, device=x.device) if wanted[1] else None
        self.of_bias = torch.zeros(weight.shape[0], dtype=wide, device=x.device) if wanted[2] else None
        self.block = torch.empty_like(weight) if wanted[1] and wide != x.dtype else None
        """The part of one block, where products are of a lower precision than their sum."""
        if self.of_weight is not None and (x.shape[0] == 0 or self.block is not None):
            self.of_weight.zero_()

    def add(self, here: slice, z: Tensor, inputs: Tensor) -> None:
        """Add what a block has to give; ``z`` is the gradient of its logits."""
        if self.x is not None:
            torch.mm(z, self.weight, out=self.x[here])
        if self.of_weight is not None:
            if self.block is not None:
                self.of_weight += torch.mm(z.t(), inputs, out=self.block)
            elif here.start == 0:
                torch.mm(z.t(), inputs, out=self.of_weight)
            else:
                torch.addmm(self.of_weight, z.t(), inputs, out=self.of_weight)
        if self.of_bias is not None:
            self.of_bias += z.sum(0, dtype=self.of_bias.dtype)

    @property
    def grads(self) -> Grads:
        """The sums."""
        return self.x, self.of_weight, self.of_bias


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
        for here in _blocks(x.shape[0], plan.block)
    ]
    return torch.cat(parts)


def _blocks(rows: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, rows)) for start in range(0, max(rows, 1), block)]


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
        for here in _blocks(x.shape[0], plan.block)
    ]
    found: dict[str, Tensor | None] = {}
    for name in ("x", "weight", "bias"):
        grads = [grad for part in parts if (grad := part[name]) is not None]
        found[name] = None if not grads else torch.cat(grads) if name == "x" else torch.stack(grads).sum(0)
    return found
