"""What a check found: findings, results per contract, and the report of one subject.

Plain data, nothing is computed here. The views (terminal, HTML, JSON) live in :mod:`gradwright.reporting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gradwright.checking.shown import Picture, Source
from gradwright.typing import VERDICTS, Intent, Level, Provenance, Verdict

COMPOSES = "does it compose?"
TRANSFORMS = {
    "second-order": "double backward",
    "modes-agree": "forward mode",
    "nested-forward": "nested forward mode",
    "gradient-penalty": "gradient penalty",
}
"""Contracts of other questions that are about a transform, and what the transform is called."""

MAX_PICTURES = 6
"""Pictures of one contract, whatever the number of samples."""


def gravest(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the gravest of some verdicts; one that passes outweighs those that were skipped."""
    present = set(verdicts)
    if "pass" in present:
        present.discard("skipped")
    return next((verdict for verdict in VERDICTS if verdict in present), "skipped")


@dataclass(frozen=True)
class Where:
    """The place in a subject's inputs and outputs that a finding is about."""

    input: str | None = None
    """Name of the input, as in the signature of ``forward``."""
    output: int | None = None
    """Position of the output, counted from 0."""
    index: tuple[int, ...] | None = None
    """Index of the element within the input."""
    output_index: tuple[int, ...] | None = None
    """Index of the element within the output."""

    def __str__(self) -> str:
        def place(name: str, index: tuple[int, ...] | None) -> str:
            return name + (f"[{', '.join(map(str, index))}]" if index else "")

        parts = []
        if self.output is not None:
            parts.append(place(f"output {self.output}", self.output_index))
        if self.input is not None:
            parts.append(place(self.input, self.index))
        return " with respect to ".join(parts)


@dataclass(frozen=True)
class Evidence:
    """Pairs of analytic and numeric values for the pictures of the HTML report (at most a few hundred)."""

    labels: tuple[str, ...]
    analytic: tuple[float, ...]
    numeric: tuple[float, ...]
    error_bar: tuple[float, ...]
    title: str = ""
    """What the pairs are, for example ``output 0 with respect to `x```."""


@dataclass(frozen=True)
class Finding:
    """One conclusion of a contract that is not a plain pass: what, where, the two values, and what to do."""

    verdict: Verdict
    message: str
    """What is wrong, in the user's terms, in one or two sentences."""
    hint: str | None = None
    """What to do about it."""
    where: Where | None = None
    analytic: float | complex | None = None
    numeric: float | complex | None = None
    error_bar: float | None = None
    repro: str | None = None
    """A script that shows the finding by itself."""


@dataclass(frozen=True)
class Support:
    """How a subject does under one transform, for example ``vmap`` or ``hessian``: a row of :attr:`Report.support`."""

    transform: str
    verdict: Verdict
    reason: str = ""
    """Why it is not a pass."""


@dataclass(frozen=True)
class Stated:
    """What a rule means to be: the words, who says so, and the evidence for that."""

    value: tuple[Intent, ...]
    origin: Literal["declared", "guessed"]
    evidence: str
    """Where it is declared, or what was seen that makes it likely."""

    def __str__(self) -> str:
        return f"{self.origin} {', '.join(self.value)}: {self.evidence}"


@dataclass(frozen=True)
class Outcome:
    """What one contract concluded about one sample."""

    verdict: Verdict
    message: str = ""
    """For a pass: what was examined. For a skip: the reason."""
    findings: tuple[Finding, ...] = ()
    sensitivity: float | None = None
    """Relative error of one element that would have been seen; the largest over everything examined.

    Of what it is relative to, each contract speaks: its largest number as a rule, a typical element for projections.
    """
    evidence: tuple[Evidence, ...] = ()
    support: tuple[Support, ...] = ()
    """The transforms that were tried, when the contract covers several."""
    guess: Stated | None = None
    """What the rule seems to mean to be, where nothing is declared and a failure became a suspicion for it."""
    pictures: tuple[Picture, ...] = ()
    illustrate: Callable[[], Iterable[Picture]] | None = field(default=None, compare=False)
    """Makes more pictures, for the one outcome among many tries that is reported."""


def pictures_of(outcomes: Sequence[Outcome], verdict: Verdict) -> tuple[Picture, ...]:
    """Return the pictures of all samples, each kind of the same thing once: from a sample with the verdict if any."""
    telling_first = sorted(outcomes, key=lambda outcome: outcome.verdict != verdict)
    found: dict[object, Picture] = {}
    for picture in (picture for outcome in telling_first for picture in outcome.pictures):
        found.setdefault((type(picture), picture.title), picture)
    return tuple(found.values())[:MAX_PICTURES]


@dataclass(frozen=True)
class ContractResult:
    """The verdict of one contract over all samples of a subject."""

    id: str
    question: str
    """The question the contract belongs to, for example ``is the gradient right?``."""
    verdict: Verdict
    message: str
    findings: tuple[Finding, ...] = ()
    sensitivity: float | None = None
    evidence: tuple[Evidence, ...] = ()
    seconds: float = 0.0
    support: tuple[Support, ...] = ()
    """The transforms that were tried, when the contract covers several; the gravest of all samples."""
    guess: Stated | None = None
    """What the rule seems to mean to be, if that is why the verdict is not ``fail``."""
    pictures: tuple[Picture, ...] = field(default=(), compare=False)
    """Beside the evidence, for the HTML report."""
    known: tuple[Finding, ...] = ()
    """Findings that the user's baseline lists: they are told, and do not count for the verdict."""


@dataclass(frozen=True)
class SampleNote:
    """How a sample is described in a report."""

    provenance: Provenance
    description: str
    """For example ``x: float64 (3, 4); k=2``."""


