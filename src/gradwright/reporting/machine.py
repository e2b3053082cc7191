"""The JSON document of a report: schema version 1, described by ``docs/report.schema.json``.

It is the source of truth for programs: a subject is a row, and each finding of a contract is a row below it (a contract
without a finding has one row).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gradwright
from gradwright.checking.report import ContractResult, Entry, Finding, NotChecked, Report, Stated, Usage
from gradwright.reporting.fingerprints import fingerprint
from gradwright.reporting.frame import frame
from gradwright.reporting.summary import status

SCHEMA = 1
"""Raised when a field changes its meaning or goes away, not when one is added."""


def document(entries: Sequence[Entry], command: str, usage: Sequence[Usage] = ()) -> dict[str, Any]:
    """Return the document as plain dictionaries, lists, text and numbers that JSON can hold.

    ``usage`` is how often a program that was watched used each custom gradient it defines.

    NaN and the infinities become the texts ``"nan"``, ``"inf"`` and ``"-inf"``; a complex number becomes
    ``{"re": ..., "im": ...}``.
    """
    return {
        "schema": SCHEMA,
        "gradwright": gradwright.__version__,
        "torch": torch_version(entries),
        "command": command,
        "subjects": [_not_checked(e) if isinstance(e, NotChecked) else _subject(e) for e in entries],
        "usage": [_usage(row) for row in usage],
    }


def to_json(entries: Sequence[Entry], command: str, path: str | Path | None = None, usage: Sequence[Usage] = ()) -> str:
    """Return the document as text, and write it to ``path`` if one is given (its folder is made when missing)."""
    text = as_text(document(entries, command, usage))
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    return text


def as_text(document: Mapping[str, Any]) -> str:
    """Return a document as text."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def torch_version(entries: Sequence[Entry]) -> str:
    """Return the version of torch the subjects were checked with."""
    recorded = [entry.torch_version for entry in entries if isinstance(entry, Report) and entry.torch_version]
    if recorded:
        return recorded[0]
    import torch  # here, because a report that knows its version can be written without torch

    return str(torch.__version__)


def _subject(report: Report) -> dict[str, Any]:
    return {
        "name": report.name,
        "kind": report.kind,
        "file": report.file,
        "line": report.line,
        "ok": report.ok,
        "verdict": report.verdict,
        "status": status(report),
        "ended": list(report.ended),
        "seconds": _number(report.seconds),
        "seed": report.seed,
        "level": report.level,
        "samples": [{"provenance": note.provenance, "description": note.description} for note in report.samples],
        "notes": list(report.notes),
        "intent": _intent(report.intent),
        "allowances": {name: _number(value) for name, value in report.allowances.items()},
        "support": [
            {"transform": row.transform, "verdict": row.verdict, "reason": row.reason or None} for row in report.support
        ],
        "contracts": [row for result in report.results for row in _rows(report, result)],
    }


def _intent(stated: Stated | None) -> dict[str, Any] | None:
    if stated is None:
        return None
    return {"value": list(stated.value), "origin": stated.origin, "evidence": stated.evidence}


def _not_checked(entry: NotChecked) -> dict[str, Any]:
    return {
        "name": entry.name,
        "file": entry.file,
        "line": entry.line,
        "ok": False,
        "status": status(entry),
        "seconds": None,
        "seed": None,
        "contracts": [],
        "error": entry.reason,
        "remedy": entry.remedy,
    }


def _usage(row: Usage) -> dict[str, Any]:
    return {
        "name": row.name,
        "file": row.file,
        "line": row.line,
        "calls": row.calls,
        "backwards": row.backwards,
        "note": row.note or None,
    }


def _rows(report: Report, result: ContractResult) -> list[dict[str, Any]]:
    findings = result.findings
    if not findings and not result.known:
        findings = (Finding(result.verdict, result.message),)
    rows = [_row(report, result, finding, known=False) for finding in findings]
    return rows + [_row(report, result, finding, known=True) for finding in result.known]


def _row(report: Report, result: ContractResult, finding: Finding, *, known: bool) -> dict[str, Any]:
    where = finding.where
    return {
        "id": result.id,
        "question": result.question,
        "verdict": finding.verdict,
        "message": finding.message,
        "hint": finding.hint,
        "where": None
        if where is None
        else {
            "input": where.input,
            "output": where.output,
            "index": None if where.index is None else list(where.index),
        },
        "output_index": None if where is None or where.output_index is None else list(where.output_index),
        "analytic": _number(finding.analytic),
        "numeric": _number(finding.numeric),
        "error_bar": _number(finding.error_bar),
        "sensitivity": _number(result.sensitivity),
        "repro": finding.repro,
        "source": _source(report, result),
        "seconds": _number(result.seconds),
        "fingerprint": fingerprint(report, result, finding),
        "known": known,
    }


def _source(report: Report, result: ContractResult) -> dict[str, Any] | None:
    if result.verdict == "pass":
        return None
    shown = frame(report, result.id)
    return None if shown is None else {"file": shown.file, "line": shown.marked}


def _number(value: float | complex | None) -> float | str | dict[str, Any] | None:
    if isinstance(value, complex):
        return {"re": _number(value.real), "im": _number(value.imag)}
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
