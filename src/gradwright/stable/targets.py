"""What losses of classes have in common: the reduction, the targets, and one weight for each class."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from gradwright.errors import ArgumentError, OptionError, unknown_choice
from gradwright.stable.arguments import not_a_tensor, require_floating

Reduction: TypeAlias = Literal["none", "mean", "sum"]


def require_reduction(name: str, reduction: object) -> None:
    """Refuse a reduction that is not known.

    Raises:
        OptionError: it is not.
    """
    if reduction not in get_args(Reduction):
        raise unknown_choice(f"{name}: reduction", reduction, get_args(Reduction))


def require_smoothing(name: str, label_smoothing: float) -> None:
    """Refuse a part of the target that is none.

    Raises:
        OptionError: it is not between 0 and 1.
    """
    if not 0 <= label_smoothing <= 1:
        raise OptionError(f"{name}: label_smoothing is {label_smoothing}; expected a number from 0 to 1; correct it.")


def are_probabilities(name: str, target: Any) -> bool:
    """Tell whether targets are probabilities, and not class indices.

    Raises:
        ArgumentError: they are neither.
    """
    if not isinstance(target, Tensor):
        raise not_a_tensor(name, "target", target, "a tensor of class indices or probabilities")
    soft = target.is_floating_point()
    if not soft and target.dtype != torch.int64:
        raise ArgumentError(
            f"{name}: target is {target.dtype}; expected int64 for class indices, or a floating-point tensor for "
            "probabilities; write `target.long()`."
        )
    return soft


def require_class_weight(name: str, weight: Tensor | None, classes: int) -> None:
    """Refuse what is not one constant for each class.

    Raises:
        ArgumentError: it has another shape or dtype, or asks for a gradient.
    """
    if weight is None:
        return
    require_floating(name, weight=weight)
    if weight.shape != (classes,) or weight.requires_grad:
        learned = " and requires grad" if weight.requires_grad else ""
        raise ArgumentError(
            f"{name}: weight has the shape {tuple(weight.shape)}{learned}; expected one constant for each of the "
            f"{classes} classes; correct the shape, or detach it."
        )
