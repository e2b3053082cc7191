"""What it costs a program to be watched: a call, a training step, and whether the trained weights stay the same.

A call is measured in two states: *looked at*, as each of the first calls of a Function is, and *known*, as nearly all
later ones are. The step trains a model of twelve layers, each with three custom gradients. With and without the
recorder take turns, and the fastest of many rounds counts for a call, the median of the ratios for a step.

    python benchmarks/watch_overhead.py                   # everything
    python benchmarks/watch_overhead.py --quick           # that it runs: few rounds
    python benchmarks/watch_overhead.py --write           # puts the table into docs/watch.md
    python benchmarks/watch_overhead.py --json FILE       # writes rows of figures
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from _pages import table_of, write_tables  # noqa: E402

from gradwright.watching import recorder as recording  # noqa: E402
from gradwright.watching.recorder import Recorder  # noqa: E402

PAGE = ROOT / "docs" / "watch.md"
CALLS = 200
MOST_A_CALL = 2.0
"""Microseconds."""
MOST_A_STEP = 1.01
LAYERS, WIDTH, BATCH = 12, 256, 64
Row = dict[str, Any]


class Total(Function):
    """The exponential of the sum of its inputs."""

    @staticmethod
    def forward(ctx: Any, *xs: Tensor) -> Tensor:
        out = sum(xs[1:], xs[0]).exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return (g * out,) * len(ctx.needs_input_grad)


class Round(Function):
    """Straight-through rounding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 16).round() / 16

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Swish(Function):
    """``x sigmoid(x)``, of which only ``x`` is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return g * (s + x * s * (1 - s))


class Scale(Function):
    """A gradient of another size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.by, None


class Layer(nn.Module):
    """A layer with three custom gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + Scale.apply(Swish.apply(self.linear(Round.apply(x))), 0.5)


def main() -> int:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few rounds: that it runs")
    parser.add_argument("--write", action="store_true", help="put the table into docs/watch.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 3 if options.quick else 60
    rows = [row for count in (1, 3, 8) for row in calls(count, rounds)]
    rows += [*both_ways(rounds), step(rounds), same_weights(3 if options.quick else 30)]
    table = table_of(rows)
    print(table)
    if options.write:
        write_tables(PAGE, {"cost": table})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


@contextmanager
def watched(recorder: Recorder) -> Iterator[None]:
    """Record within the block."""
    recorder.start()
    try:
        yield
    finally:
        recorder.stop()


def seconds(run: Callable[[], object]) -> float:
    """Return the CPU time of this thread for one of many runs."""
    start = time.thread_time()
    for _ in range(CALLS):
        run()
    return (time.thread_time() - start) / CALLS


def compared(name: str, run: Callable[[], object], xs: list[Tensor], rounds: int) -> Iterator[Row]:
    """Give what a call costs more in both states."""
    recorder = Recorder()
    with watched(recorder):
        run()
        Total.apply(*xs).sum().backward()
    found: dict[str, list[float]] = {"plain": [], "looked at": [], "known": []}
    usual = recording.MANY
    for _ in range(rounds):
        found["plain"].append(seconds(run))
        for state, many in (("looked at", sys.maxsize), ("known", 0)):
            recording.MANY = many
            with watched(recorder):
                found[state].append(seconds(run))
    recording.MANY = usual
    plain = min(found["plain"])
    for state in ("looked at", "known"):
        more = (min(found[state]) - plain) * 1e6
        yield {"name": f"{name}, {state}: more per call", "value": more, "unit": "us", "against": "not watched"} | {
            "ratio": min(found[state]) / plain,
            "goal": f"{MOST_A_CALL} us",
            "met": more <= MOST_A_CALL,
        }


def calls(count: int, rounds: int) -> Iterator[Row]:
    """Give what the forward of a Function costs more."""
    xs = [torch.randn(4, requires_grad=True) for _ in range(count)]
    Total.apply(*xs)
    yield from compared(f"forward, {count} input{'s' if count > 1 else ''}", lambda: Total.apply(*xs), xs, rounds)


def both_ways(rounds: int) -> Iterator[Row]:
    """Give what forward and backward cost more together."""
    x = torch.randn(4, requires_grad=True)
    yield from compared("forward and backward, 1 input", lambda: Total.apply(x).sum().backward(), [x], rounds)


def training() -> Callable[[], object]:
    """Return a function that does one step of training."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(1)

    def run() -> nn.Module:
        x = torch.randn(BATCH, WIDTH, generator=batches)
        loss = (model(x) - x.roll(1, dims=1)).square().mean() * (1 + 0.1 * torch.rand(()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return model

    return run


def step(rounds: int) -> Row:
    """Return what a step costs more, once the recorder knows the calls."""
    run, recorder = training(), Recorder()
    with watched(recorder):
        for _ in range(2 if rounds < 10 else 25):
            run()
    ratios = []
    for _ in range(rounds * 2):
        start = time.thread_time()
        run()
        plain = time.thread_time() - start
        with watched(recorder):
            start = time.thread_time()
            run()
            ratios.append((time.thread_time() - start) / plain)
    ratio = statistics.median(ratios)
    return {"name": "training step, 36 custom gradients", "value": 100 * (ratio - 1), "unit": "% more"} | {
        "against": "not watched",
        "ratio": ratio,
        "goal": "1 %",
        "met": ratio <= MOST_A_STEP,
    }


def same_weights(steps: int) -> Row:
    """Return how many weights of two trainings differ, one of them watched, in any bit."""
    models = []
    for watch in (False, True):
        run = training()
        with watched(Recorder()) if watch else _nothing():
            for _ in range(steps):
                model = run()
        models.append(model)
    plain, other = (list(model.parameters()) for model in models)
    apart = sum(int((a != b).sum()) for a, b in zip(plain, other))
    return {"name": f"weights that differ after {steps} steps", "value": float(apart), "unit": "weights"} | {
        "against": "not watched",
        "ratio": None,
        "goal": "0",
        "met": apart == 0,
    }


@contextmanager
def _nothing() -> Iterator[None]:
    yield


if __name__ == "__main__":
    sys.exit(main())
