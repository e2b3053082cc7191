"""Times that can be compared: candidates take turns on one thread, and its own CPU time counts."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping

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
