"""The source of a subject on the HTML page, with what is wrong written below the line that it is about."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gradwright.checking.report import ContractResult, Finding, Report
from gradwright.checking.shown import Source
from gradwright.reporting import summary
from gradwright.reporting.markup import Markup, element, prose
from gradwright.reporting.pen import MARKS

PLACE = re.compile(r"\bline (\d+) of ([^\s:;,]+)")
MAX_WORDS = 160


def listing(report: Report, anchors: Sequence[tuple[ContractResult, Finding, str]], *, opened: bool) -> Markup:
    """Return the source of a subject with marks; empty when it is not known.

    Arguments:
        report: the report of the subject.
        anchors: the findings on the page, each with the identifier that leads to it.
        opened: whether the listing is open from the beginning.
    """
    if not report.source:
        return Markup("")
    notes: dict[tuple[str, int], list[Markup]] = {}
    for result, finding, name in anchors:
        place = _place(report.source, result, finding)
        if place is not None:
            notes.setdefault(place, []).append(_note(result, finding, name))
    blocks = [_block(source, notes, report) for source in report.source]
    return element("details", element("summary", "Source"), *blocks, open=opened, cls="source")


def _place(sources: Sequence[Source], result: ContractResult, finding: Finding) -> tuple[str, int] | None:
    """Return file and line that a finding is about: what it names itself, else the function it accuses."""
    for line, file in PLACE.findall(f"{finding.message} {finding.hint or ''}"):
        for source in sources:
            known = any(number == int(line) for number, _ in source.lines)
            if known and PurePath(source.file).name == PurePath(file.rstrip(".")).name:
                return source.file, int(line)
    for source, part in summary.parts_about(sources, result.id):
        if any(number == part.first for number, _ in source.lines):
            return source.file, part.first
    return (sources[0].file, sources[0].lines[0][0]) if sources[0].lines else None


def _note(result: ContractResult, finding: Finding, name: str) -> Markup:
    words = finding.message if len(finding.message) <= MAX_WORDS else f"{finding.message[:MAX_WORDS]}..."
    return element(
        "span",
        element("i", MARKS[finding.verdict], cls=f"mark {finding.verdict}"),
        " ",
        element("a", result.id, href=f"#{name}"),
        " ",
        prose(words),
        cls=f"note {finding.verdict}",
    )


def _block(source: Source, notes: Mapping[tuple[str, int], Sequence[Markup]], report: Report) -> Markup:
    lines: list[Markup] = []
    before: int | None = None
    margin = _common_margin([text for _, text in source.lines])
    for number, text in source.lines:
        if before is not None and number > before + 1:
            lines.append(element("span", "⋯", cls="gap"))
        before = number
        said = notes.get((source.file, number), ())
        content = [element("b", str(number)), element("code", text[margin:] or " ")]
        lines.append(element("span", *content, cls="line marked" if said else "line"))
        lines += said
    file = summary.shown_file(source.file)
    return element(
        "figure",
        element("figcaption", file if before is None else f"{file}:{source.lines[0][0]}"),
        element("pre", *lines, tabindex=0, aria_label=f"source of {report.name}"),
    )


def _common_margin(lines: Sequence[str]) -> int:
    return min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
