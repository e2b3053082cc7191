"""Grades that depend on more than one outcome: on guesses, on what is required, and on what failed before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradwright.checking.contracts import Contract
from gradwright.checking.report import ContractResult, Finding, Outcome, Support
from gradwright.typing import Verdict


def soften(outcome: Outcome) -> Outcome:
    """Turn failures on guessed inputs into suspicions."""
    if outcome.verdict != "fail":
        return outcome
    findings = tuple(replace(f, verdict="suspect", hint=_guess_hint(f)) for f in outcome.findings)
    return replace(outcome, verdict="suspect", findings=findings, support=_regraded(outcome.support, "suspect"))


def _regraded(support: tuple[Support, ...], verdict: Verdict, reason: str | None = None) -> tuple[Support, ...]:
    """Give the transforms that failed another verdict."""
    return tuple(
        replace(row, verdict=verdict, reason=reason or row.reason) if row.verdict == "fail" else row for row in support
    )


def _guess_hint(finding: Finding) -> str:
    note = "The inputs were guessed: declare samples to get a verdict."
    return f"{finding.hint} {note}" if finding.hint else note


def as_consequence(contract: Contract, result: ContractResult, results: Sequence[ContractResult]) -> ContractResult:
    """Do not accuse twice: a failure that follows from another one is not judged, or is as uncertain as that one."""
    earlier = [r for r in results if r.id in contract.presupposes and r.verdict in ("fail", "suspect")]
    if result.verdict != "fail" or not earlier:
        return result
    cause = min(earlier, key=lambda r: r.verdict != "fail")
    if cause.verdict == "suspect":
        findings = tuple(replace(finding, verdict=cause.verdict) for finding in result.findings)
        support = _regraded(result.support, cause.verdict)
        return replace(result, verdict=cause.verdict, findings=findings, support=support)
    message = f"not judged while {cause.id} fails, from which it may follow"
    support = _regraded(result.support, "skipped", message)
    return replace(result, verdict="skipped", message=message, findings=(), support=support)


def insist(outcome: Outcome) -> Outcome:
    """Turn a refusal of what is required into a failure."""
    if outcome.verdict != "unsupported":
        return outcome
    message = f"{outcome.message} (required)"
    finding = Finding("fail", message, "support it, or leave it out of `require`.")
    return replace(outcome, verdict="fail", message=message, findings=(finding,))
