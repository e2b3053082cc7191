"""Gradient reversal as a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradwright.errors import OptionError
from gradwright.ste.shaping import reverse_gradient


class GradientReversal(nn.Module):
    """Return the input as it is; its gradient is multiplied by ``-strength`` on the way back.

    So what comes before learns against what comes after, as in domain-adversarial training (Ganin and Lempitsky 2014,
    arXiv 1409.7495).

    Arguments:
        strength: a number, at least 0; set the attribute to change it while training.

    Example:
        >>> import torch, gradwright as gw
        >>> reverse = gw.ste.GradientReversal()
        >>> reverse.strength = 0.5
        >>> x = torch.ones(2, requires_grad=True)
        >>> torch.autograd.grad(reverse(x).sum(), x)
        (tensor([-0.5000, -0.5000]),)
    """

    held_strength: Tensor

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__()
        # A tensor: a number would be a constant of compiled code, which a schedule would compile anew in every step.
        self.register_buffer("held_strength", torch.zeros(()), persistent=False)
        self.strength = strength

    @property
    def strength(self) -> float:
        """The factor, without its sign."""
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        if not value >= 0:
            raise OptionError(f"GradientReversal: strength is {value}; expected at least 0; the sign is added here.")
        self._strength = float(value)
        # A new one: a graph that was recorded before keeps the strength that it had then.
        if torch.is_inference_mode_enabled():  # whose tensors no graph can keep
            with torch.inference_mode(False):
                self.held_strength = torch.full_like(self.held_strength, value)
        else:
            self.held_strength = torch.full_like(self.held_strength, value)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> GradientReversal:
        """Move the module as usual; ``to_empty`` leaves a tensor without its number, and ``half`` rounds it."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.strength = self._strength
        return self

    def __surrogate__(self, x: Tensor) -> Tensor:
        """Return what has the gradient that is returned, for ``gw.check``."""
        return -self.held_strength * x

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return reverse_gradient(x, self.held_strength)

    def extra_repr(self) -> str:
        """Say how strong it is."""
        return f"strength={self.strength:g}"
