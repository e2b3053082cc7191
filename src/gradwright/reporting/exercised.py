"""What a program that was watched did not exercise: custom gradients never called, or never differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwright.checking.report import Usage
from gradwright.reporting.summary import plural


@dataclass(frozen=True)
class Exercised:
    """The rows of usage, sorted into what every view shows."""

    never_called: tuple[Usage, ...]
    never_differentiated: tuple[Usage, ...]
    """Called, and its backward never ran."""
    differentiated: tuple[Usage, ...]

    @property
    def called(self) -> int:
        """How many were called."""
        return len(self.never_differentiated) + len(self.differentiated)

    @property
    def missed(self) -> int:
        """How many were not exercised: what is wrong with their gradients, the program could not show."""
        return len(self.never_called) + len(self.never_differentiated)

    @property
    def sections(self) -> tuple[tuple[str, tuple[Usage, ...]], ...]:
        """The two lists with their headings, those that are not empty."""
        both = (
            ("Defined and never called", self.never_called),
            ("Called and never differentiated", self.never_differentiated),
        )
        return tuple((heading, rows) for heading, rows in both if rows)

    def __str__(self) -> str:
        total = self.called + len(self.never_called)
        verb = "was" if self.called == 1 else "were"
        return (
            f"{self.called} of {plural(total, 'Function')} {verb} called, "
            f"{len(self.never_differentiated)} never differentiated"
        )


def exercised(usage: Sequence[Usage]) -> Exercised:
    """Sort the rows of usage; each list keeps their order."""
    return Exercised(
        tuple(row for row in usage if not row.calls),
        tuple(row for row in usage if row.calls and not row.backwards),
        tuple(row for row in usage if row.calls and row.backwards),
    )


NOTHING_USED = exercised(())
"""Where no program was watched."""
