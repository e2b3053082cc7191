"""Importing what a user wants checked, as Python itself would import it, and telling what went wrong in their terms."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from gradwright.checking.limits import STOPS
from gradwright.checking.randomness import fixed_random_state
from gradwright.checking.report import Problem
from gradwright.checking.settings import importing
from gradwright.errors import TargetError, describe_exception


class TargetImportError(TargetError):
    """A target could not be imported (the user's own exception is the ``__cause__``)."""

    def __init__(self, shown: str, cause: BaseException) -> None:
        what = "called sys.exit" if isinstance(cause, SystemExit) else f"raised {describe_exception(cause)}"
        if isinstance(cause, SyntaxError):
            what = f"is not valid Python: {describe_exception(cause)}"
        super().__init__(f"{shown}: {what}; expected a module that can be imported; mend it, the traceback is below.")
        self.problem = Problem(str(self), user_traceback(cause))


def import_file(path: Path, shown: str | None = None, *, seed: int = 0) -> ModuleType:
    """Import a file: as a module of its package when it lies in one, else with its directory first on ``sys.path``.

    The module is not ``__main__``. Random numbers that are drawn meanwhile are the same in every run.

    Raises:
        TargetImportError: the file raised, exited or is not valid Python.
        TargetError: its package has the name of one that is already in use.
    """
    path = path.resolve()
    shown = shown or str(path)
    root, name = package_of(path)
    if name is not None:
        return _import_from_package(root, name, path, shown, seed)
    known = _targets.get(path)
    if known is not None and sys.modules.get(known.__name__) is known:
        return known
    with _neighbours_first(path.parent) as taken:
        module = sys.modules.get(path.stem)
        if module is None or _file_of(module) != path:  # else it was imported by another target
            module = _execute(path, _free_name(path.stem, taken), shown, seed)
    _targets[path] = module
    return module


def import_name(name: str, shown: str | None = None, *, seed: int = 0) -> ModuleType:
    """Import a module by its dotted name, with the working directory on ``sys.path`` as for ``python -m``.

    Raises:
        TargetError: there is no such module.
        TargetImportError: it raised or exited.
    """
    shown = shown or name
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
        importlib.invalidate_caches()
    try:
        with _as_script(shown, name, seed):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise TargetError(
                f"{name}: there is no module, file or directory of this name (no module {error.name!r}); expected a "
                "Python file, a directory or an importable module, with ::Name for one subject in it."
            ) from None
        raise TargetImportError(shown, error) from error
    except STOPS:
        raise
    except BaseException as error:
        raise TargetImportError(shown, error) from error


def package_of(path: Path) -> tuple[Path, str | None]:
    """Return the directory that a file (or package directory) is imported from, and its dotted name in its package.

    The name is None for a file that is not in a package.
    """
    parts = [] if path.is_dir() or path.stem == "__init__" else [path.stem]
    directory = path if path.is_dir() else path.parent
    while (directory / "__init__.py").is_file() and directory.name.isidentifier() and directory != directory.parent:
        parts.insert(0, directory.name)
        directory = directory.parent
    in_package = directory != (path if path.is_dir() else path.parent) and all(p.isidentifier() for p in parts)
    return directory, ".".join(parts) if in_package else None


def user_traceback(error: BaseException) -> str:
    """Format a traceback as the user would see it, without the frames of gradwright and of the import machinery."""
    formatted = traceback.TracebackException.from_exception(error)
    _trim(formatted)
    lines = formatted.format() if formatted.stack else formatted.format_exception_only()
    return "".join(lines).rstrip("\n")


_OWN_DIRECTORIES = (str(Path(__file__).parent) + os.sep, str(Path(__file__).parent.parent / "cli") + os.sep)
_IMPORT_MACHINERY = ("<frozen importlib", "<frozen runpy", str(Path(importlib.__file__).parent) + os.sep)


def _trim(formatted: traceback.TracebackException) -> None:
    frames = list(formatted.stack)
    while frames and frames[0].filename.startswith((*_OWN_DIRECTORIES, *_IMPORT_MACHINERY)):
        del frames[0]
    formatted.stack[:] = [frame for frame in frames if not frame.filename.startswith(_IMPORT_MACHINERY)]
    for chained in (formatted.__cause__, formatted.__context__):
        if chained is not None:
            _trim(chained)


def _execute(path: Path, name: str, shown: str, seed: int) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Registered before it runs, as Python does: dataclasses, pickling and circular imports look it up there.
    sys.modules[name] = module
    try:
        with _as_script(shown, name, seed):
            spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, STOPS):
            raise
        raise TargetImportError(shown, error) from error
    return module


