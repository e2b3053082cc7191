"""What ``pytest --gradwright`` does: the custom gradients that a test suite uses are recorded, and checked at its end.

The suite must not notice: its results, their order, its exit status and what is printed are the same as without it,
except for one section at the end. Under xdist each worker checks what it was the first to claim and leaves what came of
that in a folder, where the process that reports finds it, whatever becomes of the worker.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradwright.checking.report import Entry, Usage
from gradwright.cli.after_torch import AfterTorch
from gradwright.cli.options import add_examining_options, refuse_bad_examining_options
from gradwright.cli.outcomes import Outcome, merge, own_fault
from gradwright.cli.outputs import (
    FILES,
    Settled,
    add_report_options,
    fails,
    refuse_bad_report_options,
    settle,
    write_reports,
)
from gradwright.cli.runs import Run
from gradwright.errors import OptionError, StoreError

if TYPE_CHECKING:
    from gradwright.watching.recorder import Recorder


def options_of(config: pytest.Config) -> argparse.Namespace:
    """Return the options of the checks, as those of ``gradwright watch`` are.

    Raises:
        UsageError: an option cannot be right.
    """
    parser = _Parser(prog="pytest", allow_abbrev=False)
    add_examining_options(parser)
    add_report_options(parser)
    options = parser.parse_args([])
    given = {name: config.getoption(f"gradwright_{name}") for name in (*FILES, "baseline", "store")}
    if given["json"] == "-":
        parser.error("--json: standard output belongs to pytest; expected a file; give its name.")
    # Tests may leave another working directory behind.
    folder = config.invocation_params.dir
    for name, path in given.items():
        setattr(options, name, None if path is None else str(folder / path))
    options.level = config.getoption("gradwright_level")
    options.include = config.getoption("gradwright_include")
    options.exclude = config.getoption("gradwright_exclude")
    options.update_baseline = config.getoption("gradwright_update_baseline")
    options.verbose = config.getoption("verbose", 0) > 1  # absent with `-p no:terminal`
    refuse_bad_examining_options(parser, options)
    refuse_bad_report_options(parser, options)
    # What the command `watch` has besides.
    return argparse.Namespace(**vars(options), no_check=False, no_isolation=False)


class _Parser(argparse.ArgumentParser):
    """Has pytest say what is wrong with an option, by the name that the option has there."""

    def error(self, message: str) -> Any:
        raise pytest.UsageError("--gradwright-" + message.removeprefix("--"))


class Watch:
    """The plugin of a run of pytest that watches."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.options: argparse.Namespace
        self.pid = os.getpid()
        self.recorder: Recorder | None = None
        self.left_out = 0
        """How many tests that are not to be watched are running, inside one another."""
        self.forks = 0
        self.failures: list[str] = []
        """What went wrong in gradwright itself."""
        self.workers: Run | None = None
        """What the workers leave, in the process that starts them."""
        self.outcome: Outcome | None = None
        self.settled: Settled | None = None
        self.waiting = AfterTorch(self._begin)
        os.register_at_fork(after_in_parent=self._has_forked, after_in_child=self._was_forked)
        if sys.modules.get("torch") is not None:
            self._begin()
        else:
            self.waiting.wait()

    # ------------------------------------------------------------------ what the suite uses

    def _begin(self) -> None:
        """Record from now on."""
        with self._told(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from gradwright.watching.recorder import Recorder

            self.recorder = Recorder()
            if not self.left_out:
                self.recorder.start()

    @contextlib.contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Record nothing within the block."""
        self.left_out += 1
        if self.recorder is not None:
            self.recorder.stop()
        try:
            yield
        finally:
            self.left_out -= 1
            if self.recorder is not None and not self.left_out and os.getpid() == self.pid:
                self.recorder.start()

    def _has_forked(self) -> None:
        self.forks += 1

    def _was_forked(self) -> None:
        """Record nothing in a child process: nobody would learn of it."""
        if self.recorder is not None:
            self.recorder.stop()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, None, None]:
        """Show an error as it would look without the recorder."""
        if call.excinfo is not None and self.recorder is not None:
            with self._told():
                from gradwright.cli.watched import hide

                hide(call.excinfo.value)
        yield

    # ------------------------------------------------------------------ the processes

    def pytest_configure(self, config: pytest.Config) -> None:
        """Read the options, and tell that a worker has begun."""
        self.options = options_of(config)
        worker = getattr(config, "workerinput", None)
        if worker is not None:
            Run(Path(worker["gradwright"])).began(f"worker {worker['workerid']}")
        else:
            try:
                self._settle = settle(self.options)
            except OptionError as error:
                words = re.sub(r"--(?=baseline|update-baseline)", "--gradwright-", str(error))
                raise pytest.UsageError(words) from None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist where to leave what it found."""
        if self.workers is None:
            self.workers = Run(Path(tempfile.mkdtemp(prefix="gradwright-pytest-")))
            self.workers.prepare(self.options)
        node.workerinput["gradwright"] = str(self.workers.path)

    @pytest.hookimpl(trylast=True)  # the workers of xdist have ended by then, and coverage is no longer measured
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Check what was used, and decide on the exit status."""
        self._stop()
        if os.getpid() != self.pid:
            return  # a test has forked, and the child has come here
        worker = getattr(self.config, "workerinput", None)
        try:
            with self._told(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a fork, which pytest may count as an error
                if worker is not None:
                    run = Run(Path(worker["gradwright"]))
                    run.leave(self._check(run.claim))
                else:
                    self.outcome = self._check() if self.workers is None else self._gathered(self.workers)
                    self._report(session, self.outcome)
        except KeyboardInterrupt:
            self.outcome = replace(self.outcome or Outcome(), interrupted=True)
        if worker is not None:
            if self.failures:
                Run(Path(worker["gradwright"])).failed("\n".join(self.failures))
        elif session.exitstatus == pytest.ExitCode.OK and self.config.getoption("gradwright_fail"):
            # Nobody knows whether there are findings.
            if self.failures:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            elif self.outcome is not None and self.outcome.interrupted:
                session.exitstatus = pytest.ExitCode.INTERRUPTED

    def pytest_unconfigure(self) -> None:
        """Leave nothing behind."""
        self._stop()
        if self.workers is not None:
            shutil.rmtree(self.workers.path, ignore_errors=True)

    def _stop(self) -> None:
        self.waiting.give_up()
        if self.recorder is not None:
            self.recorder.stop()

    def _check(self, *claim: Any) -> Outcome:
        if self.recorder is None:
            return Outcome(notes=("torch was not imported, so there was nothing to watch",))
        from gradwright.cli.finish import finish

        forks = self.forks
        outcome = finish(self.recorder, self.options, *claim)
        if self.options.store is not None:
            outcome = replace(outcome, notes=(*outcome.notes, *_store(self.recorder, Path(self.options.store))))
        if forks and any(not usage.backwards for usage in outcome.usages):
            note = (
                "the tests forked processes, and what they used in there is not seen; to have it seen as well, run "
                "`gradwright watch -- pytest ...`"
            )
            outcome = replace(outcome, notes=(*outcome.notes, note))
        return outcome

    def _gathered(self, workers: Run) -> Outcome:
        """Put together what the workers left."""
        processes = list(workers.processes())
        self.failures += [process.failure for process in processes if process.failure is not None]
        lost = [
            f"{process.command} ended before what it used could be checked" for process in processes if process.lost
        ]
        merged = merge(process.outcome for process in processes if process.outcome is not None)
        return replace(merged, notes=(*merged.notes, *lost))

    # ------------------------------------------------------------------ the report

    def _report(self, session: pytest.Session, outcome: Outcome) -> None:
        self.settled = settled = self._settle(outcome.entries)
        written = write_reports(settled.entries, outcome.usages, self.options, "pytest")
        found = self.config.getoption("gradwright_fail") and fails(settled.entries, self.options)
        if session.exitstatus == pytest.ExitCode.OK and (found or not (written and settled.written)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the section."""
        if self.outcome is None and not self.failures:
            return
        terminalreporter.section("gradwright")
        outcome = self.outcome or Outcome()
        entries = list(outcome.entries if self.settled is None else self.settled.entries)
        if entries or outcome.usages:
            for line in self._text(entries, outcome.usages).splitlines():
                terminalreporter.write_line(line.rstrip())
        notes = [*outcome.notes, *(() if self.settled is None else self.settled.notes), *map(own_fault, self.failures)]
        if outcome.interrupted:
            notes.append("interrupted: not everything that was used was checked")
        if not (notes or entries or any(usage.calls for usage in outcome.usages)):
            notes.append("the tests called no custom gradient")
        for note in notes:
            terminalreporter.write_line(note)

    def _text(self, entries: list[Entry], usages: Sequence[Usage]) -> str:
        from rich.console import Console

        from gradwright.reporting import summary, terminal
        from gradwright.reporting.exercised import exercised

        if self.config.getoption("verbose", 0) < 0 and not fails(entries, self.options):
            return f"{summary.counts_text(entries)}; {exercised(usages)}\n"
        writer = self.config.get_terminal_writer()
        stream = io.StringIO()
        console = Console(
            file=stream,
            width=writer.fullwidth,
            force_terminal=writer.hasmarkup,
            color_system="standard" if writer.hasmarkup else None,
            highlight=False,
            legacy_windows=False,
        )
        terminal.render(entries, console, verbose=self.options.verbose, usage=usages)
        return stream.getvalue()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say what goes wrong within the block in the section, and let it reach nobody else."""
        try:
            yield
        except Exception:
            self.failures.append(traceback.format_exc())


def _store(recorder: Recorder, root: Path) -> Iterator[str]:
    """Write what was recorded into a store; give what cannot be written."""
    from gradwright.watching.store import write_call
    from gradwright.watching.targets import function_key
    from gradwright.watching.usage import write_usages

    try:
        for watched in recorder.used():
            for kept in watched.kept:
                write_call(root, function_key(watched.target, kept.subject), kept.call)
        write_usages(root, recorder)
    except StoreError as error:
        yield str(error)
