"""The lines of the user's source that a finding is about."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from gradwright.checking.report import Report
from gradwright.checking.shown import Role
from gradwright.reporting import summary

MAX_LINES = 5
OTHERWISE: tuple[Role, ...] = ("backward", "forward")


@dataclass(frozen=True)
class Frame:
    """Some lines of a file, of which one is marked."""

    file: str
    lines: tuple[tuple[int, str], ...]
    """Number and text of each; what all are indented by is left out."""
    marked: int


def frame(report: Report, contract: str) -> Frame | None:
    """Return the first lines of the rule that a contract of a subject is about; None where no source was read."""
    for role in (*summary.ABOUT.get(contract, ()), *OTHERWISE):
        for source in report.source:
            for part in source.parts:
                if part.role == role:
                    last = min(part.last, part.first + MAX_LINES - 1)
                    return _frame(source.file, [line for line in source.lines if part.first <= line[0] <= last])
    return None


def _frame(file: str, lines: list[tuple[int, str]]) -> Frame | None:
    texts = textwrap.dedent("\n".join(text.expandtabs() for _, text in lines)).split("\n")
    shown = [(number, text) for (number, _), text in zip(lines, texts)]
    while shown and not shown[-1][1].strip():
        shown.pop()
    return Frame(file, tuple(shown), shown[0][0]) if shown else None
