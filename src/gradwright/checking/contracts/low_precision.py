"""In low precision, value and gradient are as good as the precision allows.

## What it checks
The subject in float32 (for inputs of lower precision: in theirs; at level full in bfloat16 and float16 too) against
itself in float64 on the same, rounded inputs. An element may differ by a budget in units of roundoff: eight times what
changes of one unit in the inputs and the incoming gradient do to the exact gradient, plus the rounding of sums. What
exceeds the budget eightfold is tried again: where the result itself scatters that much under changes of a few units,
nothing is said. Only subjects with a hand-written gradient are examined.

## Why it matters
A gradient is tested in float64 and used in float32 or bfloat16. One that accumulates in a lower precision than its own,
or subtracts numbers that nearly cancel, loses digits that no float64 test can see.

## If it fails
Accumulate in float32 at least, keep intermediates in the dtype of the input, and rewrite differences of close numbers.

## References
Higham, Accuracy and Stability of Numerical Algorithms, chapters 1 and 3 (mixed forward-backward error).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwright.checking import ulp
from gradwright.checking.audit import audit, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import largest_entry
from gradwright.checking.report import Finding, Outcome, Where, gravest
from gradwright.checking.shown import Bar, Bars
from gradwright.checking.variants import quietly, without_rule
from gradwright.typing import Verdict

CONVICTED = 8.0
"""Multiple of the budget that must be exceeded: intermediates may be worse conditioned than the whole."""
CLEARLY = 32.0
"""An error must also be this many units of the largest entry; less is never worth an accusation."""

TITLE = "Error in low precision against float64, at the element closest to its limit."
AXIS = "error relative to the largest entry"


@contract(
    asks="is the gradient right?",
    level="standard",
    presupposes=("matches-differences", "matches-surrogate", "linear-in-cotangent"),
)
def examine(case: Case) -> Outcome:
    """Compare value and gradient in low precision with those in float64."""
    obstacle = without_gradients(case) or without_rule(case)
    if obstacle is not None:
        return obstacle
    if case.randomness != "none" or case.backward_randomness != "none":
        return Outcome("skipped", "it draws random numbers, which are others in another precision")
    with quietly():
        return _examine(case)


def _examine(case: Case) -> Outcome:
    outcomes: list[Outcome] = []
    bars: list[Bar] = []
    for dtype in _dtypes(case):
        low = case if dtype == case.dtype else case.twin(dtype)
        if low is None:
            outcomes.append(Outcome("skipped", f"does not run in {_name(dtype)}"))
            continue
        exact = low.twin(torch.float64)
        if exact is None:
            return Outcome("skipped", "does not run in float64, so that there is nothing to compare with")
        outcomes.append(_compare(low, exact, dtype, case, bars))
    verdict = gravest([outcome.verdict for outcome in outcomes])
    findings = tuple(finding for outcome in outcomes for finding in outcome.findings)
    message = findings[0].message if findings else "; ".join(outcome.message for outcome in outcomes)
    return Outcome(verdict, message, findings, pictures=(Bars(TITLE, AXIS, tuple(bars)),) if bars else ())


def _dtypes(case: Case) -> list[torch.dtype]:
    if case.dtype != torch.float64:
        return [case.dtype]
    return [torch.float32, *([torch.bfloat16, torch.float16] if case.level == "full" else [])]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _compare(low: Case, exact: Case, dtype: torch.dtype, given: Case, bars: list[Bar]) -> Outcome:
    """Compare a case with its float64 twin; ``bars`` gets the largest error of value and gradients."""
    name = _name(dtype)
    if [o.shape for o in low.outputs] != [o.shape for o in exact.outputs]:
        return Outcome("skipped", f"the outputs have other shapes in {name}, so that they cannot be compared")
    watched = audit(low)
    if not watched.usable or not audit(exact).usable:
        return Outcome("skipped", f"in {name} {watched.obstacle if not watched.usable else audit(exact).obstacle}")
    unit = low.epsilon / 2  # of the precision that forward really computes in
    v = random_cotangent(exact, "low precision").to(dtype).to(torch.float64)
    value, gradients = exact.value(), exact.pull_all(v)
    moved = ulp.sensitivity_to_rounding(exact, v, unit, "low precision draws")
    reduction = max(exact.m, sum(exact.n))
    parts: list[tuple[int | None, Tensor, Tensor, Tensor]] = [(None, low.value(), value, moved.value)]
    parts += [(k, g, w, s) for k, (g, w, s) in enumerate(zip(low.pull_all(v), gradients, moved.gradients))]
    most = 0.0
    for k, got, want, spread in parts:
        allowed = ulp.budget(want, spread, unit, reduction).clamp(min=CLEARLY * unit * largest_entry(want))
        allowed += _smallest(low.dtype)
        # Overflow is a matter of the inputs: `extreme-values` asks about it.
        granted = low.allowances.of(want) if k is not None else torch.zeros_like(want)
        bars += _bar(
            f"{name} {'value' if k is None else f'grad {low.inputs[k].name}'}", got, want, CONVICTED * allowed + granted
        )
        bad = ulp.outside(got, want, CONVICTED * allowed + granted) & got.isfinite() & want.isfinite()
        if bool(bad.any()):
            scattered = ulp.scatter(low, v, "low precision scatter")
            wide = scattered.value if k is None else scattered.gradients[k]
            bad &= ulp.outside(got, want, CONVICTED * (allowed + wide) + granted)
        if bool(bad.any()):
            return _wrong(low, k, got, want, allowed, bad, unit, given)
        used = ((got - want).abs() / allowed).nan_to_num(0.0, 0.0, 0.0)
        most = max(most, float(used.max()) if used.numel() else 0.0)
    return Outcome("pass", f"in {name} value and gradient stay within {most:.0%} of their rounding budget")


def _bar(name: str, got: Tensor, want: Tensor, allowed: Tensor) -> list[Bar]:
    """Return the error that comes closest to what is allowed, both relative to the largest entry."""
    largest = largest_entry(want)
    error = (got - want).abs()
    if not largest or not bool(error.isfinite().all()):
        return []
    i = int((error / allowed).argmax())
    return [Bar(name, float(error[i]) / largest, float(allowed[i]) / largest)]


def _smallest(dtype: torch.dtype) -> float:
    """Return the size below which numbers, or their squares, are rounded coarsely or lost."""
    tiny = torch.finfo(dtype).tiny
    return tiny if dtype == torch.float16 else math.sqrt(tiny)  # float16 has no numbers to spare for squares


def _wrong(
    low: Case, k: int | None, got: Tensor, want: Tensor, allowed: Tensor, bad: Tensor, unit: float, given: Case
) -> Outcome:
    i = int(torch.where(bad, (got - want).abs() / allowed, -1.0).argmax())
    size = max(abs(float(want[i])), 1e-300)
    error, budget = abs(float(got[i]) - float(want[i])), float(allowed[i])
    name = _name(low.dtype)
    verdict: Verdict = "fail" if given.subject.hand_written else "suspect"
    if k is None:
        output, index = low.locate_output(i)
        what = f"{low.output_name(output)} of forward"
        where = Where(output=low.outputs[output].position, output_index=index)
    else:
        what = f"the gradient of `{low.inputs[k].name}`"
        where = Where(input=low.inputs[k].name, index=low.locate_input(k, i))
    message = (
        f"in {name} {what} is off by {error / size / (2 * unit):.3g} units in the last place, where "
        f"{budget / size / (2 * unit):.3g} are allowed (relative error {error / size:.1e}); in float64 it is right."
    )
    lost = next((d for d in (torch.bfloat16, torch.float16) if unit < error / size <= 4 * torch.finfo(d).eps), None)
    hint = "accumulate and keep intermediates in the dtype of the input (float32 at least); "
    hint += f"look for a cast to {_name(lost)}" if lost is not None else "rewrite differences of numbers that are close"
    finding = Finding(verdict, message, f"{hint}.", where, float(got[i]), float(want[i]), budget)
    return Outcome(verdict, message, (finding,))
