"""The report as one HTML page that needs nothing else: no network, no template engine, no library of scripts.

The page is readable without scripts; ``page.js`` adds the filter, the tooltips and the copy buttons.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import gradwright
from gradwright.checking.contracts import summary_of
from gradwright.checking.report import ContractResult, Entry, Report
from gradwright.reporting import machine, summary
from gradwright.reporting.cards import anchors, card
from gradwright.reporting.markup import Markup, element
from gradwright.reporting.pen import MARKS
from gradwright.typing import VERDICTS

# Nothing on the page may load or send anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_html(entries: Sequence[Entry], path: str | Path) -> Path:
    """Write the report to ``path`` (its folder is made when missing) and return the path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_page(entries), encoding="utf-8")
    return target


def _page(entries: Sequence[Entry]) -> str:
    rows = summary.ordered(entries)
    names = anchors(rows)
    cards = [card(row, name, opened=len(rows) == 1) for row, name in zip(rows, names)]
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<link rel="icon" href="data:,">'),
        element("title", f"{_title(entries)} - gradwright"),
        element("style", _asset("page.css")),
    )
    body = element(
        "body",
        _header(entries),
        element(
            "main",
            _controls(entries),
            _overview(rows, names),
            element("section", *cards, id="subjects"),
            element("p", "No subject matches the filter.", id="nothing", hidden=True),
        ),
        element("div", id="tip", role="tooltip", hidden=True),
        element("script", _data(entries), type="application/json", id="report-data"),
        element("script", _asset("page.js")),
    )
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _title(entries: Sequence[Entry]) -> str:
    tally = summary.counts(entries)
    bad = [f"{tally[name]} {name}" for name in summary.STATUSES if tally[name] and name != "passed"]
    return ", ".join(bad) if bad else f"{tally['passed']} passed" if entries else "nothing checked"


def _header(entries: Sequence[Entry]) -> Markup:
    reports = [entry for entry in entries if isinstance(entry, Report)]
    environment = {
        "gradwright": gradwright.__version__,
        "torch": machine.torch_version(entries),
        "python": platform.python_version(),
        "seed": ", ".join(sorted({str(report.seed) for report in reports})) or "none",
        "level": ", ".join(sorted({report.level for report in reports})) or "none",
        "time": summary.seconds_text(sum(report.seconds for report in reports)),
    }
    return element(
        "header",
        element(
            "div",
            element("p", "gradwright", cls="brand"),
            element("h1", _title(entries)),
            element("p", summary.counts_text(entries), cls="counts"),
        ),
        element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in environment.items())),
        cls="top",
    )


def _controls(entries: Sequence[Entry]) -> Markup:
    buttons = [
        element(
            "button",
            element("b", str(n)),
            f" {status}",
            type="button",
            aria_pressed="false",
            data_status=status,
            cls=f"chip {status.replace(' ', '-')}",
        )
        for status, n in summary.counts(entries).items()
        if n
    ]
    search = element(
        "label",
        element("span", "Filter"),
        Markup(
            '<input type="search" id="filter" placeholder="name, file, contract or verdict   ( / )" '
            'autocomplete="off" spellcheck="false">'
        ),
    )
    tools = element(
        "div",
        element("button", "Open all", type="button", id="open-all"),
        element("button", "Close all", type="button", id="close-all"),
        element("button", "Save JSON", type="button", id="save"),
        cls="tools",
    )
    shown = element("output", cls="shown", id="shown", for_="filter")
    return element("form", search, element("div", *buttons, cls="chips"), shown, tools, cls="controls", role="search")


def _overview(rows: Sequence[Entry], names: Sequence[str]) -> Markup:
    asked = summary.groups(rows)
    questions = [
        element("th", group.question, colspan=len(group.contracts), scope="colgroup", cls="first") for group in asked
    ]
    contracts = [
        element("th", element("span", name, title=summary_of(name)), scope="col", cls="first" if i == 0 else None)
        for group in asked
        for i, name in enumerate(group.contracts)
    ]
    head = element(
        "thead",
        element("tr", element("th", "subject", rowspan=2, scope="col", cls="name"), *questions, *_tail_heads()),
        element("tr", *contracts, cls="contracts"),
    )
    body = element("tbody", *(_row(row, name, asked) for row, name in zip(rows, names)))
    used = {result.verdict for row in rows for result in summary.by_contract(row).values()}
    legend = [
        element("span", element("i", MARKS[verdict], cls=f"mark {verdict}"), f" {verdict}")
        for verdict in reversed(VERDICTS)
        if verdict in used
    ]
    return element(
        "section",
        element("div", element("table", head, body), cls="scroll", tabindex=0, role="region", aria_label="Verdicts"),
        element("p", *legend, cls="legend"),
        id="overview",
    )


def _tail_heads() -> list[Markup]:
    return [element("th", name, rowspan=2, scope="col", cls=f"tail {name}") for name in ("samples", "time")]


def _row(row: Entry, name: str, asked: Sequence[summary.Group]) -> Markup:
    results = summary.by_contract(row)
    cells = []
    if isinstance(row, Report):
        for group in asked:
            for i, contract in enumerate(group.contracts):
                content = _mark(results[contract], name) if contract in results else ""
                cells.append(element("td", content, cls="verdict first" if i == 0 else "verdict"))
        cells.append(element("td", summary.provenance(row), cls="tail"))
        cells.append(element("td", summary.seconds_text(row.seconds), cls="tail time"))
    else:
        width = sum(len(group.contracts) for group in asked) + 2
        cells.append(element("td", f"could not be run: {row.reason}", colspan=width, cls="not-run first"))
    status = summary.status(row)
    link = element("a", row.name, href=f"#{name}", title=summary.location(row) or None)
    return element(
        "tr", element("th", link, scope="row", cls="name"), *cells, data_for=name, cls=status.replace(" ", "-")
    )


def _mark(result: ContractResult, name: str) -> Markup:
    words = [f"{result.id}: {result.verdict}", *(finding.message for finding in summary.concerns(result)[:1])]
    if len(words) == 1 and result.message:
        words.append(result.message)
    words.append(summary_of(result.id) or "")
    return element(
        "a",
        MARKS[result.verdict],
        href=f"#{name}.{result.id}",
        title="\n".join(filter(None, words)),
        aria_label=f"{result.id}: {result.verdict}",
        cls=f"mark {result.verdict}",
    )


def _data(entries: Sequence[Entry]) -> Markup:
    text = json.dumps(machine.document(entries, "check"), ensure_ascii=False, allow_nan=False)
    # "<" cannot be escaped as in HTML inside a script; as \u003c it can neither close the script nor open a comment.
    return Markup(text.replace("<", "\\u003c"))


def _asset(name: str) -> Markup:
    return Markup(resources.files("gradwright.reporting").joinpath(name).read_text(encoding="utf-8"))
