"""A second witness: forward's own body under dual numbers, which is exact, needs no step, and decides nothing.

The body of ``forward`` is run outside ``apply``, so that PyTorch's rules for the operations in it push tangents through
(and, where it takes complex numbers, so that the complex step of Squire and Trapp can be taken). The trap is what cuts
a tangent in silence: ``detach``, ``.data`` and rounding agree with themselves, and a body in NumPy is opaque. So the
witness is heard only after it agreed with a sharp difference projection of the same block, and all it adds is words:
no verdict depends on it.

Squire and Trapp, SIAM Review 40 (1998) 110.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.checking.differences import FIRST_STEP, Behaviour, differentiate_sum, element_steps, signed
from gradwright.checking.forward_mode import push
from gradwright.checking.jacobian import Comparison
from gradwright.checking.judge import State, Tolerance
from gradwright.checking.projection import Projection, direction_pair, rounding_of_sum
from gradwright.checking.tensors import join, tensors_in, to_flat
from gradwright.checking.variants import quietly

SHARP = 1e-6
"""A difference projection has to be this narrow, relative to the sum of its terms, to vouch for the witness."""
SUBSETS = 3
SUBSET = 4
"""Elements moved at once where moving all of them crosses kinks or drowns in noise."""
SLOW = 0.01
"""Seconds of a forward that is not run some hundred times for words alone."""
MAX_COLUMNS = 64
IMAGINARY_STEP = 1e-30


class Context:
    """Stands in for ``ctx`` in old-style forwards: takes everything and does nothing with it."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in arguments)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep the tensors, as some forwards read them back."""
        self.saved_tensors = tensors

    def _take(self, *_: Any) -> None:
        pass

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = _take


@dataclass(frozen=True)
class Witness:
    """Derivatives of one input-output block through forward's body; made by :func:`find_witness` only."""

    case: Case
    input: int
    output: int

    def along(self, u: Tensor) -> Tensor | None:
        """Return ``J u`` of the block, or None where the body is opaque."""
        pushed = _push(self.case, self.input, u)
        return None if pushed is None else pushed[self.case.output_slice(self.output)]


def find_witness(
    case: Case, k: int, o: int, elements: Tensor | None = None, outputs: Tensor | None = None
) -> Witness | None:
    """Return the witness of a block if it agrees with a sharp difference projection of it.

    Arguments:
        case: the case.
        k: number of the input.
        o: number of the output.
        elements: input elements that may be moved for the comparison (bool); all of them when None.
        outputs: elements of the output that may be looked at (bool); all of them when None.
    """
    if case.subject.function is None or case.inputs[k].tensor.is_complex() or case.forward_seconds > SLOW:
        return None
    with quietly():
        for mask in _masks(case, k, o, elements):
            agrees = _agrees(case, k, o, mask, outputs)
            if agrees is not None:
                return Witness(case, k, o) if agrees else None
    return None


def supports_differences(case: Case, k: int, i: int, row: int, numeric: float, bar: float) -> str:
    """Return a sentence for a finding when the witness gives the numeric value of the entry as well, else nothing."""
    output, _ = case.locate_output(row)
    witness = find_witness(case, k, output)
    if witness is None:
        return ""
    u = torch.zeros(case.n[k], dtype=torch.float64)
    u[i] = 1.0
    place = row - case.output_slice(output).start
    exact = witness.along(u)
    allowed = bar + Tolerance.for_epsilon(case.epsilon).relative * abs(numeric)
    if exact is None or not abs(float(exact[place]) - numeric) <= allowed:
        return ""
    step = _complex_step(case, k, u)
    twice = step is not None and abs(float(step[row]) - numeric) <= allowed
    return (
        f" Forward mode through forward's own body{' and the complex step' if twice else ''} "
        f"agree{'' if twice else 's'} with the differences."
    )


def supports_gradient(case: Case, comparisons: Sequence[Comparison], projections: Sequence[Projection]) -> int:
    """Return how many of the unresolved entries and projections the witness gives as backward does."""
    count = 0
    tolerance = Tolerance.for_epsilon(case.epsilon)
    for c in comparisons:
        open_columns = (c.state == State.UNRESOLVED).any(dim=1).nonzero().flatten()
        if not len(open_columns):
            continue
        elements = c.pattern.elements()
        sharp = torch.ones(case.n[c.input], dtype=torch.bool)
        sharp[elements[c.state != State.FINE]] = False
        witness = find_witness(case, c.input, c.output, sharp, (c.state == State.FINE).all(dim=0))
        for column in open_columns[:MAX_COLUMNS].tolist() if witness else []:
            u = torch.zeros(case.n[c.input], dtype=torch.float64)
            u[c.pattern.element[:, column]] = 1.0
            exact = witness.along(u) if witness else None
            if exact is not None:
                near = (exact - c.analytic[column]).abs() <= tolerance.relative * exact.abs() + c.allowed[column]
                count += int((near & (c.state[column] == State.UNRESOLVED)).sum())
    for p in projections:
        witness = find_witness(case, p.input, p.output) if p.unresolved else None
        if witness is not None:
            u, v = direction_pair(case, p.input, p.output, p.number)
            exact = witness.along(u)
            if exact is not None:
                terms = exact * v[case.output_slice(p.output)]
                allowed = rounding_of_sum(case.epsilon, terms) + tolerance.relative * p.size
                count += abs(float(terms.sum()) - p.analytic) <= allowed
    return count


