"""What came of watching one process, and of all that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradwright.checking.report import Entry, Report, Usage


@dataclass(frozen=True)
class Outcome:
    """What came of watching one process."""

    entries: tuple[Entry, ...] = ()
    usages: tuple[Usage, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: bool = False


def own_fault(trace: str, where: str = "") -> str:
    """Say that gradwright itself failed."""
    return f"gradwright itself failed{where}; please report this fault of gradwright's:\n{trace.rstrip()}"


def merge(outcomes: Iterable[Outcome]) -> Outcome:
    """Put together what came of several processes: calls are added up, and what all have to say is said once."""
    entries: list[Entry] = []
    notes: dict[str, None] = {}
    used: dict[tuple[str, str | None, int | None], Usage] = {}
    interrupted = False
    for outcome in outcomes:
        entries += outcome.entries
        notes |= dict.fromkeys(outcome.notes)
        interrupted = interrupted or outcome.interrupted
        for usage in outcome.usages:
            key = (usage.name, usage.file, usage.line)
            other = used.get(key, Usage(*key))
            calls, backwards = usage.calls + other.calls, usage.backwards + other.backwards
            used[key] = replace(usage, calls=calls, backwards=backwards, note=usage.note or other.note)
    return Outcome(tuple(_told_once(entries)), tuple(used.values()), tuple(notes), interrupted)


def _told_once(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Leave out what one process could not check and another one did, or could not either."""
    reports = [entry for entry in entries if isinstance(entry, Report)]
    known = {(report.name, file) for report in reports for file in (report.file, None)}
    for entry in entries:
        if isinstance(entry, Report):
            yield entry
        elif (entry.name, entry.file) not in known:
            known.add((entry.name, entry.file))
            yield entry
