"""What is known of a subject from processes that ended while it was examined.

A crash in compiled code takes the process with it. Whoever starts the next one hands over what the last one delivered,
so that every contract is examined once, and the one that ended the process not again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradwright.checking.report import ContractResult, Finding

FORWARD = "running forward"
"""What is done with a sample before any contract is examined."""

SHRINKING = "shrinking"
"""What is done with findings after that: looking for smaller inputs that show them."""


@dataclass(frozen=True)
class Earlier:
    """What earlier processes delivered about one subject, and how they ended."""

    results: Mapping[str, ContractResult] = field(default_factory=dict)
    """By contract, as they were delivered."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Contracts under which a process ended, each with how that was."""
    given_up: str | None = None
    """Why no other contract shall be examined, if so."""

    def result(self, contract: str, question: str) -> ContractResult | None:
        """Return the result of a contract if it is settled; None when it is still to be examined."""
        if contract in self.results:
            return self.results[contract]
        if contract in self.lost:
            finding = Finding(
                "unresolved", self.lost[contract], "mend what ends the process; see it with `--no-isolation`."
            )
            return ContractResult(contract, question, "unresolved", self.lost[contract], (finding,))
        if self.given_up is not None:
            return ContractResult(contract, question, "unresolved", self.given_up)
        return None


NOTHING = Earlier()
"""Nothing happened before."""
