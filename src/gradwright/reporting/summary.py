"""What the terminal and the HTML view have in common: order of rows, columns of marks, counts, and numbers as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from gradwright.checking.contracts import QUESTIONS
from gradwright.checking.report import ContractResult, Entry, Finding, NotChecked, Report, Usage
from gradwright.checking.shown import Part, Role, Source
from gradwright.typing import GUESSED, VERDICTS, Verdict

Status: TypeAlias = Literal[
    "failed", "could not be run", "ended early", "suspect", "unresolved", "nothing examined", "passed"
]
"""What became of one subject."""

STATUSES: tuple[Status, ...] = (
    "failed",
    "could not be run",
    "ended early",
    "suspect",
    "unresolved",
    "nothing examined",
    "passed",
)
"""In the order in which the rows of a report appear."""

HEADINGS = {
    "is the interface kept?": "interface",
    "is the gradient right?": "gradient",
    "is it pure?": "pure",
    "any layout, any shape?": "layouts",
    "does it compose?": "composes",
}
"""A question in one word, for the head of a column."""

ABOUT: Mapping[str, tuple[Role, ...]] = {
    "deterministic": ("forward",),
    "inputs-untouched": ("forward",),
    "modes-agree": ("jvp",),
    "nested-forward": ("jvp",),
    "no-shared-state": ("forward",),
    "non-differentiable-outputs": ("setup_context", "forward"),
    "released": ("setup_context", "forward"),
    "saved-through-hooks": ("setup_context", "forward"),
    "vmap": ("vmap",),
}
"""The methods that a contract is about, the first that there is; those that are not named are about the rule."""
RULE: tuple[Role, ...] = ("backward", "jvp", "forward")
"""Where the rule is, and what stands for it where there is none."""


AT_ONCE = (
    "gradient-count",
    "gradient-shape-and-dtype",
    "linear-in-cotangent",
    "matches-differences",
    "matches-reference",
    "matches-surrogate",
)
"""Contracts without which nothing trains rightly."""


@dataclass(frozen=True)
class Group:
    """The contracts of one question, in the order in which every row shows their marks."""

    question: str
    contracts: tuple[str, ...]

    @property
    def heading(self) -> str:
        """The question in one word."""
        return HEADINGS.get(self.question, self.question)


def status(entry: Entry) -> Status:
    """Tell what became of a subject; one has not passed of which nothing was examined, or most could not be told.

    A backward that never returns is an example: nothing fails, and nothing is known. Nor has one passed that ended the
    process it was examined in.
    """
    if isinstance(entry, NotChecked):
        return "could not be run"
    if not entry.ok:
        return "failed" if entry.failed else "ended early"
    if entry.verdict == "suspect":
        return "suspect"
    if entry.verdict == "skipped":
        return "nothing examined"
    tried = [result for result in entry.results if result.verdict != "skipped"]
    return "unresolved" if 2 * len(entry.unresolved) > len(tried) else "passed"


def ordered(entries: Sequence[Entry]) -> list[Entry]:
    """Sort the gravest first, and otherwise keep the order in which the subjects were given.

    Of those that failed, one whose gradient is wrong or missing stands before one of which only more is asked.
    """

    def gravity(entry: Entry) -> tuple[int, int, bool]:
        if not isinstance(entry, Report):
            return STATUSES.index(status(entry)), 0, False
        at_once = any(result.id in AT_ONCE for result in entry.results if result.verdict == entry.verdict)
        return STATUSES.index(status(entry)), VERDICTS.index(entry.verdict), not at_once

    return sorted(entries, key=gravity)


def groups(entries: Sequence[Entry]) -> list[Group]:
    """Return the questions that were asked of any subject, each with all its contracts."""
    found: dict[str, dict[str, None]] = {question: {} for question in QUESTIONS}
    for entry in entries:
        if isinstance(entry, Report):
            for result in entry.results:
                found.setdefault(result.question, {})[result.id] = None
    return [Group(question, tuple(ids)) for question, ids in found.items() if ids]


def by_contract(entry: Entry) -> dict[str, ContractResult]:
    """Return the results of a subject by contract id; empty when it could not be run."""
    return {result.id: result for result in entry.results} if isinstance(entry, Report) else {}


def concerns(result: ContractResult) -> tuple[Finding, ...]:
    """Return the findings of a contract, gravest first; a verdict without any stands for itself."""
    if result.findings:
        return tuple(sorted(result.findings, key=lambda finding: VERDICTS.index(finding.verdict)))
    return () if result.verdict in ("pass", "skipped") else (Finding(result.verdict, result.message),)


def counts(entries: Sequence[Entry]) -> dict[Status, int]:
    """Count the subjects by status."""
    tally = Counter(status(entry) for entry in entries)
    return {name: tally[name] for name in STATUSES}


def counts_text(entries: Sequence[Entry]) -> str:
    """Return for example ``4 subjects: 1 passed, 2 failed, 1 suspect, 0 could not be run``."""
    tally = counts(entries)
    rare: tuple[Status, ...] = ("ended early", "unresolved", "nothing examined")
    shown: list[Status] = ["passed", "failed", "suspect", "could not be run"]
    shown += [name for name in rare if tally[name]]
    said = {name: f"{tally[name]} {name}" for name in shown}
    if excused := sum(status(entry) == "passed" and has_known(entry) for entry in entries):
        said["passed"] += with_known(excused)
    return f"{plural(len(entries), 'subject')}: {', '.join(said.values())}"


def has_known(entry: Entry) -> bool:
    """Tell whether something was found that a baseline lists."""
    return isinstance(entry, Report) and any(result.known for result in entry.results)


def parts_about(sources: Sequence[Source], contract: str) -> Iterator[tuple[Source, Part]]:
    """Give the methods that a contract is about, each with the listing that it is in, the closest first."""
    for role in (*ABOUT.get(contract, ()), *RULE):
        for source in sources:
            yield from ((source, part) for part in source.parts if part.role == role)


def status_text(entry: Entry) -> str:
    """Return the status, and whether it is one only because a baseline lists what was found."""
    return f"{status(entry)}, known findings" if has_known(entry) else status(entry)


def with_known(subjects: int) -> str:
    """Return what is said of the subjects that pass only because a baseline lists what was found."""
    return f" ({subjects} with known findings)"


def labels(entries: Sequence[Entry]) -> list[str]:
    """Name each subject; those that share a name get their place in the source as well."""
    times = Counter(entry.name for entry in entries)
    return [
        f"{entry.name} ({location(entry)})" if times[entry.name] > 1 and location(entry) else entry.name
        for entry in entries
    ]


def location(entry: Entry | Usage) -> str:
    """Return ``file:line`` as far as it is known."""
    if entry.file is None:
        return ""
    shown = shown_file(entry.file)
    return shown if entry.line is None else f"{shown}:{entry.line}"


def shown_file(file: str) -> str:
    """Return a path as it is shown: relative to the working directory when it is below that, else as it was given."""
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):  # shorter, and it can be clicked
        return str(path.relative_to(Path.cwd()))
    return file


def places(report: Report) -> str:
    """Return where the subject is, and its rule, as far as that is known."""
    return "; ".join(filter(None, [location(report), report.rule]))


def doubt(report: Report) -> str:
    """Say in half a sentence why a finding is only a suspicion."""
    if any(note.provenance in GUESSED for note in report.samples):
        return "the inputs were guessed; declare samples to be sure"
    if report.intent is not None and report.intent.origin == "guessed":
        return "the rule may mean to be something else; declare that to be sure"
    return "not certainly the fault of a rule of yours: read on"


def provenance(report: Report) -> str:
    """Say where the samples came from, for example ``declared x2, synthesised``."""
    tally = Counter(note.provenance for note in report.samples)
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in tally.items())


def sensitivities(report: Report) -> list[tuple[float, str]]:
    """Return, for each contract that did not fail, the relative error it would have seen; the finest first."""
    return sorted(
        (result.sensitivity, result.id)
        for result in report.results
        if result.sensitivity is not None and result.verdict in ("pass", "suspect")
    )


def value_text(value: float | complex | None, error_bar: float | None = None) -> str:
    """Write a number with as many digits as its error bar leaves meaning to (10 without one)."""
    if value is None:
        return "none"
    if isinstance(value, complex):
        real, imaginary = value_text(value.real, error_bar), value_text(abs(value.imag), error_bar)
        return f"{real} {'-' if math.copysign(1, value.imag) < 0 else '+'} {imaginary}i"
    digits = 10
    if error_bar and value and math.isfinite(value) and math.isfinite(error_bar):
        digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(error_bar)) + 2
    return f"{value:.{min(max(digits, 2), 16)}g}"


def small_text(value: float) -> str:
    """Write an error bar or a sensitivity: two digits say enough."""
    return f"{value:.2g}"


def seconds_text(seconds: float) -> str:
    """Write a duration with two or three digits."""
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s" if seconds >= 1 else f"{seconds:.2f} s"


def plural(n: int, noun: str) -> str:
    """Return ``1 subject`` or ``2 subjects``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def worst(report: Report) -> list[tuple[str, Verdict]]:
    """Return the contracts with the verdict ``fail`` or ``suspect``, gravest first."""
    broken = [(result.id, result.verdict) for result in report.results if result.verdict in ("fail", "suspect")]
    return sorted(broken, key=lambda pair: VERDICTS.index(pair[1]))
