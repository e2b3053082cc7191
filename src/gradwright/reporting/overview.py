"""All verdicts at one look: a table with a row for each subject and a mark for each contract.

A mark is one character, so that the table stays readable with many contracts; letters in its head lead to the legend.
For a single subject the legend is the table: its contracts by name, each with its mark.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

from rich.text import Text

from gradwright.checking.report import Entry, Report
from gradwright.reporting import summary
from gradwright.reporting.pen import STYLES, Pen
from gradwright.typing import VERDICTS, Verdict

LETTERS = string.ascii_lowercase + string.ascii_uppercase

MARK_OF: dict[summary.Status, Verdict] = {
    "failed": "fail",
    "ended early": "unresolved",
    "suspect": "suspect",
    "unresolved": "unresolved",
    "nothing examined": "skipped",
    "passed": "pass",
}
NARROWEST_NAME = 16
"""Columns are left out of the table rather than giving the names of the subjects less room than this."""


def one(report: Report, pen: Pen) -> None:
    """Write the verdicts on a single subject."""
    status, broken = summary.status(report), [name for name, _ in summary.worst(report)]
    tally = {verdict: sum(r.verdict == verdict for r in report.results) for verdict in reversed(VERDICTS)}
    pen.line(
        pen.mark(MARK_OF[status]),
        " ",
        (report.name, "bold"),
        (f" {status}", "bold") if status in ("passed", "failed") else f": {status}",
        f": {', '.join(broken)}" if broken else "",
        f" ({', '.join(f'{n} {verdict}' for verdict, n in tally.items() if n)})" if report.results else "",
    )
    place = f"{report.kind} in {summary.location(report)}" if report.file else report.kind
    version = f"torch {report.torch_version}, " if report.torch_version else ""
    took = summary.seconds_text(report.seconds)
    pen.line((f"  {place}; level {report.level}, seed {report.seed}, {version}{took}", "dim"))
    asked = summary.groups([report])
    if not asked:
        return
    results = summary.by_contract(report)
    width = max(len(group.question) for group in asked)
    rows = []
    for group in asked:
        marks = [pen.text(pen.mark(results[name].verdict), f" {name}") for name in group.contracts]
        rows.append((pen.text(group.question), pen.flow(marks, pen.console.width - width - 4)))
    pen.blank()
    pen.grid(rows)


def many(rows: Sequence[Entry], hidden: int, pen: Pen) -> None:
    """Write the table of several subjects and its legend.

    Arguments:
        rows: the subjects in the order in which they are shown.
        hidden: how many more subjects pass without a row.
        pen: where to write.
    """
    asked = summary.groups(rows)
    letters = dict(zip((name for group in asked for name in group.contracts), LETTERS))
    columns = _Columns(rows, asked, pen.console.width)
    table = pen.table()
    table.add_column("\nsubject", overflow="fold")
    for heading, names in columns.marks:
        table.add_column(f"{heading}\n{''.join(letters.get(name, '*') for name in names)}", no_wrap=True)
    if columns.samples is not None:
        table.add_column("\nsamples", no_wrap=True)
    if columns.time:
        table.add_column("\ntime", no_wrap=True, justify="right")
    for label, row in zip(summary.labels(rows), rows):
        results = summary.by_contract(row)
        name = label if columns.samples is not None or isinstance(row, Report) else f"{label}: not run"
        cells = [pen.text((name, STYLES["fail"] if summary.status(row) == "failed" else ""))]
        for _, names in columns.marks:
            cells.append(pen.text(*(pen.mark(results[name].verdict) if name in results else " " for name in names)))
        cells += [pen.text(columns.samples(row))] if columns.samples is not None else []
        cells += [pen.text(_time(row))] if columns.time else []
        table.add_row(*cells)
    if hidden:
        table.add_row(pen.text((f"and {hidden} more that pass", STYLES["pass"])))
    pen.console.print(table)
    pen.blank()
    _legend(rows, asked, letters, pen)


def _legend(rows: Sequence[Entry], asked: Sequence[summary.Group], letters: dict[str, str], pen: Pen) -> None:
    used = {result.verdict for row in rows for result in summary.by_contract(row).values()}
    marks = [pen.text(pen.mark(verdict), f" {verdict}") for verdict in reversed(VERDICTS) if verdict in used]
    if not marks:
        return
    width = max(len(group.heading) for group in asked)
    lines = [(Text("marks"), pen.flow(marks, pen.console.width - width - 2))]
    for group in asked:
        names = [pen.text((letters.get(name, "*"), "bold"), f" {name}") for name in group.contracts]
        lines.append((pen.text(group.heading), pen.flow(names, pen.console.width - width - 2)))
    pen.grid(lines, indent=0)


class _Columns:
    """Which columns the table has in the width there is: the marks always, the rest as room allows."""

    def __init__(self, rows: Sequence[Entry], asked: Sequence[summary.Group], width: int) -> None:
        names = max(len("subject"), *(len(label) for label in summary.labels(rows)))
        least = min(names, NARROWEST_NAME)
        time = max(len("time"), *(len(_time(row)) for row in rows)) + 2
        self.marks = [(group.heading, group.contracts) for group in asked]
        used = sum(max(len(heading), len(contracts)) + 2 for heading, contracts in self.marks)
        if used + least > width and asked:
            self.marks = [("contracts", tuple(name for group in asked for name in group.contracts))]
            used = len(self.marks[0][1]) + 2
        self.samples: Callable[[Entry], str] | None = None
        """Says where the samples of a subject came from."""
        for origin, beside in ((_origin, time), (_short_origin, time), (_origin, 0), (_short_origin, 0)):
            samples = max(len("samples"), *(len(origin(row)) for row in rows)) + 2
            if used + least + samples + beside <= width:
                self.samples = origin
                used += samples
                break
        self.time = used + least + time <= width


def _origin(row: Entry) -> str:
    return summary.provenance(row) if isinstance(row, Report) else "could not be run"


def _short_origin(row: Entry) -> str:
    """Say it without the number of samples."""
    if not isinstance(row, Report):
        return "not run"
    return ", ".join(dict.fromkeys(note.provenance for note in row.samples))


def _time(row: Entry) -> str:
    return summary.seconds_text(row.seconds) if isinstance(row, Report) else ""
