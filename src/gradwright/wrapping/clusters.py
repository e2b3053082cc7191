"""Workers on other machines, which Ray and Dask know of; gradwright starts no cluster of its own.

Large arrays are put where the workers fetch them, and those that several calls share only once.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import Any

from gradwright.errors import MissingDependencyError, OptionError, describe_exception
from gradwright.wrapping.lanes import Items, Lanes, WorkerEndedError
from gradwright.wrapping.parcels import LARGE
from gradwright.wrapping.remote import Batch, Placed, Task, call, call_on, may_write

SECONDS_TO_RESTART = 60.0
"""How long an actor that ended is waited for."""


class ClusterLanes(Lanes):
    """What Ray and Dask have in common: large arrays travel by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 1
        self._times: Counter[int] = Counter()
        self._shared: dict[int, Any] = {}

    def begin(self, items: Items) -> None:
        """Count the large arrays."""
        self.width = max(self.processors(), 1)
        self._times = Counter(id(value) for item in items for value in item if _is_large(value))

    def finish(self) -> None:
        """Let the arrays go."""
        self._times.clear()
        self._shared.clear()

    def submit(self, task: Task) -> Any:
        """Hand a task out, and its large arrays beside it."""
        places: list[Any] = []
        items = [tuple(self._placed(value, places) for value in item) for item in task.items]
        task.carrier.pack()
        return self.send(Task(task.carrier, items, task.first), places)

    def processors(self) -> int:
        """Return how many calls the cluster can do at a time."""
        raise NotImplementedError

    def place(self, array: Any) -> Any:
        """Put an array where workers fetch it."""
        raise NotImplementedError

    def send(self, task: Task, places: list[Any]) -> Any:
        """Hand a task out, with the places of its arrays."""
        raise NotImplementedError

    def ended(self, error: Exception) -> WorkerEndedError:
        """Return what a crash is reported as; arrays may be lost with a worker, and are put there again."""
        self._shared.clear()
        return WorkerEndedError(f"({describe_exception(error)})")

    def _placed(self, value: Any, places: list[Any]) -> Any:
        if not _is_large(value):
            return value
        if id(value) not in self._shared:
            place = self.place(value)
            if self._times[id(value)] > 1:
                self._shared[id(value)] = place
        else:
            place = self._shared[id(value)]
        places.append(place)
        return Placed(len(places) - 1, may_write(value))


