"""Old Functions made new: what the Functions of published packages do in every transform, as they are and adopted.

The packages are installed from PyPI, pinned and without their dependencies, into a folder of their own
(``build/packages``), so that no second torch comes along; what they need to be imported is listed beside them
in ``_adopted_samples.py``. Each package is measured in a process of its own.

    python benchmarks/adopted_packages.py                 # prints the tables
    python benchmarks/adopted_packages.py --write         # puts them into docs/adopted-packages.md
    python benchmarks/adopted_packages.py --quick         # two packages
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from _adopted_samples import COMMON, PACKAGES
from _packages import ROOT, environment, install
from _pages import write_tables

PAGE = ROOT / "docs" / "adopted-packages.md"
CELLS = Path(__file__).with_name("_adopted_cells.py")
QUICK = ("entmax", "norse")
SIGNS = {
    "right": "✓",
    "declared": "≈",
    "nan": "n",
    "wrong": "✗",
    "refuses": "–",
    "foreign error": "!",
    "not judged": "·",
}
TRANSFORMS = ("backward", "vmap", "grad", "jacrev", "jvp", "jacfwd", "hessian", "double backward", "keywords")

Rows = dict[str, list[dict[str, Any]]]


def main() -> int:
    """Measure the packages and print, or write, what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="two packages only")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/adopted-packages.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    names = QUICK if options.quick else tuple(PACKAGES)
    found = {}
    for name in names:
        install(name, (*COMMON, *PACKAGES[name].requirements))
        found[name] = measure(name)
    tables = {
        "transforms": by_transform(found),
        "packages": by_package(found),
        "functions": by_function(found),
        "refused": refusals(found),
    }
    for table in tables.values():
        print(f"\n{table}")
    if options.write:
        write_tables(PAGE, tables)
    if options.json:
        options.json.write_text(json.dumps(figures(found), indent=2), encoding="utf-8")
    return 0


def measure(name: str) -> list[dict[str, Any]]:
    """Return what the Functions of a package do."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CELLS), name],
        env=environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout.decode().splitlines()[-1])
    return rows


def by_transform(found: Rows) -> str:
    """Return a table of counts, a row for each transform."""
    every = [row for rows in found.values() for row in rows]
    parts = [(t, [row for row in every if row["transform"] == t]) for t in TRANSFORMS]
    return _counted("transform", [*parts, ("**all**", every)])


def by_package(found: Rows) -> str:
    """Return a table of counts, a row for each package."""
    names = {name: f"{PACKAGES[name].requirements[0].replace('==', ' ')} ({_functions(found[name])})" for name in found}
    return _counted("package (Functions)", [(names[name], rows) for name, rows in found.items()])


def _functions(rows: Iterable[dict[str, Any]]) -> int:
    return len({row["function"] for row in rows})


def _counted(what: str, parts: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    heads = ("right", "as declared", "refused", "nan", "silently wrong", "not judged")
    lines = [f"| {what} | " + " | ".join(f"{h}, before → after" for h in heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name, rows in parts:
        counts = [Counter(row[when] for row in rows) for when in ("before", "after")]
        cells = [
            " → ".join(str(sum(count[k] for k in keys)) for count in counts)
            for keys in (("right",), ("declared",), ("refuses", "foreign error"), ("nan",), ("wrong",), ("not judged",))
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def by_function(found: Rows) -> str:
    """Return a table of marks, before and after, a row for each Function."""
    lines = ["| Function | " + " | ".join(TRANSFORMS) + " |", "|---" * (len(TRANSFORMS) + 1) + "|"]
    for name, rows in found.items():
        for function in dict.fromkeys(row["function"] for row in rows):
            marks = {r["transform"]: SIGNS[r["before"]] + SIGNS[r["after"]] for r in rows if r["function"] == function}
            lines.append(f"| {name} `{function}` | " + " | ".join(marks.get(t, "") for t in TRANSFORMS) + " |")
    return "\n".join(lines)


def refusals(found: Rows) -> str:
    """Return a table of what adopted Functions refuse, and the start of what they say."""
    lines = ["| Function | transforms | what it says |", "|---|---|---|"]
    for name, rows in found.items():
        said: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            if row["after"] in ("refuses", "foreign error"):
                message = row["after message"].split("; expected")[0].partition(": ")[2] or row["after message"]
                said.setdefault((row["function"], message.replace("|", "\\|")), []).append(row["transform"])
        lines += [f"| {name} `{function}` | {', '.join(where)} | {text} |" for (function, text), where in said.items()]
    return "\n".join(lines)


def figures(found: Rows) -> list[dict[str, Any]]:
    """Return the counts as benchmark rows."""
    rows = []
    every = [row for part in found.values() for row in part]
    for mark in SIGNS:
        before, after = (sum(row[when] == mark for row in every) for when in ("before", "after"))
        goal = 0 if mark in ("wrong", "foreign error") else None
        rows.append(
            {"name": f"cells that are {mark}", "value": after, "unit": "count", "against": "before adoption"}
            | {
                "ratio": after / before if before else None,
                "goal": goal,
                "met": None if goal is None else after <= goal,
            }
        )
    counts = {"packages": (len(found), 12), "Functions": (sum(map(_functions, found.values())), 60)}
    for name, (value, least) in counts.items():
        goal = least if len(found) == len(PACKAGES) else None
        rows.append(
            {"name": name, "value": value, "unit": "count", "against": None, "ratio": None}
            | {"goal": goal, "met": None if goal is None else value >= goal}
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