def _import_from_package(root: Path, name: str, path: Path, shown: str, seed: int) -> ModuleType:
    top = name.partition(".")[0]
    loaded = sys.modules.get(top)
    if loaded is not None and root / top not in {Path(p).resolve() for p in getattr(loaded, "__path__", [])}:
        if _home_of(loaded) not in _directories:
            raise TargetError(
                f"{shown}: its package {top!r} has the name of a module that is already in use"
                f" ({getattr(loaded, '__file__', None) or 'built in'}); expected a name of its own; rename the package."
            )
        _forget(top)
    with _neighbours_first(root):
        module = import_name(name, shown, seed=seed)
    if path.is_file() and _file_of(module) not in (path, None):
        raise TargetError(
            f"{shown}: {name} was imported from {module.__file__} instead; expected this file; remove the other one "
            "from the path or give the module by its dotted name."
        )
    return module


_directories: set[Path] = set()
"""Directories that targets were imported from."""
_targets: dict[Path, ModuleType] = {}
"""Modules of target files that lie in no package."""


@contextmanager
def _neighbours_first(directory: Path) -> Iterator[set[str]]:
    """Let imports find what lies in a directory first, though modules of earlier targets have the same names.

    Two directories may each have a ``helper.py``, and ``import helper`` in a file must find the one beside it. What
    earlier targets imported is forgotten; the targets themselves, in which subjects live, step aside for the block.
    Gives the names that are taken meanwhile.
    """
    entry = str(directory)
    if entry in sys.path:
        sys.path.remove(entry)
    sys.path.insert(0, entry)
    _directories.add(directory)
    importlib.invalidate_caches()
    aside: dict[str, ModuleType] = {}
    for neighbour in directory.iterdir() if os.access(directory, os.R_OK) else ():
        name = neighbour.stem if neighbour.suffix == ".py" else neighbour.name
        loaded = sys.modules.get(name)
        if loaded is None or _home_of(loaded) not in _directories - {directory}:
            continue
        _forget(name)
        if any(loaded is target for target in _targets.values()):
            aside[name] = loaded
            if neighbour in _targets:
                sys.modules[name] = _targets[neighbour]
    try:
        yield set(aside)
    finally:
        sys.modules.update(aside)


def _home_of(module: ModuleType) -> Path | None:
    """Return the directory from which a top-level module was found."""
    file = _file_of(module)
    if file is None:
        paths = list(getattr(module, "__path__", []))
        return Path(paths[0]).resolve().parent if paths else None
    return file.parent.parent if file.stem == "__init__" else file.parent


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _forget(top: str) -> None:
    for name in [name for name in sys.modules if name == top or name.startswith(top + ".")]:
        del sys.modules[name]


def _free_name(stem: str, taken: set[str]) -> str:
    if stem.isidentifier() and stem not in {*taken, *sys.modules, *sys.stdlib_module_names}:
        return stem
    number = 2
    while f"{stem}__{number}" in sys.modules:
        number += 1
    return f"{stem}__{number}"


@contextmanager
def _as_script(shown: str, name: str, seed: int) -> Iterator[None]:
    """Let the code see itself on ``sys.argv``, without gradwright's own arguments, and draw known random numbers."""
    arguments, sys.argv = sys.argv, [shown]
    try:
        with fixed_random_state(seed), importing(name):
            yield
    finally:
        sys.argv = arguments
