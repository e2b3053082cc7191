"""What has come of a command so far, told by events; draws the progress bar meanwhile."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from gradwright.checking.report import Entry, Problem, Report
from gradwright.cli.events import Began, Discovered, Drafted, Event, Finished, Identity, Interrupted, Printed, Refused
from gradwright.cli.progress import Show, progress
from gradwright.errors import GradwrightError


class Tally:
    """Receives the events of the work; a context, at whose end the bar goes away."""

    def __init__(self) -> None:
        self.subjects: tuple[Identity, ...] | None = None
        """None before all targets are imported."""
        self.entries: list[Entry] = []
        self.drafts: list[Drafted] = []
        """What ``gradwright init`` has written."""
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.interrupted = False
        self._broken = False
        self._show: Show = lambda done, text: None
        self._stack = ExitStack()

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def broken(self) -> bool:
        """True when something that was asked for could not be done."""
        none_ran = bool(self.entries) and not any(isinstance(entry, Report) for entry in self.entries)
        return self._broken or bool(self.problems) or (none_ran and not self.ended)

    @property
    def ended(self) -> bool:
        """True when a subject ended the process it was run in."""
        return any(entry.ended for entry in self.entries)

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Discovered):
            self.subjects = event.subjects
            self.problems += event.problems
            self.notes += event.notes
            self._show = self._stack.enter_context(progress(len(event.subjects)))
        elif isinstance(event, Began) and self.subjects is not None:
            self._show(event.subject, f"{self.subjects[event.subject].name}: {event.what}")
        elif isinstance(event, Finished):
            if isinstance(event.entry, Drafted):
                self.drafts.append(event.entry)
            else:
                self.entries.append(event.entry)
            self._broken = self._broken or event.broken
        elif isinstance(event, Printed):
            getattr(sys, event.stream).write(event.text)
        elif isinstance(event, Interrupted):
            self.interrupt()
        elif isinstance(event, Refused):
            raise GradwrightError(event.message)

    def interrupt(self) -> None:
        """Take note that the work was interrupted; with nothing to show yet, that is the end of the command."""
        if self.subjects is None:
            raise KeyboardInterrupt
        self.interrupted = True
