"""Norms as modules, in the place of those of ``torch.nn``: with the same parameters, and a residual to add."""

from __future__ import annotations

from typing import Any, overload

from torch import Tensor, nn

from gradwright.errors import OptionError, unknown_choice
from gradwright.fused.norm_rows import Cast
from gradwright.fused.norms import CASTS, Shape, layer_norm, rms_norm


class RMSNorm(nn.RMSNorm):
    """``torch.nn.RMSNorm`` by :func:`gradwright.fused.rms_norm`; Llama's and Gemma's norms load into it as well.

    Arguments:
        normalized_shape, eps, elementwise_affine, device, dtype: those of ``torch.nn.RMSNorm``.
        offset: added to the weight, which then starts at ``1 - offset``; 1.0 in Gemma.
        cast: what is rounded to the dtype of the input; ``"normalized"`` in Llama.

    Raises:
        OptionError: ``cast`` is not known, or there is an offset and no weight.

    Example:
        >>> import torch, gradwright as gw
        >>> norm = gw.fused.RMSNorm(4, eps=1e-6)
        >>> norm(torch.tensor([[3.0, 4.0, 0.0, 0.0]]))
        tensor([[1.2000, 1.6000, 0.0000, 0.0000]], grad_fn=<_rmsBackward>)
        >>> normed, total = norm(torch.ones(1, 4), residual=torch.ones(1, 4))
        >>> total
        tensor([[2., 2., 2., 2.]])
    """

    offset: float = 0.0
    cast: Cast = "output"

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        offset: float = 0.0,
        cast: Cast = "output",
    ) -> None:
        if cast not in CASTS:
            raise unknown_choice("RMSNorm: cast", cast, CASTS)
        if offset and not elementwise_affine:
            raise OptionError(
                f"RMSNorm: offset is {offset} and elementwise_affine is False; expected a weight that it is added to; "
                "leave one of them."
            )
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.offset, self.cast = offset, cast
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the weight such that rows are divided by their root mean square alone."""
        if self.elementwise_affine:
            nn.init.constant_(self.weight, 1.0 - self.offset)

    @overload
    def forward(self, x: Tensor, residual: None = ...) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the normalised rows of ``x``; with ``residual`` those of ``x + residual``, and that sum."""
        return rms_norm(
            x, self.normalized_shape, self.weight, self.eps, residual=residual, offset=self.offset, cast=self.cast
        )

    def extra_repr(self) -> str:
        """Show the options that are not the usual ones beside those of PyTorch."""
        shown = super().extra_repr()
        shown += f", offset={self.offset}" if self.offset else ""
        return shown + (f", cast={self.cast!r}" if self.cast != "output" else "")


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm`` with a residual to add before; by :func:`gradwright.fused.layer_norm`, which is PyTorch's.

    Example:
        >>> import torch, gradwright as gw
        >>> norm = gw.fused.LayerNorm(2, elementwise_affine=False)
        >>> norm(torch.tensor([[1.0, 3.0]]), residual=torch.tensor([[0.0, 2.0]]))
        (tensor([[-1.0000,  1.0000]]), tensor([[1., 5.]]))
    """

    @overload
    def forward(self, input: Tensor, residual: None = ...) -> Tensor: ...

    @overload
    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the normalised rows of ``input``; with ``residual`` those of ``input + residual``, and that sum."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps, residual=residual)
