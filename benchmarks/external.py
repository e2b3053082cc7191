"""What a foreign function costs, beside the ways to wrap it by hand, in the same run.

NumPy's sine of float64 is wrapped as a Function in the old style (the least that works), as one in the style that
``torch.func`` needs, as a ``custom_op`` with ``register_autograd``, and with ``gw.external``; forward and backward, for
10 and 10,000 elements. Then a batch of 1,024 rows under ``vmap``: one call a row, by PyTorch and by ``gw.external``,
against the rule for batches. The ways take turns; medians of the ratios in each round count.

    python benchmarks/external.py                  # everything
    python benchmarks/external.py --quick          # that it runs: few rounds
    python benchmarks/external.py --write          # puts the table into docs/external.md
    python benchmarks/external.py --json FILE      # writes rows of figures
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from _pages import table_of, write_tables  # noqa: E402

import gradwright as gw  # noqa: E402

PAGE = ROOT / "docs" / "external.md"
SIZES = (10, 10_000)
ROWS = 1024
BY_HAND, SPLIT, OPERATOR, OURS = "Function, forward(ctx, ...)", "Function, setup_context", "custom_op", "gw.external"
Row = dict[str, Any]


class OldSine(Function):
    """The least that works."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.numpy() * np.cos(x.detach().numpy()))


class NewSine(Function):
    """The same for ``torch.func``, as far as it goes there."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.numpy() * np.cos(x.detach().numpy()))


@torch.library.custom_op("gradwright_benchmark::sine", mutates_args=())
def operator(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy()))


operator.register_fake(torch.empty_like)
operator.register_autograd(
    lambda ctx, g: torch.from_numpy(g.numpy() * np.cos(ctx.saved_tensors[0].detach().numpy())),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@gw.external(out=gw.like("x"))
def sine(x):
    return np.sin(x)


@sine.register_vjp
def sine_vjp(g, x):
    return g * np.cos(x)


@gw.external(out=gw.like("x"))
def in_batches(x):
    return np.sin(x)


@in_batches.register_vjp
def in_batches_vjp(g, x):
    return g * np.cos(x)


in_batches.register_vmap(np.sin, vjp=lambda g, x: g * np.cos(x))

WAYS: Mapping[str, Callable[..., Tensor]] = {
    BY_HAND: OldSine.apply,
    OURS: sine,
    SPLIT: NewSine.apply,
    OPERATOR: operator,
}


def in_turns(candidates: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Return seconds a call in each round."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            for _ in range(calls):
                run()
            found[name].append((time.perf_counter() - start) / calls)
    return found


def forward_and_backward(function: Callable[..., Tensor], x: Tensor, g: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(function(x), x, g)


def overhead(rounds: int) -> list[Row]:
    rows = []
    for size in SIZES:
        x = torch.linspace(0, 1, size, dtype=torch.float64, requires_grad=True)
        g = torch.ones(size, dtype=torch.float64)
        for name in WAYS:
            if name == BY_HAND:
                continue
            # Two at a time: what else a process has run tells in the fractions of a microsecond that are compared.
            pair = {each: forward_and_backward(WAYS[each], x, g) for each in (BY_HAND, name)}
            taken = in_turns(pair, rounds, 50)
            ratio = statistics.median(ours / hand for ours, hand in zip(taken[name], taken[BY_HAND]))
            goal = "at most 1.15" if name == OURS and size == 10 else None
            hand = min(taken[BY_HAND]) * 1e6
            rows.append(
                {
                    "name": f"forward and backward, n = {size}: {name}",
                    "value": min(taken[name]) * 1e6,
                    "unit": "us",
                    "against": f"{BY_HAND}: {hand:.1f} us",
                    "ratio": round(ratio, 3),
                    "goal": goal,
                    "met": None if goal is None else ratio <= 1.15,
                }
            )
    return rows


def batches(rounds: int) -> list[Row]:
    x = torch.randn(ROWS, 10, dtype=torch.float64)
    vmap = torch.func.vmap

    def gradients(function: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: vmap(torch.func.grad(lambda row: function(row).sum()))(x)

    one_by_one = "one call a row, by PyTorch"
    ours = "one call a row, by gw.external"
    per_row = torch.func.grad(lambda row: sine(row).sum())
    values = {
        one_by_one: lambda: vmap(operator)(x),
        ours: lambda: vmap(sine)(x),
        "register_vmap": lambda: vmap(in_batches)(x),
    }
    slopes = {
        "torch.func.grad of each row in a loop": lambda: torch.stack([per_row(row) for row in x]),
        ours: gradients(sine),
        "register_vmap": gradients(in_batches),
    }
    rows = []
    for what, ways in (("vmap", values), ("vmap of grad", slopes)):
        with warnings.catch_warnings():  # PyTorch says that it loops
            warnings.simplefilter("ignore")
            taken = in_turns(ways, max(2, rounds // 10), 1)
        base = next(iter(ways))
        for name, times in taken.items():
            ratio = statistics.median(a / b for a, b in zip(taken[base], times))
            goal = "at least 100" if name == "register_vmap" and what == "vmap of grad" else None
            rows.append(
                {
                    "name": f"{what} over {ROWS} rows of 10: {name}, times as fast",
                    "value": round(min(times) * 1e6, 1),
                    "unit": "us",
                    "against": base,
                    "ratio": round(ratio, 1),
                    "goal": goal,
                    "met": None if goal is None else ratio >= 100,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: only that it runs")
    parser.add_argument("--write", action="store_true", help="put the table into docs/external.md")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write rows of figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 5 if options.quick else 200
    rows = overhead(rounds) + batches(rounds)
    text = table_of(rows)
    print(text)
    if options.write:
        write_tables(PAGE, {"cost": text})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
