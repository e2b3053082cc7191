"""``gradwright probe``: what the installed torch gets wrong, and which functions of ``gw.stable`` are right there."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradwright import torch_compat as torch_compat  # first: it says clearly when torch is missing

# isort: split

from gradwright import __version__
from gradwright.cli.progress import progress
from gradwright.cli.statuses import EXIT_BROKEN, EXIT_OK
from gradwright.errors import describe_exception, unknown_name
from gradwright.probing.row import Probe
from gradwright.probing.run import Result, Section, run, sections
from gradwright.probing.text import HEADS, cells, document, summary, worst_first

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WHEN_PIPED = 200
STYLES = {
    "right": "green",
    "not implemented": "cyan",
    "missing": "cyan",
    "raises": "cyan",
    "nan": "yellow",
    "inf": "yellow",
}


def run_probe(options: argparse.Namespace) -> int:
    """Run the probes that are asked for and print the table; this is a report, and what torch gets wrong no failure."""
    known = sections()
    probes = chosen(known, options.names)
    started = time.perf_counter()
    results = []
    with progress(len(probes)) as show:
        for result in run(probes):
            results.append(result)
            show(len(results), result.section)
    seconds = time.perf_counter() - started
    if options.json == "-":
        print(as_json(results, seconds))
        return EXIT_OK
    _print(known, results, seconds, wrong=options.wrong)
    if options.json is not None:
        try:
            Path(options.json).write_text(as_json(results, seconds) + "\n", encoding="utf-8")
        except OSError as error:
            print(
                f"--json: {options.json} cannot be written: {describe_exception(error)}; give another file.",
                file=sys.stderr,
            )
            return EXIT_BROKEN
    return EXIT_OK


def chosen(known: Sequence[Section], names: Sequence[str]) -> list[tuple[str, Probe]]:
    """Return the probes that some name fits, with their sections: a row, a section or a function of ``gw.stable``."""
    every = [(section.name, probe) for section in known for probe in section.probes]
    if not names:
        return every
    fitting = [{probe.id, section, probe.remedy or probe.id} for section, probe in every]
    wanted = {_plain(name) for name in names}
    for name in names:
        if not any(_plain(name) in fits for fits in fitting):
            raise unknown_name("probe", name, sorted(set.union(*fitting)), "gradwright probe")
    return [pair for pair, fits in zip(every, fitting) if wanted & fits]


def _plain(name: str) -> str:
    """Return a name as the table has it: rows in capitals, sections with hyphens, functions without the package."""
    for prefix in ("gradwright.", "gw.", "stable."):
        name = name.removeprefix(prefix)
    return name.upper() if name[1:].isdigit() else name


def as_json(results: Sequence[Result], seconds: float) -> str:
    """Return the results as one JSON document."""
    whole = {
        "schema": 1,
        "gradwright": __version__,
        "torch": torch_compat.version(),
        "command": "probe",
        "seconds": round(seconds, 3),
        "probes": document(results),
    }
    return json.dumps(whole, indent=2, allow_nan=False)


def _print(known: Sequence[Section], results: Sequence[Result], seconds: float, *, wrong: bool) -> None:
    from gradwright.reporting.pen import Pen  # here, so that the work begins while rich is imported

    pen = Pen(_console(), None if sys.stdout.isatty() else "ascii")
    for section in known:
        own = [result for result in results if result.section == section.name]
        rows = worst_first(result for result in own if not (wrong and result.ok))
        if not rows:
            continue
        pen.heading(f"{section.title} ({section.name}): {sum(not result.ok for result in own)} of {len(own)} not right")
        pen.blank()
        table = pen.table()
        for head in HEADS:
            table.add_column(head, overflow="fold")
        for result in rows:
            styled = [pen.text(text) for text in cells(result)]
            styled[HEADS.index("verdict")].stylize(STYLES.get(result.torch.kind, "bold red"))
            table.add_row(*styled)
        pen.console.print(table)
    pen.blank()
    for line in summary(results):
        pen.line(line)
    pen.line(f"torch {torch_compat.version()}, gradwright {__version__}, {seconds:.1f} s")


def _console() -> Console:
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=WIDTH_WHEN_PIPED if piped else None)
