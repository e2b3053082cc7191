"""Running through the rows of a head block by block, with one buffer for the logits that every block uses again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from gradwright.fused.route import MATRIX_ROWS
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


def plan_of(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows, bend: Bend, block: int | None) -> Plan:
    """Return how a call is carried out; without ``block`` its size is found."""
    needs = (x.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad)
    return Plan(rows, bend, block or block_of(x.shape[0], weight.shape[0], widened(x[:0]).itemsize), needs)


def block_of(rows: int, classes: int, itemsize: int) -> int:
    """Return how many rows a block has: enough for a fast product, more where they are short, blocks of equal size.

    Example:
        >>> block_of(2048, 32000, 4), block_of(2049, 32000, 4), block_of(4096, 1000, 4)
        (256, 257, 4096)
    """
    most = max(MATRIX_ROWS, BLOCK_BYTES // max(classes * itemsize, 1))
    number = max(-(-rows // most), 1)
    return max(-(-rows // number), 1)


def blocks(rows: int, block: int) -> list[slice]:
    """Return which rows each block has; one without any where there are none."""
    return [slice(start, min(start + block, rows)) for start in range(0, max(rows, 1), block)]


def counting(marked: Tensor) -> Tensor | None:
    """Return the places of the rows in which something is marked; None where that are all."""
    places = marked.any(1).nonzero().squeeze(1)
    return None if len(places) == len(marked) else places


def top_of(scale: Tensor) -> Tensor:
    """Return the largest factor, by which others are divided where gradients must not get too small for their dtype."""
    top = scale.detach().abs().amax() if scale.numel() else scale.new_ones(())
    return torch.where(top > 0, top, 1.0)


def swept(
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
    sums = Sums(x, weight, wanted)
    for here in blocks(count, plan.block):
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


def swept_where(
    marked: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    g: Tensor | None,
    wanted: tuple[bool, bool, bool],
    by_row: Sequence[Tensor],
    shared: Sequence[Tensor],
) -> tuple[Tensor, Grads]:
    """Do as :func:`swept` for the rows in which something is marked; others are not multiplied, and get zeros.

    None marks all.
    """
    places = None if marked is None else counting(marked)
    if places is None:
        return swept(x, weight, bias, plan, g, wanted, by_row, shared)
    inputs, *by_row = (tensor.index_select(0, places) for tensor in (x, *by_row))
    cotangent = None if g is None else g.index_select(0, places)
    found, (of_x, *sums) = swept(inputs, weight, bias, plan, cotangent, wanted, by_row, shared)
    values = found.new_zeros(x.shape[0], found.shape[1]).index_copy_(0, places, found)
    return values, (None if of_x is None else torch.zeros_like(x).index_copy_(0, places, of_x), sums[0], sums[1])


class Sums:
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
