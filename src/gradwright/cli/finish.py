"""The end of a program that was watched: everything that was seen is checked, on the calls that were kept."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import io
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gradwright import torch_compat
from gradwright.checking.discovery import Discovery, Found
from gradwright.checking.report import Entry, NotChecked, Usage
from gradwright.checking.samples import Sample
from gradwright.checking.subject import Subject, as_subject
from gradwright.checking.targets import Source, shown_file
from gradwright.cli.events import Send, Start
from gradwright.cli.outcomes import Outcome
from gradwright.cli.supervisor import supervise
from gradwright.cli.tally import Tally
from gradwright.cli.work import examine
from gradwright.errors import ExternalError, GradwrightError, SubjectTypeError
from gradwright.watching.recorder import Kept, Recorder, Watched
from gradwright.watching.samples import as_samples
from gradwright.watching.targets import module_of, short_name

NONE_KEPT = "no call of it could be kept"
MAX_REGIONS = 6
"""Functions that torch.compile took over which are named."""


def finish(
    recorder: Recorder, options: argparse.Namespace, claim: Callable[[str], bool] = lambda name: True
) -> Outcome:
    """Check what a process has used of custom gradients.

    Arguments:
        recorder: what has watched it; it stops.
        options: of the command, as for ``gradwright check``; and ``include``, ``exclude``: patterns of names.
        claim: asked whether this process shall check a subject: another one may have checked it.
    """
    recorder.stop()
    found, missing = ([], []) if options.no_check else _found(recorder, options, claim)
    entries, interrupted = _check(found, options)
    return Outcome((*entries, *missing), tuple(usages(recorder, options)), tuple(_notes(recorder)), interrupted)


def usages(recorder: Recorder, options: argparse.Namespace) -> Iterator[Usage]:
    """Give what was used how often, and what is defined and was not used."""
    called = set()
    packages = set()
    for watched in recorder.used():
        subject = _subject_of(watched)
        if subject is not None and _wanted(watched, options):
            called.add(watched.target.key)
            packages.add(watched.target.module.partition(".")[0])
            note = f"{watched.transformed} calls inside torch.func, of which no values are kept"
            place = shown_file(subject.file), subject.line
            calls = watched.calls + watched.checked
            yield Usage(subject.name, *place, calls, watched.backwards, note if watched.transformed else "")
    unused: list[Usage] = []
    for function in torch_compat.all_functions():
        key = (module_of(function), function.__qualname__)
        top = key[0].partition(".")[0]
        if key in called or top in ("torch", "gradwright") or "gw_definition" in vars(function):
            continue
        subject = as_subject(function, short_name(function.__qualname__))
        listed = _is_loaded(key[0], function) and (_own(subject.file) or top in packages)
        if listed and _chosen(".".join(key), options):
            called.add(key)
            unused.append(Usage(subject.name, shown_file(subject.file), subject.line))
    yield from sorted(unused, key=lambda usage: (usage.file or "", usage.line or 0))


def _is_loaded(module: str, function: Any) -> bool:
    """Tell whether a class is of a module as it is now: one that was loaded again leaves its old classes behind."""
    owner = sys.modules.get(module)
    if "<locals>" in function.__qualname__:
        code = getattr(function.forward, "__code__", None)
        return code is not None and code.co_filename == getattr(owner, "__file__", None)
    found: Any = owner
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _found(
    recorder: Recorder, options: argparse.Namespace, claim: Callable[[str], bool]
) -> tuple[list[Found], list[NotChecked]]:
    """Return what can be checked, and what cannot, with the reason."""
    found: list[Found] = []
    missing: list[NotChecked] = []
    for watched in filter(lambda watched: _wanted(watched, options), recorder.used()):
        subjects = list(_by_subject(watched))
        if not subjects and watched.calls:
            name = watched.target.name
            missing.append(NotChecked(name, None, None, f"{name}: {NONE_KEPT}: {_why_not_kept(watched)}."))
        for subject, kept in subjects:
            samples, reasons = _samples(kept, options.seed)
            if not samples:
                reason = f"{subject.name}: {NONE_KEPT}: {reasons[0]}"
                missing.append(NotChecked(subject.name, subject.file, subject.line, reason))
            elif claim(_full_name(watched)):
                source = Source(_module(watched), subject.file or watched.target.module)
                found.append(Found(subject, source, {subject.name}, samples=samples))
    return found, missing


def _samples(kept: Sequence[Kept], seed: int) -> tuple[list[Sample], list[str]]:
    """Return the calls as samples, and why others are none."""
    samples: list[Sample] = []
    reasons: list[str] = []
    for each in kept:
        try:
            samples += as_samples(each.call, seed)
        except GradwrightError as error:
            reasons.append(str(error))
    return samples, reasons


def _by_subject(watched: Watched) -> Iterator[tuple[Subject, list[Kept]]]:
    """Give each thing that was called, of all that one place in the source makes, with its calls."""
    groups: dict[int, list[Kept]] = {}
    for kept in watched.kept:
        groups.setdefault(id(kept.subject), []).append(kept)
    for group in groups.values():
        subject = _as_subject(watched, group[0].subject)
        if subject is not None:
            # One that was differentiated is worth more than one that was not.
            needed = [kept for kept in group if kept.needs]
            yield subject, needed or group


def _as_subject(watched: Watched, target: Any) -> Subject | None:
    try:
        subject = as_subject(target)
    except SubjectTypeError:
        return None
    name = subject.name if subject.kind == "custom op" else watched.target.name
    return replace(subject, name=name, file=shown_file(subject.file))


def _subject_of(watched: Watched) -> Subject | None:
    if watched.kept:
        return _as_subject(watched, watched.kept[0].subject)
    name, key = watched.target.name, watched.target.key
    alike = (each for each in torch_compat.all_functions() if (module_of(each), each.__qualname__) == key)
    found = next(alike, None)
    return Subject(name, "Function", None, None) if found is None else as_subject(found, name)


def _full_name(watched: Watched) -> str:
    return f"{watched.target.module}.{watched.target.qualname}"


def _why_not_kept(watched: Watched) -> str:
    if watched.refused:
        return "each that was looked at raised an error"
    if watched.transformed == watched.calls:
        return "all were inside of a transform of torch.func, whose tensors cannot be kept"
    return "they were on tensors without numbers (fake ones, or on the meta device)"


def _module(watched: Watched) -> ModuleType:
    return sys.modules.get(watched.target.module) or ModuleType(watched.target.module)


def _wanted(watched: Watched, options: argparse.Namespace) -> bool:
    return _chosen(_full_name(watched), options)


def _chosen(name: str, options: argparse.Namespace) -> bool:
    def fits(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"*.{pattern}") for pattern in patterns)

    return (not options.include or fits(options.include)) and not fits(options.exclude)


def _own(file: str | None) -> bool:
    """Tell whether a file belongs to the project: it lies below the working directory or beside the script."""
    if file is None:
        return False
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        own = Path(file).resolve()
        homes = [Path.cwd(), *([] if script is None else [Path(script).resolve().parent])]
    except OSError:
        return False
    return any(own.is_relative_to(home) and "site-packages" not in own.relative_to(home).parts for home in homes)


def _check(found: list[Found], options: argparse.Namespace) -> tuple[list[Entry], bool]:
    if not found:
        return [], False
    discovery = Discovery(found)

    def work(options: argparse.Namespace, send: Send, start: Start) -> None:
        torch.set_num_threads(1)  # the threads of the program are not there any more in a fork of it
        torch_compat.refuse_collectives(_needs_others)
        examine(discovery, options, send, start)

    with Tally() as tally, torch_compat.executors_open():
        try:
            if torch_compat.can_fork() and not options.no_isolation:
                supervise(options, tally.receive, work)
            else:
                with _silence():
                    examine(discovery, options, tally.receive, Start())
        except KeyboardInterrupt:
            tally.interrupted = True
    return tally.entries, tally.interrupted


def _needs_others(name: str) -> GradwrightError:
    return ExternalError(
        f"{name}: a collective needs all processes of the program, which is over; expected a function that computes "
        "alone; check it in a test that starts all of them."
    )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep what the code prints while it is checked out of what the program prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _compiled(before: Collection[int]) -> Iterator[str]:
    """Give what torch.compile took over, each function of the program's once.

    Arguments:
        before: identities of code that was taken over before the recorder began.
    """
    torch_home, own_home = Path(torch.__file__).parent, Path(__file__).parents[1]
    seen = set()
    for code in torch_compat.compiled_code():
        if id(code) in before:
            continue
        file = Path(code.co_filename)
        name = re.sub(r"torch_dynamo_resume_in_(\w+)_at_\d+$", r"\1", getattr(code, "co_qualname", code.co_name))
        foreign = torch_home in file.parents or own_home in file.parents or not file.is_file()
        if not foreign and (name, file) not in seen:
            seen.add((name, file))
            yield f"{name} ({shown_file(str(file))}:{code.co_firstlineno})"


def _notes(recorder: Recorder) -> Iterator[str]:
    if not recorder.complete:
        yield (
            "this version of PyTorch looks its methods up elsewhere: backwards are not seen, nor calls through an "
            "`apply` that was bound before; so `never differentiated` is not told"
        )
    regions = list(_compiled(recorder.compiled_before))
    if recorder.compiled or regions:
        rest = f" and {len(regions) - MAX_REGIONS} more" if len(regions) > MAX_REGIONS else ""
        where = f": {', '.join(regions[:MAX_REGIONS])}{rest}" if regions else ""
        yield f"calls inside of what torch.compile made are not seen{where}; TORCHDYNAMO_DISABLE=1 runs all without it"
    for failure in recorder.failures:
        yield f"gradwright could not look at a call: {failure}; please report this fault of gradwright's"
