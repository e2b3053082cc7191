"""The options of the commands, and what is wrong with them, told before anything is imported."""

from __future__ import annotations

import argparse
import math
import pkgutil
from pathlib import Path

import gradwright
from gradwright.cli.outputs import add_report_options, refuse_bad_report_options, refuse_unwritable
from gradwright.errors import required_and_skipped, unknown_name
from gradwright.typing import LEVELS


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gradwright check``."""
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="FILE.py, a directory or package.module; ::Name for one subject"
    )
    add_examining_options(parser)
    parser.add_argument("--samples", metavar="FILE", help="a Python file that declares samples for code elsewhere")
    _add_store_options(parser)
    parser.add_argument(
        "--no-isolation", action="store_true", help="run the code in this process, for debuggers and coverage"
    )
    add_report_options(parser)


def _add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help="calls that `gradwright watch` kept (default: .gradwright)")
    parser.add_argument("--no-store", action="store_true", help="do not look for recorded calls")


def add_examining_options(parser: argparse.ArgumentParser) -> None:
    """Declare what every command that checks subjects is told of how to do that."""
    parser.add_argument("--level", choices=LEVELS, default="standard", help="how much work to do (default: standard)")
    parser.add_argument("--only", action="append", metavar="ID,...", help="examine these contracts instead of all")
    parser.add_argument("--skip", action="append", metavar="ID,...", help="leave these contracts out")
    parser.add_argument("--require", action="append", metavar="ID,...", help="count `unsupported` as failed for these")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of every random choice (default: 0)")
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="for a contract on one sample (else by level)"
    )
    parser.add_argument(
        "--memory", type=float, metavar="GB", help="what the code may take (default: 80 %% of what is free)"
    )


def refuse_bad_check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Split the lists of ids, and end with a message when an option cannot be right."""
    refuse_bad_examining_options(parser, options)
    _refuse_contradictions(parser, options)
    refuse_bad_report_options(parser, options)


def refuse_bad_examining_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Split the lists of ids, and end with a message when an option cannot be right."""
    known = contract_ids()
    for option in ("only", "skip", "require"):
        given = [name.strip() for text in getattr(options, option) or () for name in text.split(",")]
        for name in given:
            if name not in known:
                parser.error(str(unknown_name(f"--{option}", name, known, "gradwright explain")))
        setattr(options, option, tuple(given))
    for name in set(options.require) & set(options.skip):
        parser.error(str(required_and_skipped(name, "--")))
    _refuse_bad_numbers(parser, options.seed, {"--time-limit": options.time_limit, "--memory": options.memory})


def add_init_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gradwright init``."""
    parser.add_argument("file", metavar="FILE", help="a Python file that defines custom gradients")
    parser.add_argument("--output", metavar="PATH", help="what to write (default: gradwright_examples.py beside FILE)")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    _add_store_options(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random numbers (default: 0)")
    parser.add_argument(
        "--memory", type=float, metavar="GB", help="what the code may take (default: 80 %% of what is free)"
    )
    parser.add_argument("--no-isolation", action="store_true", help="run the code in this process, for debuggers")
    parser.set_defaults(json=None)  # standard output is not kept for anything


def refuse_bad_init_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with a message when an option cannot be right."""
    _refuse_bad_numbers(parser, options.seed, {"--memory": options.memory})
    _refuse_contradictions(parser, options)


def add_probe_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gradwright probe``."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a row, a section, or a function of torch or gw.stable; without it, all are run",
    )
    parser.add_argument("--list", action="store_true", help="list the sections with the number of their rows")
    parser.add_argument("--wrong", action="store_true", help="leave out the rows that torch has right in both modes")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON (- is standard output, and no table)")


def refuse_bad_probe_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with a message when an option cannot be right."""
    if options.list and (options.names or options.wrong or options.json is not None):
        parser.error("--list: runs nothing; expected no name and no other option; leave them out.")
    if options.json != "-":
        refuse_unwritable(parser, "--json", options.json)


def contract_ids() -> list[str]:
    """Return the ids of all contracts from the names of their files, without importing them."""
    folder = Path(gradwright.__file__).parent / "checking" / "contracts"
    return sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules([str(folder)]))


def _refuse_bad_numbers(parser: argparse.ArgumentParser, seed: int, positive: dict[str, float | None]) -> None:
    if seed < 0:
        parser.error(f"--seed: got {seed}; expected an integer that is not negative.")
    for option, value in positive.items():
        if value is not None and not 0 < value < math.inf:
            parser.error(f"{option}: got {value:g}; expected a positive number.")


def _refuse_contradictions(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.memory is not None and options.no_isolation:
        parser.error("--memory: has no effect with --no-isolation; expected one of them; leave one out.")
    if options.store is not None and options.no_store:
        parser.error("--store: has no effect with --no-store; expected one of them; leave one out.")
