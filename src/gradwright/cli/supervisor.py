"""Runs the work of a command in another process, which may crash, hang or run out of memory.

A limit inside a process cannot stop compiled code that does not return, and nothing survives a segmentation fault. So
the command itself runs none of the user's code: it listens to a worker process, ends it when a limit is over, and
starts another one where the last one ended. What a worker delivered before is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from gradwright.checking.earlier import FORWARD, SHRINKING
from gradwright.checking.report import NotChecked
from gradwright.cli import deaths, memory, traces
from gradwright.cli.events import (
    Began,
    Delivered,
    Discovered,
    Done,
    Event,
    Finished,
    Identity,
    Printed,
    Running,
    Start,
)
from gradwright.cli.options import contract_ids
from gradwright.cli.progress import bar_is_shown
from gradwright.cli.worker import GRACE, Job, Work, serve
from gradwright.errors import GradwrightError

MAX_DEATHS = 3
"""Processes that one subject may end before nothing more is tried with it."""
SECONDS_TO_END = 10.0
"""How long a process may take to end when its work is over."""
SECONDS_BETWEEN_LOOKS = 0.1
"""How often the limits are looked at. In that time memory grows by a few hundred megabytes at most."""


def supervise(options: argparse.Namespace, receive: Callable[[Event], None], work: Work | None = None) -> None:
    """Have the work done by other processes and pass on what they tell.

    Arguments:
        options: of the command.
        receive: called with every event, in order, as if the work was done here; what a worker could not finish is
            told in its place.
        work: what is done, in processes that are forked from this one, instead of the work of ``gradwright check``.

    Raises:
        GradwrightError: no worker can be started.
    """
    with tempfile.TemporaryDirectory(prefix="gradwright-") as folder, _ending_tidily():
        supervisor = _Supervisor(options, receive, Path(folder) / "traces", work)
        while not supervisor.over:
            supervisor.run_one()


@dataclass
class _Watched:
    """What a worker was last heard of."""

    at: Running | Began | None = None
    deadline: float = math.inf


@dataclass
class _Supervisor:
    options: argparse.Namespace
    receive: Callable[[Event], None]
    traces: Path
    work: Work | None = None
    subjects: tuple[Identity, ...] | None = None
    """As the first worker found them."""
    start: Start = field(default_factory=Start)
    deaths: int = 0
    """Processes that the subject of ``start`` has ended."""
    over: bool = False

    def __post_init__(self) -> None:
        self.allowed = memory.allowance(self.options.memory)
        if self.allowed is not None and self.work is not None:
            self.allowed += memory.taken(os.getpid())  # a fork begins with all that this process has

    def run_one(self) -> None:
        """Start a worker, listen until it ends, and decide where the next one begins."""
        self.traces.write_text("", encoding="utf-8")
        reader, writer = multiprocessing.Pipe(duplex=False)
        forked = self.work is not None
        job = Job(
            self.options, self.start, tuple(sys.path), str(self.traces), not forked and bar_is_shown(), GRACE, self.work
        )
        context: Any = multiprocessing.get_context("fork" if forked else "spawn")
        # User code asks for this name to tell whether it runs in a worker of its own.
        process = context.Process(target=serve, args=(job, writer), name="MainProcess")
        watched = _Watched()
        try:
            with contextlib.nullcontext() if forked else _without_main(), _ignoring_interrupts():
                process.start()
            writer.close()
            how = self._listen(process, reader, watched)
        finally:
            if process.pid is not None:
                process.kill()
                process.join()
            reader.close()
        if not self.over:
            place = traces.place(self.traces.read_text(encoding="utf-8", errors="replace"))
            self._died(watched.at, how + (f" at {place}" if place else ""))

    def _listen(self, process: BaseProcess, reader: Connection, watched: _Watched) -> str:
        """Handle events until the work or the process is over, or it has to be ended; return how the process ended."""
        while not self.over:
            before = time.monotonic()
            ready = wait([reader, process.sentinel], SECONDS_BETWEEN_LOOKS)
            pause = time.monotonic() - before
            if pause > 1.0:  # this process stood still as well: Ctrl-Z, or a computer asleep
                watched.deadline += pause
            if reader in ready:
                try:
                    event = reader.recv()
                except EOFError:
                    return _how_it_ended(process)
                self._heard(event, watched)
            elif (ready or process.exitcode is not None) and not reader.poll():
                # The exit code tells when a process that was started there has kept the sentinel.
                return _how_it_ended(process)
            if self.allowed is not None and memory.taken(process.pid or 0) > self.allowed:
                return deaths.too_large(self.allowed)
            if isinstance(watched.at, Began) and time.monotonic() > watched.deadline:
                return deaths.too_slow(watched.at.seconds)
        process.join(SECONDS_TO_END)
        return ""

    def _heard(self, event: Event, watched: _Watched) -> None:
        if isinstance(event, Printed):
            self.receive(event)
            return
        watched.at, watched.deadline = None, math.inf
        if isinstance(event, Running):
            watched.at = event
        elif isinstance(event, Discovered):
            self._discovered(event)
        elif isinstance(event, Began):
            watched.at, watched.deadline = event, time.monotonic() + event.seconds + GRACE
            if event.what == FORWARD:
                # What is kept is delivered anew, unless other samples are taken than before.
                self._earlier(results={})
            self.receive(event)
        elif isinstance(event, Delivered):
            self._earlier(results={**self.start.earlier.results, event.result.id: event.result})
        elif isinstance(event, Finished):
            self._finish(event)
        else:
            self.over = True
            self.receive(event)

    def _discovered(self, event: Discovered) -> None:
        if self.subjects is None:
            self.subjects = event.subjects
            self.receive(event)
        elif event.subjects != self.subjects:
            while self.start.subject < len(self.subjects):
                self._give_up("was not examined because a second import of the targets gave other subjects")
            self._end()

    def _finish(self, event: Finished) -> None:
        self.receive(event)
        self.start, self.deaths = Start(self.start.lost, event.subject + 1), 0

    def _died(self, at: Running | Began | None, how: str) -> None:
        """Decide what the next worker does after one that ended before the work was over."""
        if isinstance(at, Running):
            reason = f"{at.what}: the process {how} while this ran; expected an error at most; mend it or leave it out."
            self.start = replace(self.start, lost={**self.start.lost, at.what: reason})
            return
        if self.subjects is None:
            raise GradwrightError(
                f"gradwright: the process that runs your code {how} before it began; expected one that starts; "
                "`--no-isolation` runs the code in the process of the command."
            )
        if self.start.subject >= len(self.subjects):
            self._end()
            return
        self.deaths += 1
        if isinstance(at, Began) and at.what in {*contract_ids(), SHRINKING}:
            reason = f"the process {how} while this was examined."
            self._earlier(lost={**self.start.earlier.lost, at.what: reason})
        elif isinstance(at, Began):
            self._give_up(
                f"the process {how} while {at.what}; expected an error at most; declare inputs that it can take"
            )
        elif self.deaths >= MAX_DEATHS:
            self._give_up(f"the process {how}, as others before it; expected an error at most; mend it")
        if self.deaths >= MAX_DEATHS:
            self._earlier(given_up=f"not examined: {self.deaths} processes ended while this subject was examined")

    def _give_up(self, reason: str) -> None:
        """Finish the subject that is examined without a verdict."""
        assert self.subjects is not None
        subject = self.subjects[self.start.subject]
        reason = f"{subject.name}: {reason}."
        entry = NotChecked(subject.name, subject.file, subject.line, reason, named=subject.named, ended=True)
        self._finish(Finished(self.start.subject, entry, broken=False))

    def _earlier(self, **known: Any) -> None:
        self.start = replace(self.start, earlier=replace(self.start.earlier, **known))

    def _end(self) -> None:
        self.over = True
        self.receive(Done())


def _how_it_ended(process: BaseProcess) -> str:
    process.join(SECONDS_TO_END)
    return "closed the pipe to the command" if process.exitcode is None else deaths.by_itself(process.exitcode)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from running the main module again in the new process, where there is no use for it."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _ignoring_interrupts() -> contextlib.AbstractContextManager[None]:
    """Let the new process begin deaf to Ctrl-C, until it can end without a traceback."""
    return _handling(signal.SIGINT, signal.SIG_IGN)


def _ending_tidily() -> contextlib.AbstractContextManager[None]:
    """Let a request to end this process end the worker as well."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return _handling(signal.SIGTERM, stop)


@contextlib.contextmanager
def _handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handle a signal inside the block, as far as this thread may say how."""
    # None: a handler that was not installed from Python, which could not be put back.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is None:
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
