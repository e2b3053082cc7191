"""A batch of examples near the sample, and what a loop over them gives: the reference for vmap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.tensors import from_flat, join, to_flat
from gradwright.checking.transforms import Result, ShapeError, observe

Dims = tuple[int | None, ...]
"""Which dimension of each input is the batch; None for an input that is not batched."""
FACTORS = (1.0, 1 - 2.0**-4, 1 + 2.0**-5)
"""The examples of a batch are multiples of the sample, so that signs, symmetries and most domains are kept."""


@dataclass
class Batch:
    """Several examples near the sample, and what a loop over them gives."""

    case: Case
    size: int
    points: list[dict[int, Tensor]]
    cotangents: list[Tensor]
    known: dict[tuple[Dims, int], Result] = field(default_factory=dict)

    def flats(self, dims: Dims, b: int) -> dict[int, Tensor]:
        """Return the inputs of example ``b``; those that are not batched have the sample's own values."""
        return {k: self.points[b][k] if dim is not None else self.case.base[k] for k, dim in enumerate(dims)}

    def looped(self, dims: Dims, b: int) -> Result:
        """Return what eager mode gives for example ``b``."""
        key = (tuple(None if dim is None else 0 for dim in dims), b)
        if key not in self.known:
            self.known[key] = observe(self.case, self.cotangents[b], flats=self.flats(dims, b))
        return self.known[key]

    def inputs(self, dims: Dims) -> list[Tensor]:
        """Return the arguments of the batched call."""
        stacked = []
        for k, (dim, item) in enumerate(zip(dims, self.case.inputs)):
            examples = [from_flat(self.points[b][k], item.tensor) for b in range(self.size)]
            stacked.append(from_flat(self.case.base[k], item.tensor) if dim is None else torch.stack(examples, dim))
        return stacked

    def stacked_cotangents(self) -> list[Tensor]:
        """Return one batched cotangent for each output, the batch dimension first."""
        return [torch.stack(parts) for parts in zip(*(self.case.cotangents(v) for v in self.cotangents))]

    def examples(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Result]:
        """Take the batch apart: what each example got."""
        case = self.case
        shapes = [tuple(out.shape) for out in outputs]
        expected = [(self.size, *o.shape) for o in case.outputs]
        if shapes != expected:
            raise ShapeError(f"outputs of the shapes {shapes}, batch dimension first, instead of {expected}")
        return [
            Result(join([to_flat(out[b]) for out in outputs]), case.flatten_inputs([g[b] for g in gradients]))
            for b in range(self.size)
        ]


def draw(case: Case) -> Batch:
    """Draw a batch whose size is no size of any dimension, so that a confusion of dimensions shows."""
    sizes = {n for t in [*(i.tensor for i in case.inputs)] for n in t.shape} | {
        n for o in case.outputs for n in o.shape
    }
    size = next(b for b in (3, 2, *range(4, 20)) if b not in sizes or b == 19)
    scaled = [{k: x * FACTORS[b % len(FACTORS)] for k, x in enumerate(case.base)} for b in range(size)]
    cotangents = [random_cotangent(case, f"vmap {b}") for b in range(size)]
    batch = Batch(case, size, scaled, cotangents)
    try:
        usable = all(bool(case.value(point).isfinite().all()) for point in scaled[: len(FACTORS)])
    except Exception:
        usable = False
    if not usable:
        batch.points = [dict(enumerate(case.base))] * size
    return batch
