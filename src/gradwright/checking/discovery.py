"""Turning what was typed on the command line into subjects with their declared samples.

A target is ``FILE.py``, a directory, or a dotted module name, each optionally with ``::Name``. What is found is every
Function class, function with a custom gradient and custom op *defined* there, and whatever the declared samples name.
Nothing here ever raises for a fault of the user's: it becomes a :class:`~gradwright.checking.report.Problem`, and the
other targets go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gradwright.checking import beside, kernelbench
from gradwright.checking.declarations import Declaration, declarations, flat_name, own_declaration
from gradwright.checking.definitions import attribute, defined, module_classes
from gradwright.checking.found import Found as Found
from gradwright.checking.found import read_samples
from gradwright.checking.importing import TargetImportError, import_file
from gradwright.checking.randomness import fixed_random_state
from gradwright.checking.report import Problem
from gradwright.checking.settings import as_in
from gradwright.checking.subject import as_subject
from gradwright.checking.targets import Source, parse_target, shown_path, sources
from gradwright.errors import SampleError, SubjectTypeError, TargetError, did_you_mean

MODULES = "modules are checked in Python, by gradwright.check(module, *inputs)"


@dataclass
class Discovery:
    """What a command line's targets amount to."""

    found: list[Found] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out and why, in a sentence each."""


def discover(
    targets: Sequence[str],
    *,
    samples_file: str | None = None,
    seed: int = 0,
    before: Callable[[str], None] = lambda what: None,
    examples: bool = True,
) -> Discovery:
    """Find the subjects of all targets, in the order given, each once, with its declared samples.

    Arguments:
        targets: as typed, for example ``["ops.py", "package.module::Name"]``.
        samples_file: a Python file whose ``gradwright_samples`` and ``samples_<Name>`` declare samples for subjects
            elsewhere, by bare name, qualified name, ``module:Name`` or ``module.Name``.
        seed: random numbers drawn while importing and declaring are the same for the same seed.
        before: called with what of the user's is about to be run: a module, or a declaration of samples. A TargetError
            that it raises is what is wrong with that, and it is left out.
        examples: whether files of examples beside the targets are read.
    """
    finder = _Finder(seed, before)
    for target in targets:
        finder.add_target(target)
    if examples:
        finder.add_examples_files()
    if samples_file is not None:
        finder.add_samples_file(samples_file)
    for found in finder.result.found:
        read_samples(found, seed, before)
    return finder.result


class _Finder:
    def __init__(self, seed: int, before: Callable[[str], None]) -> None:
        self.seed = seed
        self.before = before
        self.result = Discovery()
        self.pool: dict[int, Found] = {}
        """Everything in the modules looked at, by the identity of the user's object."""
        self.examined: dict[int, Source] = {}
        """Every module looked at, by its identity: two may have the same name."""
        self.whole: set[int] = set()
        """Identities of the modules that were asked for without ``::Name``."""
        self.unmade: dict[tuple[int, str], str] = {}
        """What is wrong with the modules that could not be made, by the identity of their file and their name."""

    def add_target(self, text: str) -> None:
        try:
            target = parse_target(text)
        except TargetError as error:
            self.result.problems.append(Problem(str(error)))
            return
        listing = sources(target, seed=self.seed, visit=self._examine, before=self.before)
        self.result.problems += listing.problems
        self.result.notes += listing.notes
        if target.name is None:
            self.whole |= {id(source.module) for source in listing.sources}
            left_out = self._left_out(listing.sources)
            if left_out:
                what = "a module" if len(left_out) == 1 else f"{len(left_out)} modules"
                self.result.notes.append(f"{text}: passed over {what} ({_listing(left_out)}); {MODULES}.")
            self._select(self._inside(listing.sources))
        elif listing.sources:
            self._select_named(text, target.name, listing.sources)

    def add_examples_files(self) -> None:
        """Read the files of examples that lie beside what was looked at."""
        for file in beside.examples_files(list(self.examined.values())):
            for declaration in self._declared_in_file(file.path, file.shown):
                declaration = replace(declaration, note=f"samples from {file.shown}")
                if not file.all_examined:  # it may be for what lies there and was not asked for
                    declaration = replace(declaration, tentative=True)
                self._attach(declaration, file.shown, file.sources)

    def add_samples_file(self, path: str) -> None:
        if not Path(path).is_file():
            message = f"--samples: {path} is not a file; expected a Python file that declares samples."
            self.result.problems.append(Problem(message))
            return
        overridden: set[int] = set()
        for declaration in self._declared_in_file(Path(path), path):
            found = self._attach(declaration, path, list(self.examined.values()))
            if found is not None and id(found) not in overridden:
                # What is given on the command line replaces what the code declares.
                found.declarations = [declaration]
                overridden.add(id(found))

    def _declared_in_file(self, path: Path, shown: str) -> list[Declaration]:
        try:
            self.before(shown)
            module = import_file(path, shown, seed=self.seed)
        except TargetImportError as error:
            self.result.problems.append(error.problem)
            return []
        except TargetError as error:
            self.result.problems.append(Problem(str(error)))
            return []
        return self._declarations(module, shown)

    def _attach(self, declaration: Declaration, shown: str, among: Sequence[Source]) -> Found | None:
        """Give a declaration of a file of samples to what it names."""
        found = self._match_anywhere(declaration, shown, among)
        if found is not None:
            found.declarations.append(declaration)
            if id(found.source.module) in self.whole:
                self._select([found])
        return found

    def _add_models(self, source: Source) -> None:
        """Make the modules of a file that follows KernelBench's convention."""
        follows = kernelbench.convention(source.module)
        for name in follows.classes if follows is not None else ():
            try:
                self.before(f"{source.shown}: {name}")
                with as_in(source.module), fixed_random_state(self.seed):
                    model = follows.model(name)  # type: ignore[union-attr]
                self._pool(model, name, source)
            except (SampleError, TargetError) as error:
                self.unmade[id(source.module), name] = f"{source.shown}: passed over {name}: {error}"
                self.result.notes.append(self.unmade[id(source.module), name])

    def _left_out(self, looked_at: Iterable[Source]) -> list[str]:
        """Return the classes of modules of which no instance is checked."""
        made = {(id(f.source.module), f.subject.name) for f in self.pool.values() if f.subject.kind == "module"}
        return [
            name
            for source in looked_at
            for name in module_classes(source.module)
            if (id(source.module), name) not in {*made, *self.unmade}
        ]

    def _examine(self, source: Source) -> None:
        if id(source.module) in self.examined:
            return
        self.examined[id(source.module)] = source
        for name, value in defined(source.module):
            self._pool(value, name, source)
        self._add_models(source)
        for declaration in self._declarations(source.module, source.shown):
            found = self._match_in(source, declaration.target)
            if found is not None:
                found.declarations.append(declaration)
            elif not declaration.tentative:
                self._problem_unmatched(declaration, source.shown, self._known([source]))

    def _declarations(self, module: ModuleType, shown: str) -> list[Declaration]:
        try:
            return declarations(module)
        except SampleError as error:
            self.result.problems.append(Problem(f"{shown}: {error}"))
            return []

    def _pool(self, value: Any, name: str, source: Source) -> Found:
        subject = as_subject(value)
        target = subject.target
        known = self.pool.get(id(target))
        if known is not None:
            known.names.add(name)
            return known
        if subject.kind != "custom op":
            subject = replace(subject, name=name)
        subject = replace(subject, file=shown_path(subject.file, source))
        found = Found(subject, source, {name, subject.name}, convention=kernelbench.convention(source.module))
        own = own_declaration(subject)
        if own is not None:
            found.declarations.append(own)
        if subject.kind == "Function" and "<locals>" not in target.__qualname__:
            found.names.add(target.__qualname__)
        self.pool[id(target)] = found
        return found

    def _match_in(self, source: Source, name: Any) -> Found | None:
        """Find what a declaration in a module names: one of its subjects, or anything in it that can be checked."""
        if not isinstance(name, str):
            value = name
            name = getattr(value, "__qualname__", type(value).__name__)
        else:
            for found in self._inside([source]):
                if name in found.names:
                    return found
            value = attribute(source.module, name)
            if value is None:
                flat = [f for f in self._inside([source]) if name in map(flat_name, f.names)]
                return flat[0] if len(flat) == 1 else None
        try:
            return self._pool(value, name, source)
        except SubjectTypeError:
            return None

    def _match_anywhere(self, declaration: Declaration, path: str, among: Sequence[Source]) -> Found | None:
        """Find what a declaration of a file of samples names; None (with a problem unless it is of no concern)."""
        name = declaration.target
        if not isinstance(name, str):
            found = self.pool.get(id(name))
            if found is None and not declaration.tentative:
                self._problem_unmatched(declaration, path, self._known(among))
            return found
        wanted = name.replace(":", ".")
        tiers: list[Callable[[Found], bool]] = [
            lambda f: wanted in {f"{f.source.module.__name__}.{n}" for n in f.names},
            lambda f: name in f.names,
            lambda f: name in {n.rpartition(".")[2] for n in f.names},
            lambda f: name in map(flat_name, f.names | {f"{f.source.module.__name__}.{n}" for n in f.names}),
        ]
        for tier in tiers:
            matches = [found for found in self._inside(among) if tier(found)]
            if len(matches) == 1:
                return matches[0]
            if matches:
                options = ", ".join(f"{f.source.module.__name__}:{f.subject.name}" for f in matches)
                self.result.problems.append(
                    Problem(f"{path}: {declaration.owner} fits several subjects; expected one; write one of {options}.")
                )
                return None
        return self._match_new(declaration, name, path, among)

    def _match_new(self, declaration: Declaration, name: str, path: str, among: Sequence[Source]) -> Found | None:
        for source in among:
            inner = name.replace(":", ".").removeprefix(source.module.__name__ + ".")
            if inner != name or ":" not in name:
                found = self._match_in(source, inner)
                if found is not None:
                    return found
        module = name.partition(":")[0] if ":" in name else ""
        elsewhere = bool(module) and module not in {source.module.__name__ for source in among}
        if not elsewhere and not declaration.tentative:
            self._problem_unmatched(declaration, path, self._known(among))
        return None

    def _select(self, chosen: Iterable[Found]) -> None:
        for found in chosen:
            if not any(found is other for other in self.result.found):
                self.result.found.append(found)

    def _select_named(self, text: str, name: str, looked_at: Sequence[Source]) -> None:
        inside = self._inside(looked_at)
        chosen = [found for found in inside if name in found.names]
        chosen = chosen or [f for f in inside if name in {n.rpartition(".")[2] for n in f.names}]
        if not chosen:
            chosen = [found for found in (self._match_in(source, name) for source in looked_at[:1]) if found]
        if not chosen:
            known = self._known(looked_at)
            there = f"it defines {_listing(known)}" if known else "it defines no Function and no custom op"
            message = f"{text}: there is nothing called {name!r} that can be checked; {there}."
            unmade = [self.unmade[key] for source in looked_at if (key := (id(source.module), name)) in self.unmade]
            if unmade:
                message = unmade[0]
            elif name in self._left_out(looked_at):
                message = f"{text}: {name} is a class of modules; {MODULES}."
            self.result.problems.append(Problem(message + did_you_mean(name, known)))
        for found in chosen:
            found.named = True
        self._select(chosen)

    def _known(self, among: Iterable[Source]) -> list[str]:
        return [found.subject.name for found in self._inside(among)]

    def _inside(self, among: Iterable[Source]) -> list[Found]:
        modules = {id(source.module) for source in among}
        return [found for found in self.pool.values() if id(found.source.module) in modules]

    def _problem_unmatched(self, declaration: Declaration, where: str, known: list[str]) -> None:
        name = declaration.target if isinstance(declaration.target, str) else repr(declaration.target)
        there = f"expected one of {_listing(known)}" if known else "there is nothing to check here"
        self.result.problems.append(
            Problem(
                f"{where}: {declaration.owner} declares samples for {name}, which is nothing that can be checked; "
                f"{there}; correct the name or remove the declaration.{did_you_mean(name, known)}"
            )
        )


def _listing(names: Sequence[str]) -> str:
    shown = sorted(set(names))
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
