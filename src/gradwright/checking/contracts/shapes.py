"""The gradient is right for other shapes and values than those of the sample.

## What it checks
Inputs derived from the given ones: a dimension of size 1, an empty one, sizes just past 32, 128 and 1024, no dimensions
at all; both signs, values several times as large, zeros, ties, and an index that occurs twice. Wherever forward runs
and gives finite values, backward must not raise, gradients must have the shapes of their inputs, and the rule must be
linear and match differences (or the declared surrogate). The gradient on the sample itself must still be what it was
when the check began. A variant that forward rejects is not used and is counted in the message, and a size that would
make forward too large or too slow is named there. So is what is wrong for odd sizes only, where the sample's is even
(it may work on two halves), and a backward that raises without features or dimensions. The declared ``domain`` is never
left. At zeros and ties, where many functions have no derivative, only gradients that are not finite and errors at
points where the function is smooth count. Only subjects with a hand-written gradient are examined. Complex input that a
real function happens to accept is a remark at most.

## Why it matters
Most wrong gradients in published code are right on the example they were tested with: three rows, positive numbers,
fewer elements than a block of the kernel, no index twice.

## If it fails
The message names the variant, the repro builds it. If such inputs are not meant, declare ``domain=(low, high)`` for the
values, or let forward refuse the shape with an exception.

## References
state-spaces/mamba issue 368 (right for the first 64 elements only); joeyan/gaussian_splatting issue 35.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from gradwright.checking.audit import audit, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compare import gradient_mismatch
from gradwright.checking.complex_probe import complex_remark
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import largest_entry
from gradwright.checking.report import Finding, Outcome, Where, gravest
from gradwright.checking.resizing import PROBE, NotTried, Resized, resized
from gradwright.checking.revaluing import Revalued, revalued
from gradwright.checking.saved import Memory
from gradwright.checking.variant_trial import Fault, Unjudged, try_rule, try_rule_at_singular_point
from gradwright.checking.variants import quietly, without_rule
from gradwright.typing import Level, Verdict

SECONDS: dict[Level, float] = {"quick": 1.0, "standard": 4.0, "full": 60.0}
"""No further variant is begun after this much processor time; it is meant for slow subjects only."""
MAX_FINDINGS = 3
MAX_NAMED = 3
"""So many of the sizes that were not tried are named."""
SATURATED = 1e-8
"""Differences below this fraction of the gradient on the sample do not count: exp(-40) is 0 beside 1."""
STATE = "keep nothing between calls: no counter, no buffer; what backward needs belongs on ctx."
NOT_MEANT = (
    "If such inputs are not meant, declare domain= for the values, or let forward refuse the shape with an exception."
)


@contract(
    asks="any layout, any shape?",
    level="standard",
    depends_on_meaning=True,
    presupposes=(
        "gradient-count",
        "gradient-shape-and-dtype",
        "linear-in-cotangent",
        "matches-differences",
        "matches-surrogate",
    ),
)
def examine(case: Case) -> Outcome:
    """Try the rule on variants of the sample."""
    obstacle = without_gradients(case) or without_rule(case)
    if obstacle is not None:
        return obstacle
    here = try_rule(case)
    wrong_here = isinstance(here, Fault)
    with quietly():
        memory = Memory(case)
        findings, notes = _grid(case, memory, values=not isinstance(here, Unjudged)) if not wrong_here else ([], [])
    drift = _drift(case)
    if drift is not None:
        return Outcome("fail", drift.message, (drift,))
    if wrong_here:
        return Outcome("skipped", "the rule is wrong on the sample itself, so that nothing can be said about variants")
    with quietly():
        remark = complex_remark(case)
    notes += [remark] if remark is not None else []
    if findings:
        verdict = gravest([finding.verdict for finding in findings])
        first = next(finding for finding in findings if finding.verdict == verdict)
        return Outcome(verdict, first.message, tuple(findings), pictures=memory.drawn())
    return Outcome("pass", "; ".join(notes), pictures=memory.drawn())


def _drift(case: Case) -> Finding | None:
    """Compare the gradient on the sample with the first one of the check: a rule may change with its calls."""
    first = audit(case).first
    if first is None or case.randomness != "none":
        return None
    wrong = gradient_mismatch(case, case.pull(random_cotangent(case)), first)
    if wrong is None:
        return None
    name = case.inputs[wrong.number].name
    message = (
        f"the gradient of `{name}` on the sample itself is no longer what it was when the check began: {wrong.words}; "
        "the rule depends on how often it was called."
    )
    where = Where(name, index=case.locate_input(wrong.number, wrong.position))
    return Finding("fail", message, STATE, where, wrong.got, wrong.want, wrong.allowed)


def _grid(case: Case, memory: Memory, values: bool) -> tuple[list[Finding], list[str]]:
    """Return what is wrong on variants, and what to say about them.

    Arguments:
        case: the sample.
        memory: is told what variants of other shapes keep for backward.
        values: False where the values of the gradient could not be judged on the sample itself (forward rounds, say);
            then they are not judged on variants either.
    """
    end = time.process_time() + SECONDS[case.level]
    findings: dict[str, Finding] = {}
    scale = largest_entry(*case.pull_all(random_cotangent(case, "scale of the gradient")))
    tried = rejected = unjudged = 0
    hurried = False
    not_tried: list[str] = []
    reasons: list[str] = []
    for variant in _variants(case, memory):
        if variant is None:
            rejected += 1
        elif isinstance(variant, NotTried):
            not_tried.append(variant.words)
        else:
            tried += 1
            words, outcome = variant
            outcome = _weighed(outcome, scale, values)
            if isinstance(outcome, Unjudged):
                unjudged += not outcome.why
                reasons += [outcome.why] if outcome.why else []
            if isinstance(outcome, Finding):
                findings.setdefault(outcome.message, replace(outcome, message=f"with {words}: {outcome.message}"))
        if len(findings) >= MAX_FINDINGS:
            break
        if time.process_time() > end:
            hurried = True
            break
    notes = [f"{tried} variants of the inputs: sizes 0, 1 and past 32, 128, 1024, signs, magnitudes, zeros, ties"]
    if rejected:
        notes.append(f"{rejected} more rejected by forward, or not finite there")
    if unjudged:
        notes.append(f"{unjudged} where the function is not smooth, not judged")
    notes += [f"{reason} (not judged: perhaps not meant for such a shape)" for reason in reasons]
    if not_tried:
        more = f" and {len(not_tried) - MAX_NAMED} more" if len(not_tried) > MAX_NAMED else ""
        notes.append(f"sizes not tried: {', '.join(not_tried[:MAX_NAMED])}{more}")
    if hurried:
        notes.append("stopped early because the subject is slow")
    return list(findings.values()), notes


def _weighed(outcome: Finding | Unjudged | None, scale: float, values: bool) -> Finding | Unjudged | None:
    """Drop a finding about a value where values cannot be judged, or where the value is next to nothing."""
    if not isinstance(outcome, Finding) or outcome.numeric is None:
        return outcome
    return Unjudged() if not values or _is_saturated(outcome, scale) else outcome


def _is_saturated(finding: Finding, scale: float) -> bool:
    """Tell whether two values differ by next to nothing of the sample's gradient: forward has rounded it away there."""
    if finding.analytic is None or finding.numeric is None:
        return False
    return abs(finding.analytic - finding.numeric) <= SATURATED * scale