def body_of(function: type[Function]) -> type[Function]:
    """Return a stand-in whose ``apply`` runs the body of forward directly, under no_grad as the real one does."""

    class Body:
        @staticmethod
        def apply(*arguments: Any, **keywords: Any) -> Any:
            with torch.no_grad():
                if torch_compat.has_setup_context(function):
                    return function.forward(*arguments, **keywords)
                return function.forward(Context(arguments), *arguments, **keywords)

    return cast("type[Function]", Body)


def _push(case: Case, k: int, u: Tensor) -> Tensor | None:
    """Return ``J u`` for all outputs; None where no tangent arrives or the body gives other values than apply."""
    directions = [u if number == k else None for number in range(len(case.inputs))]
    assert case.subject.function is not None
    try:
        pushed = push(case, directions, function=body_of(case.subject.function))
    except Exception:
        return None
    tangents = [t for t in pushed.tangents if t is not None]
    if len(tangents) < len(pushed.tangents):
        return None
    same = torch.allclose(join([to_flat(t) for t in pushed.primals]), case.value(), rtol=1e-12, equal_nan=True)
    return join([to_flat(t) for t in tangents]).to(torch.float64) if same else None


def _masks(case: Case, k: int, o: int, elements: Tensor | None) -> Iterator[Tensor]:
    allowed = torch.ones(case.n[k], dtype=torch.bool) if elements is None else elements
    places = allowed.nonzero().flatten()
    if len(places):
        yield allowed
    generator = case.generator(f"witness subsets {k} {o}")
    for _ in range(SUBSETS if len(places) > SUBSET else 0):
        mask = torch.zeros_like(allowed)
        mask[places[torch.randperm(len(places), generator=generator)[:SUBSET]]] = True
        yield mask


def _agrees(case: Case, k: int, o: int, mask: Tensor, outputs: Tensor | None) -> bool | None:
    """Compare the witness with differences along one random pair; None when these are not sharp enough to tell."""
    generator, where = case.generator(f"witness {k} {o}"), case.output_slice(o)
    x = case.base[k]
    u = signed(case.n[k], generator) * (element_steps(x) / FIRST_STEP) * mask
    v = torch.zeros(case.m, dtype=torch.float64)
    v[where] = signed(case.output_size(o), generator) * (1.0 if outputs is None else outputs)
    exact = _push(case, k, u)
    if exact is None:
        return False
    terms = (v * exact)[v != 0]
    epsilon = float(case.output_epsilon().max())
    estimate = differentiate_sum(lambda flat: (v * case.value({k: flat}))[v != 0], x, u, epsilon)
    size, bar = float(terms.abs().sum()), float(estimate.bar)
    if int(estimate.behaviour) != Behaviour.SMOOTH or not math.isfinite(bar) or not 0 < bar <= SHARP * size:
        return None
    return abs(float(terms.sum()) - float(estimate.value)) <= bar + rounding_of_sum(case.epsilon, terms)


def _complex_step(case: Case, k: int, u: Tensor) -> Tensor | None:
    """Return ``Im f(x + i h u) / h`` of all outputs; None for bodies that take no complex numbers or lose them."""
    assert case.subject.function is not None
    fresh = [item.tensor.detach().clone() for item in case.inputs]
    step = (IMAGINARY_STEP * u).reshape(fresh[k].shape).to(fresh[k].dtype)
    fresh[k] = torch.complex(fresh[k], step)
    try:
        with quietly(), case.sandbox():
            outputs = tensors_in(case.subject.call(case.rebuild(fresh), body_of(case.subject.function)))
        chosen = [outputs[o.position] for o in case.outputs]
    except Exception:
        return None
    if not all(t.is_complex() for t in chosen) or any(o.dtype.is_complex for o in case.outputs):
        return None
    return join([t.detach().imag.reshape(-1) for t in chosen]).to(torch.float64) / IMAGINARY_STEP
