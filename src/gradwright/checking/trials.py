"""Trials: what came of each transform that a contract tried, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwright.checking.audit import functions_in_graph
from gradwright.checking.case import Case
from gradwright.checking.report import Finding, Outcome, Support, gravest
from gradwright.checking.transforms import Mismatch
from gradwright.errors import describe_exception
from gradwright.typing import Verdict

NUMBER_READ = "it reads a number out of a tensor (.item(), float(), a branch on a value), which has no batched form"
REFUSALS = (
    ("must override the setup_context", "torch.func needs forward without ctx, plus setup_context"),
    ("does not have vmap support", "there is no vmap rule: set generate_vmap_rule = True, or write one"),
    ("implement the jvp function", "there is no jvp rule"),
    (".item()", NUMBER_READ),
    ("aten::item", NUMBER_READ),
    ("data-dependent control flow", NUMBER_READ),
)
"""What PyTorch says when it refuses, and the same in few words."""


@dataclass(frozen=True)
class Trial:
    """What came of one transform."""

    transform: str
    verdict: Verdict
    reason: str = ""
    finding: Finding | None = None


def failed(
    transform: str, message: str, hint: str, mismatch: Mismatch | None = None, script: str | None = None
) -> Trial:
    """Return a trial that failed, with its finding."""
    if mismatch is None:
        return Trial(transform, "fail", message, Finding("fail", message, hint, repro=script))
    finding = Finding("fail", message, hint, mismatch.where, mismatch.got, mismatch.want, mismatch.allowed, script)
    return Trial(transform, "fail", message, finding)


def refused(transform: str, error: BaseException) -> Trial:
    """Return the trial of a transform that raised: loud, and therefore ``unsupported``."""
    return Trial(transform, "unsupported", refusal(error))


def refusal(error: BaseException) -> str:
    """Say in few words why a transform raised."""
    text = str(error)
    for pattern, words in REFUSALS:
        if pattern in text:
            return words
    return f"raises {describe_exception(error)}"


def conclude(case: Case, trials: Sequence[Trial], passed: str, sensitivity: float | None = None) -> Outcome:
    """Put trials together: the gravest verdict, a row of support for each, and in words what agrees and what does not.

    A subject without a rule of its own is not accused when PyTorch's transforms and its eager mode disagree.

    Arguments:
        case: what was tried.
        trials: what came of it.
        passed: what was found of the transforms that pass, for example ``value and gradient as in eager mode``.
    """
    if any(t.verdict == "fail" for t in trials) and not has_own_rule(case):
        trials = [_not_to_blame(t) if t.verdict == "fail" else t for t in trials]
    support = tuple(Support(t.transform, t.verdict, t.reason) for t in trials)
    findings = tuple(t.finding for t in trials if t.finding is not None)
    verdict = gravest([t.verdict for t in trials])
    if findings:
        return Outcome(verdict, findings[0].message, findings, support=support)
    good = [t.transform for t in trials if t.verdict == "pass"]
    said = [f"{', '.join(good)}: {passed}"] if good else []
    others: dict[str, list[str]] = {}
    for trial in trials:
        if trial.verdict != "pass":
            others.setdefault(trial.reason, []).append(trial.transform)
    # What is refused comes first: it is what the verdict is about.
    said = [f"{', '.join(names)}: {reason}" for reason, names in others.items()] + said
    return Outcome(verdict, "; ".join(said), sensitivity=sensitivity if good else None, support=support)


def _not_to_blame(trial: Trial) -> Trial:
    words = f"PyTorch disagrees with itself, and no rule of your own is involved: {trial.reason}"
    return Trial(trial.transform, "unresolved", words)


def has_own_rule(case: Case) -> bool:
    """Tell whether a rule of the user's is involved: a Function class, a custom op, or a Function in the graph."""
    if case.subject.hand_written:
        return True
    # Some of torch's own operations are Functions inside; a custom op appears as a generated one.
    found = functions_in_graph(case)
    return any(not f.__module__.startswith("torch.") or f.__name__.startswith("Generated") for f in found)
