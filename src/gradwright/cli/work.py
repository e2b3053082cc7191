"""The work of ``gradwright check``: find subjects, find inputs for them, check them, and tell what comes of it."""

from __future__ import annotations

import argparse
import contextlib
import traceback
from collections.abc import Callable, Sequence

from gradwright import torch_compat as torch_compat  # first: it says clearly when torch is missing
from gradwright.checking.discovery import Discovery, Found, discover
from gradwright.checking.earlier import NOTHING, Earlier
from gradwright.checking.importing import user_traceback
from gradwright.checking.report import ContractResult, Entry, NotChecked, Report
from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.settings import as_in
from gradwright.checking.synthesis import synthesise
from gradwright.cli.events import (
    Began,
    Delivered,
    Discovered,
    Done,
    Finished,
    Identity,
    Interrupted,
    Running,
    Send,
    Start,
)
from gradwright.cli.recorded import Recorded
from gradwright.errors import ForwardError, GradwrightError, SampleError, TargetError, describe_exception

LOOKING = "looking for inputs"
SECONDS_TO_LOOK = 30.0
"""More than the search allows itself: only what does not come back takes so long."""


def work(options: argparse.Namespace, send: Send, start: Start) -> None:
    """Do what the options say, and send what comes of it."""
    recorded = Recorded(options)
    before = announced(send, start)
    discovery = discover(options.targets, samples_file=options.samples, seed=options.seed, before=before)
    discovery.notes += recorded.notes
    examine(discovery, options, send, start, recorded)


def announced(send: Send, start: Start) -> Callable[[str], None]:
    """Return what is called before code of the user's runs: it tells that, and leaves out what ended a process."""

    def before(what: str) -> None:
        if what in start.lost:
            raise TargetError(start.lost[what])
        send(Running(what))

    return before


def examine(
    discovery: Discovery, options: argparse.Namespace, send: Send, start: Start, recorded: Recorded | None = None
) -> None:
    """Check the subjects that were found, from a start on, and send what comes of it.

    Arguments:
        discovery: the subjects.
        options: what is to be done with them.
        send: called with each thing that comes of it.
        start: what is done already.
        recorded: calls to check those on for which no samples are declared.
    """
    send(Discovered(tuple(map(identity, discovery.found)), tuple(discovery.problems), tuple(discovery.notes)))
    for index in range(start.subject, len(discovery.found)):
        earlier = start.earlier if index == start.subject else NOTHING
        found = discovery.found[index]
        try:
            with as_in(found.source.module):
                entry, broken = _One(found, index, options, send, earlier, recorded).check()
        except KeyboardInterrupt:
            send(Interrupted())
            return
        send(Finished(index, entry, broken))
    send(Done())


def identity(found: Found) -> Identity:
    """Return what a subject is called and where it is."""
    return Identity(found.subject.name, found.subject.file, found.subject.line, found.named)


class _One:
    """Checks one subject."""

    def __init__(
        self,
        found: Found,
        index: int,
        options: argparse.Namespace,
        send: Send,
        earlier: Earlier,
        recorded: Recorded | None,
    ) -> None:
        self.found = found
        self.index = index
        self.options = options
        self.send = send
        self.earlier = earlier
        self.recorded = recorded
        self.notes: Sequence[str] = found.notes

    def check(self) -> tuple[Entry, bool]:
        """Check it; the second value tells whether something that was asked for could not be done."""
        found = self.found
        if found.sample_error is not None:
            return self._not_checked(found.sample_error), True
        if found.samples:
            try:
                return self._checked(found.samples)
            except (SampleError, ForwardError) as error:
                return self._not_checked(error), True
        recorded = self._recorded_samples()
        if recorded:
            try:
                return self._checked(recorded)
            except (SampleError, ForwardError) as error:
                self.notes = [*self.notes, f"its recorded calls are not used: {error}"]
        return self._guessed()

    def _recorded_samples(self) -> list[Sample]:
        if self.recorded is None:
            return []
        samples, notes = self.recorded.samples(self.found.subject, self.options.seed)
        self.notes = [*self.notes, *notes]
        return samples

    def _guessed(self) -> tuple[Entry, bool]:
        """Check it on inputs that are made up."""
        found = self.found
        self._began(LOOKING, SECONDS_TO_LOOK)
        synthesis = synthesise(found.subject, self.options.seed)
        if synthesis.reason is not None:
            place = f"# in {found.subject.file}, or in a file given by --samples"
            remedy = f"{place}\n{synthesis.remedy}" if synthesis.remedy else None
            return self._not_checked(synthesis.reason, remedy), found.named
        self.notes = [*self.notes, *synthesis.notes]
        try:
            return self._checked(synthesis.samples)
        except (SampleError, ForwardError) as error:
            if len(synthesis.samples) > 1:
                with contextlib.suppress(SampleError, ForwardError):
                    return self._report(synthesis.samples[:1]), False
            return self._not_checked(error), found.named

    def _checked(self, samples: Sequence[Sample]) -> tuple[Entry, bool]:
        try:
            return self._report(samples), False
        except (SampleError, ForwardError, KeyboardInterrupt):
            raise
        except BaseException as error:
            reason = (
                f"{self.found.subject.name}: gradwright itself failed with {describe_exception(error)}; expected a "
                "verdict; please report this fault of gradwright's with the traceback that --verbose shows."
            )
            return self._not_checked(reason, trace="".join(traceback.format_exception(error))), True

    def _report(self, samples: Sequence[Sample]) -> Report:
        options = self.options
        return check_subject(
            self.found.subject,
            samples,
            level=options.level,
            only=options.only,
            skip=options.skip,
            require=options.require,
            seed=options.seed,
            notes=self.notes,
            seconds=options.time_limit,
            observe=self._began,
            deliver=self._deliver,
            earlier=self.earlier,
        )

    def _not_checked(
        self, why: GradwrightError | str, remedy: str | None = None, trace: str | None = None
    ) -> NotChecked:
        if isinstance(why, GradwrightError) and why.__cause__ is not None:
            trace = user_traceback(why.__cause__)
        subject = self.found.subject
        return NotChecked(subject.name, subject.file, subject.line, str(why), remedy, self.found.named, trace)

    def _began(self, what: str, seconds: float) -> None:
        self.send(Began(self.index, what, seconds))

    def _deliver(self, result: ContractResult) -> None:
        self.send(Delivered(self.index, result))
