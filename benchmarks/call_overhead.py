"""What one call of a custom gradient costs, beside the other ways to write it, in the same run.

The same function is written as plain operations, as a Function in both styles, as a custom op, as a decorated function,
as an adopted Function and with ``gw.Function``; with one, three and eight inputs of four elements, with and without
gradients. The ways take turns, and the fastest of many rounds counts; the overhead is what a call costs more than the
plain operations. What it costs to decorate a function and to import gradwright is measured as well.

    python benchmarks/call_overhead.py                   # everything
    python benchmarks/call_overhead.py --quick           # that it runs: few rounds
    python benchmarks/call_overhead.py --write           # puts the table into docs/writing-gradients.md
    python benchmarks/call_overhead.py --json FILE       # writes rows of figures
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from _pages import write_tables  # noqa: E402

import gradwright as gw  # noqa: E402

PAGE = ROOT / "docs" / "writing-gradients.md"
WAYS = (
    "plain operations",
    "Function, forward(ctx, ...)",
    "Function, setup_context",
    "custom_op",
    "gw.custom_gradient",
    "gw.adopt, forward(ctx, ...)",
    "gw.Function, forward(ctx, ...)",
    "gw.Function, setup_context",
)
PLAIN, OLD, NEW, OURS = WAYS[0], WAYS[1], WAYS[2], WAYS[4]
CLASSES = WAYS[5:]
COUNTS = (1, 3, 8)
CALLS = 100
Row = dict[str, Any]


def total(*xs: Tensor) -> Tensor:
    """The exponential of the sum: one operation an input, and an output that is worth saving."""
    out = xs[0]
    for x in xs[1:]:
        out = out + x
    return out.exp()


class Old(Function):
    """The combined style."""

    @staticmethod
    def forward(ctx: Any, *xs: Tensor) -> Tensor:
        out = total(*xs)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return (g * out,) * len(ctx.needs_input_grad)


class New(Function):
    """The style with setup_context."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*xs: Tensor) -> Tensor:
        return total(*xs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return (g * out,) * len(ctx.needs_input_grad)


class OldOurs(gw.Function):
    """The combined style with the other base."""

    forward = staticmethod(Old.forward)
    backward = staticmethod(Old.backward)


class NewOurs(gw.Function):
    """The style with setup_context with the other base."""

    forward = staticmethod(New.forward)
    setup_context = staticmethod(New.setup_context)
    backward = staticmethod(New.backward)


# One function for each number of inputs, as a user would write it.


def one(a: Tensor) -> Tensor:
    return total(a)


def three(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return total(a, b, c)


def eight(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, h: Tensor, i: Tensor) -> Tensor:
    return total(a, b, c, d, e, f, h, i)


WRITTEN: dict[int, Callable[..., Tensor]] = {1: one, 3: three, 8: eight}


def decorated(n: int) -> Callable[..., Tensor]:
    """Return the decorated function of ``n`` inputs."""
    function = gw.custom_gradient(WRITTEN[n])

    @function.vjp
    def rule(g: Tensor, out: Tensor) -> Any:
        return (g * out,) * n if n > 1 else g * out

    return function


def operator(n: int) -> Callable[..., Tensor]:
    """Return the custom op of ``n`` inputs."""
    op = torch.library.custom_op(f"gradwright_benchmark::total{n}", mutates_args=())(WRITTEN[n])
    op.register_autograd(
        lambda ctx, g: (g * ctx.saved_tensors[0],) * n if n > 1 else g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    return op  # type: ignore[no-any-return]


def ways(n: int) -> dict[str, Callable[..., Tensor]]:
    """Return the function of ``n`` inputs in every way, each called once already."""
    classes = (gw.adopt(Old), OldOurs.apply, NewOurs.apply)
    made = dict(zip(WAYS, (WRITTEN[n], Old.apply, New.apply, operator(n), decorated(n), *classes)))
    for function in made.values():
        function(*(torch.zeros(4, requires_grad=True) for _ in range(n)))
    return made


def main() -> int:
    """Time everything and print, or write, the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    parser.add_argument("--write", action="store_true", help="put the table into docs/writing-gradients.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 3 if options.quick else 200
    times = {}
    for n in COUNTS:
        functions = ways(n)
        for grad in (True, False):
            inputs = [torch.randn(4, requires_grad=grad) for _ in range(n)]
            times[n, grad] = timed(functions, inputs, rounds)
    table = time_table(times)
    print(table, end="\n\n")
    rows = figures(times, decoration(20 if options.quick else 200), importing(1 if options.quick else 5))
    for row in rows:
        met = {True: "met", False: "NOT met", None: ""}[row["met"]]
        ratio = "" if row["ratio"] is None else f", {row['ratio']:.2f} of {row['against']}"
        print(f"{row['name']}: {row['value']:.3g} {row['unit']}{ratio}; {row['goal'] or ''} {met}")
    if options.write:
        write_tables(PAGE, {"calls": table})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


def timed(functions: dict[str, Callable[..., Tensor]], inputs: list[Tensor], rounds: int) -> dict[str, float]:
    """Return the shortest time of a call of each function in microseconds; they take turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                function(*inputs)
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def decoration(rounds: int) -> float:
    """Return the median time to decorate a function and attach a rule, in milliseconds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        decorated(3)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3


def importing(rounds: int) -> float:
    """Return the shortest time to import gradwright and its decorator once torch is there, in milliseconds."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
        "import time, torch; start = time.perf_counter()\n"
        "import gradwright; gradwright.custom_gradient\n"
        "print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", code]
    with tempfile.TemporaryDirectory() as cache:
        # As after any first run, what is imported is compiled already.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        runs = [
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for _ in range(rounds + 1)
        ]
    return min(float(run.stdout) for run in runs[1:]) * 1e3


# -------------------------------------------------------------------- tables


def time_table(times: dict[tuple[int, bool], dict[str, float]]) -> str:
    """Return a Markdown table of microseconds a call."""
    heads = [f"{n} input{'s' if n > 1 else ''}{'' if grad else ', no grad'}" for n, grad in times]
    lines = ["| µs a call | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for way in WAYS:
        lines.append(f"| {way} | " + " | ".join(f"{best[way]:.1f}" for best in times.values()) + " |")
    return "\n".join(lines)


def figures(times: dict[tuple[int, bool], dict[str, float]], decorating: float, imported: float) -> list[Row]:
    """Return benchmark rows: what the goals are about."""
    rows: list[Row] = []

    def add(name: str, value: float, unit: str, against: str | None, ratio: float | None, goal: str, met: bool) -> None:
        row = {"name": name, "value": value, "unit": unit, "against": against, "ratio": ratio, "goal": goal, "met": met}
        rows.append(row)

    for (n, grad), best in times.items():
        name = f"overhead of a call with {n} input{'s' if n > 1 else ''}{'' if grad else ', no grad'}"
        over = {way: best[way] - best[PLAIN] for way in WAYS}
        ratio = best[OURS] / best[OLD]
        add(f"call with{name[23:]}", best[OURS], "µs", OLD, ratio, "at most 1.10 of it", ratio <= 1.1)
        ratio = over[OURS] / over[NEW]
        add(name, over[OURS], "µs", NEW, ratio, "at most 0.40 of it", ratio <= 0.4)
        for way in CLASSES if grad else ():
            more = best[way] - best[OLD]
            name = f"{way}: more than the old style with {n} input{'s' if n > 1 else ''}"
            add(name, more, "µs", OLD, best[way] / best[OLD], "at most 3 µs", more <= 3)
    add("decorating a function", decorating, "ms", None, None, "< 1 ms", decorating < 1)
    add("importing gradwright after torch", imported, "ms", None, None, "<= 50 ms", imported <= 50)
    return rows


if __name__ == "__main__":
    sys.exit(main())
