"""What ``gw.fused`` costs: time, what is kept and the peak, beside PyTorch, other libraries and the machine's limits.

Forward and backward (``autograd.grad`` with a given cotangent) in float32, on all cores, candidates in turns: the
median of the turns, and of the ratios to the plain way within each round, of wall and of CPU time. What is kept is what
hooks for saved tensors see, and what a walk of ctx and closures finds besides; the peak is the most that PyTorch's
allocator gives out at one time, gradients included, arguments not. "Times the bound" is the time as a multiple of what
the machine needs at least, whose limits are measured in the same run. glibc takes every large tensor from fresh memory,
which has to be touched for the first time, and that counts; ``--keep-memory`` tells it to keep what it got.

    python benchmarks/fused.py                   # everything, with other libraries (installed into build/)
    python benchmarks/fused.py --quick           # that it runs: small, without them and without compiling
    python benchmarks/fused.py rms-norm softplus # these scenarios and entries
    python benchmarks/fused.py norms entries     # these tables
    python benchmarks/fused.py --compiled        # also with what can be compiled, compiled
    python benchmarks/fused.py --keep-memory     # with an allocator that keeps memory
    python benchmarks/fused.py --threads 1       # with so many threads
    python benchmarks/fused.py --write           # puts the tables into docs/fused-cost.md
    python benchmarks/fused.py --json FILE       # writes rows of figures
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _timing import keep_memory

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "fused-cost.md"
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import _fused_anchors  # noqa: E402
import torch  # noqa: E402
from _fused_entries import entries_by_name, scenario_of  # noqa: E402
from _fused_heads import HEADS  # noqa: E402
from _fused_layers import LAYERS  # noqa: E402
from _fused_machine import measured_machine  # noqa: E402
from _fused_measure import MIB, Result, Scenario, Target, measured, with_compiled  # noqa: E402
from _fused_not import NOT  # noqa: E402
from _fused_resident import resident_peak  # noqa: E402
from _pages import write_tables  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

Row = dict[str, Any]
Make = Callable[[bool], Scenario]


def main() -> int:
    """Measure, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="tables, scenarios, entries, for example norms; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, nothing compiled or installed")
    parser.add_argument("--compiled", action="store_true", help="also what can be compiled, compiled: an hour for all")
    parser.add_argument("--keep-memory", action="store_true", help="with an allocator that keeps memory (glibc)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: all cores")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/fused-cost.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    if options.keep_memory:
        keep_memory()
    torch.set_num_threads(options.threads)
    known = everything()
    tables = chosen(parser, options.names, known)
    if options.write and (options.quick or any(len(tables[name]) < len(known[name]) for name in tables)):
        parser.error("--write puts whole tables of the full form into the page: leave out --quick, and name tables")
    if not options.quick:
        _fused_anchors.install()
    settle()
    machine = measured_machine(options.quick)
    written = {"fused machine": machine.table()}
    print(f"{written['fused machine']}\n")
    rows: list[Row] = []
    for name, makes in tables.items():
        results = []
        for make in makes.values():
            scenario = prepared(make, quick=options.quick, compiling=options.compiled)
            start = time.perf_counter()
            results.append(measured(scenario, machine, options.quick))
            del scenario  # and its arguments, before there are others
            print(f"{results[-1].scenario.title}: measured in {time.perf_counter() - start:.0f} s", flush=True)
            rows += figures(results[-1], judging=not options.quick)
        written[f"fused {name}"] = table(results, judging=not options.quick)
        print(f"\n{written[f'fused {name}']}\n", flush=True)
    if "head" in tables:
        written["fused resident"] = residents(prepared(HEADS["head"]["head"], quick=options.quick), options)
        print(f"{written['fused resident']}\n")
    if options.write:
        write_tables(PAGE, written)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


def settle() -> None:
    """Load what PyTorch loads when it is first used, and keep it out of the collections that begin each footprint."""
    with FlopCounterMode(display=False):
        torch.ones(1).neg_()
    gc.collect()
    gc.freeze()


def everything() -> dict[str, dict[str, Make]]:
    """Return what makes every scenario, by table and by name."""
    entries: dict[str, Make] = {name: functools.partial(scenario_of, e) for name, e in entries_by_name().items()}
    return {**HEADS, **LAYERS, **NOT, "entries": entries}


