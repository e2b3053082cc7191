"""The option ``workers``: who does the calls of a batch, and in what order they come back."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from gradwright.errors import OptionError, kind_of
from gradwright.wrapping.bar import Bar
from gradwright.wrapping.clusters import ActorLanes, DaskLanes, RayLanes
from gradwright.wrapping.lanes import Items, Lanes, spread
from gradwright.wrapping.processes import ExecutorLanes, ProcessLanes, ThreadLanes
from gradwright.wrapping.remote import Outcome, call_one, is_inside
from gradwright.wrapping.whole import by_joblib, by_map, spread_whole

Way: TypeAlias = Callable[[Callable[..., Any], Items, Bar], "list[Outcome]"]
"""Does the calls."""

PARALLEL = "joblib.parallel.Parallel"
CLIENT = "distributed.client.Client"
ACTOR_POOL = "ray.util.actor_pool.ActorPool"
ACTOR = "ray.actor.ActorHandle"

EXPECTED = (
    "expected a number of workers, a callable like `map`, a concurrent.futures.Executor, a joblib.Parallel, a "
    "dask.distributed.Client, a ray.util.ActorPool, a list of Ray actors, or 'ray'; give one of them"
)


class Pool:
    """The workers that do the calls of a function.

    Arguments:
        lanes: gives the workers, where they are given one task after another.
        way: does the calls, where they are given all at once.

    Example:
        >>> with pool_of(2, name="power", releases_gil=True) as pool:
        ...     [outcome.value for outcome in pool.map(pow, [(2, 3), (3, 2)])]
        [8, 9]
    """

    def __init__(self, lanes: Lanes | None = None, way: Way | None = None) -> None:
        self._lanes = lanes
        self._way = way
        self._pid = os.getpid()

    def map(self, function: Callable[..., Any], items: Items, *, progress: str | None = None) -> list[Outcome]:
        """Call the function with each tuple of arguments.

        Inside a worker the calls are done one after another, without workers of their own.

        Arguments:
            function: the function.
            items: the arguments of each call.
            progress: what the progress bar says, which long batches show on a terminal; None for no bar.

        Returns:
            What became of each call, in order.

        Raises:
            OptionError: the workers cannot be used, or something cannot be sent to them.
            MissingDependencyError: something can only be sent to them with a package that is not installed.
        """
        items = list(items)
        if not items or is_inside() or not self._may_start():
            return [call_one(function, item) for item in items]
        with Bar(progress, len(items)) as bar:
            if self._lanes is None:
                assert self._way is not None
                return self._way(function, items, bar)
            if self._pid != os.getpid() and isinstance(self._lanes, (ThreadLanes, ProcessLanes)):
                # This process was forked, and has what the other one knows of its workers, but not the workers.
                self._lanes, self._pid = own_lanes(type(self._lanes), self._lanes.width), os.getpid()
            with self._lanes.lock:
                return spread(self._lanes, function, items, bar)

    def close(self) -> None:
        """End the workers, if they are ours; whoever uses them later starts them again."""
        if self._lanes is not None and self._pid == os.getpid():
            with self._lanes.lock:
                self._lanes.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _may_start(self) -> bool:
        """Tell whether this process may have others: a daemonic one, as a DataLoader's worker, may not."""
        return not (isinstance(self._lanes, ProcessLanes) and multiprocessing.current_process().daemon)


def pool_of(workers: Any, *, name: str, releases_gil: bool) -> Pool:
    """Return the workers that an option stands for; nothing is started before they are used.

    Arguments:
        workers: an int, a map-like callable, an ``Executor``, a ``joblib.Parallel``, a Dask client, a Ray actor pool,
            a list of Ray actors, or ``"ray"`` for tasks on the cluster that is running.
        name: of the function, for messages.
        releases_gil: whether an int means threads; otherwise it means processes.

    Raises:
        OptionError: it is nothing of the kind.
        MissingDependencyError: ``"ray"`` without Ray.
    """
    if isinstance(workers, int) and not isinstance(workers, bool):
        if workers < 1:
            raise _wrong(name, workers, f"expected at least 1; this machine has {os.cpu_count()} processors")
        return Pool(own_lanes(ThreadLanes if releases_gil else ProcessLanes, workers))
    if isinstance(workers, (str, list, tuple)):
        return Pool(_ray_lanes(workers, name))
    if isinstance(workers, Executor):
        return Pool(ExecutorLanes(workers))
    kind = _library_class(workers)
    if kind == ACTOR_POOL:
        return Pool(ActorLanes(name, pool=workers))
    if kind == CLIENT:
        if workers.asynchronous:
            raise _wrong(name, workers, "expected a Dask client with `asynchronous=False`; make one")
        return Pool(DaskLanes(workers))
    if kind == PARALLEL:
        return Pool(way=partial(spread_whole, by_joblib(workers)))
    if workers is map or (callable(workers) and not isinstance(workers, type) and kind != ACTOR):
        return Pool(way=partial(spread_whole, by_map(workers)))
    raise _wrong(name, workers, EXPECTED)


def own_lanes(kind: type[Lanes], count: int) -> Lanes:
    """Return so many threads or processes of our own, the same ones for everybody who uses them in this process."""
    key = (os.getpid(), kind, count)
    with _own_lock:
        lanes = _own.get(key)
        if lanes is None:
            lanes = _own[key] = kind(count)  # type: ignore[call-arg]
        return lanes


_own: WeakValueDictionary[tuple[int, type[Lanes], int], Lanes] = WeakValueDictionary()
_own_lock = threading.Lock()


def _ray_lanes(workers: Any, name: str) -> Lanes:
    if workers == "ray":
        return RayLanes(name)
    if isinstance(workers, str) or not workers or any(_library_class(each) != ACTOR for each in workers):
        raise _wrong(name, workers, EXPECTED)
    return ActorLanes(name, actors=workers)


def _library_class(value: Any) -> str | None:
    """Return which of the classes of other libraries a value is of, without importing them."""
    names = (f"{each.__module__}.{each.__qualname__}" for each in type(value).__mro__)
    return next((each for each in names if each in (PARALLEL, CLIENT, ACTOR_POOL, ACTOR)), None)


def _wrong(name: str, workers: Any, expected: str) -> OptionError:
    what = repr(workers) if isinstance(workers, (int, str)) else kind_of(workers)
    if isinstance(workers, type):
        what = f"the class {workers.__name__}"
    return OptionError(f"{name}: workers: got {what}; {expected}.")
