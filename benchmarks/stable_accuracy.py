"""How far each function of ``gw.stable`` is from the truth, and PyTorch's own beside it.

The truth is the reference that an entry declares, differentiated in as many digits as it takes. For each entry, dtype
and region of its examples (the notes on them): the worst error of the value, of the first derivative in reverse and
in forward mode, and of the second; relative, as a part of the bar that the entry promises in brackets. What is written
in its place today is measured at the same points, where the entry names it.

    python benchmarks/stable_accuracy.py                  # all entries: takes minutes
    python benchmarks/stable_accuracy.py --quick          # the first example of each, in float64
    python benchmarks/stable_accuracy.py sigmoid tanh     # these
    python benchmarks/stable_accuracy.py --write          # puts the table into docs/stable-accuracy.md
    python benchmarks/stable_accuracy.py --json FILE      # writes rows of figures
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
from _pages import write_tables  # noqa: E402
from _stable import chosen  # noqa: E402

from gradwright.authoring.exact import ExactEntry  # noqa: E402
from tests.measured import Error, errors, forward_errors, points  # noqa: E402

PAGE = ROOT / "docs" / "stable-accuracy.md"
ORDERS = ("value", "first", "forward", "second")
Row = dict[str, Any]


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="entries, for example sigmoid; default: all")
    parser.add_argument("--quick", action="store_true", help="the first example of each entry, in float64")
    parser.add_argument("--write", action="store_true", help="put the table into docs/stable-accuracy.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measurable = chosen(parser, options.names)
    rows: list[Row] = []
    for entry in measurable:
        for dtype in [torch.float64] if options.quick else entry.bars:
            found = list(measured(entry, dtype, first_only=options.quick))
            rows += found
            print("\n".join(f"{row['name']}: {row['value']:.2g} (bar {row['goal']:.2g})" for row in found), flush=True)
    missed = [row for row in rows if not row["met"]]
    print(f"\n{len(rows)} figures of {len(measurable)} entries; {len(missed)} beyond their bar")
    if options.write:
        write_tables(PAGE, {"stable accuracy": table(measurable, rows)})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 1 if missed else 0


def measured(entry: ExactEntry, dtype: torch.dtype, *, first_only: bool) -> Iterator[Row]:
    """Give a row for each region of the examples and each order."""
    worst: dict[tuple[str, str], Error] = {}
    theirs: dict[tuple[str, str], float] = {}
    for number, point in enumerate(points(entry, dtype)):
        if first_only and number:
            break
        region = point.note or "other"
        for error in [*errors(entry, number, dtype), *forward_errors(entry, number, dtype)]:
            key = region, error.quantity.split()[0]
            if key not in worst or error.error * worst[key].bar > worst[key].error * error.bar:
                worst[key] = error
        for order, size in replaced(entry, number, dtype):
            theirs[region, order] = max(theirs.get((region, order), 0.0), size)
    for (region, order), error in worst.items():
        name = f"{entry.name}, {str(dtype).removeprefix('torch.')}, {region}: {order}"
        row: Row = {"name": name, "value": error.error, "unit": "relative error"}
        against = theirs.get((region, order))
        ratio = error.error / against if against and math.isfinite(against) else None
        label = None if against is None else f"what it replaces: {against:.2g}"
        yield row | {"against": label, "ratio": ratio, "goal": error.bar, "met": error.within}


def replaced(entry: ExactEntry, number: int, dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    """Give the errors of what an entry replaces, by order; infinite where it fails."""
    if entry.replaces is None:
        return
    found: list[Error] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for error in errors(entry, number, dtype, function=entry.seen(entry.replaces)):
                found.append(error)  # those before a failure count
        except (RuntimeError, TypeError, ValueError):
            yield ORDERS[3] if found else ORDERS[0], math.inf
    for error in found:
        yield error.quantity.split()[0], error.error


def table(measurable: Sequence[ExactEntry], rows: Sequence[Row]) -> str:
    """Return a Markdown table: a line for each entry and dtype, the worst of all regions."""
    lines = ["| function | dtype | bar | value | first | forward mode | second | worst of what it replaces |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for entry in measurable:
        for dtype, bar in entry.bars.items():
            short = str(dtype).removeprefix("torch.")
            own = [row for row in rows if row["name"].startswith(f"{entry.name}, {short}, ")]
            if not own:
                continue
            cells = []
            for order in ORDERS:
                sizes = [row["value"] for row in own if row["name"].endswith(f": {order}")]
                cells.append(f"{max(sizes):.1e}" if sizes else "")
            said = [float(row["against"].rpartition(" ")[2]) for row in own if row["against"]]
            theirs = "" if not said else "nan, inf or none" if math.isinf(max(said)) else f"{max(said):.1e}"
            lines.append(f"| `gw.{entry.name}` | {short} | {bar:.1e} | {' | '.join(cells)} | {theirs} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
