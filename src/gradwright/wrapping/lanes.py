"""How many calls are spread over workers: a few tasks at a time, small calls together, the rest of a crash alone.

A task is handed out when an earlier one is done, so that no more than a few samples are on their way at any time. A
worker that ends takes the tasks with it that were handed out. Their samples are run again one by one, so that the
one that is to blame is known.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gradwright.errors import OptionError
from gradwright.wrapping.bar import Bar
from gradwright.wrapping.remote import Batch, Failed, Outcome, Task, opened
from gradwright.wrapping.shipping import Carrier

SECONDS = 0.005
"""What a task should take at least: a hundred times what it costs to hand one out on one machine."""
BYTES = 4 << 20
"""The most that the arrays of a task of several calls may take."""

Items = Sequence[tuple[Any, ...]]


class WorkerEndedError(Exception):
    """A worker ended, and its task with it; the text says how."""


class Lanes(ABC):
    """Workers that are given one task after another."""

    width: int
    """The number of workers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while calls are spread."""

    @abstractmethod
    def submit(self, task: Task) -> Any:
        """Hand a task out and return something hashable that stands for it.

        Raises:
            WorkerEndedError: a worker ended before; another try may succeed.
        """

    @abstractmethod
    def wait(self, handles: Iterable[Any], seconds: float | None) -> Iterable[Any]:
        """Return which tasks are done, as soon as one is, or none when it takes too long."""

    @abstractmethod
    def fetch(self, handle: Any) -> Batch:
        """Return what became of a task that is done.

        Raises:
            WorkerEndedError: its worker ended.
        """

    @abstractmethod
    def abandon(self, handles: Iterable[Any]) -> None:
        """End the work on tasks that nobody waits for any more."""

    def begin(self, items: Items) -> None:  # noqa: B027
        """Get ready for these calls."""

    def finish(self) -> None:  # noqa: B027
        """Forget what was kept for the calls that were begun."""

    def close(self) -> None:  # noqa: B027
        """End the workers that are ours; those of the user stay."""


def spread(lanes: Lanes, function: Callable[..., Any], items: Items, bar: Bar) -> list[Outcome]:
    """Return what became of each call, in order."""
    lanes.begin(items)
    run = _Run(lanes, Carrier(function), items, bar)
    try:
        run.all_at_once()
        run.one_by_one()
    except BaseException:
        lanes.abandon(list(run.pending))
        stop = getattr(function, "stop", None)
        if stop is not None:  # it waits for something outside of Python, which would go on
            stop()
        raise
    finally:
        lanes.finish()
    return [run.found[index] for index in range(len(items))]


class _Run:
    def __init__(self, lanes: Lanes, carrier: Carrier, items: Items, bar: Bar) -> None:
        self.lanes = lanes
        self.carrier = carrier
        self.items = items
        self.bar = bar
        self.found: dict[int, Outcome] = {}
        self.pending: dict[Any, Task] = {}
        self.suspects: list[int] = []
        self.seconds: float | None = None
        """What a call took lately."""

    def all_at_once(self) -> None:
        width, at = self.lanes.width, 0
        while at < len(self.items) or self.pending:
            while at < len(self.items) and len(self.pending) < 2 * width + 1:
                task = Task(self.carrier, self.items[at : at + self.size(at, width)], at)
                try:
                    self.pending[self.lanes.submit(task)] = task
                except WorkerEndedError:
                    self.suspects += range(at, at + len(task.items))
                at += len(task.items)
            for handle in self.lanes.wait(self.pending, self.bar.patience()) if self.pending else ():
                task = self.pending.pop(handle)
                try:
                    self.take(self.lanes.fetch(handle))
                except WorkerEndedError:
                    self.suspects += range(task.first, task.first + len(task.items))
            self.bar.show(len(self.found))

    def one_by_one(self) -> None:
        for index in self.suspects:
            try:
                handle = self.lanes.submit(Task(self.carrier, self.items[index : index + 1], index))
                self.pending[handle] = Task(self.carrier, (), index)
                while not list(self.lanes.wait([handle], self.bar.patience())):
                    self.bar.show(len(self.found))
                del self.pending[handle]
                self.take(self.lanes.fetch(handle))
            except WorkerEndedError as error:
                self.pending.clear()
                self.found[index] = crashed(str(error))

    def size(self, at: int, width: int) -> int:
        """Return how many of the calls from ``at`` on the next task gets."""
        if self.seconds is None:
            return 1
        size = min(int(SECONDS / max(self.seconds, 1e-9)), (len(self.items) - at) // (2 * width))
        if size > 1:
            size = min(size, BYTES // max(1, sum(getattr(value, "nbytes", 0) for value in self.items[at])))
        return max(size, 1)

    def take(self, batch: Batch) -> None:
        if batch.refused:
            raise forked()
        self.seconds = batch.seconds / max(len(batch.outcomes), 1)
        for index, outcome in enumerate(batch.outcomes, batch.first):
            self.found[index] = opened(outcome)


def crashed(how: str) -> Failed:
    """Return what becomes of a call whose worker ended twice."""
    message = f"its worker ended {how}".rstrip() + " while it ran, as another one had before"
    return Failed("WorkerEndedError", message, "", crashed=True)


def forked() -> OptionError:
    """Build the error for workers that share locks with threads which they do not have."""
    return OptionError(
        "workers: got processes that were forked from this one after it had imported torch, whose threads they do not "
        "have, so that they may wait for ever; expected processes that start afresh; give an int, or make the pool "
        "with `mp_context=multiprocessing.get_context('forkserver')` or 'spawn'."
    )
