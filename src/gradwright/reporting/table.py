"""The tables of all subjects on the HTML page: a mark for each contract, and one for each transform.

Heads of columns are buttons, by which ``page.js`` sorts the rows: by ``data-sort`` of the cells in the column whose
number the button has. On a narrow screen the contracts give way to one column for each question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwright.checking.contracts import summary_of
from gradwright.checking.report import ContractResult, Entry, Report, Support, gravest
from gradwright.reporting import summary
from gradwright.reporting.markup import Markup, element
from gradwright.reporting.pen import MARKS
from gradwright.typing import VERDICTS, Verdict

TOLD: tuple[Verdict, ...] = ("fail", "suspect", "unresolved", "unsupported")
"""Verdicts whose marks say why at once; thousands of others would make the page twice as large."""


def overview(rows: Sequence[Entry], names: Sequence[str]) -> Markup:
    """Return the table of verdicts with its legend.

    Arguments:
        rows: the subjects in the order in which they are shown.
        names: the identifier of each one's card.
    """
    asked = summary.groups(rows)
    head = element("thead", *_heads(asked))
    body = element("tbody", *(_row(row, name, asked) for row, name in zip(rows, names)))
    used = {result.verdict for row in rows for result in summary.by_contract(row).values()}
    return element(
        "section",
        element("h2", "Verdicts", cls="unseen"),
        _scrolling(element("table", head, body), "Verdicts"),
        _legend(used),
        id="overview",
    )


def _heads(asked: Sequence[summary.Group]) -> list[Markup]:
    """Return the two rows of the head; the columns of the questions follow those of all contracts."""
    contracts = sum(len(group.contracts) for group in asked)
    after = 2 + contracts
    words, marks, column = [], [], 2
    for group in asked:
        words.append(
            element("th", group.question, colspan=len(group.contracts), scope="colgroup", cls="contract first")
        )
        for i, name in enumerate(group.contracts):
            cls = "contract upright first" if i == 0 else "contract upright"
            marks.append(_head(name, column, cls, title=summary_of(name)))
            column += 1
    questions = [
        _head(group.heading, after + i, "group upright", rowspan=2, title=group.question)
        for i, group in enumerate(asked)
    ]
    after += len(asked)
    upper = [
        _head("subject", 0, "name", rowspan=2),
        _head("result", 1, "result", rowspan=2, sort="ascending"),
        *words,
        *questions,
        _head("samples", after, "tail", rowspan=2),
        _head("time", after + 1, "tail time", rowspan=2),
    ]
    return [element("tr", *upper), element("tr", *marks)]


def _head(
    words: str, column: int, cls: str, *, rowspan: int | None = None, title: str | None = None, sort: str = "none"
) -> Markup:
    button = element(
        "button", element("span", words), type="button", data_column=column, title=title or None, cls="sort"
    )
    return element("th", button, scope="col", rowspan=rowspan, cls=cls, aria_sort=sort)


def _row(row: Entry, name: str, asked: Sequence[summary.Group]) -> Markup:
    status = summary.status(row)
    cells = [
        element(
            "th",
            element("a", row.name, href=f"#{name}", title=summary.location(row) or None),
            scope="row",
            cls="name",
            data_sort=row.name.lower(),
        ),
        element(
            "td",
            element("span", summary.status_text(row), cls="pill"),
            cls="result",
            data_sort=summary.STATUSES.index(status),
        ),
    ]
    if isinstance(row, Report):
        cells += _verdicts(summary.by_contract(row), name, asked)
        origin = summary.provenance(row)
        cells.append(element("td", origin, cls="tail", data_sort=origin))
        seconds = summary.seconds_text(row.seconds)
        cells.append(element("td", seconds, cls="tail time", data_sort=row.seconds))
    else:
        width = sum(len(group.contracts) + 1 for group in asked) + 2
        cells.append(element("td", row.reason, colspan=width, cls="not-run first"))
    return element("tr", *cells, data_for=name, cls=_css(status))


def _verdicts(results: Mapping[str, ContractResult], name: str, asked: Sequence[summary.Group]) -> list[Markup]:
    cells, questions = [], []
    for group in asked:
        present = [results[contract] for contract in group.contracts if contract in results]
        for i, contract in enumerate(group.contracts):
            content = _mark(results[contract], name) if contract in results else ""
            cells.append(_cell(content, results.get(contract), f"contract{' first' if i == 0 else ''}"))
        verdict = gravest([result.verdict for result in present])
        worst = next((result for result in present if result.verdict == verdict), None)
        content = _mark(worst, name) if worst is not None else ""
        questions.append(_cell(content, worst, "group"))
    return cells + questions


def _cell(content: str, result: ContractResult | None, cls: str) -> Markup:
    rank = len(VERDICTS) if result is None else VERDICTS.index(result.verdict)
    return element("td", content, cls=f"verdict {cls}", data_sort=rank)


def _mark(result: ContractResult, name: str) -> Markup:
    words: list[str] = []
    if result.verdict in TOLD:
        words += [finding.message for finding in summary.concerns(result)[:1]] or [result.message]
        words.append(summary_of(result.id) or "")
    return _linked_mark(result.id, result.verdict, "\n".join(filter(None, words)), f"#{name}.{result.id}")


def _linked_mark(what: str, verdict: Verdict, why: str, target: str) -> Markup:
    label = f"{what}: {verdict}"
    title = f"{label}\n{why}" if why else None  # without one the label is shown
    return element("a", MARKS[verdict], href=target, title=title, aria_label=label, cls=f"mark {verdict}")


def support(rows: Sequence[Entry], names: Sequence[str]) -> Markup:
    """Return the table of transforms, empty when none was tried."""
    tables = {name: row.support for row, name in zip(rows, names) if isinstance(row, Report) and row.support}
    transforms = list(dict.fromkeys(line.transform for table in tables.values() for line in table))
    if not transforms:
        return Markup("")
    head = element("tr", _head("subject", 0, "name"), *(_head(t, i, "upright") for i, t in enumerate(transforms, 1)))
    body = []
    for row, name in zip(rows, names):
        if name not in tables:
            continue
        lines = {line.transform: line for line in tables[name]}
        link = element("a", row.name, href=f"#{name}")
        cells = [element("th", link, scope="row", cls="name", data_sort=row.name.lower())]
        for transform in transforms:
            line = lines.get(transform)
            rank = len(VERDICTS) if line is None else VERDICTS.index(line.verdict)
            mark = "" if line is None else _linked_mark(transform, line.verdict, line.reason, f"#{name}.transforms")
            cells.append(element("td", mark, cls="verdict", data_sort=rank))
        body.append(element("tr", *cells, data_for=name))
    used = {line.verdict for table in tables.values() for line in table}
    return element(
        "details",
        element("summary", element("h2", "Transforms"), element("span", _supported(tables), cls="meta")),
        _scrolling(element("table", element("thead", head), element("tbody", *body)), "Transforms"),
        _legend(used),
        id="support",
        cls="panel",
    )


def _supported(tables: Mapping[str, Sequence[Support]]) -> str:
    tried = [[line.verdict for line in table if line.verdict != "skipped"] for table in tables.values()]
    whole = sum(set(verdicts) == {"pass"} for verdicts in tried)
    return f"{whole} of {summary.plural(len(tables), 'subject')} pass under every transform that was tried"


def _legend(used: set[Verdict]) -> Markup:
    legend = [
        element("span", element("i", MARKS[verdict], cls=f"mark {verdict}"), f" {verdict}")
        for verdict in reversed(VERDICTS)
        if verdict in used
    ]
    return element("p", *legend, cls="legend")


def _scrolling(table: Markup, label: str) -> Markup:
    return element("div", table, cls="scroll", tabindex=0, role="region", aria_label=label)


def _css(status: str) -> str:
    return status.replace(" ", "-")
