"""A gradient penalty and a Hessian are complete, or raise.

## What it checks
Two losses that people differentiate twice, each against differences along random directions. A gradient penalty: the
gradient of ``(v * out).sum()``, whose incoming gradient is a constant, is weighted and differentiated again. A
Hessian-vector product of a loss that is quadratic in the output, whose incoming gradient depends on the input (not
judged where the rule is not the derivative of forward, as for straight-through rules).

For a backward decorated with ``@once_differentiable`` a lost term is ``unsupported``: its author declared it, and it is
PyTorch that does not enforce the declaration when the incoming gradient is constant. Otherwise it is a ``fail``.

## Why it matters
A loss such as ``out.sum() + grad.square().sum()`` trains on its first term alone when the second has lost its graph,
without an error: the first term has a gradient of its own.

## If it fails
Write backward with PyTorch operations on the saved inputs, so that it can be differentiated. Where that is impossible,
keep the Function out of losses that use gradients: ``@once_differentiable`` does not guard against a constant incoming
gradient.

## References
pytorch/pytorch issues 76185 and 104040.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.differences import FIRST_STEP, differentiate_sum, element_steps, signed
from gradwright.checking.guards import without_gradients
from gradwright.checking.intent import deviates
from gradwright.checking.judge import MARGIN, one_unit_away
from gradwright.checking.magnitudes import Magnitudes
from gradwright.checking.parts import Input, Pass, in_kind, is_symmetric
from gradwright.checking.report import Finding, Outcome
from gradwright.checking.second import (
    Directional,
    FirstOrderOnlyError,
    directional,
    double_backward,
    place,
    weighted,
)
from gradwright.checking.trials import has_own_rule
from gradwright.errors import describe_exception

Loss = Callable[[Pass], Tensor]
Kind = Callable[[Input, Tensor], Tensor]
"""Makes a direction of an input one that keeps the input what it is."""

HINT = (
    "the gradient that backward returns has lost its graph, at least in part: compute it with PyTorch operations on "
    "the saved inputs (no detach, .data, NumPy or no_grad, no intermediate that forward computed)."
)
DECLARED = (
    "declared first-order only (@once_differentiable), but PyTorch does not enforce it when the incoming gradient is "
    "constant, as after out.sum(): it silently drops the term from a gradient penalty or a Hessian "
    "(pytorch/pytorch#76185)"
)
DRAWS = 4
"""So many directions are tried until one tells."""


@contract(
    asks="is the gradient right?",
    level="standard",
    presupposes=("matches-differences", "linear-in-cotangent", "second-order"),
)
def examine(case: Case) -> Outcome:
    """Differentiate two losses twice and compare with differences."""
    case = case.exact
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    v = random_cotangent(case, "penalty v")
    weights = [signed(n, case.generator(f"penalty w {k}")) for k, n in enumerate(case.n)]
    losses: dict[str, Loss] = {"a gradient penalty": _linear(v)}
    if _rule_is_the_derivative(case, v):
        losses["a Hessian-vector product"] = _quadratic(case, v)
    judged: list[Directional] = []
    for name, loss in losses.items():
        try:
            results = _judge(case, loss, weights)
            if any(r.wrong for r in results) and any(map(is_symmetric, case.inputs)):
                results = _judge(case, loss, [in_kind(i, w) for i, w in zip(case.inputs, weights)], in_kind)
        except Exception as error:
            return _refused(case, name, error, v, weights)
        wrong = [r for r in results if r.wrong]
        if wrong and _first_order_only(case, v, weights):
            return Outcome("unsupported", f"{DECLARED}: {wrong[0].analytic:.6g} instead of {wrong[0].numeric:.6g}")
        if wrong and not has_own_rule(case):
            words = f"PyTorch loses {name} of its own operations: {wrong[0].analytic:.6g} for {wrong[0].numeric:.6g}"
            return Outcome("unresolved", f"{words}; no rule of your own is involved")
        if wrong:
            findings = tuple(_finding(case, name, r) for r in wrong)
            return Outcome("fail", findings[0].message, findings)
        judged += results
    return _passed(case, list(losses), judged)


def _passed(case: Case, losses: list[str], judged: list[Directional]) -> Outcome:
    resolved = [r for r in judged if not r.unresolved]
    message = f"{' and '.join(losses)} for each of {len(case.inputs)} inputs"
    if len(resolved) * 2 < len(judged):
        return Outcome("unresolved", f"{message}: the error bars are too wide to tell, or the rule is not smooth here")
    size = max((abs(r.numeric) for r in resolved), default=0.0)
    seen = MARGIN * max((r.bar for r in resolved), default=0.0)
    return Outcome("pass", message, sensitivity=(seen / size if size else seen) or None)


def _linear(v: Tensor) -> Loss:
    def loss(run: Pass) -> Tensor:
        return (_real(run) * v).sum()

    return loss


def _quadratic(case: Case, v: Tensor) -> Loss:
    size = float(case.value().abs().nan_to_num(0.0, 0.0, 0.0).max()) or 1.0

    def loss(run: Pass) -> Tensor:
        out = _real(run) / size
        return (v * out).sum() + (v * out * out).sum() / 2

    return loss


def _real(run: Pass) -> Tensor:
    """Return all outputs as one real float64 vector that keeps its graph."""
    parts = [torch.view_as_real(o.resolve_conj()) if o.is_complex() else o for o in run.differentiable]
    return torch.cat([part.reshape(-1).to(torch.float64) for part in parts])


def _first(case: Case, loss: Loss, flats: dict[int, Tensor], *, create_graph: bool) -> tuple[Pass, list[Tensor | None]]:
    run = case.forward(flats)
    with case.sandbox():
        total = loss(run)
        first = torch.autograd.grad(total, run.inputs, create_graph=create_graph, allow_unused=True)
    return run, list(first)


def _second(
    case: Case, loss: Loss, weights: list[Tensor], flats: dict[int, Tensor], seen: Magnitudes | None = None
) -> list[Tensor]:
    """Return what a user gets for the gradient of the weighted gradient: zeros where there is no graph."""
    run, first = _first(case, loss, flats, create_graph=True)
    total = weighted(first, weights)
    if not total.requires_grad:
        return case.flatten_inputs([None] * len(run.inputs))
    with case.sandbox(), seen.watch() if seen else nullcontext():
        return case.flatten_inputs(torch.autograd.grad(total, run.inputs, allow_unused=True))


def _judge(case: Case, loss: Loss, weights: list[Tensor], kind: Kind = lambda _, u: u) -> list[Directional]:
    second = _second(case, loss, weights, {})
    results = []
    for k in range(len(case.inputs)):
        if not case.n[k]:
            continue
        for draw in range(DRAWS):  # near the edge of a domain one direction tells and the next one does not
            result = _along(case, loss, weights, k, second[k], draw, kind)
            if not result.unresolved:
                break
        results.append(result)
    return results


def _along(case: Case, loss: Loss, weights: list[Tensor], k: int, second: Tensor, draw: int, kind: Kind) -> Directional:
    x, generator = case.base[k], case.generator(f"penalty direction {k}{f' {draw}' if draw else ''}")
    u = kind(case.inputs[k], signed(case.n[k], generator) * (element_steps(x) / FIRST_STEP))

    def terms(flat: Tensor) -> Tensor:
        try:
            _, first = _first(case, loss, {k: flat}, create_graph=False)
        except Exception:
            return torch.full((sum(case.n),), float("nan"), dtype=torch.float64)
        return torch.cat([w * g for w, g in zip(weights, case.flatten_inputs(first))])

    def again() -> float:
        return float((_second(case, loss, weights, {k: one_unit_away(x, generator)})[k] * u).sum())

    def magnitude() -> float:
        seen = Magnitudes()
        _second(case, loss, weights, {}, seen)
        return seen.largest

    return directional(case, case.inputs[k].name, second * u, terms, x, u, again, magnitude)


def _rule_is_the_derivative(case: Case, v: Tensor) -> bool:
    """Tell whether the rule is the derivative of forward along a random direction; a surrogate's is not."""
    if deviates(case):
        return False
    pulled = case.pull_all(v)
    for k, x in enumerate(case.base):
        if not case.n[k]:
            continue
        u = signed(case.n[k], case.generator(f"penalty slope {k}")) * (element_steps(x) / FIRST_STEP)
        products = pulled[k] * u

        def terms(flat: Tensor, k: int = k) -> Tensor:
            return v * case.value({k: flat})

        estimate = differentiate_sum(terms, x, u, case.epsilon, (1.0,))
        allowed = float(estimate.bar) + 1e-8 * float(products.abs().sum())
        if not abs(float(products.sum()) - float(estimate.value)) <= allowed:
            return False
    return True


