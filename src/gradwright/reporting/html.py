"""The report as one HTML page that needs nothing else: no network, no template engine, no library of scripts.

The page is readable without scripts; ``page.js`` adds the filter, the order of rows, the tooltips and the copy buttons.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from gradwright.checking.report import Entry, Usage
from gradwright.reporting import around, machine, summary, table
from gradwright.reporting.cards import anchors, card
from gradwright.reporting.markup import Markup, element

# Nothing on the page may load or send anything.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

MAX_OPEN = 8
"""Cards of subjects that did not pass that are open from the beginning; with more of them the page has no overview."""


def write_html(
    entries: Sequence[Entry], path: str | Path, *, usage: Sequence[Usage] = (), command: str = "check"
) -> Path:
    """Write the report to ``path`` (its folder is made when missing) and return the path.

    Arguments:
        entries: the subjects.
        path: the file to write.
        usage: what a program that was watched did not use.
        command: the command of gradwright that the report is of.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_page(entries, usage, command), encoding="utf-8")
    return target


def _page(entries: Sequence[Entry], usage: Sequence[Usage], command: str) -> str:
    rows = summary.ordered(entries)
    names = anchors(rows)
    opened = [len(rows) == 1 or (i < MAX_OPEN and summary.status(row) != "passed") for i, row in enumerate(rows)]
    cards = [card(row, name, opened=each) for row, name, each in zip(rows, names, opened)]
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
        element("a", "Skip to the subjects", href="#subjects", cls="skip"),
        _header(entries),
        element(
            "main",
            around.first(rows, names),
            _controls(entries),
            table.overview(rows, names),
            table.support(rows, names),
            around.usage(usage, rows, names),
            element("section", *cards, id="subjects", aria_label="Subjects"),
            element("p", "No subject matches the filter.", id="nothing", hidden=True),
            around.environment(entries, command),
        ),
        element("div", id="tip", role="tooltip", hidden=True),
        element("script", _data(entries, usage, command), type="application/json", id="report-data"),
        element("script", _asset("page.js")),
        cls="plain",
    )
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _title(entries: Sequence[Entry]) -> str:
    tally = summary.counts(entries)
    bad = [f"{tally[name]} {name}" for name in summary.STATUSES if tally[name] and name != "passed"]
    return ", ".join(bad) if bad else f"{tally['passed']} passed" if entries else "nothing checked"


def _header(entries: Sequence[Entry]) -> Markup:
    return element(
        "header",
        element(
            "div",
            element("p", "gradwright", cls="brand"),
            element("h1", _title(entries)),
            element("p", summary.counts_text(entries), cls="counts"),
        ),
        around.facts(entries),
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
        element("span", "Filter", cls="unseen"),
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


def _data(entries: Sequence[Entry], usage: Sequence[Usage], command: str) -> Markup:
    # In ASCII, so that the halves of pairs that some file names are made of can be written.
    text = json.dumps(machine.document(entries, command, usage), allow_nan=False, separators=(",", ":"))
    # "<" cannot be escaped as in HTML inside a script; as \u003c it can neither close the script nor open a comment.
    return Markup(text.replace("<", "\\u003c"))


def _asset(name: str) -> Markup:
    return Markup(resources.files("gradwright.reporting").joinpath(name).read_text(encoding="utf-8"))
