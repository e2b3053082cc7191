"""The heads as modules: a linear layer with its loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradwright.errors import ArgumentError
from gradwright.fused.crossentropy import check_options, linear_cross_entropy
from gradwright.fused.head_arguments import check_bend, check_rows, require_block
from gradwright.stable.arguments import require_floating
from gradwright.stable.targets import Reduction


class LinearCrossEntropyLoss(nn.Module):
    """A linear layer and the cross-entropy of its output, like ``torch.nn.LinearCrossEntropyLoss`` (of torch 2.13).

    It has the same parameters and state dict, and may have a weight that is tied to that of an embedding:
    ``loss.linear.weight = embedding.weight``. See :func:`linear_cross_entropy` for what it computes and keeps.

    Arguments:
        in_features: the size of the last dimension of the input.
        num_classes: how many classes there are.
        bias: whether the layer has a bias.
        device: of the parameters.
        dtype: of the parameters.
        reduction: ``mean``, ``sum`` or ``none``.
        weight: one number for each class, or None.
        ignore_index: an index that does not count; None is -100.
        label_smoothing: how much of the target is spread over all classes.
        z_loss, entropy_bonus, softcap, recompute, block: those of :func:`linear_cross_entropy`.
        loss_dtype: the ``dtype`` of that.

    Raises:
        ArgumentError: ``weight`` is no tensor of that shape, or an option no number.
        OptionError: an option is none of its choices.

    Example:
        >>> import torch, gradwright as gw
        >>> head = gw.fused.LinearCrossEntropyLoss(4, 10, softcap=30.0)
        >>> round(head(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)).item(), 4)
        2.3026
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        entropy_bonus: float = 0.0,
        softcap: float | None = None,
        recompute: bool = False,
        block: int | None = None,
        loss_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = "LinearCrossEntropyLoss"
        check_options(name, label_smoothing=label_smoothing, z_loss=z_loss, entropy_bonus=entropy_bonus)
        check_rows(name, torch.Size(), reduction, None)
        check_bend(name, softcap)
        require_block(name, block)
        if weight is not None:
            require_floating(name, weight=weight)
            if weight.shape != (num_classes,):
                raise ArgumentError(
                    f"{name}: weight has the shape {tuple(weight.shape)}; expected ({num_classes},), a number for each "
                    "class; reshape it. The weight of the layer is linear.weight."
                )
        self.linear = nn.Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)
        self.register_buffer("weight", weight)
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.options: dict[str, Any] = {
            "z_loss": z_loss,
            "entropy_bonus": entropy_bonus,
            "softcap": softcap,
            "recompute": recompute,
            "block": block,
            "dtype": loss_dtype,
        }

    def forward(self, x: Tensor, target: Tensor, token_weight: Tensor | None = None) -> Tensor:
        """Return the loss of inputs (..., in_features) and targets (...) or (..., num_classes)."""
        return linear_cross_entropy(
            x,
            self.linear.weight,
            target,
            linear_bias=self.linear.bias,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            token_weight=token_weight,
            **self.options,
        )

    def extra_repr(self) -> str:
        """Return the options."""
        shown = {
            "reduction": self.reduction,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
        }
        return ", ".join(f"{name}={value!r}" for name, value in {**shown, **self.options}.items())
