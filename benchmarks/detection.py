"""Which checker finds which mistake, and which accuses what is right, on the defects and controls of the tests.

A checker finds a defect when it fails on the broken subject and passes the same subject done right. A crash of the
checker on the broken one (an exception that is not its own way of saying no) counts as found, without a diagnosis, and
is shown apart. The checkers are gradwright at its three levels; ``torch.autograd.gradcheck`` slow, fast and with every
flag; ``gradgradcheck``; and a check in the manner of ``jax.test_util.check_grads``: one random direction, a fixed step.

    python benchmarks/detection.py                   # everything
    python benchmarks/detection.py --quick           # gradwright quick against gradcheck slow, on a part
    python benchmarks/detection.py --write           # puts the tables into docs/detection.md
    python benchmarks/detection.py --seeds 3         # gradwright with several seeds; says whether they agree
    python benchmarks/detection.py --missed          # names what gradwright misses or does not name

Tables are of the classes that are counted (those with a number); ``--all`` adds the others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks")]

PAGE = ROOT / "docs" / "detection.md"
GOALS = {"found": 105 / 113, "named": 0.85, "false alarms": 0}
Row = dict[str, Any]


def main() -> int:
    """Run the checkers and print, or write, the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer checkers, a part of the defects and controls")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/detection.md")
    parser.add_argument("--all", action="store_true", help="count also the defects without a number")
    parser.add_argument("--missed", action="store_true", help="name what gradwright misses or does not name")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds gradwright is run with")
    parser.add_argument("--only", choices=("defects", "controls"), help="one of the two tables")
    parser.add_argument("--checkers", nargs="+", help="only these")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    options = parser.parse_args()

    from _checkers import CHECKERS, QUICK_CHECKERS
    from _pages import write_tables

    names = options.checkers or list(QUICK_CHECKERS if options.quick else CHECKERS)
    defects, controls = _run(names, options)
    tables = {}
    if defects:
        tables["defects"] = detection_table(defects, names)
    if controls:
        tables["controls"] = alarm_table(controls, names)
    print("\n\n".join(tables.values()))
    if options.missed:
        print_missed(defects, controls)
    if options.seeds > 1:
        print_agreement(defects, controls)
    if options.write:
        write_tables(PAGE, tables)
    if options.json:
        options.json.write_text(json.dumps(figures(defects, controls, names), indent=2), encoding="utf-8")
    return 0


