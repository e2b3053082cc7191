"""The command line: ``gradwright check``, ``watch``, ``init``, ``explain``, ``show`` and ``probe``, one file for each.

Exit status: 0 nothing failed, 1 findings, 2 the command could not do its work, 5 nothing was discovered, 130
interrupted.
Nothing here imports torch until a command needs it, so that ``--help``, ``--version`` and mistyped options are quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from gradwright import __version__
from gradwright.cli.options import (
    add_check_options,
    add_init_options,
    add_probe_options,
    refuse_bad_check_options,
    refuse_bad_init_options,
    refuse_bad_probe_options,
)
from gradwright.cli.statuses import EXIT_BROKEN, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED
from gradwright.cli.watch_options import add_watch_options, refuse_bad_watch_options
from gradwright.errors import GradwrightError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        options = _parse(argv)
    except SystemExit as stop:  # argparse has printed the help or what is wrong
        return stop.code if isinstance(stop.code, int) else EXIT_BROKEN
    try:
        status = _run(options)
        sys.stdout.flush()  # here, where a reader that has gone away is no error, and not at the end of the interpreter
        return status
    except GradwrightError as error:
        print(error, file=sys.stderr)
        return EXIT_BROKEN
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever was reading has seen enough; nothing more may be written, not even by the interpreter at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gradwright",
        description="Check hand-written PyTorch gradients: verdicts with reasons on every part of their contract.",
    )
    parser.add_argument("--version", action="version", version=_versions())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    check = commands.add_parser(
        "check",
        help="check the custom gradients a file or module defines",
        description="Find every custom gradient that the targets define, and check it on the samples they declare, or "
        "on inputs found by trying.",
        epilog="Exit status: 0 nothing failed, 1 findings, 2 the command could not do its work, 5 nothing to check.",
    )
    add_check_options(check)
    watch = commands.add_parser(
        "watch",
        help="run a program, and check the custom gradients it uses on what they get",
        description="Run a program unchanged; when it is over, check every custom gradient that it used, on the inputs "
        "and incoming gradients it really had. The report goes to standard error.",
        epilog="Exit status: that of the program. With --fail-on, 1 for findings where the program ended with 0.",
    )
    add_watch_options(watch)
    init = commands.add_parser(
        "init",
        help="write a file of samples to be edited",
        description="Write gradwright_examples.py beside FILE: a function of samples for each custom gradient that "
        "declares none, guessed, to be corrected. `gradwright check` reads it.",
        epilog="Exit status: 0 written, 2 the command could not do its work, 5 there is nothing to write samples for.",
    )
    add_init_options(init)
    explain = commands.add_parser(
        "explain", help="print what a contract means", description="Print the documentation of a contract."
    )
    explain.add_argument("id", nargs="?", metavar="ID", help="a contract; without it, all are listed")
    show = commands.add_parser(
        "show",
        help="show the catalogue of proven gradients",
        description="List the catalogue, or print what one entry declares, and plot its values and its gradient.",
    )
    show.add_argument(
        "name", nargs="?", metavar="NAME", help="an entry, a family or a package; without it, all are listed"
    )
    probe = commands.add_parser(
        "probe",
        help="print what the installed torch gets wrong",
        description="Run calls of torch at the places where its values or gradients are known to be wrong, NaN, zero, "
        "detached or missing, compare them with high-precision truth, and say which function of gw.stable is right.",
        epilog="Exit status: 0 whatever torch gets wrong, 2 for an unknown name or a file that cannot be written.",
    )
    add_probe_options(probe)
    options = parser.parse_args(argv)
    if options.command == "check":
        refuse_bad_check_options(check, options)
    elif options.command == "watch":
        refuse_bad_watch_options(watch, options, sys.argv[1:] if argv is None else argv)
    elif options.command == "init":
        refuse_bad_init_options(init, options)
    elif options.command == "probe":
        refuse_bad_probe_options(probe, options)
    return options


def _run(options: argparse.Namespace) -> int:
    if options.command == "check":
        from gradwright.cli.check import run_check

        return run_check(options)
    if options.command == "watch":
        from gradwright.cli.watch import run_watch

        return run_watch(options)
    if options.command == "init":
        from gradwright.cli.init import run_init

        return run_init(options)
    if options.command == "show":
        from gradwright.cli.show import run_show

        return run_show(options.name)
    if options.command == "probe":
        from gradwright.cli.probe import run_probe

        return run_probe(options)
    from gradwright.cli.explain import run_explain

    return run_explain(options.id)


def _versions() -> str:
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not installed"
    return f"gradwright {__version__} (torch {torch})"
