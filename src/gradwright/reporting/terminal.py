"""The report as text, for a terminal and under a failing ``assert``.

One look must tell what is wrong and what to do: first the marks (the gravest subjects first), then a paragraph for each
finding, then what was refused, left out and used as inputs, and last the counts.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Container, Sequence

from rich.console import Console
from rich.text import Text

from gradwright.checking.report import Entry, NotChecked, Report, Usage
from gradwright.reporting import guessed, overview, paragraphs, summary
from gradwright.reporting.baseline import known
from gradwright.reporting.exercised import NOTHING_USED, Exercised, exercised
from gradwright.reporting.paragraphs import Again
from gradwright.reporting.pen import Pen
from gradwright.typing import VERDICTS, Verdict

WIDTH = 100
MAX_PASSING = 20
"""Rows of passing subjects in the table; the others are counted in one line."""
MAX_SAMPLES = 5
SUPPORT_WORDS: dict[Verdict, str] = {
    "pass": "right",
    "fail": "wrong",
    "suspect": "suspect",
    "unsupported": "refused",
    "unresolved": "not decided",
    "skipped": "not examined",
}
"""How the verdicts are called in the table of transforms."""
MAX_UNUSED = 12
"""Functions that are named of those never called, and of those never differentiated."""
MAX_NAMES = 4
"""Subjects that are named where a reason is shared."""


def plain_text(entries: Sequence[Entry], *, verbose: bool = False) -> str:
    """Return the report as text without colour, 100 columns wide."""
    stream = io.StringIO()
    console = Console(
        file=stream, width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False
    )
    # The text is likely to be printed: it must not hold a mark that standard output cannot encode.
    _write(entries, Pen(console, getattr(sys.stdout, "encoding", None)), verbose)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")


def render(
    entries: Sequence[Entry],
    console: Console,
    *,
    verbose: bool = False,
    usage: Sequence[Usage] = (),
    again: Again = paragraphs.no_command,
    encoding: str | None = None,
) -> None:
    """Write the report on a rich console.

    Arguments:
        entries: reports and subjects that could not be run, in any order.
        console: where to write.
        verbose: write every passing row, every finding and every sample, and the tracebacks.
        usage: how often a program that was watched used each custom gradient it defines.
        again: gives the command that examines one contract of a subject again.
        encoding: of the characters that may be written. Unless it is given, what is not written to a terminal is
            plain ASCII, whoever will read it; the environment may ask for UTF-8 as it does of Python
            (``PYTHONIOENCODING``, ``PYTHONUTF8``).
    """
    _write(entries, Pen(console, encoding or _encoding(console)), verbose, exercised(usage), again)


def _encoding(console: Console) -> str:
    asked = bool(os.environ.get("PYTHONIOENCODING")) or os.environ.get("PYTHONUTF8") == "1"
    return console.encoding if console.is_terminal or asked else "ascii"


def _write(
    entries: Sequence[Entry],
    pen: Pen,
    verbose: bool,
    used: Exercised = NOTHING_USED,
    again: Again = paragraphs.no_command,
) -> None:
    rows = summary.ordered(entries)
    passing = [entry for entry in rows if summary.status(entry) == "passed"]
    hidden = [] if verbose or len(rows) == 1 else passing[MAX_PASSING:]
    rows = rows[: len(rows) - len(hidden)]  # what passes comes last
    reports = [(label, row) for label, row in zip(summary.labels(rows), rows) if isinstance(row, Report)]
    alone = len(rows) == 1 and len(reports) == 1
    if alone:
        overview.one(reports[0][1], pen)
    elif rows:
        overview.many(rows, len(hidden), pen)
    _unused(used, pen, verbose, first=not rows)
    shared = guessed.alike(reports, verbose)
    together = {label: {result.id} for rows in shared.values() for label, _, result in rows}
    for label, report in reports:
        elsewhere = together.get(label, set())
        paragraphs.findings(label, report, pen, verbose=verbose, again=again, elsewhere=elsewhere)
    guessed.write(shared, pen)
    for label, row in zip(summary.labels(rows), rows):
        if isinstance(row, NotChecked):
            paragraphs.not_run(label, row, pen, verbose=verbose)
    if alone:
        _support(reports[0][1], pen)
    _refused(reports, alone, pen)
    _left_out(reports, alone, pen)
    _known(rows, pen, verbose)
    _inputs(reports, alone, pen, verbose, together)
    if not alone or used.missed:
        _footer(entries, used, pen)


def _unused(used: Exercised, pen: Pen, verbose: bool, *, first: bool) -> None:
    """Write which Functions the program that was watched never called, and which it never differentiated."""
    if not used.missed:
        return
    if not first:
        pen.blank()
    pen.line((str(used), "bold"))
    for heading, rows in used.sections:
        pen.line(f"{heading}:", indent=2)
        shown = rows if verbose else rows[:MAX_UNUSED]
        lines = []
        for row in shown:
            said = [summary.plural(row.calls, "call")] if row.calls else []
            said += [row.note] if row.note else []
            lines.append((pen.text(row.name), pen.text((summary.location(row), "dim")), pen.text("; ".join(said))))
        pen.grid(lines, indent=4)
        if len(rows) > len(shown):
            pen.line(f"and {len(rows) - len(shown)} more", indent=4)


def _support(report: Report, pen: Pen) -> None:
    """Write the table of transforms, those with the same verdict on one line; reasons stand with the contracts."""
    rows = []
    for verdict in reversed(VERDICTS):
        names = [row.transform for row in report.support if row.verdict == verdict]
        if names:
            words = pen.text(", ".join(names))
            rows.append((pen.text(pen.mark(verdict)), pen.text(SUPPORT_WORDS[verdict]), words))
    if rows:
        pen.heading("Transforms")
        pen.grid(rows)


def _refused(reports: Sequence[tuple[str, Report]], alone: bool, pen: Pen) -> None:
    """Write what the subjects refuse aloud, and where an error bar was too wide to tell."""
    rows: list[tuple[str, Verdict, str, str]] = []
    for label, report in reports:
        for result in report.results:
            for finding in summary.concerns(result):
                if finding.verdict in ("unresolved", "unsupported"):
                    where = f" at {finding.where}" if finding.where is not None and str(finding.where) else ""
                    hint = f" What to do: {finding.hint}" if finding.hint else ""
                    words = f"{finding.verdict}{where}: {finding.message}{hint}"
                    rows.append((label, finding.verdict, result.id, words))
    _reasons("Not decided, or refused aloud", rows, alone, pen)


def _left_out(reports: Sequence[tuple[str, Report]], alone: bool, pen: Pen) -> None:
    """Write why contracts were skipped, except those of which everything found is known."""
    rows: list[tuple[str, Verdict, str, str]] = [
        (label, "skipped", result.id, result.message)
        for label, report in reports
        for result in report.skipped
        if not result.known
    ]
    _reasons("Not examined", rows, alone, pen)


def _known(entries: Sequence[Entry], pen: Pen, verbose: bool) -> None:
    """Write how many findings the baseline lists, and which they are if everything is to be shown."""
    every = known(entries)
    if not every:
        return
    verb, them = ("is", "it") if len(every) == 1 else ("are", "them")
    pen.heading(f"{summary.plural(len(every), 'known finding')} {verb} not counted, as the baseline lists {them}")
    names = dict(zip(map(id, entries), summary.labels(entries)))
    for report, result, finding in every if verbose else ():
        where = f", {finding.where}" if finding.where is not None and str(finding.where) else ""
        said = f" {names[id(report)]}: {result.id}{where}: {finding.message}"
        pen.line(pen.mark(finding.verdict), said, indent=2)


def _reasons(title: str, rows: Sequence[tuple[str, Verdict, str, str]], alone: bool, pen: Pen) -> None:
    """Write rows of (subject, verdict, contract, reason); what several subjects share is written once."""
    shared: dict[tuple[Verdict, str, str], list[str]] = {}
    for label, verdict, contract, words in rows:
        shared.setdefault((verdict, contract, words), []).append(label)
    if not shared:
        return
    # One subject often has one reason for several contracts: these stand below one another.
    merged: dict[tuple[Verdict, str, tuple[str, ...]], list[str]] = {}
    for (verdict, contract, words), names in shared.items():
        merged.setdefault((verdict, words, tuple(names)), []).append(contract)
    pen.heading(title)
    lines = []
    for (verdict, words, subjects), contracts in merged.items():
        rest = f" and {len(subjects) - MAX_NAMES} more" if len(subjects) > MAX_NAMES else ""
        whose = "" if alone else f" ({', '.join(subjects[:MAX_NAMES])}{rest})"
        lines.append((pen.text(pen.mark(verdict)), pen.text("\n".join(contracts)), pen.text(words, (whose, "dim"))))
    pen.grid(lines)


def _inputs(
    reports: Sequence[tuple[str, Report]], alone: bool, pen: Pen, verbose: bool, together: Container[str]
) -> None:
    """Write which inputs each subject was checked on, how small an error would have been seen, and the notes."""
    rows = []
    for label, report in reports:
        lines = [(note.provenance, note.description) for note in report.samples]
        shown = list(dict.fromkeys(lines))[: None if verbose else MAX_SAMPLES]
        said = [pen.text((f"{origin}: ", "dim"), description) for origin, description in shown]
        rest = len(lines) - sum(lines.count(line) for line in shown)
        said += [pen.text(f"and {summary.plural(rest, 'more sample')}")] if rest else []
        seen = [f"{summary.small_text(size)} ({name})" for size, name in summary.sensitivities(report)]
        if seen:
            said.append(pen.text((f"relative errors above {', '.join(seen)} would have been seen", "dim")))
        notes = [note for note in report.notes if not (label in together and note == f"intent: {report.intent}")]
        said += [pen.text(("note: ", "bold"), note) for note in notes]
        if said:
            rows.append((pen.text("" if alone else label), Text("\n").join(said)))
    if rows:
        pen.heading("Inputs used")
        pen.grid([(row[1],) for row in rows] if alone else rows)


def _footer(entries: Sequence[Entry], used: Exercised, pen: Pen) -> None:
    """Write the counts, and once more what failed, because the end of the text is what a terminal shows."""
    pen.blank()
    for label, entry in zip(summary.labels(entries), entries):
        if not isinstance(entry, Report):
            pen.line(pen.mark("unresolved"), " ", (label, "bold"), ": could not be run")
        elif entry.ok and summary.status(entry) == "suspect":
            names = [result.id for result in entry.results if result.verdict == "suspect"]
            pen.line(pen.mark("suspect"), " ", (label, "bold"), f": {', '.join(names)} (suspect)")
        elif not entry.ok:
            names = [result.id for result in entry.failed]
            names += [f"{name} (hung, or ended the process)" for name in entry.ended]
            pen.line(pen.mark("fail" if entry.failed else "unresolved"), " ", (label, "bold"), f": {', '.join(names)}")
    refusing = sum(isinstance(entry, Report) and bool(entry.unsupported) for entry in entries)
    if used.missed or refusing:
        pen.line(_coverage(entries, used, refusing))
    seconds = sum(entry.seconds for entry in entries if isinstance(entry, Report))
    bad = any(summary.status(entry) in ("failed", "could not be run", "ended early") for entry in entries)
    pen.line((summary.counts_text(entries), "bold red" if bad else "bold green"), f" ({summary.seconds_text(seconds)})")


def _coverage(entries: Sequence[Entry], used: Exercised, refusing: int) -> str:
    """Say how much was checked, how much the program did not exercise, and how many refuse something aloud."""
    said = [f"{sum(isinstance(entry, Report) for entry in entries)} checked"]
    if used.missed:
        unused, undifferentiated = len(used.never_called), len(used.never_differentiated)
        said.append(f"{used.missed} not exercised ({unused} never called, {undifferentiated} never differentiated)")
    if refusing:
        said.append(f"{refusing} with something unsupported")
    return ", ".join(said)