class DaskLanes(ClusterLanes):
    """The workers of a Dask client."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client
        self._distributed = importlib.import_module("distributed")

    def processors(self) -> int:  # noqa: D102
        return sum(self._client.nthreads().values())

    def place(self, array: Any) -> Any:  # noqa: D102
        return self._client.scatter(array, hash=False)

    def send(self, task: Task, places: list[Any]) -> Any:  # noqa: D102
        # Dask would otherwise take equal arguments for the same call.
        return self._client.submit(call, task, *places, pure=False)

    def wait(self, handles: Iterable[Any], seconds: float | None) -> list[Any]:  # noqa: D102
        handles = list(handles)
        # A call that was cancelled is done as well.
        with contextlib.suppress(TimeoutError, self._distributed.TimeoutError, CancelledError):
            self._distributed.wait(handles, timeout=seconds, return_when="FIRST_COMPLETED")
        return [handle for handle in handles if handle.status != "pending"]

    def fetch(self, handle: Any) -> Batch:  # noqa: D102
        try:
            return handle.result()  # type: ignore[no-any-return]
        except CancelledError as error:  # an array that it needs was lost
            raise self.ended(error) from error
        except self._distributed.KilledWorker as error:
            raise self.ended(error) from error

    def abandon(self, handles: Iterable[Any]) -> None:  # noqa: D102
        self._client.cancel(list(handles), force=True)


class RayLanes(ClusterLanes):
    """Tasks on the Ray cluster that is running."""

    def __init__(self, name: str) -> None:
        super().__init__()
        try:
            self._ray = importlib.import_module("ray")
        except ImportError as error:
            raise MissingDependencyError(
                f"{name}: `workers='ray'` needs Ray, which is not installed; expected it to be; install it with "
                "`pip install 'gradwright[ray]'`."
            ) from error
        self._name = name
        self._call = self._ray.remote(max_retries=0)(call)

    def processors(self) -> int:  # noqa: D102
        if not self._ray.is_initialized():
            raise OptionError(
                f"{self._name}: got workers='ray' where no Ray cluster is running; expected one; call `ray.init()` "
                "first, or give an int for the workers of this machine."
            )
        return int(self._ray.cluster_resources().get("CPU", 1))

    def place(self, array: Any) -> Any:  # noqa: D102
        return self._ray.put(array)

    def send(self, task: Task, places: list[Any]) -> Any:  # noqa: D102
        return self._call.remote(task, *places)

    def wait(self, handles: Iterable[Any], seconds: float | None) -> list[Any]:  # noqa: D102
        return self._ray.wait(list(handles), timeout=seconds)[0]  # type: ignore[no-any-return]

    def fetch(self, handle: Any) -> Batch:  # noqa: D102
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)  # type: ignore[no-any-return]
        except (
            errors.WorkerCrashedError,
            errors.RayActorError,
            errors.OutOfMemoryError,
            errors.NodeDiedError,
            errors.ObjectLostError,
        ) as error:
            raise self.ended(error) from error

    def abandon(self, handles: Iterable[Any]) -> None:
        """End the workers of these tasks."""
        for handle in handles:
            with contextlib.suppress(Exception):
                self._ray.cancel(handle, force=True)


class ActorLanes(RayLanes):
    """Ray actors of the user's, of any class; one that ends is left out.

    Arguments:
        name: of the function, for messages.
        actors: the actors.
        pool: an actor pool to take them from, in place of ``actors``.
    """

    def __init__(self, name: str, actors: Iterable[Any] = (), pool: Any = None) -> None:
        super().__init__(name)
        self._actors = list(actors)
        self._pool = pool
        self._busy: dict[Any, Any] = {}

    def begin(self, items: Items) -> None:
        """Take the actors that are idle out of the pool."""
        if self._pool is not None:
            while (actor := self._pool.pop_idle()) is not None:
                self._actors.append(actor)
        super().begin(items)

    def finish(self) -> None:
        """Put the actors back into the pool."""
        super().finish()
        self._busy.clear()
        if self._pool is not None:
            for actor in self._actors:
                self._pool.push(actor)
            self._actors.clear()

    def processors(self) -> int:  # noqa: D102
        if not self._actors:
            raise OptionError(
                f"{self._name}: got workers without a Ray actor that is alive and idle; expected at least one; give "
                "new actors, or wait for the other work of the pool."
            )
        return len(self._actors)

    def send(self, task: Task, places: list[Any]) -> Any:
        """Hand a task to the actor that has the least to do."""
        if not self._actors:
            raise WorkerEndedError("(no Ray actor is left)")
        load = Counter(id(actor) for actor in self._busy.values())
        actor = min(self._actors, key=lambda each: load[id(each)])
        handle = actor.__ray_call__.remote(call_on, task, *places)
        self._busy[handle] = actor
        return handle

    def fetch(self, handle: Any) -> Batch:
        """Return what became of a task."""
        actor = self._busy.pop(handle)
        try:
            return super().fetch(handle)
        except WorkerEndedError as error:
            # One that Ray starts again can be used again.
            if not isinstance(error.__cause__, self._ray.exceptions.ActorUnavailableError) and not self._lives(actor):
                self._actors = [each for each in self._actors if each is not actor]
            raise

    def abandon(self, handles: Iterable[Any]) -> None:
        """Cancel what has not begun; the actors themselves are the user's."""
        for handle in handles:
            with contextlib.suppress(Exception):
                self._ray.cancel(handle)

    def _lives(self, actor: Any) -> bool:
        try:
            self._ray.get(actor.__ray_ready__.remote(), timeout=SECONDS_TO_RESTART)
        except self._ray.exceptions.RayError:
            return False
        return True


def _is_large(value: Any) -> bool:
    """Tell whether a value is an array that should travel by itself."""
    return getattr(value, "nbytes", 0) >= LARGE and hasattr(value, "flags")
