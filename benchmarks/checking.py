"""How long a check takes, beside ``torch.autograd.gradcheck`` on the same subjects in the same run.

Subjects are an elementwise function, a matrix product and a reduction, of growing size. The runs of the checkers take
turns, and the fastest of several counts; a checker that would need minutes is left out and shown as a dash. A second
table gives one wrong element among very many to each of them.

    python benchmarks/checking.py                   # everything
    python benchmarks/checking.py --quick           # that it runs: small sizes, one round
    python benchmarks/checking.py --write           # puts the tables into docs/speed.md
    python benchmarks/checking.py --json FILE       # writes rows of figures
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, gradcheck

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from _pages import write_tables  # noqa: E402

import gradwright as gw  # noqa: E402
from gradwright.checking.contracts import all_contracts  # noqa: E402

PAGE = ROOT / "docs" / "speed.md"
COMPILING = tuple(name for name in all_contracts() if name.startswith("compile") or name == "export")
ROUNDS = 5
PATIENCE = 2.0
"""A checker that took longer than this many seconds is not run again."""
Row = dict[str, Any]


class Exp(Function):
    """Elementwise, with a saved output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return g * out


class OneWrong(Exp):
    """The same with the gradient of one element zero."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        grad = g * out
        grad[grad.numel() // 3] = 0
        return grad


class Matmul(Function):
    """The product of two matrices."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return g @ b.mT, a.mT @ g


class SumOfSquares(Function):
    """A reduction to a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * g * x


@dataclass(frozen=True)
class Checker:
    """One way to check: a name, how it is called, and the most input elements for which it ends in time."""

    name: str
    passes: Callable[[type[Function], tuple[Tensor, ...]], bool]
    largest: int = 10**7


def _gradwright(level: Any) -> Callable[[type[Function], tuple[Tensor, ...]], bool]:
    return lambda subject, inputs: bool(gw.check(subject, *inputs, level=level, skip=COMPILING))


def _gradcheck(fast: bool) -> Callable[[type[Function], tuple[Tensor, ...]], bool]:
    def passes(subject: type[Function], inputs: tuple[Tensor, ...]) -> bool:
        leaves = tuple(t.clone().requires_grad_() for t in inputs)
        return gradcheck(subject.apply, leaves, fast_mode=fast, raise_exception=False)

    return passes


CHECKERS = (
    Checker("gradwright quick", _gradwright("quick")),
    Checker("gradwright standard", _gradwright("standard")),
    Checker("gradcheck slow", _gradcheck(False), 3_000),
    Checker("gradcheck fast", _gradcheck(True)),
)


def x(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 normal random values."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def subjects(quick: bool) -> list[tuple[str, type[Function], tuple[Tensor, ...]]]:
    """Return name, Function and inputs of each subject."""
    sizes = (10, 100) if quick else (10, 100, 1_000, 3_000, 10**5, 10**6)
    found: list[tuple[str, type[Function], tuple[Tensor, ...]]] = [
        (f"elementwise, n = {n:,}", Exp, (x(n),)) for n in sizes
    ]
    side = 4 if quick else 32
    found.append((f"matmul {side} x {side}", Matmul, (x(side, side), x(side, side, seed=1))))
    return found + [(f"reduction, n = {n:,}", SumOfSquares, (x(n),)) for n in sizes if n <= 3_000 or n == 10**6]


def main() -> int:
    """Time everything and print, or write, the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/speed.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if options.quick else ROUNDS
    times = {name: timed(subject, inputs, rounds) for name, subject, inputs in subjects(options.quick)}
    wrong = [one_wrong(n) for n in ((1_000,) if options.quick else (1_000, 10**5, 10**6))]
    tables = {"times": time_table(times), "one wrong": wrong_table(wrong)}
    print("\n\n".join(tables.values()))
    rows = figures(times, wrong)
    print()
    for row in rows:
        met = {True: "met", False: "NOT met", None: ""}[row["met"]]
        print(f"{row['name']}: {row['value']:.3g} {row['unit']} {row['goal'] or ''} {met}")
    if options.write:
        write_tables(PAGE, tables)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


