"""Grades that depend on more than one outcome: on guesses, on what is required, and on what failed before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gradwright.checking.contracts import all_contracts
from gradwright.checking.report import ContractResult, Finding, Outcome, Support
from gradwright.typing import Verdict

GUESSES = "The inputs were guessed: declare samples to get a verdict."
ALTERED = "The recorded inputs were made smaller: declare samples to get a verdict."


def soften(outcome: Outcome, note: str = GUESSES) -> Outcome:
    """Turn failures on inputs that may have lost their meaning into suspicions; ``note`` says how they came about."""
    if outcome.verdict != "fail":
        return outcome
    findings = tuple(
        replace(f, verdict="suspect", hint=f"{f.hint} {note}" if f.hint else note) for f in outcome.findings
    )
    return replace(outcome, verdict="suspect", findings=findings, support=_regraded(outcome.support, "suspect"))


def _regraded(support: tuple[Support, ...], verdict: Verdict, reason: str | None = None) -> tuple[Support, ...]:
    """Give the transforms that failed another verdict."""
    return tuple(
        replace(row, verdict=verdict, reason=reason or row.reason) if row.verdict == "fail" else row for row in support
    )


def as_consequence(result: ContractResult, verdicts: Mapping[str, Verdict]) -> ContractResult:
    """Do not accuse twice: a failure that follows from another one is not judged, or is as uncertain as that one."""
    cause = _cause(result.id, verdicts) if result.verdict == "fail" else None
    if cause is None:
        return result
    if verdicts[cause] == "suspect":
        findings = tuple(replace(finding, verdict="suspect") for finding in result.findings)
        return replace(result, verdict="suspect", findings=findings, support=_regraded(result.support, "suspect"))
    message = f"not judged while {cause} fails, from which it may follow"
    support = _regraded(result.support, "skipped", message)
    return replace(result, verdict="skipped", message=message, findings=(), support=support)


def _cause(contract: str, verdicts: Mapping[str, Verdict]) -> str | None:
    """Return the contract at the root of what a failure may follow from; one that fails before one that is suspect."""
    presupposed = all_contracts()[contract].presupposes
    for i in presupposed:
        if verdicts.get(i) == "fail":
            root = _cause(i, verdicts)
            return root if root is not None and verdicts[root] == "fail" else i
    return next((i for i in presupposed if verdicts.get(i) == "suspect"), None)


def insist(outcome: Outcome) -> Outcome:
    """Turn a refusal of what is required into a failure."""
    if outcome.verdict != "unsupported":
        return outcome
    message = f"{outcome.message} (required)"
    finding = Finding("fail", message, "support it, or leave it out of `require`.")
    return replace(outcome, verdict="fail", message=message, findings=(finding,))
