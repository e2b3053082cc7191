"""Workers that take all calls at once: a callable like ``map``, and joblib."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

from gradwright.errors import OptionError
from gradwright.wrapping.bar import Bar
from gradwright.wrapping.lanes import Items, crashed, forked
from gradwright.wrapping.remote import Batch, Outcome, Task, call, opened
from gradwright.wrapping.shipping import Carrier

Mapping = Callable[[Sequence[Task]], Iterable[Batch]]
"""Does tasks and returns what became of them, in any order."""


def by_map(workers: Callable[..., Iterable[Batch]]) -> Mapping:
    """Return what does tasks with a callable like ``map``."""
    return lambda tasks: workers(call, tasks)


def by_joblib(parallel: Callable[..., Iterable[Batch]]) -> Mapping:
    """Return what does tasks with a ``joblib.Parallel``."""
    delayed = importlib.import_module("joblib").delayed(call)
    return lambda tasks: parallel(delayed(task) for task in tasks)


def spread_whole(mapping: Mapping, function: Callable[..., Any], items: Items, bar: Bar) -> list[Outcome]:
    """Return what became of each call, in order; what a crash has left undone is done again, one by one."""
    carrier = Carrier(function)
    found: dict[int, Outcome] = {}

    def take(tasks: Sequence[Task]) -> None:
        for batch in mapping(tasks):
            if not isinstance(batch, Batch):
                raise OptionError(
                    f"workers: got a callable that turned a result into {batch!r:.80}; expected one like `map`, which "
                    "returns what the function returns for each item; give such a callable."
                )
            if batch.refused:
                raise forked()
            found[batch.first] = opened(batch.outcomes[0])
            bar.show(len(found))
        lacking = [task.first for task in tasks if task.first not in found]
        if lacking:
            raise OptionError(
                f"workers: got a callable that returned nothing for sample {lacking[0]}; expected one like `map`, with "
                "one result for each item; give such a callable."
            )

    tasks = [Task(carrier, [item], index) for index, item in enumerate(items)]
    try:
        take(tasks)
    except BrokenExecutor:
        for task in tasks:
            if task.first not in found:
                _take_alone(take, task, found)
    return [found[index] for index in range(len(items))]


def _take_alone(take: Callable[[Sequence[Task]], None], task: Task, found: dict[int, Outcome]) -> None:
    try:
        take([task])
    except BrokenExecutor as error:
        found[task.first] = crashed(f"({error})")