def _first_order_only(case: Case, v: Tensor, weights: list[Tensor]) -> bool:
    """Tell whether backward, or that of a Function within, is decorated with once_differentiable."""
    try:
        double_backward(case, v, weights)
    except FirstOrderOnlyError:
        return True
    except Exception as error:
        return "once_differentiable" in str(error)
    return False


def _refused(case: Case, name: str, error: Exception, v: Tensor, weights: list[Tensor]) -> Outcome:
    if _first_order_only(case, v, weights):
        return Outcome("unsupported", DECLARED)
    return Outcome("unsupported", f"{name} raises {describe_exception(error)}")


def _finding(case: Case, name: str, result: Directional) -> Finding:
    if result.analytic == 0.0:
        how = "is silently missing: its gradient is zero or has no graph, although the gradient moves with the input"
    else:
        how = "is silently incomplete: differentiating the gradient again does not give its derivative"
    where = place(case, result)
    message = f"{name} with respect to `{result.name if result.smooth else where}` {how}."
    variable = repro.variable(result.name or "")
    body = [
        f"total = sum(t.sum() for t in {repro.listed(case)})",
        f"(grad,) = torch.autograd.grad(total, {variable}, create_graph=True)",
        "loss = total + grad.square().sum()  # a gradient penalty",
        f'print("gradient carries a graph:", grad.requires_grad, torch.autograd.grad(loss, {variable}))',
    ]
    return Finding("fail", message, HINT, where, result.analytic, result.numeric, result.bar, repro.script(case, body))