@dataclass(frozen=True)
class Report:
    """The verdicts on one subject, with reasons.

    ``bool(report)`` is true when nothing failed, so ``assert gw.check(MyExp, x)`` reads as it should; ``str(report)``
    is what a person needs after the ``assert``.
    """

    name: str
    kind: str
    """``Function``, ``custom gradient``, ``callable``, ``custom op`` or ``module``."""
    file: str | None
    line: int | None
    level: Level
    seed: int
    samples: tuple[SampleNote, ...]
    results: tuple[ContractResult, ...]
    notes: tuple[str, ...] = ()
    """What the reader must know beside the verdicts, for example a guessed intent."""
    seconds: float = 0.0
    torch_version: str = field(default="", compare=False)
    allowances: Mapping[str, float] = field(default_factory=dict)
    """What the caller allowed beyond the error bars, by name: ``eps``, ``atol``, ``rtol``, ``nondet_tol``."""
    ended: tuple[str, ...] = ()
    """Ids of the contracts under which the subject hung or ended the process (a crash, no memory); it is not `ok`."""
    rule: str = ""
    """Where the rule of a custom gradient is, for example ``exp_vjp in line 7``."""
    intent: Stated | None = None
    """What the rule means to be, as declared, else as guessed; None where it is taken for the derivative."""
    source: tuple[Source, ...] = field(default=(), compare=False)
    """The source of the subject and of its rules as it was checked, one listing for each file."""

    @property
    def ok(self) -> bool:
        """True when no contract failed, none hung, and none ended the process it was examined in."""
        return not self.ended and not self.failed

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict of all contracts; ``skipped`` only when nothing was examined."""
        return gravest([result.verdict for result in self.results])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding whose verdict is ``fail`` or ``suspect``, gravest first."""
        graded = [
            (VERDICTS.index(finding.verdict), finding)
            for result in self.results
            for finding in result.findings
            if finding.verdict in ("fail", "suspect")
        ]
        return tuple(finding for _, finding in sorted(graded, key=lambda pair: pair[0]))

    @property
    def failed(self) -> tuple[ContractResult, ...]:
        """Contracts with verdict ``fail``."""
        return self._with("fail")

    @property
    def unresolved(self) -> tuple[ContractResult, ...]:
        """Contracts whose error bar was too wide to tell."""
        return self._with("unresolved")

    @property
    def unsupported(self) -> tuple[ContractResult, ...]:
        """Contracts the subject refuses aloud."""
        return self._with("unsupported")

    @property
    def skipped(self) -> tuple[ContractResult, ...]:
        """Contracts that were not examined, each with its reason as the message."""
        return self._with("skipped")

    @property
    def support(self) -> tuple[Support, ...]:
        """The table of transforms: how the subject does under each, and why where it is not a pass.

        Contracts of the question "does it compose?" give a row for each transform they tried; a few others (second
        order, forward mode) are a transform by themselves.
        """
        rows: list[Support] = []
        for result in self.results:
            if result.support:
                rows += result.support
            elif result.id in TRANSFORMS or result.question == COMPOSES:
                said = "" if result.verdict == "pass" else result.message
                rows.append(Support(TRANSFORMS.get(result.id, result.id), result.verdict, said))
        return tuple(rows)

    def _with(self, verdict: Verdict) -> tuple[ContractResult, ...]:
        return tuple(result for result in self.results if result.verdict == verdict)

    def __getitem__(self, contract: str) -> ContractResult:
        """Return the result of one contract by its id, for example ``report["second-order"]``."""
        for result in self.results:
            if result.id == contract:
                return result
        raise KeyError(f"{contract}: not among the contracts of this report: {', '.join(r.id for r in self.results)}")

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        failed = ", ".join(result.id for result in self.failed)
        ended = ", ".join(self.ended)
        return f"<Report {self.name}: {'FAIL ' + failed if failed else 'ENDED ' + ended if ended else 'ok'}>"

    # The views import the reporting package when they are called: `checking` does not depend on it otherwise.

    def __str__(self) -> str:
        from gradwright.reporting.terminal import plain_text

        return plain_text([self])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of this report as a dictionary (schema version 1)."""
        from gradwright.reporting.machine import document

        return document([self], command="check")

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the JSON document of this report as text, and write it to ``path`` if one is given."""
        from gradwright.reporting.machine import to_json

        return to_json([self], command="check", path=path)

    def to_html(self, path: str | Path) -> Path:
        """Write this report as one self-contained HTML page and return its path."""
        from gradwright.reporting.html import write_html

        return write_html([self], path)


@dataclass(frozen=True)
class NotChecked:
    """A subject that could not be run: why, and what would make it run. Never a pass."""

    name: str
    file: str | None
    line: int | None
    reason: str
    remedy: str | None = None
    named: bool = False
    """True when the user asked for this subject by name, so that the command failed at what it was told to do."""
    traceback: str | None = None
    ended: bool = False
    """True when it ended the process it was run in."""


@dataclass(frozen=True)
class Usage:
    """How often a program that was watched used a subject."""

    name: str
    file: str | None
    line: int | None
    calls: int = 0
    """Calls that were seen; 0 for one that is defined and was never called."""
    backwards: int = 0
    """Times its backward (or its forward-mode rule) ran; 0 for one that was called and never differentiated."""
    note: str = ""
    """What else is to be known, for example how many calls happened inside ``torch.func``."""


@dataclass(frozen=True)
class Problem:
    """Something that kept the command from doing its work, and belongs to no subject."""

    message: str
    traceback: str | None = None
    """The user's own traceback, when their code raised."""


Entry = Report | NotChecked
"""A row of the command's table."""

Entries = Sequence[Entry]
