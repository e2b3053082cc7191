"""The report as SARIF 2.1.0 (OASIS, *Static Analysis Results Interchange Format*), which code scanning reads.

A contract is a rule, with its documentation; a finding is a result at the line of the subject, with a fingerprint that
stays the same while code moves. A subject that could not be run is a notification of the tool.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gradwright.checking.contracts import documentation_of
from gradwright.reporting.paths import below, repository
from gradwright.reporting.reading import COUNTED, Document, Row, Subject, details, is_counted, place, source, subjects
from gradwright.typing import Verdict

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
"""What paths are relative to, by the name that readers of SARIF know."""
FINGERPRINT = "gradwright/v1"


def sarif(document: Document, counted: Sequence[Verdict] = COUNTED) -> str:
    """Return the log as text; ``counted`` are the verdicts that fail the run, which are errors."""
    return json.dumps(log(document, counted), indent=2, ensure_ascii=False) + "\n"


def log(document: Document, counted: Sequence[Verdict] = COUNTED) -> dict[str, Any]:
    """Return the log as plain dictionaries and lists."""
    ids = list(dict.fromkeys(row["id"] for subject in document["subjects"] for row in subject["contracts"]))
    results = [
        _result(subject, row, ids.index(row["id"]), "error" if row["verdict"] in counted else "warning")
        for subject in subjects(document)
        for row in subject["contracts"]
        if row["verdict"] in ("fail", "suspect", *counted)
    ]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(document, ids)},
                "automationDetails": {"id": f"gradwright/{document['command']}/"},
                "originalUriBaseIds": {ROOT: {"description": {"text": "The root of the repository."}}},
                "invocations": [_invocation(document)],
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _driver(document: Document, ids: Sequence[str]) -> dict[str, Any]:
    return {
        "name": "gradwright",
        "version": document["gradwright"],
        "rules": [_rule(document, name) for name in ids],
        "properties": {"torch": document["torch"]},
    }


def _rule(document: Document, name: str) -> dict[str, Any]:
    documentation = (documentation_of(name) or name).replace("``", "`")
    rows = (row for subject in document["subjects"] for row in subject["contracts"] if row["id"] == name)
    rule = {
        "id": name,
        "shortDescription": {"text": documentation.partition("\n")[0]},
        "help": {"text": documentation, "markdown": documentation},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["gradient"], "question": next(rows)["question"]},
    }
    site = _site()
    return {**rule, "helpUri": f"{site}/contracts/{name}/"} if site else rule


def _site() -> str | None:
    """Return the address of the documentation, as the installed package states it."""
    try:
        urls = metadata.metadata("gradwright").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    named = dict(url.partition(", ")[::2] for url in urls)
    return named["Documentation"].rstrip("/") if "Documentation" in named else None


def _result(subject: Subject, row: Row, rule: int, level: str) -> dict[str, Any]:
    where = place(row)
    about = f"{subject['name']}, {where}: " if where else f"{subject['name']}: "
    result: dict[str, Any] = {
        "ruleId": row["id"],
        "ruleIndex": rule,
        "level": level,
        "message": {"text": about + details(row)},
        "locations": [_location(subject, row)],
        "partialFingerprints": {FINGERPRINT: row["fingerprint"]},
        "properties": {
            name: row[name]
            for name in ("verdict", "where", "output_index", "analytic", "numeric", "error_bar", "repro")
            if row[name] is not None
        },
    }
    if row["known"]:
        result["suppressions"] = [{"kind": "external", "justification": "known: in the baseline"}]
    return result


def _location(subject: Subject, row: Row | None = None) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": subject["name"]}]}
    file, line = source(subject, row)
    if file is not None:
        physical: dict[str, Any] = {"artifactLocation": _artifact(file)}
        if line is not None:
            physical["region"] = {"startLine": line}
        location["physicalLocation"] = physical
    return location


def _artifact(file: str) -> dict[str, str]:
    relative = below(file, repository())
    if relative is None:
        path = Path(os.path.normpath(Path(file).absolute())).as_posix().lstrip("/")
        return {"uri": f"file:///{quote(path, safe='/:', errors='replace')}"}
    return {"uri": quote(relative, errors="replace"), "uriBaseId": ROOT}


def _invocation(document: Document) -> dict[str, Any]:
    notifications = []
    for subject in document["subjects"]:
        if "error" in subject:
            said = f"{subject['name']} could not be run: {subject['error']}"
            notifications.append(_notification(subject, said))
        else:
            notifications += [
                _notification(subject, f"{subject['name']}, {row['id']}: {row['message']}")
                for row in subject["contracts"]
                if row["id"] in subject["ended"] and is_counted(subject, row, ())
            ]
    return {"executionSuccessful": not notifications, "toolExecutionNotifications": notifications}


def _notification(subject: Subject, text: str) -> dict[str, Any]:
    return {"level": "error", "message": {"text": text}, "locations": [_location(subject)]}
