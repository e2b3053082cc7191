"""Targets as typed: ``FILE.py``, a directory or a dotted module name, and the modules they stand for."""

from __future__ import annotations

import errno
import importlib.util
import os
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from gradwright.checking.importing import TargetImportError, import_file, import_name, package_of
from gradwright.checking.report import Problem
from gradwright.errors import TargetError, describe_exception, did_you_mean

_PASSED_OVER = frozenset({"conftest", "setup", "__main__", "test", "tests"})
EXAMPLES_STEM = "gradwright_examples"
"""A file of this name declares samples for what lies beside it, and is no target of its own."""
_NOT_ENTERED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages"})


@dataclass(frozen=True)
class Target:
    """One target: a path or a module, and perhaps a name in it."""

    text: str
    path: Path | None = None
    module: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Source:
    """An imported module, and how its file is shown: as the user gave it."""

    module: ModuleType
    shown: str


@dataclass
class Listing:
    """The modules a target stands for, what could not be imported, and what was passed over."""

    sources: list[Source] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse_target(text: str) -> Target:
    """Split a target into its place and its name, and find out what the place is.

    Raises:
        TargetError: there is no such file or directory, or it is not written as a target.
    """
    place, separator, name = text.partition("::")
    if not place or (separator and not name):
        raise TargetError(
            f"{text}: not a target; expected FILE.py, a directory or a module, with ::Name if only one is wanted."
        )
    path = Path(place)
    try:
        path.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise TargetError(
                f"{place}: cannot be read: {describe_exception(error)}; expected a path or module."
            ) from None
    if path.is_dir() or (path.is_file() and path.suffix == ".py"):
        return Target(text, path=path, name=name or None)
    if path.is_file():
        raise TargetError(f"{place}: this is not a Python file; expected a file that ends in .py.")
    if place.endswith(".py") or os.sep in place or not all(part.isidentifier() for part in place.split(".")):
        siblings = [str(path.parent / p.name) for p in _listdir(path.parent) if p.is_dir() or p.suffix == ".py"]
        raise TargetError(
            f"{place}: there is no such file or directory; expected a Python file, a directory or an importable "
            f"module; check the path.{did_you_mean(str(path), siblings)}"
        )
    return Target(text, module=place, name=name or None)


def sources(
    target: Target,
    *,
    seed: int = 0,
    visit: Callable[[Source], None] = lambda source: None,
    before: Callable[[str], None] = lambda shown: None,
) -> Listing:
    """Import everything a target stands for. Faults of the user's code become problems.

    Arguments:
        target: what to import.
        seed: of the random numbers that are drawn meanwhile.
        visit: called with each module as soon as it is imported, while it is the one of its name.
        before: called with what is about to be imported; a TargetError that it raises is the problem with it.
    """
    listing = Listing()
    walk = _Walk(listing, seed, visit, before)
    if target.module is not None:
        walk.module(target.module)
    elif target.path is not None and target.path.is_dir():
        walk.directory(target.path, str(target.path))
        if not (listing.sources or listing.problems):
            listing.notes.append(f"{target.path}: contains no Python file to check.")
    elif target.path is not None:
        walk.file(target.path, str(target.path))
    for missing, modules in walk.missing.items():
        what = f"{modules[0]} needs" if len(modules) == 1 else f"{len(modules)} modules ({_few(modules)}) need"
        listing.problems.append(
            Problem(f"{target.text}: {what} {missing!r}, which is not installed; install it to check what they define.")
        )
    if walk.passed_over:
        number = len(walk.passed_over)
        what = "a test or script" if number == 1 else f"{number} tests and scripts"
        listing.notes.append(f"{target.text}: passed over {what} ({_few(walk.passed_over)}); name one to check it.")
    return listing


def shown_path(file: str | None, source: Source) -> str | None:
    """Return how to show the file of something found in ``source``: as the user gave it, without machine prefixes."""
    own = getattr(source.module, "__file__", None)
    if file is None or own is None or Path(file).resolve() == Path(own).resolve():
        return source.shown
    return shown_file(file)


def shown_file(file: str | None) -> str | None:
    """Return how to show a file that nobody named: relative to the working directory, or by its place in its package.

    None, and what is no file (``<string>``), stay as they are.
    """
    return file if file is None or file.startswith("<") else _relative(Path(file))


def is_passed_over(stem: str) -> bool:
    """Tell whether a file or directory of this name is left out where it was not asked for by itself."""
    return stem in _PASSED_OVER or stem.startswith("test_") or stem.endswith("_test")


