"""The report as annotations of GitHub Actions: commands on lines of their own, shown beside the code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from gradwright.reporting.markdown import markdown
from gradwright.reporting.paths import below, repository
from gradwright.reporting.reading import COUNTED, Document, Row, Subject, details, is_counted, place, source, subjects
from gradwright.reporting.reading import without_control_characters as cleaned
from gradwright.reporting.summary import plural
from gradwright.typing import VERDICTS, Verdict

Kind: TypeAlias = Literal["error", "warning"]
Place: TypeAlias = tuple[str | None, int | None]
"""File and line."""

MAX_ANNOTATIONS = 10
"""Of one kind: the runner shows no more of one step."""
MAX_SUMMARY = 1024 * 1024
"""Bytes that a step may write into its summary; of a larger one nothing at all is shown."""


def commands(document: Document, counted: Sequence[Verdict] = COUNTED) -> list[str]:
    """Return the commands, worst first and at most ten of a kind; ``counted`` are the verdicts that are errors."""
    every: dict[Kind, list[str]] = {"error": [], "warning": []}
    for kind, at, title, message in _told(document, counted):
        every[kind].append(_command(kind, at, title, message))
    lines = [line for kind in every.values() for line in kind[:MAX_ANNOTATIONS]]
    hidden = {name: len(kind) - MAX_ANNOTATIONS for name, kind in every.items()}
    rest = [plural(number, f"more {name}") for name, number in hidden.items() if number > 0]
    if rest:
        lines.append(f"::notice title=gradwright::{' and '.join(rest)} not shown")
    return lines


def write_summary(document: Document) -> None:
    """Append the whole report as Markdown to the summary of the step, where there is one.

    Raises:
        OSError: the file cannot be written.
    """
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return
    path = Path(name)
    room = MAX_SUMMARY - (path.stat().st_size if path.exists() else 0)
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(markdown(document, limit=max(room, 0)))


def _told(document: Document, counted: Sequence[Verdict]) -> Iterator[tuple[Kind, Place, str, str]]:
    """Give what is annotated: findings by their gravity, then the subjects that could not be run."""
    rows = [
        (subject, row)
        for subject in subjects(document)
        for row in subject["contracts"]
        if not row["known"] and (row["verdict"] in ("fail", "suspect") or is_counted(subject, row, counted))
    ]
    for subject, row in sorted(rows, key=lambda pair: VERDICTS.index(pair[1]["verdict"])):
        kind: Kind = "error" if is_counted(subject, row, counted) else "warning"
        yield kind, source(subject, row), _title(subject, row), details(row)
    for subject in subjects(document):
        if "error" in subject:
            yield "warning", source(subject), f"{subject['name']}: could not be run", subject["error"]


def _title(subject: Subject, row: Row) -> str:
    where = place(row)
    return f"{subject['name']}: {row['id']}" + (f", {where}" if where else "")


def _command(kind: Kind, at: Place, title: str, message: str) -> str:
    fields = []
    file, line = at
    if file is not None:
        folder = Path(os.environ.get("GITHUB_WORKSPACE") or repository())
        fields.append(f"file={_property(below(file, folder) or file)}")
        if line is not None:
            fields.append(f"line={line}")
    fields.append(f"title={_property(title)}")
    return f"::{kind} {','.join(fields)}::{_data(message)}"


def _data(text: str) -> str:
    """Escape a message: a line break would end the command."""
    return cleaned(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape the value of a property, which also ends at a comma or two colons."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
