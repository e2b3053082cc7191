"""A limit on the time that a piece of the user's code may take.

The limit works by a signal (``SIGALRM``), which is the only thing that can stop Python code which does not return. It
is therefore available in the main thread of a POSIX process only; elsewhere the code simply runs on, and
:func:`limits_are_effective` says so. It cannot stop compiled code that does not return either; the command line runs
everything in another process, and ends that.
"""

from __future__ import annotations

import gc
import inspect
import math
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SMALLEST = 1e-4  # setitimer takes 0 for "never"
_LONGEST_IMPORT = 60.0
_AGAIN = 0.2
"""After how many seconds a limit is raised once more, if it was swallowed."""
_WEAK = (weakref.__file__, inspect.getfile(weakref.WeakSet))


class TimeLimitError(BaseException):
    """The code inside :class:`time_limit` took longer than it was allowed to.

    Not an ``Exception``, like ``KeyboardInterrupt``: the code that is stopped, user's or ours, may catch those.
    """


STOPS = (KeyboardInterrupt, TimeLimitError)
"""What ends an examination; anything else that user code raises, SystemExit included, is a failure of that code."""


def limits_are_effective() -> bool:
    """Tell whether :class:`time_limit` can stop code here: in the main thread of a POSIX process."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        # None: a handler that was not installed from Python, which could not be put back.
        and signal.getsignal(signal.SIGALRM) is not None
    )


class time_limit:  # noqa: N801 - used like a function
    """Raise :class:`TimeLimitError` inside the ``with`` block once it has run for ``seconds``.

    Blocks may be nested; whichever limit ends first is raised, and an outer limit that ended is raised again in the
    outer block even if the inner one swallowed it. A timer and a handler that somebody else had installed are put back.
    An infinite limit is no limit. An import is never cut off: half a module would be left behind for the rest of the
    process (torch imports parts of itself at the first backward), so the limit is raised when the import has ended. So
    it is after a finaliser or a callback of the garbage collector, where Python swallows what is raised.

    Example:
        >>> with time_limit(1.0):
        ...     2 + 2
        4
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline: float | None = None

    def __enter__(self) -> time_limit:
        if math.isfinite(self.seconds) and limits_are_effective():
            self._deadline = time.monotonic() + self.seconds
            if not _active:
                _foreign.remember()
            _active.append(self)
            _arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The signal may come between the end of the block and the end of this method, once: then tidy up all the same.
        try:
            self._close()
        except TimeLimitError:
            self._close()
            raise

    def _close(self) -> None:
        if self._deadline is None:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self in _active:
            _active.remove(self)
        self._deadline = None
        if _active:
            _arm()
        else:
            _foreign.restore()


class _Foreign:
    """The handler and the timer that were there before the outermost limit."""

    def __init__(self) -> None:
        self.handler: Callable[[int, FrameType | None], Any] | int | None = None
        self.remaining = 0.0
        self.interval = 0.0
        self.since = 0.0

    def remember(self) -> None:
        self.remaining, self.interval = signal.getitimer(signal.ITIMER_REAL)
        self.since = time.monotonic()
        self.handler = signal.signal(signal.SIGALRM, _on_alarm)

    def restore(self) -> None:
        signal.signal(signal.SIGALRM, self.handler)
        if self.remaining:
            left = self.remaining - (time.monotonic() - self.since)
            signal.setitimer(signal.ITIMER_REAL, max(left, _SMALLEST), self.interval)


_active: list[time_limit] = []
_foreign = _Foreign()


def _arm() -> None:
    """Set the timer for the limit that ends first."""
    deadline = min(limit._deadline for limit in _active if limit._deadline is not None)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), _SMALLEST))


def _on_alarm(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    for limit in _active:  # the outermost first
        if limit._deadline is not None and limit._deadline <= now + _SMALLEST:
            if _must_go_on(frame) and now < limit._deadline + _LONGEST_IMPORT:
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                return
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
            raise TimeLimitError(f"took longer than {limit.seconds:g} s")


def _must_go_on(frame: FrameType | None) -> bool:
    """Tell whether code runs that is not to be stopped now: an import, or what swallows whatever is raised in it.

    That are finalisers, callbacks of weak references, and those of the garbage collector, as JAX installs one.
    """
    collecting = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        code = frame.f_code
        if code.co_filename in ("<frozen importlib._bootstrap>", *_WEAK) or code.co_name == "__del__":
            return True
        if code in collecting:
            return True
        frame = frame.f_back
    return False