def _run(names: Sequence[str], options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Give every pair of subject and checker to a few processes and collect what they say."""
    from _checkers import check_control, check_defect

    from tests.controls.entries import all_controls
    from tests.defects.entries import all_defects

    # The controls among the defects are no defects; they are counted with the others that must not be accused.
    entries = all_defects()
    chosen = [i for i, e in enumerate(entries) if not e.control and (options.all or e.number is not None)]
    chosen, step = (chosen[::6], 20) if options.quick else (chosen, 1)
    seeds = range(1, options.seeds + 1)
    jobs = [(i, name, seed) for i in chosen for name in names for seed in _seeds(name, seeds)]
    others = [
        (i, name, seed) for i in range(0, len(all_controls()), step) for name in names for seed in _seeds(name, seeds)
    ]
    odd = [(-1 - i, name, seeds[0]) for i, e in enumerate(entries) if e.control for name in names]
    jobs = [] if options.only == "controls" else jobs
    others, odd = ([], []) if options.only == "defects" else (others, odd)
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=400) as pool:
        defects = _collect(pool.imap(check_defect, jobs, chunksize=4), len(jobs), "defects")
        controls = _collect(pool.imap(check_control, [*others, *odd], chunksize=4), len(others) + len(odd), "controls")
    return defects, controls


def _collect(results: Iterable[Row], total: int, what: str) -> list[Row]:
    rows = []
    for row in results:
        rows.append(row)
        if sys.stderr.isatty():
            print(f"\r{what}: {len(rows)} of {total}", end="\n" if len(rows) == total else "", file=sys.stderr)
    return rows


def _seeds(name: str, seeds: Sequence[int]) -> Sequence[int]:
    return seeds if name.startswith("gradwright") else seeds[:1]


# -------------------------------------------------------------------- tables


def detection_table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return a Markdown table, a row for each group and a column for each checker."""
    rows = [row for row in rows if row["seed"] == 1]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    lines = ["| group | defects | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for group in groups:
        part = [row for row in rows if row["group"] == group]
        lines.append(_line(group, part, names))
    lines.append(_line("**all**", rows, names))
    named = [_share(_of(rows, name), "named") if name.startswith("gradwright") else "–" for name in names]
    due = len({row["defect"] for row in rows if row["due"]})
    lines.append(f"| right diagnosis | {due} | " + " | ".join(named) + " |")
    crashed = [str(sum(row["crashed"] for row in _of(rows, name))) for name in names]
    lines.append("| of those found, by a crash | | " + " | ".join(crashed) + " |")
    return "\n".join(lines)


def _line(title: str, rows: Sequence[Row], names: Sequence[str]) -> str:
    counts = [str(sum(row["found"] for row in _of(rows, name))) for name in names]
    return f"| {title} | {len({row['defect'] for row in rows})} | " + " | ".join(counts) + " |"


def alarm_table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return a Markdown table of the right subjects that were accused."""
    rows = [row for row in rows if row["seed"] == 1]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    lines = ["| right subjects | number | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for group in [*groups, "**all**"]:
        part = [row for row in rows if row["group"] == group or group == "**all**"]
        counts = [str(sum(row["accused"] for row in _of(part, name))) for name in names]
        lines.append(f"| {group} | {len({row['control'] for row in part})} | " + " | ".join(counts) + " |")
    return "\n".join(lines)


def _of(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row["checker"] == name]


def _share(rows: Sequence[Row], what: str) -> str:
    due = [row for row in rows if row["due"]]
    return f"{sum(row[what] for row in due)} ({sum(row[what] for row in due) / max(1, len(due)):.0%})"


def print_missed(defects: Sequence[Row], controls: Sequence[Row]) -> None:
    """Name what gradwright misses, finds without naming it, or accuses without reason."""
    for row in defects:
        if not row["checker"].startswith("gradwright"):
            continue
        if not row["found"]:
            print(f"missed by {row['checker']}, seed {row['seed']}: {row['defect']}: {row['said'][:200]!r}")
        elif row["due"] and not row["named"]:
            print(f"not named by {row['checker']}, seed {row['seed']}: {row['defect']}: {row['said'][:300]!r}")
    for row in controls:
        if row["checker"].startswith("gradwright") and row["accused"]:
            print(f"accused by {row['checker']}, seed {row['seed']}: {row['control']}: {row['said'][:300]!r}")


def print_agreement(defects: Sequence[Row], controls: Sequence[Row]) -> None:
    """Say whether all seeds led to the same accusations, and to the same verdicts of every contract."""
    accused: dict[tuple[str, str], set[bool]] = {}
    verdicts: dict[tuple[str, str], set[str]] = {}
    for row in [*defects, *controls]:
        key = (row["checker"], row.get("defect") or row["control"])
        accused.setdefault(key, set()).add(row["found"] if "found" in row else row["accused"])
        verdicts.setdefault(key, set()).add(json.dumps(row["verdicts"], sort_keys=True))
    apart = [key for key, seen in accused.items() if len(seen) > 1]
    differing = [key for key, seen in verdicts.items() if len(seen) > 1]
    print(f"\n{len(verdicts)} pairs of checker and subject: {len(apart)} that only some seeds find or accuse;")
    print(f"{len(differing)} of which a contract passes with one seed and is unresolved with another")
    for checker, subject in differing:
        print(f"  {checker}: {subject}{' (accused)' if (checker, subject) in apart else ''}")


def figures(defects: Sequence[Row], controls: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the counts as benchmark rows, against slow gradcheck where that was run."""
    rows: list[Row] = []
    base = "gradcheck slow" if "gradcheck slow" in names else None
    for name in names:
        part = [row for row in _of(defects, name) if row["seed"] == 1]
        if not part or not controls:
            continue  # half a run has no figures
        found, total = sum(row["found"] for row in part), len(part)
        against = sum(row["found"] for row in _of(defects, base)) if base else 0
        judged = name == "gradwright standard"
        met = found >= GOALS["found"] * total
        rows.append(_figure(f"{name}: defects found of {total}", found, base, against, judged, met))
        if name.startswith("gradwright"):
            due = [row for row in part if row["due"]]
            share = sum(row["named"] for row in due) / max(1, len(due))
            rows.append(_figure(f"{name}: right diagnoses, share", share, None, 0, judged, share >= GOALS["named"]))
        alarms = sum(row["accused"] for row in _of(controls, name) if row["seed"] == 1)
        against = sum(row["accused"] for row in _of(controls, base)) if base else 0
        rows.append(_figure(f"{name}: right subjects accused", alarms, base, against, judged, alarms == 0))
    return rows


def _figure(name: str, value: float, base: str | None, against: float, judged: bool, met: bool) -> Row:
    goal = {"found": ">= 93 %", "share": ">= 85 %", "accused": "0"}
    return {
        "name": name,
        "value": value,
        "unit": "count" if isinstance(value, int) else "share",
        "against": base,
        "ratio": value / against if against else None,
        "goal": next((text for word, text in goal.items() if word in name), None) if judged else None,
        "met": met if judged else None,
    }


if __name__ == "__main__":
    sys.exit(main())