def timed(subject: type[Function], inputs: tuple[Tensor, ...], rounds: int) -> dict[str, float]:
    """Return the shortest time of each checker on one right subject; they take turns."""
    size = sum(t.numel() for t in inputs)
    best: dict[str, float] = {}
    for _ in range(rounds):
        for checker in CHECKERS:
            if size > checker.largest or best.get(checker.name, 0.0) > PATIENCE:
                continue
            seconds, passed = _clock(checker, subject, inputs)
            if not passed:
                raise AssertionError(f"{checker.name} accuses {subject.__name__}, which is right")
            best[checker.name] = min(seconds, best.get(checker.name, seconds))
    return best


def _clock(checker: Checker, subject: type[Function], inputs: tuple[Tensor, ...]) -> tuple[float, bool]:
    start = time.perf_counter()
    passed = checker.passes(subject, inputs)
    return time.perf_counter() - start, passed


def one_wrong(n: int) -> Row:
    """Give one wrong element among ``n`` to each checker: seconds, whether it is found, and whether it is named."""
    inputs = (x(n),)
    row: Row = {"n": n}
    for level in ("quick", "standard"):
        start = time.perf_counter()
        report = gw.check(OneWrong, *inputs, level=level, only=("matches-differences",))  # type: ignore[arg-type]
        seconds = time.perf_counter() - start
        places = [finding.where.index for finding in report.findings if finding.where is not None]
        row[f"gradwright {level}"] = (seconds, not report, (n // 3,) in places)
    for checker in CHECKERS[2:]:
        if n <= checker.largest:
            seconds, passed = _clock(checker, OneWrong, inputs)
            row[checker.name] = (seconds, not passed, False)
    return row


# -------------------------------------------------------------------- tables


def time_table(times: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table of times, with the ratio of slow gradcheck to the quick level."""
    names = [checker.name for checker in CHECKERS]
    lines = ["| subject | " + " | ".join(names) + " | slow / quick |", "|---" * (len(names) + 2) + "|"]
    for name, best in times.items():
        cells = [_duration(best.get(n)) for n in names]
        slow = best.get("gradcheck slow")
        ratio = f"{slow / best['gradwright quick']:.2g}" if slow else "–"
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines)


def wrong_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of what became of one wrong element."""
    names = ["gradwright quick", "gradwright standard", "gradcheck slow", "gradcheck fast"]
    lines = ["| one wrong of | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = []
        for name in names:
            if name not in row:
                cells.append("–")
                continue
            seconds, found, named = row[name]
            cells.append(f"{'found and named' if named else 'found' if found else 'missed'}, {_duration(seconds)}")
        lines.append(f"| {row['n']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def figures(times: dict[str, dict[str, float]], wrong: Sequence[Row]) -> list[Row]:
    """Return benchmark rows: what the goals are about."""
    rows: list[Row] = []

    def add(name: str, value: float, unit: str, against: str | None, ratio: float | None, goal: str, met: bool) -> None:
        row = {"name": name, "value": value, "unit": unit, "against": against, "ratio": ratio, "goal": goal, "met": met}
        rows.append(row)

    for name, best in times.items():
        quick, standard, slow = (best.get(n) for n in ("gradwright quick", "gradwright standard", "gradcheck slow"))
        assert quick is not None
        assert standard is not None
        if name == "elementwise, n = 1,000":
            ratio = slow / quick if slow else None
            add(f"quick, {name}", quick, "s", "gradcheck slow", ratio, "< 0.2 s", quick < 0.2)
            ratio = slow / standard if slow else None
            add(f"standard, {name}", standard, "s", "gradcheck slow", ratio, "< 2 s", standard < 2)
        if name == "elementwise, n = 3,000" and slow:
            # Even at this level it finds more than twice as many of the listed mistakes: see detection.py.
            ratio = slow / quick
            add(f"quick, {name}", quick, "s", "gradcheck slow", ratio, "10 times faster", ratio >= 10)
    large, largest = (times.get(f"elementwise, n = {n:,}") for n in (10**5, 10**6))
    if large and largest:
        for level in ("quick", "standard"):
            growth = largest[f"gradwright {level}"] / large[f"gradwright {level}"]
            add(f"{level}, ten times the elements take", growth, "times as long", None, None, "<= 15", growth <= 15)
    for row in wrong:
        seconds, _, named = row["gradwright quick"]
        add(f"one wrong of {row['n']:,}, quick", seconds, "s", None, None, "named, < 10 s", named and seconds < 10)
    return rows


if __name__ == "__main__":
    sys.exit(main())
