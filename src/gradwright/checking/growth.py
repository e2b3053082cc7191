"""How much larger a forward becomes with its inputs, seen before it is run: the outer product of two long vectors.

Forward is watched at the sizes that were run. What it would make at a larger one follows from how many dimensions of
its results have that size, and from how results and time grew so far.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.typing import Level

MAX_RESULT: dict[Level, float] = {"quick": 5e5, "standard": 2e6, "full": 1.6e7}
"""Largest number of elements that one result within forward may have; a few such are alive at a time."""
MAX_SECONDS: dict[Level, float] = {"quick": 0.05, "standard": 0.2, "full": 5.0}
"""Longest that one forward may take."""
MEASURABLE = 1e-3
"""A forward faster than this, in seconds, tells nothing of how time grows."""


@dataclass(frozen=True)
class Watched:
    """What one forward made, and how long it took."""

    shapes: frozenset[tuple[int, ...]]
    seconds: float

    @property
    def largest(self) -> int:
        """Elements of the largest result."""
        return max(map(math.prod, self.shapes), default=0)


def watch(case: Case) -> Watched | None:
    """Run forward and look at every result within it; None when it does not run under a recorder."""
    shapes: set[tuple[int, ...]] = set()

    def look(_: Any, result: Any) -> None:
        for out in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(out, Tensor) and out.layout == torch.strided:
                shapes.add(tuple(out.shape))

    start = time.perf_counter()
    try:
        with torch_compat.watch_operations(look):
            case.forward()
    except Exception:
        return None
    return Watched(frozenset(shapes), time.perf_counter() - start)


class Growth:
    """What is known of a forward as one of its sizes grows.

    Arguments:
        level: of the check, which sets the limits.
        size: the size on the sample.
        seen: what forward made there, or None when that is not known.
    """

    def __init__(self, level: Level, size: int, seen: Watched | None) -> None:
        self.level = level
        self.points = [(size, seen)] if seen is not None and size else []

    def add(self, case: Case, size: int) -> None:
        """Watch forward at another size."""
        seen = watch(case) if size and (not self.points or size > self.points[-1][0]) else None
        if seen is not None:
            self.points.append((size, seen))

    def refusal(self, new: int) -> str | None:
        """Say why forward should not be run at a larger size, or return None."""
        if not self.points or new <= self.points[-1][0]:
            return None
        size, last = self.points[-1]
        ratio = new / size
        elements = max((math.prod(s) * ratio ** s.count(size) for s in last.shapes), default=0.0)
        seconds = 0.0
        if len(self.points) > 1:
            smaller, before = self.points[-2]
            step = math.log(ratio) / math.log(size / smaller)
            elements = max(elements, last.largest * (last.largest / max(before.largest, 1)) ** step)
            if last.seconds > MEASURABLE:
                seconds = last.seconds * max(last.seconds / before.seconds, 1.0) ** step
        if elements > MAX_RESULT[self.level]:
            return f"a result of about {elements:.0e} elements"
        return f"about {seconds:.0e} s for each forward" if seconds > MAX_SECONDS[self.level] else None
