"""Doing something in a fork of this process, while this process stands still.

When a program is over, some of it may go on until Python ends: threads that print, handlers of signals. A check takes a
while. Nothing of the program may happen in that time that would not happen without it, and nothing of the program may
end the check.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from gradwright.cli.worker import be_silent

_MANY = 3
"""So many signals end a process that does not react to them."""
_VERY_LONG = 1e6
"""Seconds after which a thread that waits for its turn asks for it."""


def apart(work: Callable[[], None], folder: Path) -> None:
    """Have something done in a fork, and wait for it. What it raises stays there.

    Arguments:
        work: what is done.
        folder: for temporary files, whatever the program did to the place for its own; and to work in where the
            program has removed its working directory.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python from 3.12 on: the threads of the program are not in the fork
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                be_silent()
                _hear_signals()
                _settle(folder)
                work()
            os._exit(0)
        _wait(child)


def _hear_signals() -> None:
    """Be interrupted by the first Ctrl-C, and ended by a request to end, whatever the program did about them."""

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the process that waits for this one hears it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})


def _settle(folder: Path) -> None:
    tempfile.tempdir = str(folder)
    try:
        Path.cwd()
    except OSError:
        os.chdir(folder)
    torch.set_num_threads(1)  # the threads of the program are not there any more, and would be waited for


def _wait(child: int) -> None:
    """Wait for a process without letting another thread of this one run.

    Ctrl-C reaches the process itself, and a second one ends it. A request to end this process does so as well, and is
    then obeyed as the program would.
    """
    heard: list[int] = []

    def hear(number: int, frame: Any) -> None:
        heard.append(number)
        if len(heard) > 1 or number != signal.SIGINT:
            # It ends the process that checks as well, unless it is stuck; or it has ended that already.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM if len(heard) < _MANY else signal.SIGKILL)

    handlers = {signal.SIGINT: hear, signal.SIGTERM: hear, signal.SIGHUP: hear, signal.SIGCHLD: signal.SIG_DFL}
    pause = sys.getswitchinterval()
    with _handling(handlers):
        # The functions of a PyDLL keep the lock of the interpreter, which every other thread waits for; in vain also
        # when they return, if none of them has asked for it in the meantime.
        sys.setswitchinterval(_VERY_LONG)
        waitpid = ctypes.PyDLL(None, use_errno=True).waitpid
        while waitpid(child, None, 0) == -1 and ctypes.get_errno() == errno.EINTR:
            pass
    sys.setswitchinterval(pause)
    for number in heard:
        if number != signal.SIGINT:
            os.kill(os.getpid(), number)


@contextlib.contextmanager
def _handling(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    """Handle signals inside the block, as far as this thread may say how."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # None: a handler that was not installed from Python, which could not be put back.
        before = {number: signal.getsignal(number) for number in handlers}
        before = {number: handler for number, handler in before.items() if handler is not None}
    for number in before:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
