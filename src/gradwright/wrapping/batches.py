"""Batches: how the samples of a ``vmap`` reach foreign code.

Every array of a batch has the same number of leading dimensions, one for each ``vmap`` around the call; those in which
it is not batched have size 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from gradwright.errors import ExternalError
from gradwright.wrapping.calculus import Calculus
from gradwright.wrapping.place import Point
from gradwright.wrapping.remote import Failed, Outcome

VmapMethod: TypeAlias = Literal["sequential", "expand_dims", "broadcast_all", "workers"] | None
VMAP_METHODS = ("sequential", "expand_dims", "broadcast_all", "workers")


@dataclass
class Batch:
    """What one map is given for a batch."""

    depth: int
    """The number of leading dimensions."""
    args: list[Any]
    leading: dict[str, list[Any]]
    """Cotangents and tangents."""
    outs: list[Any] | None
    constants: frozenset[int] = frozenset()
    """The positions of arguments that were no tensors, and are the same for all samples, also where they are arrays."""

    @property
    def arrays(self) -> list[Any]:
        """Everything that has the leading dimensions."""
        every = [*self.tensors, *(part for parts in self.leading.values() for part in parts), *(self.outs or ())]
        return [each for each in every if isinstance(each, np.ndarray)]

    @property
    def tensors(self) -> list[Any]:
        """The arguments that have the leading dimensions."""
        return [arg for i, arg in enumerate(self.args) if i not in self.constants]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the batch."""
        return np.broadcast_shapes(*(array.shape[: self.depth] for array in self.arrays))

    @property
    def size(self) -> int:
        """How many samples there are."""
        return int(np.prod(self.shape))

    @property
    def shared(self) -> bool:
        """Whether all samples have the same arguments, and only cotangents or tangents differ."""
        return all(set(a.shape[: self.depth]) <= {1} for a in self.tensors if isinstance(a, np.ndarray))

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Give where each sample is, in order."""
        yield from np.ndindex(*self.shape)

    def sample(self, index: tuple[int, ...]) -> Batch:
        """Return one sample."""

        def taken(a: Any) -> Any:
            place: tuple[Any, ...] = tuple(i if n > 1 else 0 for i, n in zip(index, a.shape))
            place += (...,)  # with the dots a number stays an array
            return a[place]

        return self._mapped(taken, depth=0)

    def broadcast(self) -> Batch:
        """Return the batch with every array of the same leading sizes."""
        shape = self.shape
        return self._mapped(lambda a: np.broadcast_to(a, (*shape, *a.shape[self.depth :])), depth=self.depth)

    def flattened(self) -> Batch:
        """Return the batch with one leading dimension."""
        whole, size = self.broadcast(), self.size
        return whole._mapped(lambda a: a.reshape(size, *a.shape[self.depth :]), depth=1)

    def _mapped(self, function: Callable[[Any], Any], depth: int) -> Batch:
        def mapped(value: Any) -> Any:
            return function(value) if isinstance(value, np.ndarray) else value

        leading = {word: [mapped(part) for part in parts] for word, parts in self.leading.items()}
        outs = None if self.outs is None else [mapped(out) for out in self.outs]
        args = [a if i in self.constants else mapped(a) for i, a in enumerate(self.args)]
        return replace(self, depth=depth, args=args, leading=leading, outs=outs)


def each(
    calculus: Calculus,
    kind: str,
    batch: Batch,
    run: Callable[[tuple[int, ...]], Sequence[Any]],
    pool: Any,
    needed: Sequence[bool],
    empties: Callable[[Any, Batch], list[Any] | None],
) -> Sequence[Any]:
    """Run a map on each sample, in a pool of workers where there is one, and put the results together."""
    host = calculus.host
    parts: list[Sequence[Any] | None] = []
    results = None if pool is None else _in_pool(calculus, kind, batch, pool, needed)
    for number, index in enumerate(batch.indices()):
        if kind == "pull" and host.on_error == "nan" and _is_filled(batch.sample(index)):
            parts.append(None)
            continue
        try:
            parts.append(run(index) if results is None else results[number](index))
        except ExternalError as error:
            if error.index is None:
                error.index = index
            parts.append(_instead(calculus, error, index, batch, kind))
    known = empties(kind, batch)
    return stacked(parts, batch, host.name, known)


def _is_filled(sample: Batch) -> bool:
    """Tell whether the result of a sample was filled with nan, since it failed."""
    outs = [out for out in sample.outs or () if out is not None and out.size]
    return bool(outs) and all(out.dtype.kind in "fc" and bool(np.isnan(out).all()) for out in outs)


def _instead(calculus: Calculus, error: ExternalError, index: tuple[int, ...], batch: Batch, kind: str) -> Any:
    """Return what stands for the result of a sample that failed; None for nan."""
    policy = calculus.host.on_error
    if policy == "raise":
        raise error
    if policy == "nan" or kind != "batch":
        return None
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    returned = policy(cause, index, tuple(batch.sample(index).args))
    return calculus.host.read([returned], ())[0]


def stacked(
    parts: Sequence[Sequence[Any] | None], batch: Batch, name: str, known: Sequence[Any] | None = None
) -> list[Any]:
    """Return the results of all samples as arrays with the leading dimensions of the batch; None for zero stays.

    Raises:
        ExternalError: the results differ in shape, or there is none to tell it.
    """
    model = next((part for part in parts if part is not None), None)
    if model is None and known is None:
        why = "every sample failed" if parts else "the batch is empty"
        raise ExternalError(
            f"{name}: nothing tells the shape of its results, since {why}; expected a declaration; write "
            "out=gw.like(0) or out=gw.spec(shape)."
        )
    shapes = [None if part is None else np.shape(part) for part in model] if model is not None else list(known or ())
    found: list[Any] = []
    for i, shape in enumerate(shapes):
        if shape is None:
            found.append(None)
            continue
        dtype = np.result_type(*{part[i].dtype for part in parts if part is not None} or {np.dtype(float)})
        if any(part is None for part in parts):
            dtype = np.result_type(dtype, np.float32)  # nan
        whole = np.empty((len(parts), *shape), dtype=dtype)
        for number, part in enumerate(parts):
            if part is not None and part[i].shape != tuple(shape):
                raise ExternalError(
                    f"{name}: it returned an array of shape {part[i].shape} for sample {number} of the batch, and of "
                    f"{tuple(shape)} for another; expected one shape for all; pad the results."
                )
            whole[number] = np.nan if part is None else part[i]
        found.append(whole.reshape(*batch.shape, *shape))
    return found


def _in_pool(calculus: Calculus, kind: str, batch: Batch, pool: Any, needed: Sequence[bool]) -> Any:
    """Run a batch in a pool; return for each sample what gives its result or raises, None where it must be run here."""
    host = calculus.host
    samples = [batch.sample(index) for index in batch.indices()]
    points = [Point(host, sample.args, sample.outs) for sample in samples]
    jobs: list[Any] = []
    if kind == "batch" and not host.by_keyword and host.memory is None:
        jobs = [(host.function, tuple(host.given(sample.args))) for sample in samples]
        host.calls += len(samples)
    elif kind != "batch":
        given = [(at, sample.leading["g"], sample.leading["t"]) for at, sample in zip(points, samples)]
        jobs = [calculus.job(kind, at, g, t, needed) for at, g, t in given]
    if not jobs or None in jobs:
        return None
    outcomes = pool.map(jobs[0][0], [arguments for _, arguments in jobs], progress=host.name)
    return [functools.partial(result_of, calculus, kind, *each) for each in zip(outcomes, points)]


def result_of(
    calculus: Calculus, kind: str, outcome: Outcome, at: Point, index: tuple[int, ...] | None
) -> Sequence[Any]:
    """Return what a worker made of a sample.

    Raises:
        ExternalError: it failed.
    """
    if isinstance(outcome, Failed):
        what = f"{outcome.type_name}: {outcome.message}" if outcome.message else outcome.type_name
        raise calculus.host.said(what, outcome.traceback, at.values, index)
    box = [outcome.value]
    return calculus.host.read(box, at.values)[0] if kind == "batch" else calculus.done(kind, box, at)
