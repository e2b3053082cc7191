"""Smaller values in the place of all those of one call: of equal sizes the smaller ones are equal too.

Of a tensor whose values were kept a corner is taken; one of which only a specification was kept is drawn anew. What
counts something (an index, an offset, a number equal to a size) counts the smaller thing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gradwright.checking.tensors import overlaps
from gradwright.watching.calls import Elsewhere
from gradwright.watching.specs import TensorSpec, specify, strides_like

Manner = Literal["small", "small, numbers kept", "multiples of 16"]
MANNERS: tuple[Manner, ...] = ("small", "small, numbers kept", "multiples of 16")
"""Ways to choose the sizes, to be tried in this order: code that works in blocks needs the last."""
KEPT = 3
"""Sizes up to this stay as they are."""
LEAST = (32, 16, 8, 4, 2)
"""Sizes are made no smaller than the first of these with which no tensor has more elements than :data:`MANY`."""
MANY = 2000
COUNTED = 8
"""A number that is equal to a size below this is hardly that size."""
SENTINELS = 8
"""In so many of a tensor's indices there is one that is out of range on purpose."""


def smaller(leaves: Sequence[Any], seed: int, manner: Manner = "small") -> list[Any]:
    """Return smaller values in the place of tensors, their specifications, sizes and numbers.

    Arguments:
        leaves: all values of one call.
        seed: of the values that are drawn; the same ones are drawn for the same seed.
        manner: how sizes are chosen.
    """
    tensors = [leaf.values if isinstance(leaf, Elsewhere) else leaf for leaf in leaves]
    shapes = [tuple(leaf.shape) for leaf in tensors if isinstance(leaf, (Tensor, TensorSpec))]
    maker = _Maker(_sizes(shapes, manner), torch.Generator().manual_seed(seed), manner != "small, numbers kept")
    known: dict[int, Any] = {}
    return [known.setdefault(id(leaf), maker.make(leaf)) for leaf in tensors]


def _sizes(shapes: Sequence[tuple[int, ...]], manner: Manner) -> dict[int, int]:
    """Return a smaller size for each that occurs, such that no tensor has many elements, nor all of them few."""
    for least in LEAST:
        small = shrunk_sizes({size for shape in shapes for size in shape}, manner, least)
        if all(math.prod(small[size] for size in shape) <= MANY for shape in shapes):
            break
    return small