def chosen(
    parser: argparse.ArgumentParser, names: Sequence[str], known: dict[str, dict[str, Make]]
) -> dict[str, dict[str, Make]]:
    """Return what makes the scenarios of these names, or of tables of these names, or all."""
    unknown = set(names) - known.keys() - {name for makes in known.values() for name in makes}
    if unknown:
        parser.error(f"there is nothing to measure that is called {', '.join(sorted(unknown))}")
    if not names:
        return known
    tables = {
        table: makes if table in names else {name: make for name, make in makes.items() if name in names}
        for table, makes in known.items()
    }
    return {table: makes for table, makes in tables.items() if makes}


def prepared(make: Make, *, quick: bool, compiling: bool = False) -> Scenario:
    """Return a scenario with what is compiled of it."""
    gc.collect()
    torch.compiler.reset()
    scenario = make(quick)
    if not quick and compiling and scenario.compiled is not False:
        return with_compiled(scenario, ours=True)
    return with_compiled(scenario) if scenario.compiled and not quick else scenario


def table(results: Sequence[Result], judging: bool) -> str:
    """Return a Markdown table, a row for each candidate, and what came of the targets, which are for the full size."""
    head = [
        "",
        "ms",
        "wall",
        "CPU",
        "saved, MiB",
        "hidden, MiB",
        "peak, MiB",
        "gradient error",
        "times the bound",
        "goals",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for result in results:
        lines.append(f"| **{result.scenario.title}** |{' |' * (len(head) - 1)}")
        for name, f in result.figures.items():
            error = "" if f.error is None else f"{f.error:.1e}"
            goals = "; ".join(words(t, ratio) for t, ratio in result.judged() if judging and t.name == name)
            sizes = " | ".join(f"{size / MIB:.1f}" for size in (f.saved, f.hidden, f.peak))
            times = f"{f.seconds * 1e3:.3g} | {f.wall:.2f} | {f.cpu:.2f}"
            lines.append(f"| {name} | {times} | {sizes} | {error} | {f.bound:.1f} | {goals} |")
    return "\n".join(lines)


def words(target: Target, ratio: float) -> str:
    """Return what came of a target."""
    met = "met" if ratio <= target.most else "**missed**"
    return f"{target.quantity} {ratio:.2g} of {target.against}, at most {target.most:.2g}: {met}"


def figures(result: Result, judging: bool) -> list[Row]:
    """Return what was measured of a scenario as rows, and its targets with what came of them if they are judged."""
    rows: list[Row] = []
    none: Row = {"against": None, "ratio": None, "goal": None, "met": None}
    title = result.scenario.title
    plain = result.scenario.candidates[0].name
    for name, f in result.figures.items():
        timed: Row = {"name": f"{title}: {name}", "value": round(f.seconds * 1e3, 3), "unit": "ms"}
        rows.append({**timed, **none, "against": plain, "ratio": round(f.wall, 3), "cpu_ratio": round(f.cpu, 3)})
        rows.append({"name": f"{title}: {name}, times the bound", "value": round(f.bound, 2), "unit": "", **none})
        for what, size in (("saved", f.saved), ("hidden", f.hidden), ("peak", f.peak)):
            rows.append({"name": f"{title}: {name}, {what}", "value": round(size / MIB, 3), "unit": "MiB", **none})
        if f.error is not None:
            rows.append({"name": f"{title}: {name}, gradient error", "value": f.error, "unit": "", **none})
    for target, ratio in result.judged() if judging else []:
        value, unit = result.figures[target.name].of(target.quantity), "ms" if target.quantity == "time" else "MiB"
        rows.append(
            {
                "name": f"{title}: {target.name}, {target.quantity}",
                "value": round(value * 1e3 if unit == "ms" else value / MIB, 3),
                "unit": unit,
                "against": target.against,
                "ratio": round(ratio, 3) if math.isfinite(ratio) else None,
                "goal": round(target.most, 3),
                "met": ratio <= target.most,
            }
        )
    return [{**row, "name": row["name"].replace("`", "")} for row in rows]


def residents(scenario: Scenario, options: argparse.Namespace) -> str:
    """Return a table of the chief scenario's peaks as the operating system sees them."""
    lines = ["| | resident peak, MiB |", "|---|---|"]
    for number, candidate in enumerate(scenario.candidates[:1] if options.quick else scenario.candidates):
        peak = resident_peak(number, options.quick, options.threads)
        lines.append(f"| {candidate.name} | {'not told here' if peak is None else f'{peak:.0f}'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        sys.exit(main())
