"""Sparse Jacobians: dimensions along which a function treats its slices independently of each other.

If output row b depends on input row b alone, all rows can be moved at once: one ladder of differences gives a whole
group of Jacobian entries, each with its own bar, and one backward gives as many analytic ones (Curtis, Powell, Reid,
J. IMA 13 (1974) 117, with the pattern known in advance). An elementwise function needs a single group however large it
is; softmax over rows of length d needs d.

Independence is tested, not assumed: a random half of the slices is moved, and the outputs of the other half must keep
their bits; then the other way round. What the pattern leaves out is covered by a random projection of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from gradwright.checking.case import Case

SPLITS = 2
"""Random halves that are tried for each pair of dimensions, each with its complement."""


@dataclass(frozen=True)
class Pattern:
    """Which entries of one input-output block are compared, and how they are grouped.

    P slices (the independent index), C groups of input elements, and the M elements of the output block.
    """

    pairs: tuple[tuple[int, int], ...]
    """Independent dimensions, (of the input, of the output)."""
    element: Tensor
    """Input element of slice p in group c, shape (P, C)."""
    slice_of: Tensor
    """Slice that each output element belongs to, shape (M,)."""
    rest_of: Tensor
    """Index of each output element within its slice, shape (M,)."""

    @property
    def groups(self) -> int:
        """Number of directions that are needed."""
        return self.element.shape[1]

    @property
    def rests(self) -> int:
        """Number of backwards that are needed."""
        return int(self.rest_of.max()) + 1 if self.rest_of.numel() else 0

    def elements(self) -> Tensor:
        """Return the input element behind each compared entry, shape (C, M)."""
        return self.element[self.slice_of].t()


def find_pattern(case: Case, k: int, o: int) -> Pattern:
    """Return the pattern of the block of output ``o`` with respect to input ``k``."""
    shape, out_shape = _real_shape(case, k), case.real_output_shape(o)
    pairs: list[tuple[int, int]] = []
    for d in range(len(shape)):
        for e in dict.fromkeys((d, d + len(out_shape) - len(shape))):
            taken = any(e == other for _, other in pairs)
            fits = 0 <= e < len(out_shape) and not taken and shape[d] == out_shape[e] > 1
            if fits and _independent(case, k, o, d, e):
                pairs.append((d, e))
                break
    return _pattern(shape, out_shape, pairs)


def dense_pattern(case: Case, k: int, o: int) -> Pattern:
    """Return the pattern that compares every entry of the block."""
    return _pattern(_real_shape(case, k), case.real_output_shape(o), [])


def _independent(case: Case, k: int, o: int, d: int, e: int) -> bool:
    generator = case.generator(f"pattern {k} {o} {d} {e}")
    shape, out_shape = _real_shape(case, k), case.real_output_shape(o)
    if shape[d] != case.inputs[k].tensor.shape[d : d + 1].numel():
        return False  # the real and imaginary parts of complex numbers
    x, where = case.base[k], case.output_slice(o)
    here = case.value()[where]
    if not bool(here.isfinite().all()):
        return False
    for _ in range(SPLITS):
        half = torch.randperm(shape[d], generator=generator)[: (shape[d] + 1) // 2]
        chosen = torch.zeros(shape[d], dtype=torch.bool)
        chosen[half] = True
        for moved in (chosen, ~chosen):
            factor = 1 + 0.01 * (0.5 + torch.rand(x.numel(), generator=generator, dtype=torch.float64)).to(x.dtype)
            mask = along(moved, shape, d)
            there = case.value({k: torch.where(mask, x * factor + 1e-3 * factor, x)})[where]
            outside = ~along(moved, out_shape, e)
            if not torch.equal(here[outside], there[outside]):
                return False
    return True


def along(mask: Tensor, shape: tuple[int, ...], d: int) -> Tensor:
    """Spread a mask over one dimension to all elements of a shape, flattened."""
    view = [1] * len(shape)
    view[d] = shape[d]
    return mask.reshape(view).expand(shape).reshape(-1)


def _pattern(shape: tuple[int, ...], out_shape: tuple[int, ...], pairs: list[tuple[int, int]]) -> Pattern:
    ins, outs = [d for d, _ in pairs], [e for _, e in pairs]
    slices = _ravel(shape, ins)
    groups = _ravel(shape, [d for d in range(len(shape)) if d not in ins])
    p, c = prod(shape[d] for d in ins), prod(shape[d] for d in range(len(shape)) if d not in ins)
    element = torch.empty(p, c, dtype=torch.int64)
    element[slices, groups] = torch.arange(slices.numel())
    return Pattern(
        tuple(pairs),
        element,
        _ravel(out_shape, outs),
        _ravel(out_shape, [e for e in range(len(out_shape)) if e not in outs]),
    )


def _ravel(shape: tuple[int, ...], dims: list[int]) -> Tensor:
    """Return, for every element of a shape, its flat position among ``dims`` alone."""
    position = torch.zeros(shape, dtype=torch.int64)
    for d in dims:
        view = [1] * len(shape)
        view[d] = shape[d]
        position = position * shape[d] + torch.arange(shape[d]).reshape(view)
    return position.reshape(-1)


def _real_shape(case: Case, k: int) -> tuple[int, ...]:
    tensor = case.inputs[k].tensor
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
