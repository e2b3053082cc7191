"""What a true gradient costs: ``gw.stable`` beside what it replaces, at ordinary points.

Forward and backward (``autograd.grad`` with a given cotangent) in float32 on one thread, candidates in turns, median
CPU time of the thread, with an allocator that keeps memory. The goal is at most 1.3 times the time in eager mode;
an entry that takes longer says why.

    python benchmarks/stable_speed.py                  # all entries
    python benchmarks/stable_speed.py --quick          # that it runs: one round
    python benchmarks/stable_speed.py --compiled       # also of both compiled, which takes half an hour
    python benchmarks/stable_speed.py sigmoid tanh     # these
    python benchmarks/stable_speed.py --write          # puts the table into docs/stable-accuracy.md
    python benchmarks/stable_speed.py --json FILE      # writes rows of figures
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _timing import keep_memory, medians

keep_memory()
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
from _calls import differentiated, leaves_of  # noqa: E402
from _pages import write_tables  # noqa: E402
from _stable import chosen  # noqa: E402
from torch import Tensor  # noqa: E402

from gradwright.authoring.exact import ExactEntry  # noqa: E402

PAGE = ROOT / "docs" / "stable-accuracy.md"
GOAL = 1.3
ROUNDS = 15
Row = dict[str, Any]


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="entries, for example sigmoid; default: all")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--compiled", action="store_true", help="also the ratio of both compiled: half an hour for all")
    parser.add_argument("--write", action="store_true", help="put the table into docs/stable-accuracy.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    extra = " times that, both compiled |" if options.compiled else ""
    lines = [f"| function | what it replaces, ms | times that |{extra} if more, why |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for entry in chosen(parser, options.names, lambda entry: entry.replaces is not None):
        eager, compiled, base = compared(entry, quick=options.quick, compiling=options.compiled)
        reason = entry.slower if eager > GOAL else ""
        print(f"{entry.name}: {eager:.2f} times what it replaces{f' ({reason})' if reason else ''}", flush=True)
        fast = "" if compiled is None else f" {compiled:.2f} |"
        lines.append(f"| `gw.{entry.name}` | {base * 1e3:.2f} | {eager:.2f} |{fast} {reason} |")
        row: Row = {"name": f"{entry.name}, eager", "value": round(base * eager * 1e3, 3), "unit": "ms"}
        rows.append(row | {"against": "what it replaces", "ratio": round(eager, 2), "goal": GOAL, "met": eager <= GOAL})
    if options.write:
        write_tables(PAGE, {"stable speed": "\n".join(lines)})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


def arguments(entry: ExactEntry, *, quick: bool) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Return the arguments of an ordinary call, and those that require a gradient: all tensors of floating point."""
    torch.manual_seed(0)
    given = (torch.randn(10_000 if quick else 1_000_000),) if entry.ordinary is None else entry.ordinary()
    args = differentiated(given)
    return args, leaves_of(args)


def compared(entry: ExactEntry, *, quick: bool, compiling: bool) -> tuple[float, float | None, float]:
    """Return how many times as long an entry takes, the same where both are compiled, and the time of the other."""
    assert entry.replaces is not None
    args, leaves = arguments(entry, quick=quick)
    rounds = 1 if quick else ROUNDS

    def run(function: Callable[..., Any]) -> Callable[[], object]:
        def once() -> object:
            out = function(*args)
            outs = out if isinstance(out, tuple) else (out,)
            return torch.autograd.grad(outs, leaves, [torch.ones_like(o) for o in outs])

        return once

    start = medians({"": run(entry.replaces)}, 1)[""]
    repeats = 1 if quick else max(1, int(2e-3 / max(start, 1e-6)))
    times = medians({"theirs": run(entry.replaces), "ours": run(entry.function)}, rounds, repeats)
    compiled = None
    if compiling:
        torch.compiler.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast = {"theirs": torch.compile(entry.replaces), "ours": torch.compile(entry.function)}
            found = medians({name: run(function) for name, function in fast.items()}, rounds, repeats)
        compiled = found["ours"] / found["theirs"]
    return times["ours"] / times["theirs"], compiled, times["theirs"]


if __name__ == "__main__":
    sys.exit(main())
