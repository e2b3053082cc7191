"""The report as Markdown, for summaries of a run and for pull requests."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from gradwright.checking.contracts import QUESTIONS
from gradwright.checking.report import Usage
from gradwright.reporting.exercised import exercised
from gradwright.reporting.pen import MARKS
from gradwright.reporting.reading import (
    UNSETTLED,
    Document,
    Row,
    Subject,
    counts_text,
    findings,
    place,
    subjects,
    values,
    without_control_characters,
)
from gradwright.reporting.summary import HEADINGS, plural, seconds_text
from gradwright.typing import VERDICTS

SPECIAL = re.compile(r"([\\*_\[\]#|~`])")
CUT = "\n*The rest is left out: the report is longer than what may be shown here.*\n"


def markdown(document: Document, limit: int | None = None) -> str:
    """Return the report as Markdown; with a limit, as much of it as fits in so many bytes, and a note at the end."""
    if limit is None:
        return "".join(_pieces(document))
    whole, size = [], 0
    for piece in _pieces(document):
        size += len(piece.encode())
        whole.append(piece)
        if size > limit:
            break
    else:
        return "".join(whole)
    while whole and size + len(CUT) > limit:
        size -= len(whole.pop().encode())
    return "".join(whole) + CUT if size + len(CUT) <= limit else ""


def _pieces(document: Document) -> Iterator[str]:
    """Give the report in pieces that can be shown without those that follow."""
    yield f"## gradwright {document['command']}\n\n{_prose(counts_text(document))}\n"
    if document["subjects"]:
        heads = ["subject", "place", "status", *(HEADINGS[question] for question in QUESTIONS), "samples", "time"]
        yield f"\n{_table_row(heads)}{_table_row(['---'] * len(heads))}"
        yield from (_table_row(_cells(subject)) for subject in subjects(document))
    for subject, row in findings(document, ("fail", "suspect")):
        yield _finding(subject, row)
    for subject in subjects(document):
        if "error" in subject:
            remedy = f"\nWhat to do:\n\n{_fence(subject['remedy'])}" if subject["remedy"] else ""
            yield f"\n### {_code(subject['name'])} could not be run\n\n{_prose(subject['error'])}\n{remedy}"
    yield from _open(document)
    yield from _known(document)
    yield from _usage(document)


def _cells(subject: Subject) -> list[str]:
    """Return the cells of a subject: for each question what is no pass, by name, and the number of passes."""
    cells = [_code(subject["name"]), _code(_location(subject)), subject["status"]]
    for question in QUESTIONS:
        rows = [row for row in subject["contracts"] if row["question"] == question and not row["known"]]
        # A contract may have several rows; its gravest is its verdict.
        verdicts = {row["id"]: row["verdict"] for row in sorted(rows, key=_gravity, reverse=True)}
        told = [f"{MARKS[verdict]} {name}" for name, verdict in verdicts.items() if verdict in UNSETTLED]
        passed = sum(verdict == "pass" for verdict in verdicts.values())
        cells.append("<br>".join([*reversed(told), *([f"{MARKS['pass']} {passed}"] if passed else [])]))
    origins = dict.fromkeys(note["provenance"] for note in subject.get("samples", ()))
    seconds = subject["seconds"]
    return [*cells, ", ".join(origins), seconds_text(seconds) if isinstance(seconds, (int, float)) else ""]


def _gravity(row: Row) -> int:
    return VERDICTS.index(row["verdict"])


def _finding(subject: Subject, row: Row) -> str:
    where = place(row)
    about = f", {_code(where)}" if where else ""
    lines = [
        f"\n### {MARKS[row['verdict']]} {row['verdict'].upper()} {_code(subject['name'])}: {row['id']}{about}\n",
        f"{_code(_location(subject))}\n" if subject["file"] else "",
        f"{_prose(row['message'])}\n",
    ]
    if values(row):
        lines.append("| | |\n|---|---|\n" + "".join(f"| {name} | {_code(text)} |\n" for name, text in values(row)))
    if row["hint"]:
        lines.append(f"**What to do:** {_prose(row['hint'])}\n")
    if row["repro"]:
        lines.append(f"<details><summary>repro</summary>\n\n{_fence(row['repro'], 'python')}\n</details>\n")
    return "\n".join(filter(None, lines))


def _open(document: Document) -> Iterator[str]:
    """Give what was refused and what could not be decided, in one list."""
    rows = list(findings(document, ("unresolved", "unsupported")))
    if rows:
        yield "\n### Not decided, or refused aloud\n\n"
    for subject, row in rows:
        yield f"- {MARKS[row['verdict']]} {_code(subject['name'])}: {row['id']}: {_prose(row['message'])}\n"


def _known(document: Document) -> Iterator[str]:
    rows = [(subject, row) for subject in subjects(document) for row in subject["contracts"] if row["known"]]
    if rows:
        yield f"\n### {plural(len(rows), 'known finding')}, not counted\n\n"
    for subject, row in rows:
        yield f"- {_code(subject['name'])}: {row['id']}: {_prose(row['message'])}\n"


def _usage(document: Document) -> Iterator[str]:
    used = exercised([Usage(**{**row, "note": row["note"] or ""}) for row in document["usage"]])
    if used.missed:
        yield f"\n### {used}\n"
    for heading, rows in used.sections:
        yield f"\n{heading}:\n\n"
        for row in rows:
            at = f" ({_code(row.file if row.line is None else f'{row.file}:{row.line}')})" if row.file else ""
            yield f"- {_code(row.name)}{at}{f': {_prose(row.note)}' if row.note else ''}\n"


def _location(subject: Subject) -> str:
    if subject["file"] is None:
        return ""
    return subject["file"] if subject["line"] is None else f"{subject['file']}:{subject['line']}"


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _prose(text: str) -> str:
    """Return text in which nothing has a meaning in Markdown or HTML, except what stands between backticks."""
    pieces = re.split(r"`([^`\n]+)`", " ".join(without_control_characters(text).split()))
    return "".join(_code(piece) if number % 2 else _plain(piece) for number, piece in enumerate(pieces))


def _plain(text: str) -> str:
    return html.escape(SPECIAL.sub(r"\\\1", text), quote=False)


def _code(text: str) -> str:
    """Return text as code, which stays one piece in a table as well."""
    text = " ".join(without_control_characters(text).split())
    if not text:
        return ""
    if "`" not in text and "|" not in text:
        return f"`{text}`"
    # Between backticks, neither these nor the bar of a table can be written.
    return f"<code>{''.join(f'&#{ord(c)};' if SPECIAL.match(c) else html.escape(c) for c in text)}</code>"


def _fence(text: str, language: str = "") -> str:
    """Return text as a block of code, fenced by more backticks than there are in it."""
    text = without_control_characters(text).strip("\n")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}\n"
