"""``gradwright check``: find subjects, find inputs for them, check them, show the verdicts."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from gradwright import torch_compat as torch_compat  # first: it says clearly when torch is missing
from gradwright.checking.discovery import Discovery, Found, discover
from gradwright.checking.importing import Problem, user_traceback
from gradwright.checking.report import Entry, NotChecked, Report
from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.settings import as_in
from gradwright.checking.synthesis import synthesise
from gradwright.cli.progress import progress
from gradwright.errors import ForwardError, GradwrightError, SampleError, describe_exception
from gradwright.reporting import html, machine, terminal

WIDTH_WHEN_PIPED = 100

Observe = Callable[[str], None]


@dataclass
class _Outcome:
    """What came of the command so far."""

    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    broken: bool = False
    """True when something that was asked for could not be done."""
    interrupted: bool = False


def run_check(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    path = list(sys.path)
    output = sys.stdout
    try:
        # With JSON on standard output, whatever else is printed (also by the user's code) goes elsewhere.
        with contextlib.redirect_stdout(sys.stderr) if options.json == "-" else contextlib.nullcontext():
            discovery = discover(options.targets, samples_file=options.samples, seed=options.seed)
            outcome = _check_all(discovery, options)
            _show(outcome, discovery, options)
        if not outcome.interrupted:
            _write_files(outcome, options)
            if options.json == "-":
                print(machine.to_json(outcome.entries, command="check"), file=output)
        return _status(outcome)
    finally:
        sys.path[:] = path


def _check_all(discovery: Discovery, options: argparse.Namespace) -> _Outcome:
    outcome = _Outcome(problems=list(discovery.problems), broken=bool(discovery.problems))
    with progress(len(discovery.found)) as bar:
        for found in discovery.found:
            try:
                with as_in(found.source.module):
                    entry, broken = _check_one(found, options, bar.subject(found.subject.name))
            except KeyboardInterrupt:
                outcome.interrupted = True
                break
            outcome.entries.append(entry)
            outcome.broken = outcome.broken or broken
    ran = any(isinstance(entry, Report) for entry in outcome.entries)
    outcome.broken = outcome.broken or (bool(outcome.entries) and not ran)
    return outcome


def _check_one(found: Found, options: argparse.Namespace, observe: Observe) -> tuple[Entry, bool]:
    """Check one subject; the second value tells whether something that was asked for could not be done."""
    if found.sample_error is not None:
        return _not_checked(found, found.sample_error), True
    samples, guessed = list(found.samples), not found.samples
    notes: Sequence[str] = ()
    if guessed:
        observe("looking for inputs")
        synthesis = synthesise(found.subject, options.seed)
        if synthesis.reason is not None:
            place = f"# in {found.subject.file}, or in a file given by --samples"
            remedy = f"{place}\n{synthesis.remedy}"
            return _not_checked(found, synthesis.reason, remedy), found.named
        samples, notes = list(synthesis.samples), synthesis.notes
    try:
        return _report(found, samples, notes, options, observe), False
    except (SampleError, ForwardError) as error:
        if guessed and len(samples) > 1:
            with contextlib.suppress(SampleError, ForwardError):
                return _report(found, samples[:1], notes, options, observe), False
        return _not_checked(found, error), found.named or not guessed
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = (
            f"{found.subject.name}: gradwright itself failed with {describe_exception(error)}; expected a verdict; "
            "please report this fault of gradwright's with the traceback that --verbose shows."
        )
        return _not_checked(found, reason, trace="".join(traceback.format_exception(error))), True


def _report(
    found: Found, samples: Sequence[Sample], notes: Sequence[str], options: argparse.Namespace, observe: Observe
) -> Report:
    return check_subject(
        found.subject,
        samples,
        level=options.level,
        only=options.only,
        skip=options.skip,
        require=options.require,
        seed=options.seed,
        observe=observe,
        notes=notes,
    )


def _not_checked(
    found: Found, why: GradwrightError | str, remedy: str | None = None, trace: str | None = None
) -> NotChecked:
    if isinstance(why, GradwrightError) and why.__cause__ is not None:
        trace = user_traceback(why.__cause__)
    subject = found.subject
    return NotChecked(subject.name, subject.file, subject.line, str(why), remedy, found.named, trace)


def _show(outcome: _Outcome, discovery: Discovery, options: argparse.Namespace) -> None:
    if outcome.entries:
        terminal.render(outcome.entries, _console(), verbose=options.verbose)
    sys.stdout.flush()
    for line in _messages(outcome, discovery, options):
        print(line, file=sys.stderr)


def _messages(outcome: _Outcome, discovery: Discovery, options: argparse.Namespace) -> Iterator[str]:
    """Yield what is said beside the table."""
    yield from discovery.notes
    shown: set[str] = set()
    for problem in outcome.problems:
        yield problem.message
        if problem.traceback is not None:
            # Ten modules that fail in the same line need no ten tracebacks.
            end = "\n".join(problem.traceback.splitlines()[-3:])
            if end not in shown or options.verbose:
                yield "\n".join(f"    {line}" for line in problem.traceback.splitlines())
            shown.add(end)
    if outcome.interrupted:
        left = len(discovery.found) - len(outcome.entries)
        yield f"interrupted: {left} of {len(discovery.found)} subjects were not checked"
    elif not outcome.entries and not outcome.problems:
        yield (
            f"{', '.join(options.targets)}: there is nothing to check; expected a torch.autograd.Function class or a "
            "custom op that is defined there, or samples declared for a function; name another target."
        )


def _console() -> Console:
    # rich takes 80 columns when it does not write to a terminal, which is too narrow for the table.
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=WIDTH_WHEN_PIPED if piped else None)


def _write_files(outcome: _Outcome, options: argparse.Namespace) -> None:
    for option, path in (("--json", options.json), ("--html", options.html)):
        if path is None or path == "-":
            continue
        try:
            if option == "--json":
                machine.to_json(outcome.entries, command="check", path=Path(path))
            else:
                html.write_html(outcome.entries, Path(path))
        except OSError as error:
            message = f"{option}: {path} cannot be written: {describe_exception(error)}; give another file."
            print(message, file=sys.stderr)
            outcome.broken = True


def _status(outcome: _Outcome) -> int:
    from gradwright.cli import EXIT_BROKEN, EXIT_FINDINGS, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK

    if outcome.interrupted:
        return EXIT_INTERRUPTED
    if outcome.broken:
        return EXIT_BROKEN
    if any(isinstance(entry, Report) and not entry.ok for entry in outcome.entries):
        return EXIT_FINDINGS
    return EXIT_OK if outcome.entries else EXIT_NOTHING
