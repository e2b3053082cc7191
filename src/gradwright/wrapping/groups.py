"""One program with everything that it starts: it is waited for, and all of it is ended."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

Ended: TypeAlias = int | Literal["timeout", "stopped"]
"""The exit code of a program, or why it was ended."""

GRACE = 1.0
"""For how many seconds a program may tidy up before it is killed."""


class Group:
    """A program that runs, and all that it started.

    It is a session of its own, so that a signal to the group reaches what it started, also after it has ended itself.
    What it reads and writes are files: through pipes one would wait for whoever still holds their other end.
    """

    def __init__(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: Any, stdout: Any, stderr: Any
    ) -> None:
        self._start: Callable[..., Any] = functools.partial(
            subprocess.Popen, list(words), cwd=cwd, env=dict(env), stdin=stdin, stdout=stdout, stderr=stderr
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped, self._late, self._over = threading.Event(), threading.Event(), threading.Event()
        self._gone = False
        """Whether its number may be that of another one by now."""
        self._signalling = threading.Lock()

    def run(self, timeout: float | None) -> Ended:
        """Start the program, wait until it has ended, and end what it has left; return how it ended.

        Raises:
            OSError: it could not be started.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._run(timeout)
        # An interrupt is raised in the main thread, anywhere; so the program is started in another one, which knows it.
        found: list[Ended | OSError] = []
        thread = threading.Thread(target=lambda: found.append(self._caught(timeout)), daemon=True)
        try:
            thread.start()
            thread.join()
        except BaseException:
            self.stop()
            if thread.ident is not None:
                thread.join()
            raise
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    def _caught(self, timeout: float | None) -> Ended | OSError:
        try:
            return self._run(timeout)
        except OSError as error:
            return error

    def _run(self, timeout: float | None) -> Ended:
        if self._stopped.is_set():
            return "stopped"
        process = self._process = self._start(start_new_session=True)
        _LIVING.add(self)
        timer = None if timeout is None else threading.Timer(timeout, self._expire)
        try:
            if timer is not None:
                timer.daemon = True
                timer.start()
            if self._stopped.is_set():  # while it was started
                self.kill()
            self._wait(process)
        finally:
            self._over.set()
            self.kill()
            with self._signalling:
                code: int = process.wait()
                self._gone = True
            _LIVING.discard(self)
            if timer is not None:
                timer.cancel()
                timer.join()
        if self._stopped.is_set():
            return "stopped"
        return "timeout" if self._late.is_set() else code

    def stop(self) -> None:
        """End it at once, for one who does not wait for it any more."""
        self._stopped.set()
        self.kill()

    def kill(self) -> None:
        """Kill all of it."""
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def _wait(self, process: Any) -> None:
        if hasattr(os, "waitid"):
            # Its number is not given to another process while nobody has asked for its exit code.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()

    def _expire(self) -> None:
        if self._over.is_set():
            return
        self._late.set()
        self._signal(signal.SIGTERM)
        if not self._over.wait(GRACE):
            self.kill()

    def _signal(self, number: int) -> None:
        with self._signalling:
            if self._process is None or self._gone:
                return
            pid = self._process.pid
            if os.name == "posix":
                # The group may be gone; on macOS the signal is not permitted where only its zombie is left.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, number)
            else:
                subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)


_LIVING: WeakSet[Group] = WeakSet()


@atexit.register
def _kill_all() -> None:
    """End what threads wait for that end with this process."""
    for group in list(_LIVING):
        group.kill()