def _variants(case: Case, memory: Memory) -> Iterator[tuple[str, Finding | Unjudged | None] | NotTried | None]:
    """Give the words of each variant and what came of it; None for a variant that forward rejects."""
    for value in revalued(case):
        yield None if value is None else (value.words, _revalued_finding(value))
    for shape in resized(case):
        if shape is None or isinstance(shape, NotTried):
            yield shape
            continue
        if not shape.alone and not shape.rank_changed:
            memory.add(*shape.sizes, shape.case)
        fault = _defined(try_rule(shape.case), shape.duplicates)
        if shape.alone and isinstance(fault, Fault) and fault.kind != "value":
            fault = Unjudged()  # it may be meant for square matrices only, and tells so
        if isinstance(fault, Fault) and _not_meant(shape, fault):
            fault = Unjudged(f"with {shape.words} {fault.finding.message}".rstrip("."))
        unsure = shape.was_permutation or shape.constants_only
        yield shape.words, _finding(fault, "suspect" if unsure else "fail")


def _not_meant(shape: Resized, fault: Fault) -> bool:
    """Tell whether the rule may not have been written for such a shape at all, though forward happens to run."""
    if shape.rank_changed:
        return fault.kind != "value"  # it is for vectors
    if shape.inner_empty:
        return fault.kind == "raises"  # without features there is nothing to compute
    if shape.resize is None:
        return False
    # It works on two halves (rotary embeddings, gates): wrong for odd sizes only, and an even one was given.
    odd, even = (shape.resize(n) for n in (PROBE, PROBE + 1))
    if not isinstance(odd, Resized) or not isinstance(even, Resized):
        return False
    return isinstance(try_rule(odd.case), Fault) and not isinstance(try_rule(even.case), Fault)


def _revalued_finding(value: Revalued) -> Finding | Unjudged | None:
    if value.singular:
        varied = [k for k, item in enumerate(value.case.inputs) if f"`{item.name}`" in value.words]
        return _finding(try_rule_at_singular_point(value.case, varied[0]), "fail")
    fault = _defined(try_rule(value.case), value.duplicates)
    return _finding(fault, "suspect" if value.was_permutation else "fail")


def _defined(fault: Fault | Unjudged | None, duplicates: bool) -> Fault | Unjudged | None:
    """Drop a fault that comes from an index which now occurs twice, where the meaning of that is not defined."""
    if not duplicates or not isinstance(fault, Fault) or fault.kind == "raises":
        return fault
    if fault.finding.numeric == 0:
        return Unjudged()  # one write overwrites another, and which one counts is not said
    hint = "contributions of the same index must be added up: index_add_, scatter_add_ or accumulate=True."
    return Fault(fault.kind, replace(fault.finding, hint=hint))


def _finding(fault: Fault | Unjudged | None, verdict: Verdict) -> Finding | Unjudged | None:
    if not isinstance(fault, Fault):
        return fault
    hint = f"{fault.finding.hint} {NOT_MEANT}" if fault.finding.hint else NOT_MEANT
    return replace(fault.finding, verdict=verdict, hint=hint)
