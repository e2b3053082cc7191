"""What runs in a worker: calls of a function, each with its result or with the text of its error.

A worker process imports this module before anything of the user's, so it imports neither torch nor numpy.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeAlias

from gradwright.wrapping.kept import Kept
from gradwright.wrapping.parcels import Parcel, Posted, post, receive
from gradwright.wrapping.shipping import Carrier

_THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "NUMBA")
_here = threading.local()


@dataclass(frozen=True)
class Done:
    """What a call returned."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """What became of a call that raised, or that ended its worker.

    The exception itself does not travel: one that cannot be pickled would take its text with it.
    """

    type_name: str
    message: str
    traceback: str
    crashed: bool = False
    """Whether the worker ended while the call ran, each time."""


Outcome: TypeAlias = Done | Failed


@dataclass(frozen=True)
class Placed:
    """Stands for a large array that travels by itself."""

    position: int
    writable: bool


class Task:
    """Some calls of one function.

    Arguments:
        carrier: of the function.
        items: the arguments of each call.
        first: which of all calls the first one is.
        writable: the positions of arrays that may be written to, in each of the items, where they come from.
    """

    def __init__(
        self,
        carrier: Carrier,
        items: Sequence[tuple[Any, ...]],
        first: int,
        writable: Sequence[frozenset[int]] | None = None,
    ) -> None:
        self.carrier = carrier
        self.items = items
        self.first = first
        self._writable = writable

    def __reduce__(self) -> tuple[Any, ...]:
        writable = [frozenset(at for at, value in enumerate(item) if may_write(value)) for item in self.items]
        return Task, (self.carrier, self.items, self.first, writable)

    def arguments(self, placed: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the arguments of each call; what became read-only on its way is copied."""
        found = []
        for index, item in enumerate(self.items):
            may_write = self._writable[index] if self._writable is not None else frozenset()
            found.append(tuple(_as_sent(value, at in may_write, placed) for at, value in enumerate(item)))
        return found


@dataclass(frozen=True)
class Batch:
    """What became of a task."""

    first: int
    outcomes: list[Outcome]
    """Far from the function's own process, values are parcels."""
    seconds: float
    """What the calls took."""
    refused: bool = False
    """Whether nothing was called, because the process was forked from one that had loaded torch."""


def call(task: Task, *placed: Any) -> Batch:
    """Do a task; what every kind of worker is given to run.

    Arguments:
        task: the calls.
        placed: the large arrays that :class:`Placed` stands for.
    """
    far = task.carrier.is_far
    if far and _forked_with_torch:
        return Batch(task.first, [], 0.0, refused=True)
    try:
        function = task.carrier.get()
        items = task.arguments(placed)
    except Exception as error:
        return Batch(task.first, [_failure(error)] * len(task.items), 0.0)
    start = time.perf_counter()
    outcomes = [call_one(function, item) for item in items]
    seconds = time.perf_counter() - start
    return Batch(task.first, [_packed(each) for each in outcomes] if far else outcomes, seconds)


def call_on(actor: Any, task: Task, *placed: Any) -> Batch:
    """Do a task in the process of a Ray actor."""
    return call(task, *placed)


def call_one(function: Callable[..., Any], item: tuple[Any, ...]) -> Outcome:
    """Call the function, without gradients, and catch what it raises."""
    depth = getattr(_here, "depth", 0)
    _here.depth = depth + 1
    try:
        with _no_grad():
            value = function(*item)
        # What is kept for a derivative stays where it was made.
        return Done(value.result if isinstance(value, Kept) else value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, which would end the worker
        return _failure(error)
    finally:
        _here.depth = depth


def may_write(value: Any) -> bool:
    """Tell whether a value is an array that may be written to."""
    return _writeable(value) is True


def is_inside() -> bool:
    """Tell whether this thread is at work for a pool already, so that no pools of pools are started."""
    return getattr(_here, "depth", 0) > 0


def opened(outcome: Outcome) -> Outcome:
    """Return an outcome with the value that is in its parcel."""
    if not isinstance(outcome, Done) or not isinstance(outcome.value, Parcel):
        return outcome
    try:
        return Done(outcome.value.open())
    except Exception as error:
        return _failure(error)


# --- processes of our own -------------------------------------------------------------------------


def start_worker() -> None:
    """Prepare a new worker process: one thread for each library, and an end that is the parent's."""
    for library in _THREADS:
        os.environ[f"{library}_NUM_THREADS"] = "1"
    os.environ["VECLIB_MAXIMUM_THREADS"] = "1"
    limit_loaded()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.name == "posix":
        os.setpgrp()  # so that the programs which a function starts end with the worker
    threading.Thread(target=_end_with_parent, daemon=True).start()


def limit_loaded() -> None:
    """Restrict the libraries that are loaded already, which do not read the environment again, to one thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    if "numpy" in sys.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module("threadpoolctl").threadpool_limits(1)


def work(sent: Parcel | Posted, reply: str) -> Parcel | Posted:
    """Do a task that comes, and whose results go, through shared memory; ``reply`` is the name of theirs."""
    batch = call(receive(sent).open())
    return post(Parcel.of(batch), reply)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    if os.name == "posix":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)


# --- helpers --------------------------------------------------------------------------------------


def _note_fork() -> None:
    global _forked_with_torch
    _forked_with_torch = "torch" in sys.modules


_forked_with_torch = type(multiprocessing.current_process()).__name__ == "ForkProcess" and "torch" in sys.modules
"""Whether a lock of torch may be held for ever: its threads exist in the other process only."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _no_grad() -> contextlib.AbstractContextManager[Any]:
    """Grad mode belongs to a thread, and is on in a new one."""
    no_grad = getattr(sys.modules.get("torch"), "no_grad", contextlib.nullcontext)
    return no_grad()


def _failure(error: BaseException) -> Failed:
    try:
        message = str(error)
    except Exception:
        message = "its text cannot be made"
    tb = error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, tb.tb_next if tb is not None else None))
    return Failed(type(error).__name__, message, text)


def _packed(outcome: Outcome) -> Outcome:
    if isinstance(outcome, Failed):
        return outcome
    try:
        return Done(Parcel.of(outcome.value))
    except Exception as error:
        return _failure(error)


def _as_sent(value: Any, writable: bool, placed: Sequence[Any]) -> Any:
    if isinstance(value, Placed):
        array = placed[value.position]  # which other calls may have, too
        return array.copy(order="K") if value.writable else array
    return value.copy(order="K") if writable and _writeable(value) is False else value


def _writeable(value: Any) -> Any:
    """Return whether an array may be written to, and None of any other value."""
    return getattr(getattr(value, "flags", None), "writeable", None)
