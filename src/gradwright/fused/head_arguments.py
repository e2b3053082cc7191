"""The arguments and the reductions that functions of a linear layer and a loss have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from gradwright.errors import ArgumentError, OptionError, unknown_choice
from gradwright.fused.heads import each, summed
from gradwright.fused.route import product_dtype
from gradwright.fused.rows import Bend, Rows
from gradwright.stable.arguments import require_floating, require_number, widened

Reduction: TypeAlias = Literal["none", "mean", "sum"]


@dataclass(frozen=True)
class Head:
    """The layer, with all rows of its input in one dimension."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    leading: torch.Size
    """The shape of the input without its features."""

    @property
    def classes(self) -> int:
        """How many numbers the layer returns for a row."""
        return int(self.weight.shape[0])


def flat_head(name: str, x: Tensor, weight: Tensor, bias: Tensor | None, *, prefix: str = "linear_") -> Head:
    """Return the layer, cast as autocast casts the input of a layer.

    Raises:
        ArgumentError: shapes or dtypes do not fit.
    """
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
    x, weight = x.to(product_dtype(x)), weight.to(product_dtype(weight))
    bias = None if bias is None else bias.to(product_dtype(bias))
    given = {tensor.dtype for tensor in (x, weight, bias) if tensor is not None}
    if len(given) > 1:
        third = "" if bias is None else f", {bias_name} {bias.dtype}"
        raise ArgumentError(
            f"{name}: x is {x.dtype}, {weight_name} {weight.dtype}{third}; expected one dtype, as for "
            "torch.nn.functional.linear; convert them, or use torch.autocast."
        )
    return Head(x.reshape(x.shape[:-1].numel(), x.shape[-1]), weight, bias, x.shape[:-1])


def check_bend(name: str, softcap: float | None, temperature: float = 1.0) -> Bend:
    """Return what is done to logits.

    Raises:
        OptionError: a number is not positive.
    """
    require_number(name, temperature=temperature, **({} if softcap is None else {"softcap": softcap}))
    for option, value in (("softcap", softcap), ("temperature", temperature)):
        if value is not None and not value > 0:
            raise OptionError(f"{name}: {option} is {value}; expected a positive number; correct it.")
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
    if reduction not in get_args(Reduction):
        raise unknown_choice(f"{name}: reduction", reduction, get_args(Reduction))
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
    again: bool,
    dtype: torch.dtype | None,
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
        again: whether logits are computed again in the backward.
        dtype: of the result, or None for that of the input of the layer.
    """
    tokens = None if token_weight is None else token_weight.reshape(-1).to(widened(head.x[:0]).dtype)
    dtype = dtype or head.x.dtype
    if reduction == "none":
        counting = kept > 0
        losses = each(head.x, head.weight, head.bias, rows, by_row, shared, bend=bend, kept=counting, block=block)
        losses = torch.where(counting, losses[:, 0], 0.0)
        return (losses if tokens is None else losses * tokens).reshape(head.leading).to(dtype)
    scale = kept if tokens is None else torch.where(kept > 0, tokens, 0.0)
    total = counts.sum()
    if reduction == "mean":
        scale = torch.where(total != 0, scale / torch.where(total != 0, total, 1.0), 0.0)
    loss = summed(
        head.x, head.weight, head.bias, scale.unsqueeze(1), rows, by_row, shared, bend=bend, block=block, again=again
    )
    if reduction == "mean":
        loss = loss + torch.where(total != 0, 0.0, torch.nan)
    return loss.to(dtype)
