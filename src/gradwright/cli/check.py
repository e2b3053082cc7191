"""``gradwright check``: have the work done, in another process unless asked otherwise, and show the verdicts."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from gradwright.cli.consoles import report_console
from gradwright.cli.outputs import Settled, fails, settle, unchecked, write_reports
from gradwright.cli.statuses import EXIT_BROKEN, EXIT_FINDINGS, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK
from gradwright.cli.tally import Tally
from gradwright.errors import missing_torch

if TYPE_CHECKING:
    from gradwright.checking.report import Report


def run_check(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if importlib.util.find_spec("torch") is None:
        raise missing_torch()
    path = list(sys.path)
    finish = settle(options)
    try:
        # With JSON on standard output, whatever else is printed (also by the user's code) goes elsewhere.
        with contextlib.redirect_stdout(sys.stderr) if options.json == "-" else contextlib.nullcontext():
            tally = _work(options)
            # What was not examined must not be taken for what is not there.
            settled = Settled(tally.entries) if tally.interrupted else finish(tally.entries)
            _show(tally, settled, options)
        if not tally.interrupted:
            written = write_reports(settled.entries, (), options, "check")
            if not (written and settled.written):
                return EXIT_BROKEN
        return _status(tally, settled, options)
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


def _show(tally: Tally, settled: Settled, options: argparse.Namespace) -> None:
    from gradwright.reporting import terminal  # here, so that the work begins while rich is imported

    if settled.entries:
        terminal.render(settled.entries, report_console(), verbose=options.verbose, again=partial(_again, options))
    sys.stdout.flush()
    for line in (*_messages(tally, options), *settled.notes):
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


def _again(options: argparse.Namespace, report: Report, contract: str) -> str | None:
    """Return the command that examines one contract of a subject again, on the same inputs."""
    if report.file is None:
        return None
    words = ["gradwright", "check", f"{report.file}::{report.name}", "--only", contract, "--seed", str(report.seed)]
    if report.level != "standard":
        words += ["--level", report.level]
    if options.samples is not None:
        words += ["--samples", options.samples]
    if options.store is not None:
        words += ["--store", options.store]
    if options.no_store:
        words.append("--no-store")
    return shlex.join(words)


def _status(tally: Tally, settled: Settled, options: argparse.Namespace) -> int:
    if tally.interrupted:
        return EXIT_INTERRUPTED
    if tally.broken or unchecked(settled.entries, options):
        return EXIT_BROKEN
    if fails(settled.entries, options):
        return EXIT_FINDINGS
    if tally.ended:
        return EXIT_BROKEN
    return EXIT_OK if tally.entries else EXIT_NOTHING
