"""The arguments and the reductions that functions of a linear layer and a loss have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwright.errors import ArgumentError, OptionError
from gradwright.fused.heads import each, summed
from gradwright.fused.route import autocasts, product_dtype
from gradwright.fused.rows import Bend, Rows
from gradwright.stable.arguments import require_floating, require_number, widened
from gradwright.stable.seen import visible
from gradwright.stable.targets import Reduction, require_reduction

IGNORED = -100
"""The index that does not count unless another one is named, as PyTorch has it."""


@dataclass(frozen=True)
class Head:
    """The layer, with all rows of its input in one dimension."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    leading: torch.Size
    """The shape of the input without its features."""
    dtype: torch.dtype
    """Of what is returned: that of the logits; under autocast float32, as PyTorch's losses have it."""

    @property
    def classes(self) -> int:
        """How many numbers the layer returns for a row."""
        return int(self.weight.shape[0])


def flat_head(
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype | None = None,
    *,
    prefix: str = "linear_",
) -> Head:
    """Return the layer, cast as autocast casts the input of a layer, with the ``dtype`` of the result or its default.

    Raises:
        ArgumentError: shapes, dtypes or devices do not fit.
        OptionError: ``dtype`` is not floating point.
    """
    if dtype is not None and not getattr(dtype, "is_floating_point", False):
        raise OptionError(f"{name}: dtype is {dtype!r}; expected a floating-point dtype; write dtype=torch.float32.")
    weight_name, bias_name = f"{prefix}weight", f"{prefix}bias"
    require_floating(name, **{"x": x, weight_name: weight}, **({} if bias is None else {bias_name: bias}))
    if weight.dim() != 2 or not x.dim() or x.shape[-1] != weight.shape[1]:
        raise ArgumentError(
            f"{name}: x has the shape {tuple(x.shape)} and {weight_name} {tuple(weight.shape)}; expected (..., "
            "features) and (classes, features), as for torch.nn.functional.linear; transpose or reshape one."
        )
    if not weight.shape[0]:
        raise ArgumentError(f"{name}: {weight_name} has no class; expected (classes, features); pass the whole weight.")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ArgumentError(
            f"{name}: {bias_name} has the shape {tuple(bias.shape)}; expected ({weight.shape[0]},), one number for each"
            " class; reshape it."
        )
    require_one_device(name, x, **{weight_name: weight, bias_name: bias})
    if dtype is None and autocasts(x):
        dtype = torch.float32
    x, weight = x.to(product_dtype(x)), weight.to(product_dtype(weight))
    bias = None if bias is None else bias.to(product_dtype(bias))
    given = {tensor.dtype for tensor in (x, weight, bias) if tensor is not None}
    if len(given) > 1:
        third = "" if bias is None else f", {bias_name} {bias.dtype}"
        raise ArgumentError(
            f"{name}: x is {x.dtype}, {weight_name} {weight.dtype}{third}; expected one dtype, as for "
            "torch.nn.functional.linear; convert them, or use torch.autocast."
        )
    return Head(x.reshape(x.shape[:-1].numel(), x.shape[-1]), weight, bias, x.shape[:-1], dtype or x.dtype)


def require_one_device(name: str, x: Tensor, **tensors: Tensor | None) -> None:
    """Refuse tensors that are elsewhere than ``x``.

    Raises:
        ArgumentError: one is.
    """
    for argument, tensor in tensors.items():
        if tensor is not None and tensor.device != x.device:
            raise ArgumentError(
                f"{name}: x is on {x.device}, {argument} on {tensor.device}; expected one device; move one of them."
            )


def require_classes(name: str, argument: str, index: Tensor, classes: int) -> None:
    """Refuse classes that there are not, where the numbers can be looked at without waiting for a device.

    Raises:
        ArgumentError: there are.
    """
    if not visible(index) or not index.numel():
        return
    try:
        low, high = (int(end) for end in index.aminmax())
    except RuntimeError:  # under the vmap of batched gradients
        return
    if low < 0 or high >= classes:
        raise ArgumentError(
            f"{name}: {argument} holds {low if low < 0 else high}; expected classes from 0 to {classes - 1}, or "
            "ignore_index; correct the labels, or pass the whole weight."
        )


def check_bend(name: str, softcap: float | None, temperature: float = 1.0) -> Bend:
    """Return what is done to logits.

    Raises:
        OptionError: a number is not positive, or the cap infinite.
    """
    require_number(name, temperature=temperature, **({} if softcap is None else {"softcap": softcap}))
    for option, value in (("softcap", softcap), ("temperature", temperature)):
        if value is not None and not value > 0:
            raise OptionError(f"{name}: {option} is {value}; expected a positive number; correct it.")
    if softcap == math.inf:
        raise OptionError(f"{name}: softcap is inf; expected a finite number; write None for no cap.")
    return Bend(softcap, temperature)


def require_block(name: str, block: object) -> None:
    """Refuse what is no number of rows.

    Raises:
        OptionError: it is.
    """
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise OptionError(f"{name}: block is {block!r}; expected a number of rows, or None; leave it away.")


def check_rows(name: str, leading: torch.Size, reduction: str, token_weight: Tensor | None) -> None:
    """Refuse an unknown reduction, and weights of rows that do not fit.

    Raises:
        OptionError: the reduction is not known.
        ArgumentError: the weights are not one number for each row.
    """
    require_reduction(name, reduction)
    if token_weight is None:
        return
    require_floating(name, token_weight=token_weight)
    if token_weight.shape != leading:
        raise ArgumentError(
            f"{name}: token_weight has the shape {tuple(token_weight.shape)}; expected {tuple(leading)}, a number "
            "for each row of x; reshape or expand it."
        )


def reduced(
    head: Head,
    rows: Rows,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    *,
    kept: Tensor,
    counts: Tensor,
    token_weight: Tensor | None,
    reduction: Reduction,
    bend: Bend,
    block: int | None,
    recompute: bool,
) -> Tensor:
    """Return the losses of the rows, their sum or their mean.

    Arguments:
        head: the layer.
        rows: what the loss of a row is.
        by_row: tensors of the rows.
        shared: tensors of all.
        kept: 1 for each row that counts and 0 for others, at least float32.
        counts: what the sum of is divided by for a mean.
        token_weight: what the loss of each row is multiplied by, or None.
        reduction: which.
        bend: what is done to the logits first.
        block: rows of a block, or None.
        recompute: whether logits are computed again in the backward.
    """
    tokens = None if token_weight is None else token_weight.reshape(-1).to(widened(head.x[:0]).dtype)
    if reduction == "none":
        counting = kept > 0
        losses = each(head.x, head.weight, head.bias, rows, by_row, shared, bend=bend, kept=counting, block=block)
        losses = torch.where(counting, losses[:, 0], 0.0)
        return (losses if tokens is None else losses * tokens).reshape(head.leading).to(head.dtype)
    scale = kept if tokens is None else torch.where(kept > 0, tokens, 0.0)
    total = counts.sum()
    if reduction == "mean":
        scale = torch.where(total != 0, scale / torch.where(total != 0, total, 1.0), 0.0)
    scale = scale.unsqueeze(1)
    options: dict[str, Any] = {"bend": bend, "block": block, "recompute": recompute}
    loss = summed(head.x, head.weight, head.bias, scale, rows, by_row, shared, **options)
    if reduction == "mean":
        loss = loss + torch.where(total != 0, 0.0, torch.nan)
    return loss.to(head.dtype)
