"""What runs inside of a program that ``gradwright watch`` started: it begins when torch is imported.

The program must not notice: whatever goes wrong in here ends up in the report and not in the program.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from gradwright import torch_compat
from gradwright.cli.runs import Run
from gradwright.watching.capture import Budget
from gradwright.watching.recorder import Kept, Recorder, Watched
from gradwright.watching.store import drop_call, write_call
from gradwright.watching.targets import function_key
from gradwright.watching.usage import write_usages


def begin(folder: str) -> None:
    """Watch this process from now on, and check what it used when it ends."""
    run = Run(Path(folder))
    with _told(run):
        _Watching(run).start()


def budget(options: argparse.Namespace) -> Budget:
    """Return how much may be kept of values."""
    return Budget(sample=0) if options.spec_only else Budget()


class _Watching:
    """Watches one process, and the ones that are forked from it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.options = run.options()
        self.recorder = Recorder(budget(self.options), self._keep, self._drop)
        self.pid = os.getpid()
        self.over = False
        self.script = getattr(sys.modules.get("__main__"), "__file__", None)

    def start(self) -> None:
        """Begin to watch."""
        self.recorder.start()
        torch_compat.at_end(self.end)
        os.register_at_fork(after_in_child=self._forked)
        self._end_before_exit()
        self._hide_frames()
        self.run.began()

    def end(self) -> None:
        """Check what was seen, once in each process."""
        forked = os.getpid() != self.pid
        if self.over or (forked and not any(True for _ in self.recorder.used())):
            return
        self.over = True
        pid = os.getpid()
        with _told(self.run, pid):
            if forked:
                self.run.began()
            torch_compat.stop_timers()
            self.recorder.stop()
            if torch_compat.can_fork():
                from gradwright.cli.apart import apart  # here: a program that is over can wait for imports

                apart(lambda: self._finish(pid), self.run.path)
            else:
                self._finish(pid)
        _remain_interrupted()

    def _finish(self, pid: int) -> None:
        """Check what the process ``pid`` has used: this one, or the one that it was forked from for that."""
        with _told(self.run, pid), _script_known(self.script):
            from gradwright.cli.finish import finish

            if self.options.store is not None:  # else it goes away with the folder of the run
                self.recorder.safely(write_usages, Path(self.options.store), self.recorder)
            self.run.leave(finish(self.recorder, self.options, self.run.claim), pid)

    def _keep(self, watched: Watched, kept: Kept) -> None:
        """Write a call down as soon as it is kept: the process may be killed."""
        write_call(self.run.calls(self.options), function_key(watched.target, kept.subject), kept.call)

    def _drop(self, watched: Watched, kept: Kept) -> None:
        drop_call(self.run.calls(self.options), function_key(watched.target, kept.subject), kept.call)

    def _forked(self) -> None:
        """Count anew in a child process; what the parent recorded is the parent's."""
        if not self.over:
            with _told(self.run):
                self.recorder.forget()

    def _end_before_exit(self) -> None:
        """Have ``os._exit`` end as a program ends: processes that multiprocessing forks leave by it."""
        leave = os._exit

        def after_checking(status: int) -> Any:
            with contextlib.suppress(BaseException):
                self.end()
            leave(status)

        os._exit = after_checking

    def _hide_frames(self) -> None:
        """Have an error that ends the program, or a thread of it, look as it would without the hook."""
        shown, shown_of_thread = sys.excepthook, threading.excepthook

        def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            hide(error)
            shown(kind, error, error.__traceback__ if trace is not None else None)

        def show_of_thread(arguments: Any) -> None:
            if arguments.exc_value is not None:
                hide(arguments.exc_value)
            shown_of_thread(arguments)

        sys.excepthook, threading.excepthook = show, show_of_thread


def _remain_interrupted() -> None:
    """Let a program that Ctrl-C ended end by that signal, as Python does.

    Python remembers an unhandled KeyboardInterrupt until the next code is run from text, which much of what is imported
    at the end does, and `exec` of a text that raises one is how it is told again.
    """
    if issubclass(getattr(sys, "last_type", None) or Exception, KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def hide(error: BaseException) -> None:
    """Take the frames of the hook out of the tracebacks of an error and of those behind it."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _without_hook(each.__traceback__)
            chain += [each.__cause__, each.__context__]


def _without_hook(trace: TracebackType | None) -> TracebackType | None:
    own = sys.modules[Recorder.__module__].__file__
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename == own:
        first = first.tb_next
    current = first
    while current is not None:
        following = current.tb_next
        while following is not None and following.tb_frame.f_code.co_filename == own:
            following = following.tb_next
        current.tb_next = following
        current = following
    return first


@contextlib.contextmanager
def _script_known(script: str | None) -> Iterator[None]:
    """Let the source of a script be found within the block: Python forgets its file when it has run to its end."""
    main = sys.modules.get("__main__")
    forgotten = main is not None and script is not None and not hasattr(main, "__file__")
    if forgotten:
        main.__file__ = script  # type: ignore[union-attr]
    try:
        yield
    finally:
        if forgotten:
            del main.__file__  # type: ignore[union-attr]


@contextlib.contextmanager
def _told(run: Run, pid: int | None = None) -> Iterator[None]:
    """Tell the command what goes wrong within the block for a process, and nobody else."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            run.failed(traceback.format_exc(), pid)
