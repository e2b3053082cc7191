"""What torch gets wrong: the table of ``gradwright probe``, for the docs.

python benchmarks/torch_probes.py                 # prints the tables
python benchmarks/torch_probes.py --write         # puts them into docs/torch-gradients.md
python benchmarks/torch_probes.py --quick         # one section
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _pages import write_tables

from gradwright import torch_compat
from gradwright.probing.judge import KINDS
from gradwright.probing.run import Result, Section, run, sections
from gradwright.probing.text import HEADS, cells, summary, worst_first

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "torch-gradients.md"
QUICK = "singular-points"
MAX_SECONDS = 120


def main() -> int:
    """Run the probes and print, or write, the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one section only")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/torch-gradients.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    chosen = [section for section in sections() if not options.quick or section.name == QUICK]
    started = time.perf_counter()
    results = list(run([(section.name, probe) for section in chosen for probe in section.probes]))
    seconds = time.perf_counter() - started
    tables = {"counts": counted(chosen, results), "probes": listed(chosen, results)}
    print("\n\n".join(tables.values()))
    if options.write:
        write_tables(PAGE, tables)
    if options.json:
        options.json.write_text(json.dumps(figures(results, seconds), indent=2), encoding="utf-8")
    return 0


def counted(chosen: Sequence[Section], results: Sequence[Result]) -> str:
    """Return a table of verdicts, a row for each section, and what torch it is of."""
    lines = [f"torch {version()}.", "", "| section | probes | " + " | ".join(KINDS) + " |", "|---" * 11 + "|"]
    parts = [(section.title, [r for r in results if r.section == section.name]) for section in chosen]
    for title, part in [*parts, ("**all**", results)]:
        numbers = [str(sum(result.torch.kind == kind for result in part) or "") for kind in KINDS]
        lines.append(f"| {title} | {len(part)} | " + " | ".join(numbers) + " |")
    return "\n".join([*lines, "", *(f"- {line}" for line in summary(results)[1:])])


def listed(chosen: Sequence[Section], results: Sequence[Result]) -> str:
    """Return a table for each section, the gravest first."""
    lines = []
    for section in chosen:
        lines += [f"## {section.title}", "", "| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
        for result in worst_first(result for result in results if result.section == section.name):
            row, case, *rest = cells(result)
            lines.append(f"| {row} | `{case}` | " + " | ".join(rest) + " |")
        lines.append("")
    return "\n".join(lines).strip()


def version() -> str:
    """Return torch's version without what it was built for."""
    return torch_compat.version().partition("+")[0]


def figures(results: Sequence[Result], seconds: float) -> list[dict[str, Any]]:
    """Return the counts as benchmark rows."""
    rows = [("probes that torch has right", sum(result.ok for result in results), "count", None)]
    rows.append(("probes", len(results), "count", None))
    named = [result for result in results if result.stable is not None]
    wrong = sum(result.stable is not None and result.stable.kind != "right" for result in named)
    rows.append(("probes that gw.stable has not right", wrong, "count", 0 if named else None))
    rows.append(("time", seconds, "s", MAX_SECONDS))
    return [
        {"name": name, "value": value, "unit": unit, "against": None, "ratio": None}
        | {"goal": goal, "met": None if goal is None else value <= goal}
        for name, value, unit, goal in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
