"""A short text that names a finding and stays the same while code around it moves."""

from __future__ import annotations

import hashlib

from gradwright.checking.report import ContractResult, Finding, Report
from gradwright.reporting.paths import in_project


def fingerprint(report: Report, result: ContractResult, finding: Finding) -> str:
    """Return 32 hexadecimal digits made of the file and name of the subject, the contract, and the input and output.

    Neither lines, elements, values nor the words of the message are in it: these change with what has nothing to do
    with the finding. Two findings of one contract on the same input and output are the same to it.
    """
    where = finding.where
    parts = [
        in_project(report.file) if report.file else "",
        report.name,
        result.id,
        where.input or "" if where else "",
        "" if where is None or where.output is None else str(where.output),
    ]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
