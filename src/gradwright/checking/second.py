"""The derivative of a rule along one direction, by double backward and by differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.audit import graph_nodes
from gradwright.checking.case import Case
from gradwright.checking.differences import FIRST_STEP, Behaviour, Estimate, VectorFunction, differentiate_sum
from gradwright.checking.judge import SCATTER_SAFETY, UNRESOLVED_BAR, acquitted, largest_entry, one_unit_away
from gradwright.checking.magnitudes import Magnitudes
from gradwright.checking.parts import Pass
from gradwright.checking.projection import rounding_of_sum

ROUGH = 1e-8
"""What is granted relative to the terms: some of PyTorch's own derivatives are that rough (trigamma: 3e-10)."""


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
) -> Directional:
    """Compare one directional derivative of a rule with differences.

    Arguments:
        case: the case.
        name: the input it is with respect to.
        products: the products whose sum is the analytic value.
        terms: the rule, weighted, as a function of the input; the sum of what it returns is differentiated.
        x: where.
        u: along what.
        again: the analytic value once more, with inputs moved by a rounding unit.
        magnitude: the largest intermediate of double backward, asked for only when the two disagree.
    """
    analytic = float(products.sum())

    def along(*scales: float) -> Estimate:
        return differentiate_sum(terms, x, u, case.epsilon, scales)

    estimate = along(1.0, 1e-3, 1e-6)
    numeric, bar = float(estimate.value), float(estimate.bar)
    size = max(abs(numeric), float(products.abs().sum()))
    # Along directions as large as x the rule itself is the natural size of its derivative.
    visible = max(size, 1e-3 * float(terms(x).nan_to_num(0.0).abs().sum()))
    allowed = rounding_of_sum(case.epsilon, products) + ROUGH * size + case.allowances.of_sum(products, u)
    if math.isinf(analytic) or not bool(terms(x).isfinite().all()):
        return Directional(name, analytic, numeric, bar, False, True)  # it, or the gradient, may well be infinite here
    if not math.isfinite(analytic):
        allowed = 0.0  # nothing to round
    if int(estimate.behaviour) >= Behaviour.JUMP or not torch.isfinite(estimate.bar).item():
        return Directional(name, analytic, numeric, bar, False, True)
    if analytic == 0.0 and not bool(estimate.moved):
        return Directional(name, 0.0, 0.0, 0.0, False, False)
    wrong = not (float(estimate.lower) - allowed <= analytic <= float(estimate.upper) + allowed)
    if wrong:
        generator = case.generator("second order scatter")
        here = float(terms(x).sum())
        noise = max(abs(float(terms(one_unit_away(x, generator)).sum()) - here) for _ in range(3))
        # Large terms may cancel (a saturated softmax): their rounding stays, and inside an exponential that of x too.
        conditioning = max(1.0, largest_entry(*case.base))
        cancelled = case.epsilon * conditioning * magnitude() * largest_entry(u)
        allowed += SCATTER_SAFETY * (noise / FIRST_STEP + cancelled)
        scatter = abs(again() - analytic)
        wrong = not acquitted(analytic, numeric, bar + allowed, scatter, along)
        return Directional(name, analytic, numeric, bar + allowed, wrong, not wrong)
    return Directional(name, analytic, numeric, bar + allowed, False, bar > UNRESOLVED_BAR * visible)
