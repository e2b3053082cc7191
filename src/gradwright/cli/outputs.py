"""What every command that checks has in common: which reports are written, and what fails the run.

``check``, ``watch`` and the pytest plugin declare the same options, and do the same with them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwright.checking.report import Entry, NotChecked, Report, Usage
from gradwright.errors import describe_exception
from gradwright.typing import VERDICTS, Verdict

FILES = {
    "json": "write the verdicts as JSON (- is standard output)",
    "html": "write the verdicts as one self-contained HTML page",
    "junit": "write the verdicts as JUnit XML",
    "sarif": "write the findings as SARIF 2.1.0, for code scanning",
    "markdown": "write the report as Markdown",
}
"""Options that take the name of a file to write."""
FAIL_ON = ("fail", "suspect", "unresolved", "unsupported", "none")
"""What fails the run: a verdict and all that are graver."""


def add_report_options(parser: argparse.ArgumentParser, fail_on: str = "fail") -> None:
    """Declare the options that every command with a report has; ``fail_on`` is what ``--fail-on`` is unless given."""
    for name, text in FILES.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=text)
    parser.add_argument(
        "--github", action="store_true", help="print annotations for GitHub Actions, and write the summary of the step"
    )
    parser.add_argument("--baseline", metavar="FILE", help="do not count the findings that this file lists")
    parser.add_argument(
        "--update-baseline", action="store_true", help="write what was found into the file of --baseline"
    )
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default=fail_on,
        help=f"what fails the run: this and all graver (default: {fail_on})",
    )
    parser.add_argument(
        "--fail-on-unchecked", action="store_true", help="a subject that could not be run fails the run as well"
    )
    parser.add_argument("--verbose", action="store_true", help="show everything: passing rows, samples, tracebacks")


def refuse_bad_report_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with a message when an option cannot be right."""
    for name in FILES:
        if (name, getattr(options, name)) != ("json", "-"):
            refuse_unwritable(parser, f"--{name}", getattr(options, name))
    if options.update_baseline:
        if options.baseline is None:
            parser.error("--update-baseline: there is no --baseline; expected the file to write; give one.")
        refuse_unwritable(parser, "--baseline", options.baseline)


def counted(options: argparse.Namespace) -> tuple[Verdict, ...]:
    """Return the verdicts that fail the run, gravest first."""
    return VERDICTS[: 0 if options.fail_on == "none" else FAIL_ON.index(options.fail_on) + 1]


def fails(entries: Sequence[Entry], options: argparse.Namespace) -> bool:
    """Tell whether a contract of some subject has a verdict that fails the run."""
    verdicts = counted(options)
    results = (result for entry in entries if isinstance(entry, Report) for result in entry.results)
    return any(result.verdict in verdicts for result in results)


def unchecked(entries: Sequence[Entry], options: argparse.Namespace) -> bool:
    """Tell whether a subject could not be run, where that fails the run."""
    return bool(options.fail_on_unchecked) and any(isinstance(entry, NotChecked) for entry in entries)


@dataclass(frozen=True)
class Settled:
    """The entries as they are shown, and what the baseline has to do with that."""

    entries: list[Entry]
    notes: tuple[str, ...] = ()
    """What is said about the baseline, a line each."""
    written: bool = True
    """False when the baseline could not be written."""


def settle(options: argparse.Namespace) -> Callable[[Sequence[Entry]], Settled]:
    """Read the baseline, which is done before any work; return what sets known findings apart when the work is done.

    Raises:
        OptionError: the file of the baseline is not there, or is no baseline.
    """
    if options.baseline is None:
        return lambda entries: Settled(list(entries))
    from gradwright.reporting import baseline  # here, so that `--help` is quick
    from gradwright.reporting.summary import plural

    path = Path(options.baseline)
    known = {} if options.update_baseline and not path.exists() else baseline.read(path)

    def finish(entries: Sequence[Entry]) -> Settled:
        gone = baseline.fixed(known, entries)
        if not options.update_baseline:
            return Settled(baseline.apply(known, entries), tuple(_fixed(path, list(map(str, gone)))))
        new = baseline.updated(known, entries, counted(options))
        try:
            baseline.write(new, path)
        except OSError as error:
            return Settled(baseline.apply(known, entries), (_unwritable("--baseline", path, error),), written=False)
        note = f"{path}: {plural(len(new), 'known finding')} ({len(new.keys() - known.keys())} new, {len(gone)} fixed)"
        return Settled(baseline.apply(new, entries), (note,))

    return finish


def write_reports(entries: Sequence[Entry], usage: Sequence[Usage], options: argparse.Namespace, command: str) -> bool:
    """Write every report that the options ask for; false when one could not be written, which is said.

    Annotations go to standard error, where GitHub Actions finds them too: standard output may be the JSON document, or
    belong to the program that is watched.
    """
    asked = {name: path for name in FILES if (path := getattr(options, name)) is not None}
    if not asked and not options.github:
        return True
    from gradwright.reporting import github, html, junit, machine, markdown, sarif
    from gradwright.reporting.reading import COUNTED

    # A failure is one in every file, also where it does not fail the run.
    verdicts = counted(options) or COUNTED
    document = machine.document(entries, command, usage)
    texts: dict[str, Callable[[], str]] = {
        "json": lambda: machine.as_text(document),
        "junit": lambda: junit.junit(document, verdicts),
        "sarif": lambda: sarif.sarif(document, verdicts),
        "markdown": lambda: markdown.markdown(document),
    }
    written = True
    for name, path in asked.items():
        if (name, path) == ("json", "-"):
            print(texts[name](), end="")
            continue
        try:
            if name == "html":
                html.write_html(entries, Path(path), usage=usage, command=command)
            else:
                Path(path).write_text(texts[name](), encoding="utf-8", errors="backslashreplace", newline="\n")
        except OSError as error:
            print(_unwritable(f"--{name}", path, error), file=sys.stderr)
            written = False
    if options.github:
        for line in github.commands(document, verdicts):
            print(line, file=sys.stderr)
        try:
            github.write_summary(document)
        except OSError as error:
            print(_unwritable("--github", os.environ["GITHUB_STEP_SUMMARY"], error), file=sys.stderr)
            written = False
    return written


def refuse_unwritable(parser: argparse.ArgumentParser, option: str, name: str | None) -> None:
    """End with a message when a file cannot be written."""
    if name is None:
        return
    path = Path(name)
    if path.is_dir():
        parser.error(f"{option}: {path} is a directory; expected a file to write; give a file name.")
    folder = path.absolute().parent
    if not folder.exists():
        parser.error(f"{option}: {path} cannot be written: there is no directory {path.parent}; make it first.")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        parser.error(f"{option}: {path} cannot be written: {folder} is not a directory open to you; give another file.")


def _unwritable(option: str, path: str | Path, error: OSError) -> str:
    return f"{option}: {path} cannot be written: {describe_exception(error)}; give another file."


def _fixed(path: Path, gone: Sequence[str]) -> list[str]:
    """Say which known findings are no longer there."""
    if not gone:
        return []
    verb, them = ("finding no longer occurs", "it") if len(gone) == 1 else ("findings no longer occur", "them")
    return [f"{path}: {len(gone)} known {verb} ({'; '.join(gone)}); `--update-baseline` takes {them} out."]
