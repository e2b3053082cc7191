"""Grades that depend on more than one outcome: on guesses, on declarations, on what is required and what failed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradwright.checking.contracts import Contract, all_contracts
from gradwright.checking.report import ContractResult, Finding, Outcome, Support, Where, gravest, pictures_of
from gradwright.typing import Intent, Verdict

FIRST_ORDER_HINT = (
    "declared first-order-only, which keeps nobody from differentiating twice: decorate backward with "
    '@once_differentiable (or set double_backward="once"), so that it raises.'
)

GUESSES = "The inputs were guessed: declare samples to get a verdict."
ALTERED = "The recorded inputs were made smaller: declare samples to get a verdict."
UNCONFIRMED = "The samples were cut, or guessed and not confirmed: correct them to get a verdict."


def soften(outcome: Outcome, note: str = GUESSES) -> Outcome:
    """Turn failures on inputs that may have lost their meaning into suspicions; ``note`` says how they came about."""
    if outcome.verdict != "fail":
        return outcome
    findings = tuple(
        replace(f, verdict="suspect", hint=f"{f.hint} {note}" if f.hint else note) for f in outcome.findings
    )
    return replace(outcome, verdict="suspect", findings=findings, support=_regraded(outcome.support, "suspect"))


def _regraded(
    support: tuple[Support, ...], verdict: Verdict, reason: str | None = None, wanted: Verdict = "fail"
) -> tuple[Support, ...]:
    """Give the transforms that failed (or have the verdict ``wanted``) another verdict."""
    return tuple(
        replace(row, verdict=verdict, reason=reason or row.reason) if row.verdict == wanted else row for row in support
    )


def as_consequence(result: ContractResult, verdicts: Mapping[str, Verdict]) -> ContractResult:
    """Do not accuse twice: a failure that follows from another one is not judged, or is as uncertain as that one."""
    excused = result.verdict == "suspect" and result.guess is not None
    cause = _cause(result.id, verdicts) if result.verdict == "fail" or excused else None
    if cause is None or (excused and verdicts[cause] == "suspect"):
        return result
    if verdicts[cause] == "suspect":
        findings = tuple(replace(finding, verdict="suspect") for finding in result.findings)
        return replace(result, verdict="suspect", findings=findings, support=_regraded(result.support, "suspect"))
    message = f"not judged while {cause} fails, from which it may follow"
    support = _regraded(result.support, "skipped", message)
    return replace(result, verdict="skipped", message=message, findings=(), support=support, guess=None)


def _cause(contract: str, verdicts: Mapping[str, Verdict]) -> str | None:
    """Return the contract at the root of what a failure may follow from; one that fails before one that is suspect."""
    presupposed = all_contracts()[contract].presupposes
    for i in presupposed:
        if verdicts.get(i) == "fail":
            root = _cause(i, verdicts)
            return root if root is not None and verdicts[root] == "fail" else i
    return next((i for i in presupposed if verdicts.get(i) == "suspect"), None)


SECOND_ORDER = ("second-order", "gradient-penalty", "nested-forward")
"""Contracts that ask for a second derivative, which a rule may be declared not to have."""
SECOND_TRANSFORMS = ("grad of grad", "hessian")


def as_declared(contract: str, outcome: Outcome, intents: frozenset[Intent], gradient: bool) -> Outcome:
    """Do not count as refused what the rule is declared not to have.

    Arguments:
        gradient: whether any gradient comes back at all.
    """
    if "forward-only" in intents and not gradient and outcome.verdict == "unsupported":
        support = _regraded(outcome.support, "skipped", wanted="unsupported")
        return replace(outcome, verdict="skipped", message=f"declared forward-only: {outcome.message}", support=support)
    if "first-order-only" not in intents:
        return outcome
    if contract in SECOND_ORDER and outcome.verdict == "unsupported":
        return replace(outcome, verdict="skipped", message=f"declared first-order-only: {outcome.message}")
    if contract in SECOND_ORDER and outcome.verdict == "fail":
        return replace(outcome, findings=tuple(replace(f, hint=FIRST_ORDER_HINT) for f in outcome.findings))
    rows = tuple(
        replace(row, verdict="skipped", reason=f"declared first-order-only: {row.reason}")
        if row.transform in SECOND_TRANSFORMS and row.verdict == "unsupported"
        else row
        for row in outcome.support
    )
    return replace(outcome, verdict=gravest([row.verdict for row in rows]), support=rows) if rows else outcome


def insist(outcome: Outcome) -> Outcome:
    """Turn a refusal of what is required into a failure."""
    if outcome.verdict != "unsupported":
        return outcome
    message = f"{outcome.message} (required)"
    finding = Finding("fail", message, "support it, or leave it out of `require`.")
    return replace(outcome, verdict="fail", message=message, findings=(finding,))


def merged(contract: Contract, outcomes: Sequence[Outcome], seconds: float) -> ContractResult:
    """Put together what one contract concluded about each sample."""
    verdict = gravest([outcome.verdict for outcome in outcomes])
    sensitivities = [o.sensitivity for o in outcomes if o.sensitivity is not None]
    return ContractResult(
        id=contract.id,
        question=contract.asks,
        verdict=verdict,
        message=_message(outcomes, verdict),
        findings=_distinct([finding for outcome in outcomes for finding in outcome.findings]),
        sensitivity=max(sensitivities, default=None),
        evidence=tuple(evidence for outcome in outcomes for evidence in outcome.evidence),
        seconds=seconds,
        support=_support(outcomes),
        guess=next((outcome.guess for outcome in outcomes if outcome.guess is not None), None),
        pictures=pictures_of(outcomes, verdict),
    )


def _support(outcomes: Sequence[Outcome]) -> tuple[Support, ...]:
    """Put the transforms of all samples together: each with its gravest verdict and the reason for that."""
    rows: dict[str, list[Support]] = {}
    for outcome in outcomes:
        for row in outcome.support:
            rows.setdefault(row.transform, []).append(row)
    merged = []
    for transform, tried in rows.items():
        verdict = gravest([row.verdict for row in tried])
        merged.append(Support(transform, verdict, next(row.reason for row in tried if row.verdict == verdict)))
    return tuple(merged)


def _distinct(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Drop findings that say the same of the same input and output for another sample."""
    seen: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        place = finding.where or Where()
        words = re.sub(r"[-+.\d]+", "#", finding.message)
        seen.setdefault((finding.verdict, words, place.input, place.output), finding)
    return tuple(seen.values())


def _message(outcomes: Sequence[Outcome], verdict: Verdict) -> str:
    if len(outcomes) == 1:
        return outcomes[0].message
    texts: list[str] = []
    for number, outcome in enumerate(outcomes, 1):
        prefix = f"sample {number}" if outcome.verdict == verdict else f"sample {number} ({outcome.verdict})"
        if outcome.message:
            texts.append(f"{prefix}: {outcome.message}")
    same = {outcome.message for outcome in outcomes}
    return outcomes[0].message if len(same) == 1 else "; ".join(texts)
