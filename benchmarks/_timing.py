"""Times that can be compared: candidates take turns on one thread, and its own CPU time counts."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

KEEPING = {"MALLOC_TOP_PAD_": "500000000", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000"}
"""How glibc is told to keep memory; elsewhere it means nothing."""


def keep_memory() -> None:
    """Start the program again with an allocator that keeps memory.

    Otherwise every large tensor is paged in anew, which costs more than the arithmetic.
    """
    if any(os.environ.get(name) != value for name, value in KEEPING.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEPING})


def medians(candidates: Mapping[str, Callable[[], object]], rounds: int, repeats: int = 1) -> dict[str, float]:
    """Return the median time of each candidate in seconds: in every round each runs once untimed and then timed."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            run()
            start = time.thread_time()
            for _ in range(repeats):
                run()
            found[name].append((time.thread_time() - start) / repeats)
    return {name: statistics.median(times) for name, times in found.items()}


@dataclass(frozen=True)
class Turns:
    """What a candidate took in each of its turns, in seconds, all threads together."""

    wall: list[float]
    cpu: list[float]

    @property
    def seconds(self) -> float:
        """The median time of a turn."""
        return statistics.median(self.wall)

    def ratios(self, base: Turns) -> tuple[float, float]:
        """Return the medians of how many times as long this took as another in the same round: wall and CPU time."""
        wall, cpu = zip(self.wall, base.wall), zip(self.cpu, base.cpu)
        return statistics.median(a / b for a, b in wall), statistics.median(a / max(b, 1e-9) for a, b in cpu)


def in_turns(candidates: Mapping[str, Callable[[], object]], rounds: int, least: float = 0.02) -> dict[str, Turns]:
    """Return what each candidate takes: after one untimed run, one turn in every round, of ``least`` seconds or more.

    For comparisons on several threads, where the time of one thread says nothing.
    """
    repeats = {}
    for name, run in candidates.items():
        run()
        start = time.perf_counter()
        run()
        repeats[name] = max(1, round(least / max(time.perf_counter() - start, 1e-6)))
    found = {name: Turns([], []) for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(repeats[name]):
                run()
            found[name].wall.append((time.perf_counter() - wall) / repeats[name])
            found[name].cpu.append((time.process_time() - cpu) / repeats[name])
    return found
