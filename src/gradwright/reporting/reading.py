"""Reading the JSON document of a report: what the formats that are made from it have in common."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gradwright.checking.report import Where
from gradwright.reporting.summary import STATUSES, plural, small_text, value_text, with_known
from gradwright.typing import VERDICTS, Verdict

Document: TypeAlias = Mapping[str, Any]
Subject: TypeAlias = Mapping[str, Any]
Row: TypeAlias = Mapping[str, Any]

UNSETTLED: tuple[Verdict, ...] = ("fail", "suspect", "unresolved", "unsupported")
"""What is no pass, gravest first."""
COUNTED: tuple[Verdict, ...] = ("fail",)
"""The verdicts that fail a run unless the user asks for others."""


def subjects(document: Document) -> list[Subject]:
    """Return the subjects, gravest first."""
    return sorted(document["subjects"], key=lambda subject: STATUSES.index(subject["status"]))


def findings(document: Document, verdicts: Sequence[Verdict]) -> Iterator[tuple[Subject, Row]]:
    """Give every row with one of the verdicts, with its subject, the gravest first; known ones are left out."""
    for verdict in VERDICTS:
        for subject in subjects(document) if verdict in verdicts else ():
            for row in subject["contracts"]:
                if row["verdict"] == verdict and not row["known"]:
                    yield subject, row


def counts_text(document: Document) -> str:
    """Say how many subjects there are, and what became of them, gravest first."""
    tally = Counter(subject["status"] for subject in document["subjects"])
    said = [f"{tally[status]} {status}" for status in STATUSES if tally[status]]
    excused = sum(s["status"] == "passed" and any(row["known"] for row in s["contracts"]) for s in document["subjects"])
    if excused:  # "passed" is the last
        said[-1] += with_known(excused)
    return plural(len(document["subjects"]), "subject") + (f": {', '.join(said)}" if said else "")


def source(subject: Subject, row: Row | None = None) -> tuple[str | None, int | None]:
    """Return file and line of what a row is about, else of the subject."""
    at = subject if row is None or row["source"] is None else row["source"]
    return at["file"], at["line"]


def place(row: Row) -> str:
    """Say which output and input a row is about, for example ``output 0[3] with respect to x[3]``."""
    where = row["where"]
    if where is None:
        return ""
    return str(Where(where["input"], where["output"], _index(where["index"]), _index(row["output_index"])))


def values(row: Row) -> list[tuple[str, str]]:
    """Return the two values with the digits that the error bar leaves, each with its name, as far as there are any."""
    bar = _number(row["error_bar"])
    assert not isinstance(bar, complex)
    said = []
    if row["analytic"] is not None:
        said.append(("analytic", value_text(_number(row["analytic"]), bar)))
    if row["numeric"] is not None:
        extra = "" if bar is None else f" ± {small_text(bar)}"
        said.append(("numeric", value_text(_number(row["numeric"]), bar) + extra))
    return said


def details(row: Row) -> str:
    """Return what there is to say about a row in some lines of plain text: message, values, what to do."""
    lines = [row["message"], *(f"{name}: {text}" for name, text in values(row))]
    if row["hint"]:
        lines.append(f"What to do: {row['hint']}")
    return "\n".join(lines)


def is_counted(subject: Subject, row: Row, counted: Sequence[Verdict]) -> bool:
    """Tell whether a row fails the run: by its verdict, or because the process ended while it was examined."""
    return not row["known"] and (row["verdict"] in counted or row["id"] in subject["ended"])


def without_control_characters(text: str) -> str:
    """Remove what neither XML nor a terminal of somebody else's should be given; lines stay lines."""
    return re.sub("[^\t\n\r -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)


def _index(index: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if index is None else tuple(index)


def _number(value: Any) -> float | complex | None:
    if isinstance(value, Mapping):
        return complex(float(value["re"]), float(value["im"]))
    return None if value is None else float(value)
