"""``gradwright check``: have the work done, in another process unless asked otherwise, and show the verdicts."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gradwright.cli.statuses import EXIT_BROKEN, EXIT_FINDINGS, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK
from gradwright.cli.tally import Tally
from gradwright.errors import describe_exception, missing_torch

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WHEN_PIPED = 100


def run_check(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if importlib.util.find_spec("torch") is None:
        raise missing_torch()
    path = list(sys.path)
    output = sys.stdout
    try:
        # With JSON on standard output, whatever else is printed (also by the user's code) goes elsewhere.
        with contextlib.redirect_stdout(sys.stderr) if options.json == "-" else contextlib.nullcontext():
            tally = _work(options)
            _show(tally, options)
        if not tally.interrupted:
            written = _write_files(tally, options)
            if options.json == "-":
                from gradwright.reporting import machine

                print(machine.to_json(tally.entries, command="check"), file=output)
            if not written:
                return EXIT_BROKEN
        return _status(tally)
    finally:
        sys.path[:] = path


def _work(options: argparse.Namespace) -> Tally:
    with Tally() as tally:
        try:
            if options.no_isolation:
                from gradwright.cli.events import Start
                from gradwright.cli.work import work

                work(options, tally.receive, Start())
            else:
                from gradwright.cli.supervisor import supervise

                supervise(options, tally.receive)
        except KeyboardInterrupt:
            tally.interrupt()
    return tally


def _show(tally: Tally, options: argparse.Namespace) -> None:
    from gradwright.reporting import terminal  # here, so that the work begins while rich is imported

    if tally.entries:
        terminal.render(tally.entries, _console(), verbose=options.verbose)
    sys.stdout.flush()
    for line in _messages(tally, options):
        print(line, file=sys.stderr)


def _messages(tally: Tally, options: argparse.Namespace) -> Iterator[str]:
    """Yield what is said beside the table."""
    yield from tally.notes
    shown: set[str] = set()
    for problem in tally.problems:
        yield problem.message
        if problem.traceback is not None:
            # Ten modules that fail in the same line need no ten tracebacks.
            end = "\n".join(problem.traceback.splitlines()[-3:])
            if end not in shown or options.verbose:
                yield "\n".join(f"    {line}" for line in problem.traceback.splitlines())
            shown.add(end)
    if tally.interrupted:
        number = len(tally.subjects or ())
        yield f"interrupted: {number - len(tally.entries)} of {number} subjects were not checked"
    elif not tally.entries and not tally.problems:
        yield (
            f"{', '.join(options.targets)}: there is nothing to check; expected a torch.autograd.Function class or a "
            "custom op that is defined there, or samples declared for a function; name another target."
        )


def _console() -> Console:
    from rich.console import Console

    # rich takes 80 columns when it does not write to a terminal, which is too narrow for the table.
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=WIDTH_WHEN_PIPED if piped else None)


def _write_files(tally: Tally, options: argparse.Namespace) -> bool:
    """Write the files that are asked for; false when one could not be written."""
    from gradwright.reporting import html, machine

    written = True
    for option, path in (("--json", options.json), ("--html", options.html)):
        if path is None or path == "-":
            continue
        try:
            if option == "--json":
                machine.to_json(tally.entries, command="check", path=Path(path))
            else:
                html.write_html(tally.entries, Path(path))
        except OSError as error:
            message = f"{option}: {path} cannot be written: {describe_exception(error)}; give another file."
            print(message, file=sys.stderr)
            written = False
    return written


def _status(tally: Tally) -> int:
    if tally.interrupted:
        return EXIT_INTERRUPTED
    if tally.broken:
        return EXIT_BROKEN
    if tally.failed:
        return EXIT_FINDINGS
    if tally.ended:
        return EXIT_BROKEN
    return EXIT_OK if tally.entries else EXIT_NOTHING
