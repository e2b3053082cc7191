"""What the work on a command tells whoever shows it, and where it begins: plain data that goes from process to process.

Nothing here, and nothing in what is sent, needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gradwright.checking.earlier import NOTHING, Earlier
from gradwright.checking.report import ContractResult, Entry, Problem


@dataclass(frozen=True)
class Identity:
    """What a subject is called and where it is, which is known before anything of it is run."""

    name: str
    file: str | None
    line: int | None
    named: bool
    """True when it was asked for by ``::Name``."""


@dataclass(frozen=True)
class Running:
    """Code of the user's that belongs to no subject is about to run: an import, or a declaration of samples."""

    what: str


@dataclass(frozen=True)
class Discovered:
    """All targets are imported."""

    subjects: tuple[Identity, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Began:
    """Something is about to be done with a subject: the id of a contract, or words for what comes before those."""

    subject: int
    what: str
    seconds: float
    """How long it may take."""


@dataclass(frozen=True)
class Delivered:
    """A contract was examined."""

    subject: int
    result: ContractResult


@dataclass(frozen=True)
class Drafted:
    """What ``gradwright init`` has written for a subject."""

    name: str
    file: str | None
    line: int | None
    provenance: str
    """Of the samples; empty where none were found and the text is a template."""
    text: str
    imports: tuple[tuple[str, str], ...] = ()
    """Modules, and what the text needs of each."""
    reason: str = ""
    """Why it is only a template."""


@dataclass(frozen=True)
class Finished:
    """Nothing more is done with a subject."""

    subject: int
    entry: Entry | Drafted
    broken: bool
    """True when something that was asked for could not be done."""


@dataclass(frozen=True)
class Printed:
    """The user's code printed something, while a progress bar is shown."""

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True)
class Interrupted:
    """The user's code raised ``KeyboardInterrupt``, or Ctrl-C was pressed."""


@dataclass(frozen=True)
class Refused:
    """The command cannot do its work at all."""

    message: str


@dataclass(frozen=True)
class Done:
    """The work is over."""


@dataclass(frozen=True)
class Start:
    """Where the work begins, when earlier processes have done some of it."""

    lost: Mapping[str, str] = field(default_factory=dict)
    """What ended a process while it ran (see :class:`Running`), each with what is to be said about it."""
    subject: int = 0
    """The first subject that is left."""
    earlier: Earlier = NOTHING
    """What is known of that one."""


Event: TypeAlias = Running | Discovered | Began | Delivered | Finished | Printed | Interrupted | Refused | Done
Send: TypeAlias = Callable[[Event], None]