class _Walk:
    """Imports modules one by one into a listing."""

    def __init__(
        self, listing: Listing, seed: int, visit: Callable[[Source], None], before: Callable[[str], None]
    ) -> None:
        self.listing = listing
        self.seed = seed
        self.visit = visit
        self.before = before
        self.passed_over: list[str] = []
        self.missing: dict[str, list[str]] = {}
        """Libraries that submodules of a package need and that are not installed."""

    def file(self, path: Path, shown: str) -> None:
        with self._problems():
            self.before(shown)
            self._add(import_file(path, shown, seed=self.seed), shown)

    def directory(self, path: Path, shown: str) -> None:
        _, name = package_of(path.resolve())
        if name is not None:
            with self._problems():
                inside = _below(shown, "__init__.py")
                self.before(inside)
                package = import_file(path / "__init__.py", inside, seed=self.seed)
                self._add(package, inside)
                self._submodules(package, shown)
            return
        for entry in _listdir(path):
            inner = _below(shown, entry.name)
            if entry.is_file() and entry.suffix == ".py":
                if self._is_wanted(entry.stem, inner):
                    self.file(entry, inner)
            elif entry.is_dir() and not _is_foreign(entry) and self._is_wanted(entry.name, inner):
                self.directory(entry, inner)

    def module(self, name: str) -> None:
        with self._problems():
            self.before(name)
            try:
                module = import_name(name, seed=self.seed)
            except TargetError as error:
                if isinstance(error, TargetImportError):
                    raise
                raise TargetError(str(error) + _suggestion(name)) from None
            self._add(module, _module_file(module))
            if hasattr(module, "__path__"):
                self._submodules(module, None)

    def _add(self, module: ModuleType, shown: str) -> None:
        source = Source(module, shown)
        self.listing.sources.append(source)
        self.visit(source)

    def _submodules(self, package: ModuleType, shown: str | None) -> None:
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
            name = f"{package.__name__}.{info.name}"
            inner = None if shown is None else _below(shown, info.name)
            if not self._is_wanted(info.name, name):
                continue
            with self._problems():
                spec = importlib.util.find_spec(name)
                if spec is None or not str(spec.origin).endswith(".py"):
                    continue  # compiled: it defines no Function that Python can read
                self.before(name if inner is None else inner + ".py")
                module = self._submodule(name, inner and inner + ".py")
                if module is None:
                    continue
                file = _module_file(module) if inner is None else inner + ("/__init__.py" if info.ispkg else ".py")
                self._add(module, file)
                if info.ispkg:
                    self._submodules(module, inner)

    def _submodule(self, name: str, shown: str | None) -> ModuleType | None:
        try:
            return import_name(name, shown, seed=self.seed)
        except TargetImportError as error:
            # Published packages have parts for optional libraries; one line for each library says enough.
            cause = error.__cause__
            top = name.partition(".")[0]
            if not isinstance(cause, ModuleNotFoundError) or not cause.name or cause.name.partition(".")[0] == top:
                raise
            self.missing.setdefault(cause.name, []).append(name)
            return None

    def _is_wanted(self, stem: str, shown: str) -> bool:
        if stem == EXAMPLES_STEM:
            return False
        if is_passed_over(stem):
            self.passed_over.append(shown)
            return False
        return True

    def _problems(self) -> _Collector:
        return _Collector(self.listing.problems)


class _Collector:
    """Turns the error of one import into a problem, so that the next one goes on."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, TargetImportError):
            self.problems.append(error.problem)
        elif isinstance(error, TargetError):
            self.problems.append(Problem(str(error)))
        return isinstance(error, TargetError)


def _suggestion(name: str) -> str:
    """Suggest ``module::Name`` for ``module.Name``, else a module of nearly the same name."""
    parent, _, last = name.rpartition(".")
    if parent:
        try:
            module = import_name(parent)
        except TargetError:
            return ""
        if hasattr(module, last):
            return f" Did you mean '{parent}::{last}'?"
        inside = [f"{parent}.{info.name}" for info in pkgutil.iter_modules(getattr(module, "__path__", []))]
        return did_you_mean(name, inside) or did_you_mean(name, [entry.name for entry in _listdir(Path())])
    return did_you_mean(name, [entry.stem if entry.is_dir() else entry.name for entry in _listdir(Path())])


def _module_file(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return module.__name__ if file is None else _relative(Path(file), module.__name__)


def _relative(file: Path, module: str | None = None) -> str:
    """Show a file relative to the working directory, or by its place in its package when it is installed elsewhere."""
    file = file.resolve()
    try:
        inside = file.relative_to(Path.cwd())
    except ValueError:
        inside = None
    if inside is not None and "site-packages" not in inside.parts:
        return str(inside)
    module = module or package_of(file)[1] or file.stem
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if file.stem == "__init__" else f"{path}.py"


def _below(shown: str, name: str) -> str:
    return name if shown == "." else str(Path(shown) / name)


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _listdir(path: Path) -> Iterator[Path]:
    try:
        yield from sorted(path.iterdir())
    except OSError:
        return


def _is_foreign(directory: Path) -> bool:
    """Tell whether a directory holds what is not the user's source: hidden, built, or a virtual environment."""
    return (
        directory.name.startswith(".")
        or directory.name in _NOT_ENTERED
        or directory.is_symlink()
        or (directory / "pyvenv.cfg").exists()
    )
