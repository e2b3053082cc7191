"""Sparse softmaxes as modules, in the place of ``torch.nn.Softmax`` or of those of the package entmax."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.fused.entmax import entmax, entmax15, sparsemax


class Sparsemax(torch.nn.Module):
    """Sparsemax as a module: see :func:`sparsemax`.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.Sparsemax()(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """

    def __init__(self, dim: int = -1) -> None:
        """Take the dimension whose elements sum to 1."""
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return ``sparsemax(x, dim)``."""
        return sparsemax(x, self.dim)

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        return f"dim={self.dim}"


class Entmax15(Sparsemax):
    """The 1.5-entmax as a module: see :func:`entmax15`.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.Entmax15()(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.6740, 0.3260, 0.0000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return ``entmax15(x, dim)``."""
        return entmax15(x, self.dim)


class Entmax(torch.nn.Module):
    """The alpha-entmax as a module: see :func:`entmax`. An ``alpha`` that is a parameter is learned.

    Example:
        >>> import torch, gradwright as gw
        >>> attention = gw.fused.Entmax(torch.nn.Parameter(torch.full((8, 1, 1), 1.5)))  # one for each of 8 heads
        >>> attention(torch.randn(2, 8, 5, 5)).shape, [name for name, _ in attention.named_parameters()]
        (torch.Size([2, 8, 5, 5]), ['alpha'])
    """

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1) -> None:
        """Take ``alpha`` and the dimension whose elements sum to 1."""
        super().__init__()
        self.dim = dim
        self.alpha: float | Tensor
        if isinstance(alpha, Tensor) and not isinstance(alpha, torch.nn.Parameter):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return ``entmax(x, alpha, dim)``."""
        return entmax(x, self.alpha, self.dim)

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        shown = f"of shape {tuple(self.alpha.shape)}" if isinstance(self.alpha, Tensor) else self.alpha
        return f"alpha={shown}, dim={self.dim}"
