"""``gradwright probe``: what the installed torch gets wrong, and which functions of ``gw.stable`` are right there."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradwright import torch_compat as torch_compat  # first: it says clearly when torch is missing

# isort: split

from gradwright import __version__
from gradwright.cli.consoles import report_console
from gradwright.cli.names import without_torch
from gradwright.cli.progress import progress
from gradwright.cli.statuses import EXIT_BROKEN, EXIT_OK
from gradwright.errors import OptionError, describe_exception
from gradwright.probing.row import Probe
from gradwright.probing.run import Result, Section, run, sections, stable_function
from gradwright.probing.text import LEGEND, case, counted, details, document, not_right, summary, verdict, worst_first

if TYPE_CHECKING:
    from gradwright.reporting.pen import Pen

WIDTH_WHEN_PIPED = 120
MIN_WIDTH = 20
"""Of the texts of a row, on terminals that are hardly wider than its number and verdict."""
CALLED = re.compile(r"\b[A-Za-z]\w*(?=\()|(?<=\.)[A-Za-z]\w*|^[A-Za-z]\w+|(?<=\bby )\w{3,}")
"""What a row calls, in the text of its case: before a bracket, after a dot or ``by``, or as its first word."""
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
    if options.list:
        print("\n".join(listed(known)))
        return EXIT_OK
    probes, notes = chosen(known, options.names)
    for note in notes:
        print(note, file=sys.stderr if options.json == "-" else sys.stdout)
    if options.names and not probes:
        return EXIT_OK
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


def chosen(known: Sequence[Section], names: Sequence[str]) -> tuple[list[tuple[str, Probe]], list[str]]:
    """Return the probes that some name fits, with their sections, and a line for each name that has none.

    A name is a row, a section, a function of ``gw.stable`` or one of torch.
    """
    every = [(section.name, probe) for section in known for probe in section.probes]
    if not names:
        return every, []
    fitting: set[Probe] = set()
    notes = []
    for name in names:
        own = [probe for section, probe in every if _fits(name, section, probe)]
        of_torch = without_torch(name)
        last = of_torch or _without_package(name)
        if own:
            fitting.update(own)
        elif callable(stable_function(last)):  # a module of the package is there, too
            about = f"{name}: no row calls it" if of_torch else f"gw.stable.{last}: no row of its own"
            notes.append(f"{about}; gradwright show stable.{last}")
        else:
            about = f"probe: {name!r} is no row, section or function of gw.stable, and no row calls it: not looked at."
            raise OptionError("\n".join([about, "The sections:", *listed(known)]))
    return [(section, probe) for section, probe in every if probe in fitting], notes


def listed(known: Sequence[Section]) -> list[str]:
    """Return a line for each section, with the number of its rows and what it is about."""
    width = max(len(section.name) for section in known)
    return [
        f"  {section.name:<{width}}  {counted(len(section.probes), 'row'):>8}  {section.title}" for section in known
    ]


def _fits(name: str, section: str, probe: Probe) -> bool:
    """Tell whether a name chooses a row; one that is written with its package is looked for nowhere else."""
    of_torch = without_torch(name)
    if of_torch is not None:
        return _calls(probe, of_torch)
    plain = _without_package(name)
    if plain != name:
        return plain == probe.remedy
    return name.upper() == probe.id or name in (section, probe.remedy) or _calls(probe, name)


def _without_package(name: str) -> str:
    for prefix in ("gradwright.", "gw.", "stable."):
        name = name.removeprefix(prefix)
    return name


def _calls(probe: Probe, function: str) -> bool:
    return function.lower() in (word.lower() for word in CALLED.findall(probe.case))


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

    pen = Pen(report_console(when_piped=WIDTH_WHEN_PIPED), None if sys.stdout.isatty() else "ascii")
    totals = summary(results)
    for line in [*totals, LEGEND]:
        pen.line(line)
    for section in known:
        own = [result for result in results if result.section == section.name]
        rows = worst_first(result for result in own if not (wrong and result.ok))
        if not rows:
            continue
        pen.heading(f"{section.title} ({section.name}): {not_right(own)}")
        pen.blank()
        _print_rows(pen, rows)
    pen.blank()
    if len({result.section for result in results}) > 1:
        pen.line(totals[0])  # once more, where the first lines have left the screen
    pen.line(f"torch {torch_compat.version()}, gradwright {__version__}, {seconds:.1f} s")


def _print_rows(pen: Pen, rows: Sequence[Result]) -> None:
    """Print rows: number and verdict, and beside them the case and, below it, the rest."""
    verdicts = [verdict(result) for result in rows]
    beside = sum(max(map(len, column)) + 2 for column in ([result.probe.id for result in rows], verdicts))
    width = max(pen.console.width - beside, MIN_WIDTH)
    lines = []
    for result, words in zip(rows, verdicts):
        told = pen.flow(map(pen.text, details(result)), width)
        kind = result.torch.kind if result.torch.kind != "right" or result.forward is None else result.forward.kind
        style = STYLES.get(kind, "bold red")
        about = pen.text((case(result.probe), "bold"), "\n").append_text(told)
        lines.append([pen.text(result.probe.id), pen.text((words, style)), about])
    pen.grid(lines, indent=0)
