"""The report as JUnit XML, which most services for continuous integration show as tests.

A subject is a suite and a contract is a case in it. What fails the run is a failure; what refuses, what could not be
decided and what was left out is skipped, with the reason; a subject that could not be run, or that ended its process,
is an error.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from itertools import groupby

from gradwright.reporting.reading import (
    COUNTED,
    Document,
    Row,
    Subject,
    details,
    is_counted,
    place,
    without_control_characters,
)
from gradwright.typing import VERDICTS, Verdict


def junit(document: Document, counted: Sequence[Verdict] = COUNTED) -> str:
    """Return the XML; ``counted`` are the verdicts that fail the run."""
    root = _element("testsuites", name=f"gradwright {document['command']}")
    for subject in document["subjects"]:
        suite = _suite(subject, counted)
        root.append(suite)
    _count(root, root.iter("testcase"))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(subject: Subject, counted: Sequence[Verdict]) -> ET.Element:
    suite = _element("testsuite", name=subject["name"], file=subject["file"])
    if "error" in subject:
        case = _case(subject, "could be run", 0.0)
        remedy = f"\nWhat to do:\n{subject['remedy']}" if subject["remedy"] else ""
        _say(case, "error", "not run", subject["error"], subject["error"] + remedy)
        suite.append(case)
    else:
        for name, rows in groupby(subject["contracts"], key=lambda row: row["id"]):
            suite.append(_contract(subject, name, list(rows), counted))
        if not subject["contracts"]:
            case = _case(subject, "something was examined", 0.0)
            _say(case, "skipped", "", "nothing was examined", "")
            suite.append(case)
    _count(suite, suite.iter("testcase"))
    return suite


def _contract(subject: Subject, name: str, rows: Sequence[Row], counted: Sequence[Verdict]) -> ET.Element:
    """Return the case of one contract: what is gravest of its rows decides, and all of them are told."""
    case = _case(subject, name, rows[0]["seconds"])
    failing = [row for row in rows if is_counted(subject, row, counted)]
    if failing:
        kind = "error" if name in subject["ended"] else "failure"
        told = "\n\n".join(f"{_place(row)}{details(row)}" for row in failing)
        repro = next((f"\n\nrepro:\n{row['repro']}" for row in failing if row["repro"]), "")
        _say(case, kind, failing[0]["verdict"], f"{_place(failing[0])}{failing[0]['message']}", told + repro)
        return case
    open_ = sorted((row for row in rows if row["verdict"] != "pass"), key=lambda row: VERDICTS.index(row["verdict"]))
    if open_:
        words = "known" if open_[0]["known"] else open_[0]["verdict"]
        _say(case, "skipped", words, f"{words}: {open_[0]['message']}", "\n\n".join(map(details, open_)))
    return case


def _case(subject: Subject, name: str, seconds: float) -> ET.Element:
    return _element(
        "testcase",
        classname=subject["name"],
        name=name,
        file=subject["file"],
        line=None if subject["line"] is None else str(subject["line"]),
        time=f"{seconds:.3f}",
    )


def _place(row: Row) -> str:
    where = place(row)
    return f"{where}: " if where else ""


def _say(case: ET.Element, kind: str, type_: str, message: str, text: str) -> None:
    child = ET.SubElement(case, kind, {"message": without_control_characters(message)})
    if kind != "skipped":
        child.set("type", type_)
    child.text = without_control_characters(text) or None


def _count(element: ET.Element, cases: Iterable[ET.Element]) -> None:
    cases = list(cases)
    element.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    element.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _element(tag: str, **attributes: str | None) -> ET.Element:
    given = {name: without_control_characters(value) for name, value in attributes.items() if value is not None}
    return ET.Element(tag, given)
