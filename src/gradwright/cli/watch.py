"""``gradwright watch``: run a program unchanged, and check the custom gradients it used on what they really got.

The program is a child process with the terminal, the arguments and the exit status it has without this command. The
report goes to standard error, since standard output belongs to the program.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gradwright.checking.report import Entry
from gradwright.cli.outcomes import Outcome, merge, own_fault
from gradwright.cli.runs import VARIABLE, Process, Run
from gradwright.cli.statuses import EXIT_BROKEN, EXIT_FINDINGS, EXIT_OK
from gradwright.errors import OptionError, did_you_mean, missing_torch

SITE = Path(__file__).parent / "site"
KEPT = (
    "level",
    "only",
    "skip",
    "require",
    "seed",
    "time_limit",
    "memory",
    "include",
    "exclude",
    "spec_only",
    "store",
    "no_check",
)
"""Options that the processes of the program have to know."""


def run_watch(options: argparse.Namespace) -> int:
    """Run the command and return its exit status: that of the program, unless findings shall fail it."""
    if importlib.util.find_spec("torch") is None:
        raise missing_torch()
    from gradwright.cli.outputs import settle

    command = _command(options)
    _refuse_other_directory(options.store)
    finish = settle(options)
    with tempfile.TemporaryDirectory(prefix="gradwright-watch-", ignore_cleanup_errors=True) as folder:
        run = Run(Path(folder))
        run.prepare(_for_processes(options))
        status = _run(command, _environment(folder, options))
        seen = _gather(run)
        kept = tuple(_kept(run, options))
    settled = finish(seen.entries)
    written = _report(seen, settled.entries, (*kept, *settled.notes), options)
    if not (written and settled.written) and status == EXIT_OK:
        status = EXIT_BROKEN
    elif status == EXIT_OK and _fails(settled.entries, options):
        status = EXIT_FINDINGS
    return _leave(status)


# ---------------------------------------------------------------------- the program


def _command(options: argparse.Namespace) -> list[str]:
    """Return the command that is run.

    Raises:
        OptionError: there is no such program.
    """
    if options.module is not None:
        name, *arguments = options.module
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            raise OptionError(
                f"watch: there is no module {name!r}; expected one that can be imported; install it, or give the path "
                "of a script."
            )
        return [sys.executable, "-m", name, *arguments]
    program = options.program
    if options.is_command:
        if shutil.which(program[0]) is None:
            raise OptionError(
                f"watch: there is no command {program[0]!r}; expected a program after `--`; correct the name."
            )
        return list(program)
    script = Path(program[0])
    if not script.is_file() and not (script / "__main__.py").is_file():
        near = [str(p) for p in script.parent.glob("*.py")] if script.parent.is_dir() else []
        instead = f" For a command that is no Python script write `gradwright watch -- {' '.join(program)}`."
        raise OptionError(
            f"watch: there is no script {program[0]}; expected a Python file; correct the path."
            + (did_you_mean(program[0], near) or (instead if shutil.which(program[0]) else ""))
        )
    return [sys.executable, *program]


def _refuse_other_directory(store: str | None) -> None:
    """Keep the calls out of a directory that is something else; all but the first process find it made already."""
    if store is None:
        return
    path = Path(store)
    other = path.is_dir() and not (path / "store.json").is_file() and any(path.iterdir())
    if other or (path.exists() and not path.is_dir()):
        raise OptionError(
            f"--store: {store} is there and no store; expected a new directory, an empty one, or a store; name another."
        )


def _environment(folder: str, options: argparse.Namespace) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    found = {**os.environ, "PYTHONPATH": path, VARIABLE: folder}
    if options.eager:
        found["TORCHDYNAMO_DISABLE"] = "1"
    return found


def _for_processes(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options for the processes of the program, some of which may work in other directories."""
    kept = {name: getattr(options, name) for name in KEPT}
    kept["store"] = None if options.store is None else str(Path(options.store).absolute())
    return argparse.Namespace(**kept, no_isolation=False, json=None)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run the program to its end and return its status, negative for a signal."""
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: object) -> None:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def leave_to_program(number: int, frame: object) -> None:
        """Ctrl-C reaches the program as well, which decides what comes of it."""

    # Handlers, not SIG_IGN: the program would inherit that. So it has to where this command did, as under `nohup`.
    handlers: dict[str, Callable[[int, object], None]]
    handlers = {"SIGINT": leave_to_program, "SIGTERM": pass_on, "SIGHUP": pass_on}
    before = {}
    for name, handler in handlers.items():
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    try:
        process = subprocess.Popen(command, env=environment)
        return process.wait()
    except OSError as error:
        raise OptionError(f"watch: {command[0]} cannot be run: {error}; expected a program; check it.") from None
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def _leave(status: int) -> int:
    """End as the program did, also by a signal."""
    if status >= 0:
        return status
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError, ValueError):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status  # where the signal was not deadly for this process


# ---------------------------------------------------------------------- what was seen


def _gather(run: Run) -> Outcome:
    """Put together what the processes of the program left."""
    processes = list(run.processes())
    outcome = merge(process.outcome for process in processes if process.outcome is not None)
    notes = list(outcome.notes)
    for process in processes:
        if process.failure is not None:
            notes.append(own_fault(process.failure, f" in process {process.pid}"))
        elif process.lost:
            notes.append(_lost(process))
    if outcome.interrupted:
        notes.append("interrupted: not everything that the program used was checked")
    for words in run.foreign():
        notes.append(
            f"a process could not be watched, because gradwright cannot be imported there ({words}); expected it to be "
            "installed beside torch; install it in that environment."
        )
    if not processes:
        notes.append("no process of the program imported torch, so there was nothing to watch.")
    elif not (outcome.entries or any(usage.calls for usage in outcome.usages)):
        notes.append("no call of a custom gradient was seen.")
    return replace(outcome, notes=tuple(notes))


def _lost(process: Process) -> str:
    """Say that a process ended before it was checked."""
    return f"process {process.pid} ({process.command}) ended, or was ended, before what it used could be checked"


def _kept(run: Run, options: argparse.Namespace) -> Iterator[str]:
    """Keep the calls of processes that ended before they were checked, and say where they are."""
    store = run.calls(options)
    if not store.is_dir():
        return
    if all(process.outcome is not None for process in run.processes()):
        if options.no_check:
            where = "" if options.store == ".gradwright" else f" --store {options.store}"
            yield f"the calls are kept in {options.store}; check them by `gradwright check FILE{where}`"
        return
    if options.store is None:
        kept = Path(tempfile.mkdtemp(prefix="gradwright-calls-"))
        store = Path(shutil.copytree(store, kept, dirs_exist_ok=True))
    yield f"the calls that were recorded until then are kept; check them by `gradwright check FILE --store {store}`"


def _report(seen: Outcome, entries: Sequence[Entry], notes: Sequence[str], options: argparse.Namespace) -> bool:
    """Show the verdicts and write the files that are asked for; false when one could not be written."""
    from gradwright.cli.consoles import report_console
    from gradwright.cli.outputs import write_reports
    from gradwright.reporting import terminal

    sys.stdout.flush()
    console = report_console(stderr=True)
    print("\ngradwright watch", "-" * 60, file=sys.stderr)
    if entries or seen.usages:
        terminal.render(entries, console, verbose=options.verbose, usage=seen.usages)
    for note in (*seen.notes, *notes):
        print(note, file=sys.stderr)
    return write_reports(entries, seen.usages, options, "watch")


def _fails(entries: Sequence[Entry], options: argparse.Namespace) -> bool:
    from gradwright.cli.outputs import fails, unchecked

    return fails(entries, options) or unchecked(entries, options)
