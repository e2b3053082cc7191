"""Reasons why a contract cannot be examined on a case, said the same way by all of them."""

from __future__ import annotations

from gradwright.checking.audit import audit
from gradwright.checking.case import Case
from gradwright.checking.report import Outcome


def without_gradients(case: Case) -> Outcome | None:
    """Return the outcome of a contract that needs gradients when the case has none, else None."""
    watched = audit(case)
    if watched.no_backward:
        return Outcome("unsupported", "there is no backward: differentiating raises")
    if not watched.usable:
        return Outcome("skipped", watched.obstacle)
    obstacle = without_numbers(case)
    if obstacle is None and case.backward_randomness == "uncontrolled":
        return Outcome(
            "unresolved",
            "backward gives different gradients when it is run twice with the same inputs, the same incoming gradient "
            "and the same random state",
        )
    return obstacle


def without_linearity(case: Case) -> Outcome | None:
    """Return the outcome of a contract that only a rule can have which is linear in its cotangent."""
    if not case.subject.declared_linear:
        return Outcome("skipped", "the rule is declared not to be linear in its cotangent")
    return without_gradients(case)


def without_numbers(case: Case) -> Outcome | None:
    """Return the outcome of a contract that compares numbers when the subject gives no reproducible ones."""
    if case.randomness == "uncontrolled":
        return Outcome(
            "unresolved",
            "two calls with the same inputs and the same random state give different outputs, so there is no function "
            "to compare with; draw random numbers from torch's, Python's or NumPy's global generator (they are seeded "
            "for the check), and keep no state between calls",
        )
    if case.m == 0 or sum(case.n) == 0:
        return Outcome("pass", "nothing to compare: the inputs or the outputs are empty")
    return None
