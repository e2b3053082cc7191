"""The lines in which a class or function is defined.

A class is found by one of its own methods, which know their file and line: of two classes with one name, as in the two
branches of an ``if``, Python's ``inspect`` may take the other, and it finds none in a cell of a notebook.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class SourceLines:
    """Where something is defined, and the text of it, from its first decorator on."""

    file: str
    first: int
    lines: tuple[str, ...]


def source_lines(definition: Any) -> SourceLines | None:
    """Return the lines of a class or function; None where they cannot be read."""
    found = _by_a_method(definition) if isinstance(definition, type) else None
    if found is not None:
        return found
    try:
        lines, first = inspect.getsourcelines(definition)
        file = inspect.getsourcefile(definition)
    except (OSError, TypeError, ValueError):
        return None
    return None if file is None else SourceLines(file, first, tuple(lines))


def _by_a_method(definition: type) -> SourceLines | None:
    code = _own_code(definition)
    if code is None:
        return None
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)
    around = [
        node
        for node in _classes("".join(lines))
        if node.name == definition.__name__ and node.lineno <= code.co_firstlineno <= (node.end_lineno or 0)
    ]
    if not around:
        return None
    innermost = max(around, key=lambda node: node.lineno)
    first = min([innermost.lineno, *(decorator.lineno for decorator in innermost.decorator_list)])
    return SourceLines(_file(definition, code), first, tuple(lines[first - 1 : innermost.end_lineno]))


def _file(definition: type, code: CodeType) -> str:
    """Return the file of the module, which has its full path, where it is the one that the code names."""
    try:
        file = inspect.getsourcefile(definition)
    except (OSError, TypeError):
        file = None
    return file if file and Path(file).name == Path(code.co_filename).name else code.co_filename


def _own_code(definition: type) -> CodeType | None:
    """Return the code of a method that is written in the body of the class."""
    for name, value in vars(definition).items():
        function = inspect.unwrap(value.__func__ if isinstance(value, (staticmethod, classmethod)) else value)
        if inspect.isfunction(function) and function.__qualname__ == f"{definition.__qualname__}.{name}":
            return function.__code__
    return None


@functools.lru_cache(maxsize=4)
def _classes(text: str) -> tuple[ast.ClassDef, ...]:
    try:
        return tuple(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    except (SyntaxError, ValueError):  # edited since it was imported
        return ()
