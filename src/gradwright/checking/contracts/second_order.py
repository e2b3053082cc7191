"""Differentiating the gradient again gives its derivative, or raises.

## What it checks
The rule B(x; v) is differentiated by PyTorch (double backward) and by differences, along random directions: once for
each input and once for the incoming gradients. The comparison is with the rule itself, so it holds for straight-through
rules too; it is not judged while the first derivative is wrong. The verdict is ``unsupported`` when PyTorch raises
(``@once_differentiable`` does), and ``fail`` when the second derivative is silently wrong or missing. Points where the
subject raises or leaves its declared domain count as points without a value. What lies below the rounding of the
largest terms of double backward (saturated functions) is not judged, nor is a rule of PyTorch's own. Where the second
derivative may jump, an element is accused only if it is wrong when it is moved alone. A symmetric matrix may be read in
one triangle: what is right along symmetric directions is right.

## Why it matters
Gradient penalties, Hessians, meta-learning and physics-informed losses differentiate twice. A tensor that forward
computed and saved is a constant to double backward, and the term it carries disappears without an error.

## If it fails
Recompute intermediates in backward from the saved inputs, use PyTorch operations there, or decorate backward with
``@once_differentiable`` so that it raises.

## References
pytorch/pytorch issues 58509, 76185 and 104040.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.differences import FIRST_STEP, element_steps, signed
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import MARGIN, one_unit_away
from gradwright.checking.magnitudes import Magnitudes
from gradwright.checking.parts import Input, in_kind, is_symmetric
from gradwright.checking.report import Finding, Outcome
from gradwright.checking.second import (
    Directional,
    directional,
    double_backward,
    double_backward_at,
    place,
    weighted_rule,
)
from gradwright.checking.trials import has_own_rule
from gradwright.errors import describe_exception

HINT = (
    "a tensor that forward computed and saved (or that backward detached) is a constant to double backward: recompute "
    "it in backward from the saved inputs, or decorate backward with @once_differentiable so that it raises."
)


@contract(
    asks="is the gradient right?",
    presupposes=(
        "matches-differences",
        "linear-in-cotangent",
        "inputs-untouched",
        "cotangent-untouched",
        "saved-untouched",
        "no-shared-state",
    ),
)
def examine(case: Case) -> Outcome:
    """Compare double backward with differences of the rule."""
    case = case.exact
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    v = random_cotangent(case, "second order v")
    generator = case.generator("second order w")
    weights = [signed(n, generator) for n in case.n]
    try:
        second = double_backward(case, v, weights)
    except Exception as error:
        return _refused(error)
    results = _judge(case, v, weights, second)
    if any(r.wrong for r in results) and any(map(is_symmetric, case.inputs)):
        weights = [in_kind(item, w) for item, w in zip(case.inputs, weights)]
        second = double_backward(case, v, weights)
        results = _judge(case, v, weights, second, in_kind)
    wrong = [r for r in results if r.wrong]
    if wrong and not has_own_rule(case):
        words = f"double backward gives {wrong[0].analytic:.10g}, differences {wrong[0].numeric:.10g}"
        return Outcome("unresolved", f"{words}: the rules are PyTorch's own, none of yours is involved")
    if wrong:
        findings = tuple(_finding(case, r, second is None) for r in wrong)
        return Outcome("fail", findings[0].message, findings)
    unresolved = [r for r in results if r.unresolved]
    message = f"{len(results)} directional second derivatives of the rule"
    if len(unresolved) > len(results) / 2:
        return Outcome("unresolved", f"{message}: the error bars are too wide to tell, or the rule is not smooth here")
    if unresolved:
        message += f"; {len(unresolved)} not resolved"
    size = max(abs(r.numeric) for r in results)
    seen = MARGIN * max(r.bar for r in results if not r.unresolved)
    return Outcome("pass", message, sensitivity=seen / size if size else seen)


def _judge(
    case: Case,
    v: Tensor,
    weights: list[Tensor],
    second: tuple[list[Tensor], Tensor] | None,
    kind: Callable[[Input, Tensor], Tensor] = lambda _, u: u,
) -> list[Directional]:
    """Judge double backward along one direction of every input, of its ``kind``, and of the incoming gradient."""
    if second is None:
        by_inputs: list[Tensor] = [torch.zeros(n, dtype=torch.float64) for n in case.n]
        by_cotangent = torch.zeros(case.m, dtype=torch.float64)
    else:
        by_inputs, by_cotangent = second
    results = [_along_input(case, k, v, weights, by_inputs, kind) for k in range(len(case.inputs)) if case.n[k]]
    return [*results, _along_cotangent(case, v, weights, by_cotangent)]


def _refused(error: Exception) -> Outcome:
    text = describe_exception(error)
    if "once_differentiable" in str(error):
        return Outcome(
            "unsupported",
            "declared first-order only (@once_differentiable): differentiating twice raises, but only when the "
            "incoming gradient itself requires grad; after out.sum() PyTorch drops the second derivative silently "
            "(pytorch/pytorch#76185)",
        )
    return Outcome("unsupported", f"differentiating twice raises {text}")


def _along_input(
    case: Case,
    k: int,
    v: Tensor,
    weights: list[Tensor],
    by_inputs: list[Tensor],
    kind: Callable[[Input, Tensor], Tensor],
) -> Directional:
    x = case.base[k]
    generator = case.generator(f"second order direction {k}")
    # Each element by its own size: one next to a singularity would dominate if it were moved by more.
    size = torch.where(x == 0, element_steps(x) / FIRST_STEP, x.abs().to(torch.float64))
    u = kind(case.inputs[k], signed(case.n[k], generator) * size)

    def terms(flat: Tensor) -> Tensor:
        return weighted_rule(case, v, weights, {k: flat})

    def again() -> float:
        moved = double_backward_at(case, v, weights, {k: one_unit_away(x, generator)})
        return float((moved[k] * u).sum()) if moved else 0.0

    products = by_inputs[k] * u
    return directional(case, case.inputs[k].name, products, terms, x, u, again, lambda: _magnitude(case, v, weights))


def _along_cotangent(case: Case, v: Tensor, weights: list[Tensor], by_cotangent: Tensor) -> Directional:
    q = signed(case.m, case.generator("second order cotangent"))

    def terms(flat: Tensor) -> Tensor:
        return weighted_rule(case, flat, weights, {})

    def again() -> float:
        return float((by_cotangent * q).sum())

    return directional(case, None, by_cotangent * q, terms, v, q, again, lambda: _magnitude(case, v, weights))


def _magnitude(case: Case, v: Tensor, weights: list[Tensor]) -> float:
    """Return the largest number that double backward meets."""
    seen = Magnitudes()
    double_backward_at(case, v, weights, {}, seen)
    return seen.largest


def _finding(case: Case, result: Directional, cut: bool) -> Finding:
    where = place(case, result)
    subject = f"`{result.name if result.smooth else where}`" if result.name else "grad_output"
    hint = HINT
    if not math.isfinite(result.analytic):
        message = f"the second derivative with respect to {subject} is {result.analytic}, where the gradient is smooth."
        hint = (
            "differentiate backward's formula by hand at this point: a root, a quotient or a power of zero in it is "
            "finite itself but has no finite derivative; mask its input there, or decorate backward with "
            "@once_differentiable."
        )
    elif cut or result.analytic == 0.0:
        message = (
            f"the second derivative is silently missing: double backward finds no path from the gradient to {subject}, "
            "although the gradient moves with it (along a random direction)."
        )
    else:
        message = (
            f"the second derivative is silently wrong: differentiating the gradient again with respect to {subject} "
            "does not give its derivative (both along one random direction)."
        )
    if result.name is None:
        return Finding("fail", message, hint, where, result.analytic, result.numeric, result.bar)
    name = repro.variable(result.name)
    body = [
        "# The report is about a random direction; this sums over all elements: other numbers, the same fault.",
        f"total = sum(t.sum() for t in {repro.listed(case)})",
        f"(grad,) = torch.autograd.grad(total, {name}, create_graph=True)",
        f"second = torch.autograd.grad(grad.sum(), {name}, allow_unused=True)[0] if grad.requires_grad else None",
        "def gradient_sum(t):",
        f"    {name} = t.detach().requires_grad_()",
        f"    out = {repro.call(case)}",
        f"    return torch.autograd.grad(sum(t.sum() for t in {repro.listed(case)}), {name})[0].sum().item()",
        f"h = {repro.step(case)}",
        'print("double backward:", None if second is None else second.sum().item())',
        f'print("differences:    ", (gradient_sum({name} + h) - gradient_sum({name} - h)) / (2 * h))',
    ]
    return Finding("fail", message, hint, where, result.analytic, result.numeric, result.bar, repro.script(case, body))
