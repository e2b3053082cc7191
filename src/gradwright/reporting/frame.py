"""The lines of the user's source that a finding is about."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from gradwright.checking.report import Report
from gradwright.reporting import summary

MAX_LINES = 5


@dataclass(frozen=True)
class Frame:
    """Some lines of a file, of which one is marked."""

    file: str
    lines: tuple[tuple[int, str], ...]
    """Number and text of each; what all are indented by is left out."""
    marked: int


def frame(report: Report, contract: str) -> Frame | None:
    """Return the first lines of the rule that a contract of a subject is about; None where no source was read."""
    for source, part in summary.parts_about(report.source, contract):
        last = min(part.last, part.first + MAX_LINES - 1)
        return _frame(source.file, [line for line in source.lines if part.first <= line[0] <= last])
    return None


def _frame(file: str, lines: list[tuple[int, str]]) -> Frame | None:
    texts = textwrap.dedent("\n".join(text.expandtabs() for _, text in lines)).split("\n")
    shown = [(number, text) for (number, _), text in zip(lines, texts)]
    while shown and not shown[-1][1].strip():
        shown.pop()
    return Frame(file, tuple(shown), shown[0][0]) if shown else None
