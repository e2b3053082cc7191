"""Threads and processes of this machine: our own ones, and an executor of the user's."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from gradwright.errors import OptionError, describe_exception, kind_of
from gradwright.wrapping.lanes import Lanes, WorkerEndedError
from gradwright.wrapping.parcels import Parcel, Posted, discard, dumps, fresh_name, post, receive
from gradwright.wrapping.remote import Batch, Task, call, start_worker, work

if sys.platform == "linux":
    from multiprocessing.context import ForkServerContext as BaseContext
    from multiprocessing.context import ForkServerProcess as StartedProcess
else:
    from multiprocessing.context import SpawnContext as BaseContext
    from multiprocessing.context import SpawnProcess as StartedProcess

MANY = 256
"""Taken for the number of workers of an executor, which does not tell it."""
MOST_ON_WINDOWS = 61
"""More processes cannot be waited for there."""


class ExecutorLanes(Lanes):
    """An executor of the user's, which stays the user's: it is neither closed nor started again."""

    width = MANY

    def __init__(self, executor: Executor) -> None:
        super().__init__()
        self._executor = executor

    def submit(self, task: Task) -> Future[Batch]:  # noqa: D102
        try:
            return self._executor.submit(call, task)
        except BrokenExecutor as error:
            raise WorkerEndedError(_broken(error)) from error

    def wait(self, handles: Iterable[Future[Any]], seconds: float | None) -> Iterable[Future[Any]]:  # noqa: D102
        return _done(handles, seconds)

    def fetch(self, handle: Future[Batch]) -> Batch:  # noqa: D102
        try:
            return handle.result()
        except BrokenExecutor as error:
            raise WorkerEndedError(_broken(error)) from error

    def abandon(self, handles: Iterable[Future[Any]]) -> None:  # noqa: D102
        for handle in handles:
            handle.cancel()


class ThreadLanes(Lanes):
    """Threads of our own, started when they are needed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.width = count
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, task: Task) -> Future[Batch]:  # noqa: D102
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.width, thread_name_prefix="gradwright")
        return self._executor.submit(call, task)

    def wait(self, handles: Iterable[Future[Any]], seconds: float | None) -> Iterable[Future[Any]]:  # noqa: D102
        return _done(handles, seconds)

    def fetch(self, handle: Future[Batch]) -> Batch:  # noqa: D102
        return handle.result()

    def abandon(self, handles: Iterable[Future[Any]]) -> None:
        """Leave the threads, which nothing can end, to themselves."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def close(self) -> None:  # noqa: D102
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


class ProcessLanes(Lanes):
    """Processes of our own: started when they are needed, again after a crash, ended with this one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.width = min(count, MOST_ON_WINDOWS) if sys.platform == "win32" else count
        self._executor: ProcessPoolExecutor | None = None
        self._context = _Context()
        self._sent: dict[Future[Parcel | Posted], tuple[str, str, ProcessPoolExecutor]] = {}

    def submit(self, task: Task) -> Future[Parcel | Posted]:
        """Hand a task out, its large arrays through shared memory."""
        task.carrier.pack()
        try:
            parcel = Parcel.of(task)
        except Exception as error:
            raise _cannot_be_sent(task, error) from error
        # Both names are given here, so that the memory is given back whatever becomes of the worker.
        there, back = fresh_name(), fresh_name()
        sent = post(parcel, there)
        try:
            try:
                handle = self._started().submit(work, sent, back)
            except (BrokenExecutor, OSError):
                # A process has ended since the last task; or it does while another one is started, for which the pool
                # then has closed handles (seen with Python 3.11).
                self._end()
                handle = self._started().submit(work, sent, back)
        except BaseException:
            discard(there)
            raise
        self._sent[handle] = (there, back, self._started())
        return handle

    def wait(self, handles: Iterable[Future[Any]], seconds: float | None) -> Iterable[Future[Any]]:  # noqa: D102
        return _done(handles, seconds)

    def fetch(self, handle: Future[Parcel | Posted]) -> Batch:  # noqa: D102
        there, back, executor = self._sent.pop(handle)
        try:
            return receive(handle.result()).open()  # type: ignore[no-any-return]
        except (BrokenExecutor, CancelledError) as error:
            raise WorkerEndedError(self._end() if executor is self._executor else "") from error
        finally:
            discard(there)
            discard(back)

    def abandon(self, handles: Iterable[Future[Any]]) -> None:
        """End the processes, whatever they do."""
        self._end()
        for there, back, _ in self._sent.values():
            discard(there)
            discard(back)
        self._sent.clear()

    def close(self) -> None:  # noqa: D102
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
            self._context.started.clear()

    def _started(self) -> ProcessPoolExecutor:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(self.width, mp_context=self._context, initializer=start_worker)
        return self._executor

    def _end(self) -> str:
        """End all processes and what they have started; return how the first one ended, if one did by itself."""
        executor, self._executor = self._executor, None
        started = [process for process in self._context.started if process.pid is not None]
        self._context.started.clear()
        # The executor may have taken the exit code from the sentinel a moment before that is closed.
        ended = [process for process in started if wait([process.sentinel], 0) or process.exitcode is not None]
        for process in started:
            _kill(process)
        if executor is not None:
            executor.shutdown(cancel_futures=True)
        # The executor requests the others to end when it sees that one has ended.
        codes = [process.exitcode for process in ended if process.exitcode not in (None, 0, -signal.SIGTERM)]
        return _how(codes[0]) if codes and codes[0] is not None else ""


class Worker(StartedProcess):
    """A process in which the main module is not run again."""

    def start(self) -> None:
        """Start the process."""
        # Functions of the main module travel by value. To run it again would gain nothing, and mostly import torch.
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _Context(BaseContext):
    """Remembers its processes, which an executor does not hand out."""

    def __init__(self) -> None:
        self.started: list[BaseProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> Worker:  # type: ignore[override] # noqa: N802
        """Make a process."""
        process = Worker(*args, **kwargs)
        self.started.append(process)
        return process


def _done(handles: Iterable[Future[Any]], seconds: float | None) -> set[Future[Any]]:
    return concurrent.futures.wait(handles, seconds, return_when=concurrent.futures.FIRST_COMPLETED).done


def _kill(process: BaseProcess) -> None:
    """End a process, if there is one still, and the programs that it has started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid or 0, signal.SIGKILL)
    process.kill()


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def _broken(error: BrokenExecutor) -> str:
    return f"(the executor says: {error}); it cannot be used any more, where an int is given new processes are started"


def _cannot_be_sent(task: Task, error: Exception) -> OptionError:
    """Build the error for an argument that cannot be pickled."""
    what = "an argument"
    for index, item in enumerate(task.items, task.first):
        for position, value in enumerate(item):
            try:
                dumps(value)
            except Exception:
                what = f"argument {position} of sample {index}, {kind_of(value)},"
                break
    return OptionError(
        f"workers: {what} cannot be sent to another process ({describe_exception(error)}); expected arguments that can "
        "be pickled; leave it out, or use threads with `releases_gil=True`."
    )
