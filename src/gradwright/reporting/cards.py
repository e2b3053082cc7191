"""One card a subject on the HTML page: findings with values, picture, hint and repro; then everything else examined."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TypeGuard

from gradwright.checking.report import ContractResult, Entry, Evidence, Finding, NotChecked, Report
from gradwright.reporting import plots, summary, svg
from gradwright.reporting.listing import listing
from gradwright.reporting.markup import Markup, element, join, prose
from gradwright.reporting.pen import MARKS
from gradwright.typing import Verdict

SHOWN_APART: tuple[Verdict, ...] = ("fail", "suspect", "unresolved")
"""Verdicts whose findings have a section of their own; a refusal is a row among all contracts."""
MENTIONED = 0.01
"""Seconds that a contract must take for its time to be shown."""
MAX_LISTED = 12
"""Wrong pairs that are listed beside a scatter plot."""


def anchors(rows: Sequence[Entry]) -> list[str]:
    """Return a unique fragment identifier for each subject, made of its name."""
    found: list[str] = []
    for row in rows:
        stem = re.sub(r"[^A-Za-z0-9_]+", "-", row.name).strip("-") or "subject"
        name, number = stem, 1
        while name in found:
            number += 1
            name = f"{stem}-{number}"
        found.append(name)
    return found


def card(row: Entry, anchor: str, *, opened: bool) -> Markup:
    """Return the card of one subject."""
    status = summary.status(row)
    meta = [summary.location(row)]
    if isinstance(row, Report):
        meta = [row.kind, summary.places(row), f"level {row.level}", f"seed {row.seed}"]
        meta.append(summary.seconds_text(row.seconds))
    head = element(
        "summary",
        element("h2", row.name),
        element("span", summary.status_text(row), cls="pill"),
        element("span", " · ".join(filter(None, meta)), cls="meta"),
        element("a", "#", href=f"#{anchor}", cls="permalink", aria_label=f"link to {row.name}"),
    )
    content = _checked(row, anchor) if isinstance(row, Report) else _not_run(row)
    return element(
        "details",
        head,
        element("div", *content, cls="body"),
        id=anchor,
        cls=f"card {status.replace(' ', '-')}",
        open=opened,
        data_status=status,
        data_words=" ".join([row.name, row.file or "", status, *_words(row)]).lower(),
    )


def _words(row: Entry) -> list[str]:
    """What the filter finds a subject by, beside its name: what is wrong with it, not what holds for all."""
    results = row.results if isinstance(row, Report) else ()
    return [f"{result.id} {result.verdict}" for result in results if result.verdict != "pass"]


def _not_run(entry: NotChecked) -> list[Markup]:
    parts = [element("p", prose(entry.reason))]
    if entry.remedy:
        parts += [element("p", element("b", "What to do: "), cls="hint"), _script(entry.remedy)]
    if entry.traceback:
        parts.append(element("details", element("summary", "Traceback"), element("pre", entry.traceback)))
    return parts


def _checked(report: Report, anchor: str) -> list[Markup]:
    accused, others, named = [], [], []
    for result in sorted(report.results, key=lambda r: (r.verdict != "fail", r.verdict != "suspect")):
        findings = [finding for finding in summary.concerns(result) if finding.verdict in SHOWN_APART]
        for number, finding in enumerate(findings):
            name = f"{anchor}.{result.id}" + (f".{number + 1}" if number else "")
            pictures = _pictures(result) if number == 0 else Markup("")
            section = _finding(report, result, finding, name, pictures)
            if finding.verdict in ("fail", "suspect"):
                accused.append(section)
                named.append((result, finding, name))
            else:
                others.append(section)
    parts = [_intent(report), *accused, listing(report, named, opened=bool(named)), *others, _examined(report, anchor)]
    if report.support:
        parts.append(_support(report, anchor))
    if report.samples:
        listed = [element("li", element("b", note.provenance), " ", note.description) for note in report.samples]
        parts.append(element("section", element("h3", "Inputs used"), element("ul", *listed), cls="inputs"))
    if report.notes:
        notes = [element("li", prose(note)) for note in report.notes]
        parts.append(element("section", element("h3", "Notes"), element("ul", *notes), cls="notes"))
    return [part for part in parts if part]


def _intent(report: Report) -> Markup:
    """Say what the rule means to be, and who says so; a finding about a guess says how to settle it."""
    if report.intent is None:
        return Markup("")
    words = ", ".join(report.intent.value)
    said: list[str] = [element("b", f"Intent: {words}"), f", {report.intent.origin}: ", prose(report.intent.evidence)]
    return element("p", *said, ".", cls=f"intent {report.intent.origin}")


def _finding(report: Report, result: ContractResult, finding: Finding, name: str, pictures: Markup) -> Markup:
    where = str(finding.where) if finding.where is not None else ""
    parts = [
        element(
            "h3",
            element("i", MARKS[finding.verdict], cls=f"mark {finding.verdict}", aria_label=finding.verdict),
            element("a", result.id, href=f"#{name}"),
            element("small", where) if where else "",
        ),
        element("p", prose(finding.message), cls="message"),
        _values(finding),
    ]
    if finding.verdict == "suspect":
        parts.append(element("p", f"Only a suspicion: {summary.doubt(report)}.", cls="aside"))
    if finding.hint:
        parts.append(element("p", element("b", "What to do: "), prose(finding.hint), cls="hint"))
    parts = [element("div", *parts, cls="said")]
    if finding.repro:
        shown = element("summary", "Repro: a script that shows it by itself")
        parts.append(element("details", shown, _script(finding.repro), cls="repro"))
    return element("section", *parts, pictures, id=name, cls=f"finding {finding.verdict}")


def _values(finding: Finding) -> Markup:
    """The two values as numbers, and as a picture where they are real and finite."""
    analytic, numeric, bar = finding.analytic, finding.numeric, finding.error_bar
    rows = []
    if analytic is not None:
        rows += [element("dt", "analytic"), element("dd", summary.value_text(analytic, bar))]
    if numeric is not None:
        extra = "" if bar is None else f" ± {summary.small_text(bar)}"
        rows += [element("dt", "numeric"), element("dd", summary.value_text(numeric, bar) + extra)]
    if not rows:
        return Markup("")
    picture = Markup("")
    if _drawable(analytic) and _drawable(numeric) and (bar is None or _drawable(bar)):
        picture = svg.interval(analytic, numeric, bar)
    return element("div", element("dl", *rows), picture, cls="values")


def _drawable(value: float | complex | None) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < svg.LARGEST


def _pictures(result: ContractResult) -> Markup:
    """Draw what was compared; beside a finding only that in which something is wrong, as the rest is not about it."""
    shown = [evidence for evidence in result.evidence if evidence.labels]
    if result.verdict in ("fail", "suspect"):
        shown = [evidence for evidence in shown if svg.outside(evidence)]
    shown = list({evidence.title: evidence for evidence in reversed(shown)}.values())[::-1]  # of many samples the first
    drawn = [picture for picture in map(plots.figure, result.pictures) if picture]
    pictures = element("div", *drawn, cls="pictures") if drawn else ""
    return join(*map(_figure, shown), pictures)


def _figure(evidence: Evidence) -> Markup:
    wrong = svg.outside(evidence)
    n, total = len(wrong), len(evidence.labels)
    of = f"Gradient of {evidence.title}: " if evidence.title else ""
    said = f"{of}all {total} elements shown agree within their error bars."
    listed: Sequence[Markup] = []
    if wrong:
        said = f"{of}{n} of {total} elements shown differ by more than their error bar."
        head = element("tr", *(element("th", name, scope="col") for name in ("element", "analytic", "numeric")))
        rows = [
            element(
                "tr",
                element("td", label),
                element("td", summary.value_text(analytic, bar)),
                element("td", f"{summary.value_text(numeric, bar)} ± {summary.small_text(bar)}"),
            )
            for label, analytic, numeric, bar in wrong[:MAX_LISTED]
        ]
        rest = [element("p", f"and {n - MAX_LISTED} more")] if n > MAX_LISTED else []
        table = element("table", element("thead", head), element("tbody", *rows))
        listed = [element("div", table, cls="listed"), *rest]
    said = said[0].upper() + said[1:]
    return element(
        "figure", svg.scatter(evidence), element("figcaption", element("p", prose(said)), *listed), cls="wide"
    )


def _examined(report: Report, anchor: str) -> Markup:
    """Every contract in one list, with what was examined or why it was not."""
    asked = summary.groups([report])
    results = summary.by_contract(report)
    rows = []
    for group in asked:
        rows.append(element("tr", element("th", group.question, colspan=4, scope="colgroup"), cls="question"))
        for name in group.contracts:
            rows.append(_examined_row(results[name], anchor))
    head = element("summary", f"All {summary.plural(len(report.results), 'contract')}")
    return element("details", head, element("table", *rows), open=summary.status(report) == "passed", cls="examined")


def _support(report: Report, anchor: str) -> Markup:
    """The table of transforms: each with its mark and, where it is not a pass, why."""
    alike: dict[tuple[Verdict, str], list[str]] = {}
    for row in report.support:
        alike.setdefault((row.verdict, row.reason), []).append(row.transform)
    rows = [
        element(
            "tr",
            element("td", element("i", MARKS[verdict], cls=f"mark {verdict}", aria_label=verdict)),
            element("td", ", ".join(transforms), cls="those"),
            element("td", prose(reason) if reason else verdict),
        )
        for (verdict, reason), transforms in alike.items()
    ]
    parts = [element("h3", "Transforms"), element("table", *rows)]
    return element("section", *parts, id=f"{anchor}.transforms", cls="examined support")


def _examined_row(result: ContractResult, anchor: str) -> Markup:
    has_section = any(finding.verdict in SHOWN_APART for finding in summary.concerns(result))
    said: list[str] = [prose(result.message)] if result.message else []
    if result.verdict == "unsupported":
        said += [prose(finding.hint) for finding in result.findings if finding.hint]
    said += [element("small", prose(f"known: {finding.message}")) for finding in result.known]
    if result.sensitivity is not None:
        size = summary.small_text(result.sensitivity)
        said.append(element("small", f"relative errors above {size} would have been seen"))
    pictures = Markup("") if has_section else _pictures(result)
    if pictures:
        said.append(element("details", element("summary", "Picture"), pictures))
    name = element("a", result.id, href=f"#{anchor}.{result.id}") if has_section else join(result.id)
    return element(
        "tr",
        element("td", element("i", MARKS[result.verdict], cls=f"mark {result.verdict}", aria_label=result.verdict)),
        element("td", name, cls="id"),
        element("td", *(element("div", piece) for piece in said)),
        element("td", summary.seconds_text(result.seconds) if result.seconds >= MENTIONED else "", cls="time"),
        id=None if has_section else f"{anchor}.{result.id}",
    )


def _script(code: str) -> Markup:
    copy = element("button", "Copy", type="button", cls="copy")
    return element("div", copy, element("pre", element("code", code.strip())), cls="script")
