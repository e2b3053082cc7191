"""The options of ``gradwright watch``; everything after them is the program and its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gradwright.cli.options import add_examining_options, refuse_bad_examining_options
from gradwright.cli.outputs import add_report_options, refuse_bad_report_options

USAGE = """gradwright watch [options] SCRIPT [ARGS ...]
       gradwright watch [options] -m MODULE [ARGS ...]
       gradwright watch [options] -- COMMAND [ARGS ...]"""


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gradwright watch``."""
    parser.usage = USAGE
    add_examining_options(parser)
    parser.add_argument("--include", action="append", default=[], metavar="NAME", help="only these: names, or patterns")
    parser.add_argument("--exclude", action="append", default=[], metavar="NAME", help="not these: names, or patterns")
    parser.add_argument("--store", metavar="DIR", help="write the calls that were kept, for `gradwright check` later")
    parser.add_argument("--spec-only", action="store_true", help="keep no values of tensors, only what they are like")
    parser.add_argument("--no-check", action="store_true", help="check nothing at the end; with --store")
    parser.add_argument("--eager", action="store_true", help="run without torch.compile, inside which nothing is seen")
    add_report_options(parser, fail_on="none")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the program and its arguments")


def refuse_bad_watch_options(
    parser: argparse.ArgumentParser, options: argparse.Namespace, typed: Sequence[str]
) -> None:
    """Find out what is to be run, and end with a message when an option cannot be right.

    Arguments:
        typed: all arguments of ``gradwright``, as they were typed.
    """
    if options.module is not None and not options.module:
        parser.error("-m: there is no module; expected its name; write `gradwright watch -m MODULE`.")
    number = len(options.program)
    if options.program[:1] == ["--"]:
        options.program = options.program[1:]
        options.is_command = True
    else:
        options.is_command = typed[len(typed) - number - 1] == "--" if number else False
    if options.module is None and not options.program:
        parser.error("there is nothing to watch; expected a script, -m MODULE, or -- COMMAND.")
    refuse_bad_examining_options(parser, options)
    if options.no_check and options.store is None:
        parser.error("--no-check: nothing would come of it; expected --store as well; give a directory.")
    if options.json == "-":
        parser.error("--json: standard output belongs to the program; expected a file; give its name.")
    refuse_bad_report_options(parser, options)
