"""The derivative of a rule along one direction, by double backward and by differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.checking.differences import (
    FIRST_STEP,
    Behaviour,
    Estimate,
    VectorFunction,
    differentiate,
    differentiate_sum,
)
from gradwright.checking.graph import graph_nodes
from gradwright.checking.judge import SCATTER_SAFETY, UNRESOLVED_BAR, acquitted, largest_entry, one_unit_away
from gradwright.checking.magnitudes import Magnitudes
from gradwright.checking.narrowing import Standing, wrong_element
from gradwright.checking.parts import Pass
from gradwright.checking.projection import rounding_of_sum
from gradwright.checking.report import Where

ROUGH = 1e-8
"""What is granted relative to the terms: some of PyTorch's own derivatives are that rough (trigamma: 3e-10)."""
GUESSES = 2


class FirstOrderOnlyError(RuntimeError):
    """Backward is declared first-order only, so double backward would raise or be cut."""


@dataclass
class Directional:
    """The second derivative along one direction, from both sides."""

    name: str | None
    """The input it is with respect to; None for the incoming gradient."""
    analytic: float
    numeric: float
    bar: float
    wrong: bool
    unresolved: bool
    smooth: bool = True
    """Whether the direction as a whole showed no kink or jump of the rule."""
    element: int | None = None
    """The element that is wrong when it is moved alone."""


def double_backward(case: Case, v: Tensor, weights: list[Tensor]) -> tuple[list[Tensor], Tensor] | None:
    """Return the gradient of ``<w, B(x; v)>`` by inputs and by cotangent, or None when B carries no graph."""
    run = case.forward()
    cotangents = [c.requires_grad_() for c in case.cotangents(v)]
    with case.sandbox():
        first = run.gradients(cotangents, create_graph=True)
        total = weighted(first, weights)
        if not total.requires_grad:
            return None
        if any(torch_compat.is_delayed_error(node) for node in graph_nodes([total])):
            raise FirstOrderOnlyError("once_differentiable")  # the node has no edges, so that `grad` would walk past it
        gradients = torch.autograd.grad(total, [*run.inputs, *cotangents], allow_unused=True)
    inputs, rest = gradients[: len(run.inputs)], gradients[len(run.inputs) :]
    return case.flatten_inputs(inputs), case.flatten_outputs(rest)


def weighted(gradients: Sequence[Tensor | None], weights: Sequence[Tensor]) -> Tensor:
    """Return the sum of products of gradients (None counts as zero) and real flat weights."""
    total = torch.zeros((), dtype=torch.float64)
    for gradient, w in zip(gradients, weights):
        if gradient is not None:
            flat = torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
            total = total + (flat.reshape(-1).to(torch.float64) * w).sum()
    return total


def weighted_rule(case: Case, v: Tensor, weights: list[Tensor], flats: dict[int, Tensor]) -> Tensor:
    """Return the terms of ``<w, B(x; v)>``: NaN where the subject has no value, as :meth:`Case.value` has it."""
    nothing = torch.full((sum(case.n),), math.nan, dtype=torch.float64)
    if not case.in_domain(flats):
        return nothing
    try:
        gradients = case.pull_all(v, flats)
    except Exception:
        return nothing
    return torch.cat([w * g for w, g in zip(weights, gradients)])


def double_backward_at(
    case: Case,
    v: Tensor,
    weights: list[Tensor],
    flats: dict[int, Tensor],
    seen: Magnitudes | None = None,
) -> list[Tensor] | None:
    """Like :func:`double_backward` with other values of the inputs, and with respect to the inputs only."""
    run: Pass = case.forward(flats)
    cotangents = [c.requires_grad_() for c in case.cotangents(v)]
    with case.sandbox(), seen.watch() if seen else nullcontext():
        total = weighted(run.gradients(cotangents, create_graph=True), weights)
        if not total.requires_grad:
            return None
        return case.flatten_inputs(torch.autograd.grad(total, run.inputs, allow_unused=True))


