"""What a transform of PyTorch gives, against what the subject gives in eager mode: compared by value.

A transform is run on the case as a plain function of its inputs, and compared with eager autograd. Nothing is said to
work because it ran.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.judge import Tolerance, largest_entry, one_unit_away
from gradwright.checking.magnitudes import CANCELLED, largest_in_backward
from gradwright.checking.report import Where
from gradwright.checking.tensors import copy_of, from_flat, join, tensors_in, to_flat

Runner: TypeAlias = Callable[..., Sequence[Tensor]]
"""Called with one tensor for each input of a case; returns its differentiable outputs."""

SPREAD_DRAWS = 3


@dataclass(frozen=True)
class Result:
    """One forward and backward of a case: its outputs as one real vector, and a real vector for each input."""

    value: Tensor
    gradients: list[Tensor]
    connected: bool = True
    """False when no output requires grad, so that there is no gradient at all."""


@dataclass(frozen=True)
class Mismatch:
    """A value or gradient that differs from that of eager mode: the element that differs most."""

    input: int | None
    """Number of the input whose gradient it is; None for a value."""
    where: Where
    got: float
    want: float
    allowed: float
    share: str
    """In how many elements, for example ``3 of 4 elements``."""

    def describe(self, reference: str = "eager mode gives", value: str = "the value") -> str:
        """Say what differs, for example ``the gradient of `x` is 0, where eager mode gives 7 (in 3 of 3 elements)``."""
        what = value if self.input is None else f"the gradient of `{self.where.input}`"
        return f"{what} is {self.got:.6g}, where {reference} {self.want:.6g} (differs in {self.share})"


class ShapeError(Exception):
    """A transform returned outputs of other shapes than eager mode does; the text says which."""


def function_of(case: Case) -> Runner:
    """Return the case as a function of its inputs; every other argument is a fresh copy at each call."""

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        passed = [t.clone() for t in tensors] if case.in_place else list(tensors)
        outputs = tensors_in(case.subject.call(case.rebuild(passed)))
        return tuple(outputs[o.position] for o in case.outputs)

    return function


def leaves(case: Case, flats: Mapping[int, Tensor] | None = None) -> list[Tensor]:
    """Return fresh tensors that require grad for the inputs, some of them with other values."""
    flats = flats or {}
    return [
        (from_flat(flats[k], item.tensor) if k in flats else copy_of(item.tensor)).requires_grad_()
        for k, item in enumerate(case.inputs)
    ]


def observe(case: Case, v: Tensor, runner: Runner | None = None, flats: Mapping[int, Tensor] | None = None) -> Result:
    """Run forward and a backward of the cotangent ``v`` through ``runner`` (the subject itself when None)."""
    fresh = leaves(case, flats)
    with case.sandbox():
        outputs = list((runner or function_of(case))(*fresh))
    return Result(_flat(case, outputs), *_pull(case, v, outputs, fresh))


def _pull(case: Case, v: Tensor, outputs: list[Tensor], fresh: list[Tensor]) -> tuple[list[Tensor], bool]:
    pairs = [(out, c.to(out.dtype)) for out, c in zip(outputs, case.cotangents(v)) if out.requires_grad]
    if not pairs:
        return case.flatten_inputs([None] * len(fresh)), False
    with case.sandbox():
        got: Any = torch.autograd.grad([o for o, _ in pairs], fresh, [c for _, c in pairs], allow_unused=True)
    return case.flatten_inputs([None if g is None else g.detach() for g in got]), True


def _flat(case: Case, outputs: Sequence[Tensor]) -> Tensor:
    got, expected = [tuple(o.shape) for o in outputs], [tuple(o.shape) for o in case.outputs]
    if got != expected:
        raise ShapeError(f"outputs of the shapes {got} instead of {expected}")
    return join([to_flat(out) for out in outputs])


def spread(case: Case, v: Tensor, flats: Mapping[int, Tensor] | None = None) -> Result:
    """Return by how much value and gradients move in eager mode when the inputs move by one rounding unit."""
    generator = case.generator("spread")
    at = {k: (flats or {}).get(k, x) for k, x in enumerate(case.base)}
    here = observe(case, v, flats=at)
    value, gradients = torch.zeros_like(here.value), [torch.zeros_like(g) for g in here.gradients]
    for _ in range(SPREAD_DRAWS):
        moved = observe(case, v, flats={k: one_unit_away(x, generator) for k, x in at.items()})
        value = value.maximum((moved.value - here.value).abs().nan_to_num(torch.inf))
        gradients = [
            most.maximum((a - b).abs().nan_to_num(torch.inf))
            for most, a, b in zip(gradients, moved.gradients, here.gradients)
        ]
    return Result(value, gradients)


def compare(
    case: Case,
    got: Result,
    want: Result,
    scatter: Callable[[], Result],
    tolerance: Tolerance | None = None,
) -> Mismatch | None:
    """Compare a result with that of eager mode; None when they agree up to rounding.

    Arguments:
        scatter: called once, only when something differs; what :func:`spread` returns. A transform may compute in
            another order, which is no more than moving the inputs by a rounding unit.
        tolerance: wider than rounding, where the transform is allowed more.
    """
    unit = CANCELLED * case.epsilon if tolerance is None else tolerance.relative
    tolerance = tolerance or Tolerance.for_epsilon(case.epsilon)
    pairs: list[tuple[int | None, Tensor, Tensor]] = [(None, got.value, want.value)]
    pairs += [(k, a, b) for k, (a, b) in enumerate(zip(got.gradients, want.gradients))]
    largest = {True: largest_entry(want.value), False: largest_entry(*want.gradients)}
    moved: Result | None = None
    for k, a, b in pairs:
        allowed = tolerance.at(a, b, largest[k is None])
        if k is not None:
            allowed = allowed + case.allowances.of(b)
        if bool(_inside(a, b, allowed).all()):
            continue
        moved = moved or scatter()
        allowed = allowed + 8 * (moved.value if k is None else moved.gradients[k])
        if k is not None:  # what is left of large terms that cancel is rounded as they were
            allowed = allowed + unit * largest_in_backward(case, random_cotangent(case))
        fine = _inside(a, b, allowed)
        if not bool(fine.all()):
            return _mismatch(case, k, a, b, allowed, fine)
    return None


def _inside(a: Tensor, b: Tensor, allowed: Tensor) -> Tensor:
    return ((a - b).abs() <= allowed) | (a == b) | (a.isnan() & b.isnan())


def _mismatch(case: Case, k: int | None, a: Tensor, b: Tensor, allowed: Tensor, fine: Tensor) -> Mismatch:
    gap = torch.where(fine, -1.0, (a - b).abs().nan_to_num(torch.inf, torch.inf))
    i = int(gap.argmax())
    if k is None:
        output, index = case.locate_output(i)
        where = Where(output=case.outputs[output].position, output_index=index)
    else:
        where = Where(input=case.inputs[k].name, index=case.locate_input(k, i))
    share = f"{int((~fine).sum())} of {len(a)} elements"
    return Mismatch(k, where, float(a[i]), float(b[i]), float(allowed[i]), share)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings that transforms give about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def inner_product(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Return the real inner product of two lists of tensors (complex ones as pairs of real numbers)."""
    total: Any = 0.0
    for value, weight in zip(values, weights):
        product = value * weight.conj() if value.is_complex() else value * weight
        total = total + (product.real if product.is_complex() else product).sum()
    return torch.as_tensor(total)
