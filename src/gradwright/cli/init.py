"""``gradwright init``: write a file of samples to be edited, beside the file whose subjects they are for."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gradwright.checking.report import NotChecked
from gradwright.cli.events import Drafted, Event, Finished, Start
from gradwright.cli.statuses import EXIT_BROKEN, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK
from gradwright.cli.tally import Tally
from gradwright.errors import TargetError, describe_exception, missing_torch
from gradwright.reporting.summary import plural
from gradwright.typing import GUESSED

FILE_NAME = "gradwright_examples.py"
WIDTH = 88
_UNFIT = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that a source file cannot hold, or that a terminal would obey."""
_ABOUT_GUESSES = (
    "# The samples of these are guesses: a failure that depends on what they mean is only a",
    "# suspicion. Correct the samples of one, and take its name out.",
)


def run_init(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if importlib.util.find_spec("torch") is None:
        raise missing_torch()
    source = Path(options.file)
    output = Path(options.output) if options.output is not None else source.parent / FILE_NAME
    _refuse(source, output, options.force)
    path = list(sys.path)
    try:
        tally = _work(options)
    finally:
        sys.path[:] = path
    for line in (*tally.notes, *(problem.message for problem in tally.problems)):
        print(line, file=sys.stderr)
    if tally.interrupted:
        print("interrupted: nothing was written", file=sys.stderr)
        return EXIT_INTERRUPTED
    if not tally.drafts:
        if not tally.problems:
            print(f"{source}: there is nothing that needs samples; nothing was written.", file=sys.stderr)
        return EXIT_BROKEN if tally.problems else EXIT_NOTHING
    try:
        output.write_text(_file(source, tally.drafts), encoding="utf-8")
    except OSError as error:
        message = f"{output} cannot be written: {describe_exception(error)}; give another file by --output."
        print(message, file=sys.stderr)
        return EXIT_BROKEN
    print("\n".join(_summary(source, output, tally.drafts)))
    return EXIT_BROKEN if tally.problems else EXIT_OK


def _refuse(source: Path, output: Path, force: bool) -> None:
    """Refuse what cannot be done before anything of the user's is run.

    Raises:
        TargetError: the file is none, or the one to be written is there.
    """
    if source.suffix != ".py" or not source.is_file():
        raise TargetError(f"{source}: there is no such Python file; expected one that defines custom gradients.")
    if output.exists() and output.resolve() == source.resolve():
        raise TargetError(f"{output}: is the file that the samples are for; expected another one; give it by --output.")
    if output.is_dir():
        raise TargetError(f"{output}: is a directory; expected a file to write; give one by --output.")
    if output.exists() and not force:
        raise TargetError(
            f"{output}: is there already, and may have been edited; expected a file to be made; give another one by "
            "--output, or --force to write over it."
        )
    if not output.absolute().parent.is_dir():
        raise TargetError(f"{output}: there is no directory {output.parent}; expected one; make it first.")


def _work(options: argparse.Namespace) -> Tally:
    with Tally() as tally:

        def receive(event: Event) -> None:
            if isinstance(event, Finished) and isinstance(event.entry, NotChecked):
                event = replace(event, entry=_ended(event.entry))
            tally.receive(event)

        try:
            if options.no_isolation:
                from gradwright.cli.drafts import work

                work(options, receive, Start())
            else:
                from gradwright.cli.supervisor import supervise

                supervise(options, receive)
        except KeyboardInterrupt:
            tally.interrupt()
    return tally


def _ended(entry: NotChecked) -> Drafted:
    """Return a template for a subject that ended the process which knew its parameters."""
    lines = textwrap.wrap(entry.reason, WIDTH, initial_indent="# ", subsequent_indent="# ")
    name = _identifier(entry.name)
    lines += ["#", f"# def samples_{name}():", "#     yield (...)"]
    return Drafted(entry.name, entry.file, entry.line, "", "\n".join(lines), reason=entry.reason)


def _file(source: Path, drafts: Sequence[Drafted]) -> str:
    """Return the text of the file, whatever a name or a message in it holds."""
    name = repr(source.name)[1:-1].replace('"', '\\"')
    head = [
        f'"""Samples for {name}, for `gradwright check`.',
        "",
        "Written by `gradwright init`, to be edited: a verdict is worth as much as its inputs.",
        '"""',
    ]
    parts = ["\n".join(head)]
    live = [draft.text for draft in drafts if draft.provenance not in ("", "declared")]
    if any("torch." in text for text in live):
        parts[0] += "\n\nimport torch"
    foreign = sorted({each for draft in drafts for each in draft.imports})
    if foreign:
        parts[0] += "\n\n" + "\n".join(_imports(foreign))
    guessed = [_quoted(draft.name) for draft in drafts if draft.provenance in GUESSED]
    if guessed:
        line = f"gradwright_guessed = [{', '.join(guessed)}]"
        if len(line) > WIDTH:
            line = "\n".join(["gradwright_guessed = [", *(f"    {name}," for name in guessed), "]"])
        parts[0] += "\n\n" + "\n".join([*_ABOUT_GUESSES, line])
    text = "\n\n\n".join([*parts, *_by_name(drafts)]) + "\n"
    return _UNFIT.sub(lambda match: repr(match[0])[1:-1], text)  # in comments alone: in the rest, they are escaped


def _by_name(drafts: Sequence[Drafted]) -> list[str]:
    """Return the functions, and a mapping to those by the name of which their subject would not be found."""
    taken = Counter(_identifier(draft.name) for draft in drafts)
    texts, mapped = [], []
    for number, draft in enumerate(drafts):
        name = _identifier(draft.name)
        told = name == draft.name.replace("::", "_").replace(".", "_") and taken[name] == 1
        declared = f"def samples_{name}():"
        if told or not draft.text.startswith(declared):
            texts.append(draft.text)
        else:
            texts.append(draft.text.replace(declared, f"def _samples_{number}():", 1))
            mapped.append(f"    {_quoted(draft.name)}: _samples_{number},")
    return [*texts, *(["\n".join(["gradwright_samples = {", *mapped, "}"])] if mapped else [])]


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def _quoted(name: str) -> str:
    return f'"{name}"' if name.isprintable() and not set(name) & {'"', "\\"} else repr(name)


def _imports(names: Iterable[tuple[str, str]]) -> list[str]:
    by_module: dict[str, list[str]] = {}
    for module, name in names:
        by_module.setdefault(module, []).append(name)
    return [f"from {module} import {', '.join(names)}" for module, names in by_module.items()]


def _summary(source: Path, output: Path, drafts: Sequence[Drafted]) -> list[str]:
    written = [draft for draft in drafts if draft.provenance not in ("", "declared")]
    left = [draft.name for draft in drafts if not draft.provenance]
    tally = Counter(draft.provenance for draft in written)
    how = f" ({', '.join(f'{number} {kind}' for kind, number in sorted(tally.items()))})" if tally else ""
    lines = [f"{output}: written, with samples for {plural(len(written), 'subject')}{how}"]
    if left:
        lines.append(f"left to you, as comments: {', '.join(left)}")
    beside = output.name == FILE_NAME and output.absolute().parent == source.absolute().parent
    option = "" if beside else f" --samples {os.fspath(output)}"
    lines.append(f"correct the samples there, then: gradwright check {source}{option}")
    return lines
