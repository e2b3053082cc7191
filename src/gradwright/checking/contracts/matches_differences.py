"""The gradient is the derivative of the forward, as far as differences can tell.

## What it checks
The Jacobian that backward gives, entry by entry for small inputs and along signed random projections for large ones,
against extrapolated central differences, each with its own error bar. At a kink any value between the one-sided slopes
is right. An accused entry is tried again with finer steps, and at points one rounding unit away, before it is reported.
Inputs of lower precision are judged on their float64 twin, where the subject runs there. A forward
that iterates until a tolerance is met is not accused of what that tolerance leaves open. A rule that is declared to be
something else than the derivative is judged by what it is declared to be; one that looks wrong on purpose and declares
nothing is ``suspect``.

## Why it matters
A wrong gradient trains without an error. It is usually found months later, by somebody who re-derives the formula.

## If it fails
Read the diagnosis; the repro prints the analytic and the numeric value of the worst element.

## References
Ridders, Adv. Eng. Software 4 (1982) 75. Moré and Wild, SIAM J. Sci. Comput. 33 (2011) 1292. Clarke, Optimization and
Nonsmooth Analysis (1983).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from gradwright.checking import repro
from gradwright.checking.accuse import evidence_of, wrong_entries, wrong_projection
from gradwright.checking.approximate import TOO_ROUGH
from gradwright.checking.audit import audit, surrogates_in_graph, user_location
from gradwright.checking.blocks import Block, block_of
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.duals import supports_gradient
from gradwright.checking.guards import without_gradients, without_numbers
from gradwright.checking.illustrate import of_wrong_gradient
from gradwright.checking.intended import divided, factors_of, linear_part, without_offset
from gradwright.checking.intent import declared
from gradwright.checking.intent_guess import as_suspect, guess
from gradwright.checking.iterating import LOOSE, operations_vary
from gradwright.checking.jacobian import Comparison, compare
from gradwright.checking.judge import State, largest_entry
from gradwright.checking.projection import Projection, project
from gradwright.checking.recorded_cotangents import raises_only_here
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.variants import is_hand_written
from gradwright.errors import describe_exception
from gradwright.typing import Intent, Verdict

APART = "apart from what is added whatever comes in: "


@contract(
    asks="is the gradient right?",
    depends_on_meaning=True,
    presupposes=("gradient-shape-and-dtype", "gradients-reach-leaves", "cotangent-untouched", "linear-in-cotangent"),
)
def examine(case: Case) -> Outcome:
    """Compare the gradient with differences."""
    obstacle = _obstacle(case)
    if obstacle is not None:
        return obstacle
    meant, exact = declared(case), case.exact
    obstacle = without_numbers(exact) if exact.detached else without_gradients(exact)
    if obstacle is not None:
        return obstacle
    twin = ", judged on its float64 twin" if exact is not case else ""
    if exact.detached:
        return _detached(exact)
    if "surrogate" in meant:
        return Outcome("skipped", "declared a surrogate, so the rule is not the derivative; surrogate= has it compared")
    exact = linear_part(exact)
    outcome = _proportional(exact, meant, twin) if meant & {"scaled", "reversed"} else _compared(exact, twin)
    return replace(outcome, message=f"{APART}{outcome.message}") if "side-loss" in meant else outcome


def _obstacle(case: Case) -> Outcome | None:
    """Return the outcome where nothing is to be compared, or nothing comes back that could be; else None."""
    if case.sample.surrogate is not None:
        return Outcome("skipped", "a surrogate is declared, so the rule is not the derivative; see matches-surrogate")
    if math.isinf(case.accuracy):
        return Outcome("skipped", "the gradient is declared to be right on average only, as random directions give it")
    if case.accuracy > TOO_ROUGH:
        rough = f"the gradient is an approximation, with a relative error up to {case.accuracy:.1g} as it declares"
        return Outcome("unresolved", f"{rough}; give it a better step, the noise of the function, or more samples")
    watched = audit(case)
    if watched.no_backward:
        return Outcome("unsupported", "there is no backward: differentiating raises")
    if "forward-only" in declared(case) and not any(g is not None for g in watched.first or ()):
        return Outcome("skipped", "declared forward-only: no gradient comes back")
    if watched.user_error is not None:
        return _raises(case, watched.user_error)
    if watched.engine_error is not None:
        if case.subject.function is None:
            return _raises(case, watched.engine_error)
        return Outcome("skipped", f"{watched.obstacle}; see gradient-count and gradient-shape-and-dtype")
    return None


def _proportional(case: Case, meant: frozenset[Intent], twin: str) -> Outcome:
    """Compare a rule that is a multiple of the derivative: each input by a factor of its own, which is constant."""
    words = " and ".join(sorted(meant & {"scaled", "reversed"}))
    factors = factors_of(case)
    known = {case.inputs[k].name: f.value for k, f in enumerate(factors) if f is not None}
    if not known:
        return Outcome(
            "unresolved", f"declared {words}, but no factor can be told: the function does not move smoothly"
        )
    said = ", ".join(f"{factor:.6g} for `{name}`" for name, factor in known.items())
    if 0.0 in known.values():
        return Outcome(
            "unresolved", f"declared {words}, by {said}: where it is 0, nothing is told; give another sample"
        )
    outcome = _compared(divided(case, factors), twin)
    if outcome.verdict == "fail":
        message = f"declared {words}, but not by one constant factor for each input (mostly {said}): {outcome.message}"
        findings = tuple(
            replace(f, message=f"{f.message} Both are shown divided by the factor.") for f in outcome.findings
        )
        return replace(outcome, message=message, findings=(replace(findings[0], message=message), *findings[1:]))
    negative = any(factor < 0 for factor in known.values())
    if negative != ("reversed" in meant) and not (meant >= {"scaled", "reversed"}):
        sign = "negative" if negative else "positive"
        message = f"declared {words}, but the factor is {sign}: {said}."
        hint = f"mend the sign, or declare {'reversed' if negative else 'scaled'}."
        return Outcome("fail", message, (Finding("fail", message, hint),), outcome.sensitivity, outcome.evidence)
    return replace(outcome, message=f"{words} by {said}; apart from that: {outcome.message}")


def _raises(case: Case, error: BaseException) -> Outcome:
    if "use_reentrant" in str(error):
        return Outcome("unsupported", "reentrant checkpointing refuses torch.autograd.grad, which the check needs")
    place = user_location(error)
    message = f"backward raises {describe_exception(error)}{f' at {place}' if place else ''}."
    if raises_only_here(case):
        reason = (
            f"{message.rstrip('.')}, also for the cotangent for which it ran in the program: it needs something that "
            "is no longer there (a file, a thread, another process); check it in a test of its own"
        )
        return Outcome("unresolved", reason)
    body = ["(out[0] if isinstance(out, tuple) else out).sum().backward()  # raises"]
    hint = "mend backward."
    return Outcome("fail", message, (Finding("fail", message, hint, repro=repro.script(case, body)),))


def _detached(case: Case) -> Outcome:
    """No output requires grad: right only when the outputs do not move."""
    generator = case.generator("detached")
    for k, x in enumerate(case.base):
        moved = x * (1 + 0.01 * torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.dtype))
        if not torch.equal(case.value({k: moved}), case.value()):
            name = case.inputs[k].name
            message = (
                f"no output requires grad, although the output moves with `{name}`: its gradient is lost without an "
                "error."
            )
            hint = (
                "return a tensor computed from the inputs (not detached, not from NumPy outside a Function, not marked "
                "with ctx.mark_non_differentiable), and pass tensors to apply one by one: in a list or dict they are "
                "not tracked."
            )
            return Outcome("fail", message, (Finding("fail", message, hint, Where(input=name)),))
    return Outcome("pass", "no output requires grad, and none moves with the inputs")


def _compared(case: Case, twin: str) -> Outcome:
    """Compare every block: entry by entry where that is affordable, along random projections otherwise."""
    projections: list[Projection] = []
    blocks: list[Block] = []
    for o in range(len(case.outputs)):
        for k in range(len(case.inputs)):
            if case.n[k] == 0 or case.output_size(o) == 0:
                continue
            comparison = compare(case, k, o)
            if comparison is None:
                projections += project(case, k, o)
                continue
            blocks.append(block_of(case, comparison))
            if comparison.pattern.pairs and not bool((comparison.state == State.WRONG).any()):
                projections += project(case, k, o, count=1)  # what lies outside the pattern
    accused = [block for block in blocks if bool((block.comparison.state == State.WRONG).any())]
    findings = [wrong_entries(case, block, blocks) for block in accused]
    findings += [wrong_projection(case, projection) for projection in projections if projection.wrong]
    outcome = _concluded(case, blocks, projections, tuple(findings), twin)
    if not findings:
        return outcome
    compared = [block.comparison for block in blocks]
    return replace(outcome, illustrate=lambda: of_wrong_gradient(case, compared, projections))


def _concluded(
    case: Case,
    blocks: list[Block],
    projections: list[Projection],
    findings: tuple[Finding, ...],
    twin: str,
) -> Outcome:
    comparisons = [block.comparison for block in blocks]
    evidence = tuple(evidence_of(case, comparison) for comparison in comparisons)
    sensitivity = _sensitivity(comparisons, projections)
    if findings:
        failed = Outcome("fail", findings[0].message, findings, sensitivity, evidence)
        return _accused(case, blocks, projections, failed, twin)
    counts = {state: sum(int((c.state == state).sum()) for c in comparisons) for state in State}
    total, open_projections = sum(counts.values()), sum(p.unresolved for p in projections)
    parts = [f"{total} entries of the Jacobian"] if total else []
    parts += [f"{len(projections)} signed random projections of it"] if projections else []
    notes = [" and ".join(parts) + twin]
    if counts[State.SUBGRADIENT]:
        notes.append(f"{counts[State.SUBGRADIENT]} at a kink, where the gradient is a valid subgradient")
    if counts[State.UNDEFINED]:
        notes.append(f"{counts[State.UNDEFINED]} where the function jumps or is infinitely steep, not judged")
    if counts[State.SYMMETRIC]:
        notes.append(f"{counts[State.SYMMETRIC]} right along symmetric directions, as the input is symmetric")
    notes += _seen_alone(projections)
    undecided = counts[State.UNRESOLVED] + open_projections
    if undecided:
        opinion = _second_opinion(case, comparisons, projections)
        notes.append(f"{undecided} whose error bar is too wide to tell, or where two examinations disagree{opinion}")
    telling = sum(_not_zero(c) for c in comparisons) + len(projections)
    hopeless = undecided + counts[State.UNDEFINED] > telling / 2
    if hopeless:
        notes.append("where forward rounds, compares or counts, declare what the rule stands for: surrogate=")
    verdict: Verdict = "unresolved" if hopeless else "pass"
    return Outcome(verdict, "; ".join(notes), (), sensitivity, evidence)


def _accused(case: Case, blocks: list[Block], projections: list[Projection], failed: Outcome, twin: str) -> Outcome:
    """Grade a failure: by what draws random numbers, what is meant by the rule, and what an iteration leaves open."""
    if case.draws and not is_hand_written(case):
        reason = "forward draws random numbers, and PyTorch's gradient is not the derivative of a single draw"
        return replace(failed, verdict="unresolved", message=reason, findings=())
    surrogates = [] if case.subject.hand_written else surrogates_in_graph(case)
    if surrogates:
        message = (
            f"the gradient is not the derivative, on purpose: {', '.join(surrogates)} takes part, which declares that; "
            "check it by itself, or declare surrogate= for the whole"
        )
        return replace(failed, verdict="skipped", message=message, findings=())
    meant = guess(case, blocks, projections)
    if meant is not None:
        apart_from_it = meant.value == ("side-loss",)  # about which linear-in-cotangent speaks
        if not apart_from_it:
            return as_suspect(case, meant, failed)
        outcome = _compared(without_offset(case), twin)
        return replace(outcome, message=f"{APART}{outcome.message}")
    if case.draws:
        return _random_draw(failed)
    apart = _apart([block.comparison for block in blocks], projections)
    if apart <= LOOSE and operations_vary(case):
        message = (
            "forward iterates until a tolerance is met (the number of its operations depends on the values), and "
            f"backward and differences are {apart:.1e} apart, relative to the largest entry: grant rtol= or atol= "
            "for what the tolerance leaves open"
        )
        return replace(failed, verdict="unresolved", message=message, findings=())
    return failed


def _not_zero(comparison: Comparison) -> int:
    """Count the entries that are not zero by both accounts: the zeros beside a diagonal prove little."""
    numeric = comparison.estimate.value.abs() > comparison.estimate.bar
    return int(((comparison.analytic != 0) | numeric | ~comparison.estimate.bar.isfinite()).sum())


def _second_opinion(case: Case, comparisons: list[Comparison], projections: list[Projection]) -> str:
    """Say how much of what is undecided a second witness gives as backward does; no verdict depends on it."""
    count = supports_gradient(case, comparisons, projections)
    if not count:
        return ""
    return (
        f" ({count} of them are as forward mode through forward's own body has them, which agrees with the differences "
        "where these are sharp)"
    )


def _seen_alone(projections: list[Projection]) -> list[str]:
    """Say how wrong a single element would have to be for the projections to show it."""
    known = [p.sensitivity for p in projections if p.sensitivity is not None]
    if not known:
        return []
    if max(known) >= 1:
        return ["the projections would not have shown a single wrong element of typical size"]
    return [f"in the projections a single element wrong by {max(known):.1g} of a typical one would have shown"]


def _apart(comparisons: list[Comparison], projections: list[Projection]) -> float:
    """Return the largest accused discrepancy, relative to the largest entry."""
    largest = largest_entry(*(c.estimate.value for c in comparisons))
    apart = [0.0]
    for c in comparisons:
        wrong = c.state == State.WRONG
        if bool(wrong.any()):
            apart.append(float((c.analytic - c.estimate.value)[wrong].abs().nan_to_num(math.inf).max()))
    for p in projections:
        if p.wrong and p.element is not None:
            largest = max(largest, abs(p.element.numeric))
            apart.append(abs(p.element.analytic - p.element.numeric))
        elif p.wrong:
            return math.inf
    worst = max(apart)
    return worst / largest if largest and math.isfinite(worst) else math.inf


def _random_draw(failed: Outcome) -> Outcome:
    """The gradient is not that of this draw: wrong, or that of an expectation, as implicit reparameterization gives."""
    hint = "The derivative was taken of one draw (the same random state at every call)."
    findings = tuple(replace(f, hint=f"{f.hint} {hint}" if f.hint else hint) for f in failed.findings)
    return replace(failed, findings=findings)


def _sensitivity(comparisons: list[Comparison], projections: list[Projection]) -> float | None:
    """Return the largest error of one element that could have been missed.

    Relative to the largest derivative of the block where entries were compared, and to a typical element of the
    gradient (the mean of those that are not zero) where projections were.
    """
    largest = largest_entry(*(c.estimate.value for c in comparisons))
    missed = []
    for c in comparisons:
        resolved = (c.state == State.FINE) | (c.state == State.WRONG)
        if bool(resolved.any()):
            size = float((c.estimate.bar + c.allowed)[resolved].max())
            missed.append(size / largest if largest else size)
    missed += [p.sensitivity for p in projections if p.sensitivity is not None]
    return max(missed, default=None)
