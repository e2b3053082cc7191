"""What surrounds the tables and cards of the HTML page: what to look at first, what was never used, where it ran."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Sequence

import gradwright
from gradwright.checking.report import Entry, Report, Usage
from gradwright.reporting import machine, summary
from gradwright.reporting.markup import Markup, element, prose

MAX_FIRST = 8
"""Subjects that are named at the top."""


def first(rows: Sequence[Entry], names: Sequence[str]) -> Markup:
    """Return what is wrong with each of the worst subjects and what to do, in a line or two; empty when nothing is.

    A single subject needs no such list: its card is open and follows at once.
    """
    grave = [(row, name) for row, name in zip(rows, names) if summary.status(row) not in ("passed", "nothing examined")]
    if len(rows) < 2 or not grave:
        return Markup("")
    parts = [
        element("h2", "Look here first"),
        element("ul", *(_item(row, name) for row, name in grave[:MAX_FIRST])),
    ]
    for _, name in grave[MAX_FIRST : MAX_FIRST + 1]:
        more = f"and {len(grave) - MAX_FIRST} more"
        parts.append(element("p", element("a", more, href=f"#{name}"), cls="more"))
    return element("section", *parts, id="first")


def _item(row: Entry, name: str) -> Markup:
    status = summary.status(row)
    said, hint, target = _complaint(row, name)
    return element(
        "li",
        element(
            "div",
            element("a", row.name, href=f"#{target}", cls="who"),
            element("small", summary.location(row)),
        ),
        element(
            "div",
            element("span", prose(said), cls="what"),
            element("span", prose(hint), cls="hint") if hint else "",
        ),
        cls=status.replace(" ", "-"),
    )


def _complaint(row: Entry, name: str) -> tuple[str, str, str]:
    """Return what is wrong, what to do, and where the page says more."""
    if not isinstance(row, Report):
        return row.reason, "declare samples, as its card shows" if row.remedy else "", name
    for result in sorted(row.results, key=lambda r: (r.verdict != "fail", r.verdict != "suspect")):
        for finding in summary.concerns(result):
            if finding.verdict not in ("pass", "skipped", "unsupported"):
                return finding.message, finding.hint or "", f"{name}.{result.id}"
    return "", "", name


def usage(rows: Sequence[Usage], entries: Sequence[Entry], names: Sequence[str]) -> Markup:
    """Return what a watched program defined and never used; empty when nothing was watched."""
    if not rows:
        return Markup("")
    never = [row for row in rows if not row.calls]
    undifferentiated = [row for row in rows if row.calls and not row.backwards]
    rest = [row for row in rows if row.calls and row.backwards]
    cards = {(entry.name, entry.file): name for entry, name in zip(entries, names)}
    tables = [
        _usage_table(title, found, cards)
        for title, found in (
            ("Defined, never called", never),
            ("Called, never differentiated", undifferentiated),
            ("Used", rest),
        )
        if found
    ]
    said = ", ".join(
        [f"{len(never)} never called"] * bool(never)
        + [f"{len(undifferentiated)} called and never differentiated"] * bool(undifferentiated)
    )
    head = element("summary", element("h2", "Usage"), element("span", said, cls="meta"))
    return element("details", head, *tables, id="usage", cls="panel", open=True)


def _usage_table(title: str, rows: Sequence[Usage], cards: dict[tuple[str, str | None], str]) -> Markup:
    called = any(row.calls for row in rows)
    heads = ["subject", "place", *(["calls", "backwards"] if called else [])]
    body = []
    for row in rows:
        card = cards.get((row.name, row.file))
        place = "" if row.file is None else summary.shown_file(row.file)
        cells = [
            element("td", element("a", row.name, href=f"#{card}") if card else row.name),
            element("td", place if row.line is None else f"{place}:{row.line}", cls="place"),
        ]
        cells += [element("td", f"{n:,}", cls="number") for n in (row.calls, row.backwards)] if called else []
        cells.append(element("td", prose(row.note), cls="note"))
        body.append(element("tr", *cells))
    head = element(
        "tr",
        *(
            element("th", name, scope="col", cls="number" if name not in ("subject", "place") else None)
            for name in heads
        ),
        element("td"),
    )
    table = element("table", element("thead", head), element("tbody", *body))
    label = f"{title}: {len(rows)}"
    scroll = element("div", table, cls="scroll", tabindex=0, role="region", aria_label=title)
    return element("section", element("h3", label), scroll)


def facts(entries: Sequence[Entry]) -> Markup:
    """Return the few facts of a run that a reader looks for at the top."""
    reports = _reports(entries)
    return _list(
        {
            "level": _each(report.level for report in reports),
            "seed": _each(str(report.seed) for report in reports),
            "torch": machine.torch_version(entries),
            "time": summary.seconds_text(sum(report.seconds for report in reports)),
        }
    )


def environment(entries: Sequence[Entry], command: str) -> Markup:
    """Return everything that is known of where and how the report was made."""
    reports = _reports(entries)
    allowed = {f"{name}={value:g}" for report in reports for name, value in report.allowances.items() if value}
    known = {
        "gradwright": gradwright.__version__,
        "torch": machine.torch_version(entries),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "processors": str(os.cpu_count() or "unknown"),
        "command": f"gradwright {command}",
        "level": _each(report.level for report in reports),
        "seed": _each(str(report.seed) for report in reports),
        "allowed": ", ".join(sorted(allowed)) or "nothing beyond the error bars",
        "written": time.strftime("%Y-%m-%d %H:%M %z"),
    }
    return element(
        "footer", element("details", element("summary", element("h2", "Environment")), _list(known), cls="panel")
    )


def _reports(entries: Sequence[Entry]) -> list[Report]:
    return [entry for entry in entries if isinstance(entry, Report)]


def _each(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values))) or "none"


def _list(known: dict[str, str]) -> Markup:
    return element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in known.items()))
