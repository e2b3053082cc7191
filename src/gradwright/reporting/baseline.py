"""The baseline: a file of known findings, so that an old project can adopt the checker and fail on new findings only.

A finding is known by its fingerprint, unless it has become graver than it was when the file was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import get_type_hints

from gradwright.checking.report import ContractResult, Entry, Finding, Report, gravest
from gradwright.errors import OptionError, describe_exception
from gradwright.reporting.fingerprints import fingerprint
from gradwright.reporting.paths import in_project
from gradwright.reporting.summary import concerns
from gradwright.typing import VERDICTS, Verdict

VERSION = 1
ALWAYS: tuple[Verdict, ...] = ("fail", "suspect")
"""Verdicts that are written into every baseline; others when they fail the run."""


@dataclass(frozen=True)
class Record:
    """One known finding; all but the fingerprint and the verdict is for those who read the file."""

    file: str | None
    subject: str
    contract: str
    input: str | None
    output: int | None
    verdict: Verdict
    message: str
    fingerprint: str

    @property
    def place(self) -> tuple[str, ...]:
        """What records are sorted by."""
        output = "" if self.output is None else f"{self.output:06}"
        return (self.file or "", self.subject, self.contract, self.input or "", output)

    def __str__(self) -> str:
        where = f", {self.input}" if self.input else ""
        return f"{self.subject}: {self.contract}{where}"


Baseline = Mapping[str, Record]
"""Records by fingerprint."""


def read(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        OptionError: the file cannot be read, or is no baseline.
    """
    remedy = "give a file that `--update-baseline` wrote, or write it anew with that"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OptionError(f"--baseline: {path} is not there; `--update-baseline` writes it.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"--baseline: {path} cannot be read: {describe_exception(error)}; {remedy}.") from None
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        found = "is no baseline" if version is None else f"has version {version!r}, and this gradwright knows {VERSION}"
        raise OptionError(f"--baseline: {path} {found}; {remedy}.")
    rows = data.get("findings")
    if not isinstance(rows, list) or not all(map(_is_record, rows)):
        raise OptionError(f"--baseline: {path} has a finding that is damaged, or none at all; {remedy}.")
    return {row["fingerprint"]: Record(**{field.name: row[field.name] for field in fields(Record)}) for row in rows}


def write(baseline: Baseline, path: Path) -> None:
    """Write a baseline: one line a field, always in the same order, so that version control shows what changed."""
    rows = [asdict(record) for record in sorted(baseline.values(), key=lambda record: record.place)]
    text = json.dumps({"version": VERSION, "findings": rows}, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace", newline="\n")


def updated(baseline: Baseline, entries: Sequence[Entry], counted: Sequence[Verdict]) -> Baseline:
    """Return the baseline with what was found now: what is fixed is left out, what was not examined stays.

    What has not become better or worse keeps its record, so that a number in a message changes nothing.
    """
    gone = {record.fingerprint for record in fixed(baseline, entries)}
    result = {name: record for name, record in baseline.items() if name not in gone}
    now: dict[str, Record] = {}
    for report, contract, finding in _every(entries):
        if finding.verdict in (*ALWAYS, *counted):
            record = _record(report, contract, finding)
            if record.fingerprint not in now or _is_graver(record, now[record.fingerprint]):
                now[record.fingerprint] = record
    for name, record in now.items():
        if name not in result or result[name].verdict != record.verdict:
            result[name] = record
    return result


def fixed(baseline: Baseline, entries: Sequence[Entry]) -> list[Record]:
    """Return the records whose contract was examined again on their subject, and which were not found."""
    reports = [entry for entry in entries if isinstance(entry, Report)]
    seen = {fingerprint(report, contract, finding) for report, contract, finding in _every(entries)}
    examined = {
        (in_project(report.file) if report.file else None, report.name, result.id)
        for report in reports
        for result in report.results
        if result.verdict in ("pass", "fail", "suspect", "unsupported") and result.id not in report.ended
    }
    return [
        record
        for record in sorted(baseline.values(), key=lambda record: record.place)
        if record.fingerprint not in seen and (record.file, record.subject, record.contract) in examined
    ]


def apply(baseline: Baseline, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with every known finding set apart, so that it counts for no verdict."""
    return [_apply(baseline, entry) if isinstance(entry, Report) else entry for entry in entries]


def known(entries: Sequence[Entry]) -> list[tuple[Report, ContractResult, Finding]]:
    """Return what :func:`apply` has set apart, with what it is a finding of."""
    return [
        (entry, result, finding)
        for entry in entries
        if isinstance(entry, Report)
        for result in entry.results
        for finding in result.known
    ]


def _apply(baseline: Baseline, report: Report) -> Report:
    return replace(report, results=tuple(_without_known(baseline, report, result) for result in report.results))


def _without_known(baseline: Baseline, report: Report, result: ContractResult) -> ContractResult:
    if result.id in report.ended:
        return result  # whatever is known of it, it hung or ended the process, and that is never a pass
    apart = [finding for finding in concerns(result) if _is_known(baseline, report, result, finding)]
    if not apart:
        return result
    left = tuple(finding for finding in result.findings if finding not in apart)
    # A verdict that no finding explains is not that of what is known.
    explained = result.verdict in [finding.verdict for finding in apart]
    verdict = gravest([finding.verdict for finding in left]) if explained or not left else result.verdict
    message = result.message if left else "what was found is known: the baseline lists it"
    return replace(result, verdict=verdict, message=message, findings=left, known=tuple(apart))


def _is_known(baseline: Baseline, report: Report, result: ContractResult, finding: Finding) -> bool:
    record = baseline.get(fingerprint(report, result, finding))
    if record is None or finding.verdict in ("pass", "skipped"):
        return False
    return VERDICTS.index(finding.verdict) >= VERDICTS.index(record.verdict)


def _every(entries: Sequence[Entry]) -> Iterator[tuple[Report, ContractResult, Finding]]:
    for entry in entries:
        for result in entry.results if isinstance(entry, Report) else ():
            for finding in (*concerns(result), *result.known):
                if finding.verdict not in ("pass", "skipped") and isinstance(entry, Report):
                    yield entry, result, finding


def _record(report: Report, result: ContractResult, finding: Finding) -> Record:
    where = finding.where
    return Record(
        in_project(report.file) if report.file else None,
        report.name,
        result.id,
        where.input if where else None,
        where.output if where else None,
        finding.verdict,
        finding.message,
        fingerprint(report, result, finding),
    )


def _is_graver(one: Record, other: Record) -> bool:
    return VERDICTS.index(one.verdict) < VERDICTS.index(other.verdict)


def _is_record(row: object) -> bool:
    """Tell whether something read from a file has the fields of a record, each of its kind."""
    if not isinstance(row, dict) or row.get("verdict") not in VERDICTS:
        return False
    kinds = {"file": (str, type(None)), "input": (str, type(None)), "output": (int, type(None))}
    return all(isinstance(row.get(name, ...), kinds.get(name, (str,))) for name in get_type_hints(Record))
