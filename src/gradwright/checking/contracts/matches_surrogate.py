"""The rule is the vector-Jacobian product of the surrogate it declares.

## What it checks
For a sample that declares ``surrogate=fn``: the gradient that backward gives equals the gradient PyTorch computes
through ``fn`` on the same arguments, element by element, for several signed random cotangents, and for one-hot
cotangents when there are few outputs. The outputs of ``fn`` must have the shapes of forward's.

## Why it matters
A straight-through or surrogate rule is wrong on purpose, so differences cannot check it, and such code ships untested.
A declared surrogate is something to check against.

## If it fails
Either the rule or the declaration is not what was meant: compare them at the element named, above all at bounds, where
"inclusive" and "exclusive" differ.

## References
Bengio, Léonard, Courville, arXiv 1308.3432 (straight-through estimators).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_linearity
from gradwright.checking.illustrate import of_surrogate
from gradwright.checking.intended import linear_part
from gradwright.checking.judge import Tolerance, largest_entry
from gradwright.checking.report import Finding, Outcome, Where

RANDOM_COTANGENTS = 3
ONE_HOT_LIMIT = 64


@contract(
    asks="is the gradient right?",
    presupposes=("gradient-shape-and-dtype", "gradients-reach-leaves", "cotangent-untouched", "linear-in-cotangent"),
)
def examine(case: Case) -> Outcome:
    """Compare the rule with the derivative of the declared surrogate."""
    if case.sample.surrogate is None:
        return Outcome("skipped", "no surrogate is declared")
    obstacle = without_linearity(case)
    if obstacle is not None:
        return obstacle
    case = linear_part(case)
    cotangents = [random_cotangent(case, f"surrogate {i}") for i in range(RANDOM_COTANGENTS)]
    if case.m <= ONE_HOT_LIMIT:
        cotangents += list(torch.eye(case.m, dtype=torch.float64))
    tolerance = Tolerance.for_epsilon(case.epsilon)
    pairs = [(v, case.pull_all(v), case.pull_surrogate(v)) for v in cotangents]
    # Autograd rounds on its way through the surrogate too, so small entries are judged by the largest of all.
    largest = largest_entry(*(gradient for _, _, wanted in pairs for gradient in wanted))
    for v, rule, wanted in pairs:
        for k, (got, want) in enumerate(zip(rule, wanted)):
            # Twice: both sides are rounded here.
            allowed = 2 * tolerance.at(got, want, largest) + case.allowances.of(want)
            same = ((got - want).abs() <= allowed) | (got == want) | (got.isnan() & want.isnan())
            if not bool(same.all()):
                return _differs(case, k, v, got, want, allowed, same)
    return Outcome(
        "pass",
        f"the rule is the VJP of the declared surrogate for {len(cotangents)} cotangents",
        sensitivity=2 * tolerance.relative + case.allowances.rtol,
        illustrate=lambda: of_surrogate(case),
    )


def _differs(case: Case, k: int, v: Tensor, got: Tensor, want: Tensor, allowed: Tensor, same: Tensor) -> Outcome:
    gap = torch.where(same, -1.0, (got - want).abs().nan_to_num(torch.inf, torch.inf))
    i = int(gap.argmax())
    name = case.inputs[k].name
    wrong = int((~same).sum())
    message = (
        f"the gradient of `{name}` is not that of the declared surrogate in {wrong} of {len(got)} elements"
        f"{_factor(got, want, allowed)}."
    )
    where = Where(input=name, index=case.locate_input(k, i))
    body = [
        repro.cotangent_line(case, "v", v),
        f"(grad,) = torch.autograd.grad({repro.differentiable(case)}, {repro.variable(name)}, v)",
        f'print("backward gives", grad.reshape(-1)[{i}].item(), "and the surrogate {float(want[i]):.10g}")',
    ]
    finding = Finding(
        "fail",
        message,
        "change the rule, or declare the surrogate it really follows.",
        where,
        float(got[i]),
        float(want[i]),
        float(allowed[i]),
        repro.script(case, body),
    )
    return Outcome("fail", message, (finding,), illustrate=lambda: of_surrogate(case))


def _factor(got: Tensor, want: Tensor, allowed: Tensor) -> str:
    square = float(want.square().sum())
    if square == 0.0 or not bool(got.isfinite().all()):
        return ""
    factor = float((got * want).sum()) / square
    explained = bool(((got - factor * want).abs() <= allowed + 1e-9 * want.abs()).all())
    return f": off by the factor {factor:.6g}" if explained else ""
