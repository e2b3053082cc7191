"""The lines of the user's source that a finding is about."""

from __future__ import annotations

import ast
import functools
import linecache
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gradwright.checking.report import Report
from gradwright.reporting.summary import ABOUT

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

MAX_LINES = 5
RULE = ("backward", "vjp")


@dataclass(frozen=True)
class Frame:
    """Some lines of a file, of which one is marked."""

    file: str
    lines: tuple[tuple[int, str], ...]
    """Number and text of each; what all are indented by is left out."""
    marked: int


def frame(report: Report, contract: str) -> Frame | None:
    """Return the first lines of the rule that a contract of a subject is about; None where no source can be read."""
    place = _place(report, contract)
    if place is None:
        return None
    file, first, last = place
    texts = _text(file)[first - 1 : min(last, first + MAX_LINES - 1)]
    shown = textwrap.dedent("".join(texts).expandtabs()).splitlines()
    while shown and not shown[-1].strip():
        shown.pop()
    return Frame(file, tuple(enumerate(shown, first)), first) if shown else None


def _place(report: Report, contract: str) -> tuple[str, int, int] | None:
    """Return file, first and last line of what is to be shown."""
    beside = re.search(r" in line (\d+)$", report.rule)
    elsewhere = re.search(r" in (.+):(\d+)$", report.rule)
    if elsewhere:
        return _function(elsewhere[1], int(elsewhere[2]), ())
    if report.file is None or report.line is None:
        return None
    return _function(report.file, int(beside[1]) if beside else report.line, (*ABOUT.get(contract, ()), *RULE))


def _function(file: str, line: int, roles: Sequence[str]) -> tuple[str, int, int] | None:
    """Return where the definition at a line is; of a class, where the first of the methods is that it has."""
    node = _definitions("".join(_text(file))).get(line)
    if node is None:
        return None
    body = node.body if isinstance(node, ast.ClassDef) else []
    methods = {each.name: each for each in body if isinstance(each, ast.FunctionDef)}
    found = next((methods[role] for role in roles if role in methods), node)
    return file, found.lineno, found.end_lineno or found.lineno


def _text(file: str) -> list[str]:
    """Return the lines of a file as they are now; those of a notebook are known to Python alone."""
    try:
        linecache.checkcache(file)
        return linecache.getlines(file)
    except ValueError:  # no name that a file can have
        return []


@functools.lru_cache(maxsize=8)
def _definitions(text: str) -> Mapping[int, Definition]:
    """Return every class and function of a file by the line of its ``class`` or ``def``."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of code nested too deeply, by version of Python
        return {}
    return {node.lineno: node for node in nodes if isinstance(node, Definition)}
