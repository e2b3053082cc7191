"""What the terminal says about each finding: where, the source, both values, what to do, and a script that shows it."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TypeAlias

from gradwright.checking.report import ContractResult, Finding, NotChecked, Report
from gradwright.reporting import summary
from gradwright.reporting.frame import Frame, frame
from gradwright.reporting.pen import STYLES, Pen

Again: TypeAlias = Callable[[Report, str], "str | None"]
"""Gives the command that examines one contract of a subject again; None where there is none."""
MAX_FINDINGS = 3
"""Findings of one contract of one subject that are written out."""


def no_command(report: Report, contract: str) -> str | None:
    """Give no command."""
    return None


def findings(
    label: str,
    report: Report,
    pen: Pen,
    *,
    verbose: bool,
    again: Again = no_command,
    elsewhere: Container[str] = (),
) -> None:
    """Write a paragraph for each finding that says something is, or may be, wrong.

    Arguments:
        elsewhere: contracts whose findings are written elsewhere.
    """
    scripts: set[str] = set()
    frames: set[Frame] = set()
    for name in (name for name, _ in summary.worst(report) if name not in elsewhere):
        result = report[name]
        grave = [finding for finding in summary.concerns(result) if finding.verdict in ("fail", "suspect")]
        shown = grave if verbose else grave[:MAX_FINDINGS]
        for finding in shown:
            pen.blank()
            _head(label, report, result, finding, pen)
            source = frame(report, result.id)
            if source is not None and source not in frames:  # once, however much is wrong with it
                frames.add(source)
                pen.source(source.lines, source.marked)
            _body(finding, pen)
            command = again(report, result.id) if finding is shown[0] else None
            if command is not None:
                pen.command("Check again: ", command)
            # On guessed inputs the first thing to do is to declare some; the script would only be in the way.
            wanted = finding.verdict == "fail" or verbose
            if wanted and finding.repro and finding.repro not in scripts:
                scripts.add(finding.repro)
                pen.blank()
                pen.script(finding.repro, f"repro: {label}, {result.id}")
        if len(grave) > len(shown):
            more = summary.plural(len(grave) - len(shown), "more finding")
            pen.line(f"and {more} of {result.id} on {label}", indent=2)


def _head(label: str, report: Report, result: ContractResult, finding: Finding, pen: Pen) -> None:
    style = STYLES[finding.verdict]
    where = f", {finding.where}" if finding.where is not None and str(finding.where) else ""
    place = summary.places(report)
    suspect = f" ({summary.doubt(report)})" if finding.verdict == "suspect" else ""
    pen.line(
        pen.mark(finding.verdict),
        " ",
        (f"{finding.verdict.upper()} {label}: {result.id}", style),
        f"{where}{suspect}",
        (f"  [{place}]" if place and (report.rule or place not in label) else "", "dim"),
    )


def _body(finding: Finding, pen: Pen) -> None:
    pen.line(finding.message, indent=2)
    values = []
    if finding.analytic is not None:
        values.append(("analytic", summary.value_text(finding.analytic, finding.error_bar)))
    if finding.numeric is not None:
        bar = "" if finding.error_bar is None else f" {pen.plus_minus} {summary.small_text(finding.error_bar)}"
        values.append(("numeric", summary.value_text(finding.numeric, finding.error_bar) + bar))
    for name, value in values:
        pen.line(f"{name:<9}{'' if value.startswith('-') else ' '}", (value, "bold"), indent=4)
    if finding.hint:
        pen.line(("What to do: ", "bold"), finding.hint, indent=2)


def not_run(label: str, entry: NotChecked, pen: Pen, *, verbose: bool) -> None:
    """Write a paragraph on a subject that could not be run: why, and what to do."""
    place = summary.location(entry)
    pen.blank()
    pen.line(
        (f"{label}: could not be run", STYLES["fail"]), (f"  [{place}]" if place and place not in label else "", "dim")
    )
    pen.line(entry.reason, indent=2)
    if entry.remedy:
        pen.line(("What to do: ", "bold"), indent=2)
        # Not wrapped: it is likely to be a line to copy.
        pen.console.print(pen.text(*(f"    {line}\n" for line in entry.remedy.splitlines())), soft_wrap=True, end="")
    if entry.traceback and (verbose or entry.named):
        pen.console.print(pen.text(*(f"    {line}\n" for line in entry.traceback.splitlines())), soft_wrap=True, end="")
