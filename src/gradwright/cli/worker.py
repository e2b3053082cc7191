"""The process that runs the user's code. It may crash, hang or run out of memory: see :mod:`supervisor`."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

from gradwright.cli.events import Began, Event, Interrupted, Printed, Refused, Send, Start
from gradwright.errors import GradwrightError

GRACE = 20.0
"""Seconds after the end of a limit in which the process may still come back by itself."""
_PIECE = 800
"""Characters of what is printed that are sent at once: even with four bytes each, a pipe takes them as one."""


Work: TypeAlias = Callable[[argparse.Namespace, Send, Start], None]
"""Does what the options say from a start on, and sends what comes of it."""


@dataclass(frozen=True)
class Job:
    """What a worker is told."""

    options: argparse.Namespace
    start: Start
    path: tuple[str, ...]
    """``sys.path`` of the command."""
    traces: str
    """A file for the Python stack of a crash or a hang."""
    relay: bool = False
    """Whether what is printed is sent as well, so that it does not spoil the progress bar."""
    grace: float = GRACE
    work: Work | None = None
    """What is done; None for the work of the command. Only a process that is forked can be told another."""


def serve(job: Job, connection: Connection) -> None:
    """Do the job and send every event; what this process is started with."""
    sys.path[:] = job.path
    if job.work is None:
        # multiprocessing has set what started this process for the user's code as well; let that choose again.
        multiprocessing.set_start_method(None, force=True)
    else:
        be_silent()
    # Ctrl-C reaches both processes. The other one says what is to be said.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what a fork has from the process that it was forked from
    if job.options.json == "-":
        os.dup2(2, 1)  # standard output is for the JSON alone
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a crash takes with it what was printed and is not written yet
    _be_first_to_be_killed()
    with Path(job.traces).open("w", encoding="utf-8") as traces:
        # If it is enabled, whoever did that wants to read it; but not what a fork of a program writes there.
        if job.work is not None or not faulthandler.is_enabled():
            faulthandler.enable(traces)
        try:
            _work(job, connection, traces)
        except BrokenPipeError:
            pass  # nobody listens any more
        finally:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.disable()  # before the file is closed


def _work(job: Job, connection: Connection, traces: TextIO) -> None:
    lock = threading.Lock()

    def transmit(event: Event) -> None:
        with lock:  # any thread of the user's may print
            connection.send(event)

    def send(event: Event) -> None:
        faulthandler.cancel_dump_traceback_later()
        transmit(event)
        traces.seek(0)  # what was written at an earlier limit says nothing about this one
        traces.truncate()
        if isinstance(event, Began) and math.isfinite(event.seconds):
            faulthandler.dump_traceback_later(event.seconds + job.grace / 2, file=traces)

    if job.relay:
        sys.stdout, sys.stderr = _Relay(sys.stdout, "stdout", transmit), _Relay(sys.stderr, "stderr", transmit)
    try:
        (job.work or _work_of(job.options.command))(job.options, send, job.start)
    except GradwrightError as error:
        send(Refused(str(error)))
    except KeyboardInterrupt:
        send(Interrupted())


def _work_of(command: str) -> Work:
    """Import the work of a command: here, because the command itself must not import torch."""
    if command == "init":
        from gradwright.cli.drafts import work
    else:
        from gradwright.cli.work import work
    return work


class _Relay:
    """A stream that sends what is printed; for everything else it is the stream that it stands for."""

    def __init__(self, stream: TextIO, name: Literal["stdout", "stderr"], send: Send) -> None:
        self._stream = stream
        self._name = name
        self._send = send

    def write(self, text: str) -> int:
        # A time limit may strike here. It cannot cut a message that the pipe takes in one piece.
        for start in range(0, len(text), _PIECE):
            self._send(Printed(self._name, text[start : start + _PIECE]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def be_silent() -> None:
    """Let nothing that is printed here get among what the program prints that this process was forked from."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - until the process ends
    logging.disable(logging.CRITICAL)  # the program's log may go to a file


def _be_first_to_be_killed() -> None:
    """When memory runs out, let Linux end this process and neither the command nor another program."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
