"""A stack of residual blocks ``x + W2 act(W1 x)``, where what activations keep adds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tests.footprint import kept_bytes, peak_bytes

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes the inner numbers of a block and the weight and bias of its second layer: ``linear(act(x), weight, bias)``."""


@dataclass(frozen=True)
class Stack:
    """Blocks of the same sizes; the numbers are the same each time."""

    blocks: int = 4
    rows: int = 256
    width: int = 128
    inner: int = 512

    def parameters(self) -> list[Tensor]:
        """Return the four parameters of each block, one after the other."""
        generator = torch.Generator().manual_seed(0)
        shapes = [(self.inner, self.width), (self.inner,), (self.width, self.inner), (self.width,)]
        found = [torch.randn(shape, generator=generator) for _ in range(self.blocks) for shape in shapes]
        return [(x / x.shape[-1] ** 0.5 if x.dim() == 2 else x / 8).requires_grad_() for x in found]

    def input(self) -> Tensor:
        """Return what goes into the first block."""
        return torch.randn(self.rows, self.width, generator=torch.Generator().manual_seed(1))

    def forward(self, layer: Layer, parameters: list[Tensor], x: Tensor) -> Tensor:
        """Return what comes out of the last block."""
        rest = iter(parameters)
        for first, offset, second, bias in zip(rest, rest, rest, rest):
            x = x + layer(functional.linear(x, first, offset), second, bias)
        return x

    def gradients(self, layer: Layer) -> list[Tensor]:
        """Return the gradients of the mean square of the output."""
        parameters = self.parameters()
        return list(torch.autograd.grad(self.forward(layer, parameters, self.input()).square().mean(), parameters))

    def kept(self, layer: Layer) -> int:
        """Return how many bytes are kept for the backward, parameters, input and output apart."""
        parameters, x = self.parameters(), self.input()
        return kept_bytes(lambda: self.forward(layer, parameters, x), [*parameters, x])

    def peak(self, layer: Layer) -> int:
        """Return the most bytes that one step allocates at one time, gradients among them."""
        return peak_bytes(lambda: self.gradients(layer)) - self.given

    @property
    def given(self) -> int:
        """The bytes of parameters and input, which a step makes anew."""
        return sum(x.nbytes for x in [*self.parameters(), self.input()])


def after(activation: Callable[[Tensor], Tensor]) -> Layer:
    """Return the second layer of a block with an activation before it."""
    return lambda x, weight, bias: functional.linear(activation(x), weight, bias)