def directional(
    case: Case,
    name: str | None,
    products: Tensor,
    terms: VectorFunction,
    x: Tensor,
    u: Tensor,
    again: Callable[[], float],
    magnitude: Callable[[], float],
    along_part: Callable[[Tensor], float] | None = None,
) -> Directional:
    """Compare one directional derivative of a rule with differences.

    Arguments:
        case: the case.
        name: the input it is with respect to.
        products: the products whose sum is the analytic value, one for each element of ``x``.
        terms: the rule, weighted, as a function of the input; the sum of what it returns is differentiated.
        x: where.
        u: along what.
        again: the analytic value once more, with inputs moved by a rounding unit.
        magnitude: the largest intermediate of double backward, asked for only when the two disagree.
        along_part: the analytic value along a part of ``u``, where the products are not those of elements of ``x``.
    """
    analytic = float(products.sum())
    estimate = _along(case, terms, x, u, 1.0, 1e-3, 1e-6)
    numeric, bar = float(estimate.value), float(estimate.bar)
    here = terms(x)
    finite = products.nan_to_num(0.0, 0.0, 0.0)
    size = max(abs(numeric) if math.isfinite(numeric) else 0.0, float(finite.abs().sum()))
    # Along directions as large as x the rule itself is the natural size of its derivative.
    visible = max(size, 1e-3 * float(here.nan_to_num(0.0).abs().sum()))
    allowed = rounding_of_sum(case.epsilon, finite) + ROUGH * size + case.allowances.of_sum(finite, u)
    if math.isinf(analytic) or not bool(here.isfinite().all()):
        return Directional(name, analytic, numeric, bar, False, True)  # it, or the gradient, may well be infinite here
    smooth = int(estimate.behaviour) == Behaviour.SMOOTH and math.isfinite(bar)
    if analytic == 0.0 and not bool(estimate.moved):
        return Directional(name, 0.0, 0.0, 0.0, False, False)
    inside = _inside(estimate, analytic, allowed)
    if smooth and inside:
        return Directional(name, analytic, numeric, bar + allowed, False, bar > UNRESOLVED_BAR * visible)
    granted = allowed
    generator = case.generator("second order scatter")
    total = float(here.sum())
    noise = max(abs(float(terms(one_unit_away(x, generator)).sum()) - total) for _ in range(3))
    # Large terms may cancel (a saturated softmax): their rounding stays, and inside an exponential that of x too.
    conditioning = max(1.0, largest_entry(*case.base))
    cancelled = case.epsilon * conditioning * magnitude() * largest_entry(u)
    allowed += SCATTER_SAFETY * (noise / FIRST_STEP + cancelled)
    scatter = abs(again() - analytic)
    scatter = scatter if math.isfinite(scatter) else 0.0  # NaN beside numbers, which are judged without
    if smooth and acquitted(analytic, numeric, bar + allowed, scatter, lambda s: _along(case, terms, x, u, s)):
        return Directional(name, analytic, numeric, bar + allowed, False, True)

    def value(part: Tensor) -> float:
        return float(products[part != 0].sum()) if along_part is None else along_part(part)

    def judge(part: Tensor) -> Standing:
        return _standing(case, terms, x, part, value(part), allowed, scatter)

    element = wrong_element(u, _guesses(case, terms, x, u, products), judge)
    if element is None:
        kink = int(estimate.behaviour) == Behaviour.KINK
        unresolved = not (kink and inside) or bar > UNRESOLVED_BAR * visible
        return Directional(name, analytic, numeric, bar + granted, False, unresolved, smooth)
    if not smooth:  # what the whole direction gave is within what the kinks leave open
        alone = torch.zeros_like(u)
        alone[element] = u[element]
        estimate = _along(case, terms, x, alone, 1.0, 1e-3, 1e-6)
        analytic, numeric, bar = value(alone), float(estimate.value), float(estimate.bar)
    return Directional(name, analytic, numeric, bar + allowed, True, False, smooth, element)


def place(case: Case, result: Directional) -> Where:
    """Name the input of a result, and the element of it that is wrong alone."""
    for k, item in enumerate(case.inputs):
        if item.name == result.name and result.element is not None:
            return Where(input=item.name, index=case.locate_input(k, result.element))
    return Where(input=result.name)


def _along(case: Case, terms: VectorFunction, x: Tensor, u: Tensor, *scales: float) -> Estimate:
    return differentiate_sum(terms, x, u, case.epsilon, scales)


def _inside(estimate: Estimate, analytic: float, allowed: float) -> bool:
    return float(estimate.lower) - allowed <= analytic <= float(estimate.upper) + allowed


def _standing(
    case: Case, terms: VectorFunction, x: Tensor, part: Tensor, analytic: float, allowed: float, scatter: float
) -> Standing:
    """Judge a part of a direction: from the widest ladder, and one element that this accuses with all care."""
    for scales in ((1.0,), (1.0, 1e-3, 1e-6)):
        estimate = _along(case, terms, x, part, *scales)
        known = int(estimate.behaviour) <= Behaviour.KINK and math.isfinite(float(estimate.bar))
        if known and _inside(estimate, analytic, allowed):
            return Standing.FINE if int(estimate.behaviour) == Behaviour.SMOOTH else Standing.OPEN
        if int((part != 0).sum()) > 1:
            return Standing.OPEN
    if not known:
        return Standing.OPEN
    numeric, bar = float(estimate.value), float(estimate.bar)
    free = acquitted(analytic, numeric, bar + allowed, scatter, lambda scale: _along(case, terms, x, part, scale))
    return Standing.OPEN if free else Standing.WRONG


def _guesses(case: Case, terms: VectorFunction, x: Tensor, u: Tensor, products: Tensor) -> list[int]:
    """Return the elements most off if each term depends on the element of the same number, as of most functions."""
    here = terms(x)
    if here.shape != x.shape or products.shape != x.shape:
        return []
    steps = torch.tensor([FIRST_STEP], dtype=torch.float64)
    estimate = differentiate(terms, x, u.unsqueeze(0), steps, torch.full_like(here, case.epsilon), (1.0,))
    off = (products - estimate.value[0]).abs().nan_to_num(math.inf)
    off = torch.where(off > estimate.bar[0] + 4 * estimate.apart[0], off, 0.0)
    return [i for i in off.argsort(descending=True)[:GUESSES].tolist() if off[i] > 0]