def shrunk_sizes(sizes: set[int], manner: Manner = "small", least: int = 2) -> dict[int, int]:
    """Return a smaller size for each: order, parity, products and, where that costs little, divisors are kept.

    Arguments:
        sizes: all that occur.
        manner: how they are chosen.
        least: sizes are not made smaller than this.

    Example:
        >>> shrunk_sizes({1, 12, 64, 768, 4096})
        {1: 1, 12: 2, 64: 4, 768: 8, 4096: 16}
    """
    small: dict[int, int] = {}
    for size in sorted(sizes):
        below = max(small.values(), default=0)
        if size <= KEPT:
            small[size] = size
        elif manner == "multiples of 16":
            small[size] = size if size <= 16 else min(size, 16 * (below // 16 + 1))
        else:
            small[size] = min(size, _smallest(size, max(below + 1, least), small))
    return small


def _smallest(size: int, low: int, small: dict[int, int]) -> int:
    for factor in small:
        if factor > 1 and size % factor == 0 and size // factor in small:
            product = small[factor] * small[size // factor]
            if product >= low:
                return product
    divisors = [small[other] for other in small if other > 1 and size % other == 0]
    even = 1 + (size % 2 == 0)
    for wanted in (math.lcm(even, *divisors), even):
        candidate = -(-low // wanted) * wanted
        if candidate <= 2 * low:
            return candidate
    return low


class _Maker:
    """Makes smaller values, with new sizes and one stream of random numbers."""

    def __init__(self, sizes: dict[int, int], generator: torch.Generator, counts: bool) -> None:
        self.sizes = sizes
        self.generator = generator
        self.counts = counts
        """Whether numbers that are equal to a size follow it."""

    def make(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorSpec):
            return self._drawn(leaf)
        if isinstance(leaf, torch.Size):
            return torch.Size([self.sizes.get(size, size) for size in leaf])
        if type(leaf) is int and self.counts and leaf >= COUNTED:
            return self.sizes.get(leaf, leaf)
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_quantized:
            return self._corner(leaf)
        return leaf

    def _corner(self, tensor: Tensor) -> Tensor:
        spec = specify(tensor)
        shape = self._shape(spec.shape)
        corner = tensor.detach()
        for dimension, size in enumerate(shape):
            corner = corner.narrow(dimension, 0, size)
        if spec.whole and not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool:
            top = self._top(spec)
            if top < spec.high:
                corner = torch.where(corner > 0, corner % (top + 1), corner)
                corner = corner.sort(dim=-1).values if spec.ascending else corner
        if spec.distribution:
            corner = corner / corner.sum(-1, keepdim=True)
        return self._laid_out(spec, corner.to(tensor.dtype))

    def _drawn(self, spec: TensorSpec) -> Tensor:
        return self._laid_out(spec, self._values(spec, self._shape(spec.shape)))

    def _shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.sizes[size] for size in shape)

    def _laid_out(self, spec: TensorSpec, values: Tensor) -> Tensor:
        """Put values into memory with strides like those of the original."""
        shape = tuple(values.shape)
        strides = strides_like(shape, spec.shape, spec.stride)
        span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if values.numel() else 0
        placed = torch.zeros(span, dtype=values.dtype).as_strided(shape, strides)
        once = placed
        for dimension, stride in enumerate(strides):
            if stride == 0 and shape[dimension] > 1:
                once, values = once.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
        if overlaps(once):
            placed = values.contiguous()
        else:
            once.copy_(values)
        return placed.requires_grad_(spec.requires_grad)

    def _top(self, spec: TensorSpec) -> int:
        """Return the largest whole number that may occur: below the size that was above all of them."""
        high = int(spec.high)
        if spec.ascending and high in self.sizes:
            return self.sizes[high]  # offsets, which end with the size itself
        above = [size for size in self.sizes if size > high]
        return min(high, self.sizes[min(above)] - 1) if above else high

    def _values(self, spec: TensorSpec, shape: tuple[int, ...]) -> Tensor:
        if spec.dtype.is_complex:
            parts = [self._real(spec, shape) for _ in range(2)]
            return torch.complex(*parts).to(spec.dtype)
        if spec.dtype == torch.bool:
            return torch.rand(shape, generator=self.generator) < spec.mean
        if not spec.dtype.is_floating_point:
            return self._whole(spec, shape).to(spec.dtype)
        values = self._real(spec, shape)
        if spec.distribution:
            values = values.clamp(min=1e-6)
            values = values / values.sum(-1, keepdim=True)
        if spec.ascending and shape:
            values = values.sort(dim=-1).values
        if spec.hidden:
            hidden = torch.rand(shape, generator=self.generator) < spec.hidden
            if shape and spec.hidden < 1:
                hidden[..., 0:1] = False  # a mask leaves something of each row, or there is no softmax of it
            values[hidden] = -math.inf
        return values.to(spec.dtype)

    def _real(self, spec: TensorSpec, shape: tuple[int, ...]) -> Tensor:
        normal = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        values = (spec.mean + spec.deviation * normal).clamp(spec.low, spec.high)
        return values.round() if spec.whole else values

    def _whole(self, spec: TensorSpec, shape: tuple[int, ...]) -> Tensor:
        top = self._top(spec)
        bottom = int(spec.low) if spec.low <= top // 2 or top == spec.high else 0
        marked = bottom < 0 < top  # as -100 says that a target does not count
        first = 0 if marked else bottom
        values = torch.randint(first, top + 1, shape, generator=self.generator)
        if spec.distinct and shape and shape[-1] <= top + 1 - first:
            rows = torch.rand((*shape[:-1], top + 1 - first), generator=self.generator).argsort(dim=-1)
            values = first + rows[..., : shape[-1]]
        if marked:
            values[torch.rand(shape, generator=self.generator) < 1 / SENTINELS] = bottom
        if spec.ascending and values.numel():
            values = values.sort(dim=-1).values
            values[..., 0], values[..., -1] = bottom, top
        return values
