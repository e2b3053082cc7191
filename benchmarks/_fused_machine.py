"""What the machine can do at best, and from that how long a call must take at least.

Three limits: how many products a second a matrix product does, how many bytes a second pass between memory and
processor, and how many bytes a second of fresh memory can be touched for the first time, which the operating system
has to clear before. Large tensors come from fresh memory unless the allocator keeps what it once got.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from _timing import KEEPING
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

FRESH = 32 * 1024 * 1024
"""From so many bytes on, glibc always takes a tensor from fresh memory and gives it back when it is freed."""


@dataclass(frozen=True)
class Machine:
    """The limits, a second."""

    threads: int
    allocator: str
    flops: float
    """Of a matrix product in float32."""
    traffic: float
    """Bytes read or written."""
    first_touch: float | None
    """Bytes; None where the allocator keeps memory, so that nothing is touched for the first time."""
    dispatch: float
    """Seconds for a call of an operator on a few numbers."""

    def least(self, work: Work) -> float:
        """Return how many seconds something takes at least."""
        fresh = 0.0 if self.first_touch is None else work.fresh / self.first_touch
        return max(work.flops / self.flops, work.traffic / self.traffic) + fresh

    def table(self) -> str:
        """Return the limits as a Markdown table."""
        touch = "none: memory is kept" if self.first_touch is None else f"{self.first_touch / 1e9:.1f} GB/s"
        lines = [
            "| | |",
            "|---|---|",
            f"| processor | {processor()}, {self.threads} threads |",
            f"| PyTorch | {torch.__version__} |",
            f"| allocator | {self.allocator} |",
            f"| matrix product, float32 | {self.flops / 1e9:.0f} GFLOP/s |",
            f"| memory traffic | {self.traffic / 1e9:.1f} GB/s |",
            f"| first touch of fresh memory | {touch} |",
            f"| a call of an operator | {self.dispatch * 1e6:.1f} µs |",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Work:
    """What a call with its backward cannot do without."""

    flops: float
    """Of matrix products, as PyTorch counts them."""
    traffic: float
    """Bytes: arguments are read in either direction, outputs written, cotangents read, gradients written."""
    fresh: float
    """Bytes of outputs and gradients so large that they are fresh memory."""


def work_of(
    run: Callable[[], object], args: Iterable[object], outs: Iterable[Tensor], leaves: Iterable[Tensor]
) -> Work:
    """Return what forward and backward of a call have to do; ``run`` does both in the plain way."""
    counter = FlopCounterMode(display=False)
    with counter:
        run()
    given = sum(_bytes(x) for x in args if isinstance(x, Tensor))
    made = [_bytes(x) for x in outs]
    grads = [_bytes(x) for x in leaves]
    fresh = sum(size for size in made + grads if size >= FRESH)
    return Work(counter.get_total_flops(), 2 * given + 2 * sum(made) + sum(grads), fresh)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def measured_machine(quick: bool) -> Machine:
    """Measure the limits, with as many threads as PyTorch has."""
    shape = (64, 64, 64) if quick else (2048, 512, 32000)
    tries = 3 if quick else 9
    a, b = torch.randn(shape[0], shape[1]), torch.randn(shape[1], shape[2])
    out = torch.empty(shape[0], shape[2])
    product = _best(lambda: torch.mm(a, b, out=out), tries)
    size = 1 << 16 if quick else 1 << 26
    copy, again = _copy_and_fill(size, tries)
    fresh = _best(lambda: torch.empty(size).fill_(2.0), tries)
    few = torch.ones(2)

    def thousand() -> None:
        for _ in range(1000):
            few.neg_()

    kept = keeps_memory()
    return Machine(
        threads=torch.get_num_threads(),
        allocator=allocator(),
        flops=2 * shape[0] * shape[1] * shape[2] / product,
        traffic=8 * size / copy,
        first_touch=None if kept else 4 * size / max(fresh - again, 1e-9),
        dispatch=_best(thousand, tries) / 1000,
    )


def _copy_and_fill(size: int, tries: int) -> tuple[float, float]:
    source, goal = torch.ones(size), torch.ones(size)
    return _best(lambda: goal.copy_(source), tries), _best(lambda: goal.fill_(2.0), tries)


def _best(run: Callable[[], object], tries: int) -> float:
    found = []
    for _ in range(tries):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def keeps_memory() -> bool:
    """Tell whether glibc was told to keep the memory that it once got."""
    return all(os.environ.get(name) == value for name, value in KEEPING.items())


def allocator() -> str:
    """Return what gives memory to PyTorch, in words."""
    maps = Path("/proc/self/maps")
    other = re.search(r"(jemalloc|tcmalloc|mimalloc)", maps.read_text(encoding="utf-8")) if maps.exists() else None
    if other:
        return other[1]
    library = "CS_GNU_LIBC_VERSION"
    name = os.confstr(library) if library in getattr(os, "confstr_names", ()) else f"of {platform.system()}"
    return f"{name}, {'told to keep memory' if keeps_memory() else 'its default'}"


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8")) if info.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()
