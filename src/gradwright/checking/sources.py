"""The source of a subject, taken when it is checked: a report is read elsewhere and later, perhaps after the edit."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.autograd import Function

from gradwright import torch_compat
from gradwright.checking.shown import Part, Role, Source
from gradwright.checking.source_lines import source_lines
from gradwright.checking.subject import Subject
from gradwright.typing import has_custom_gradient

MAX_LINES = 160
"""Lines of one subject that a report carries; of a longer class, the beginning of each of its methods."""
MAX_WIDTH = 240
ROLES: dict[str, Role] = {
    "forward": "forward",
    "setup_context": "setup_context",
    "backward": "backward",
    "vjp": "backward",
    "jvp": "jvp",
    "vmap": "vmap",
}
"""The methods of a Function class by what they are for."""


@dataclass(frozen=True)
class _Piece:
    file: str
    first: int
    lines: list[str]
    parts: list[Part]


def sources_of(subject: Subject) -> tuple[Source, ...]:
    """Return the source of a subject and of its rules, one listing for each file; empty where it cannot be read."""
    pieces = [piece for piece in (_piece(target, role) for target, role in _targets(subject)) if piece is not None]
    files: dict[str, list[_Piece]] = {}
    for piece in pieces:
        files.setdefault(piece.file, []).append(piece)
    main = pieces[0].file if pieces else None
    each = MAX_LINES // max(len(pieces), 1)
    return tuple(
        Source(
            subject.file if file == main and subject.file is not None else file,
            tuple(sorted({line for piece in found for line in _shortened(piece, each)})),
            tuple(dict.fromkeys(part for piece in found for part in piece.parts)),
        )
        for file, found in files.items()
    )


def _targets(subject: Subject) -> Iterator[tuple[Any, Role | None]]:
    """Give the objects whose source belongs to a subject, and what those are for that are a single function."""
    target: Any = subject.target
    while isinstance(target, functools.partial):
        target = target.func
    if has_custom_gradient(target):
        definition = target.__custom_gradient__
        yield definition.source, "forward"
        yield definition.gradient, "backward"
    elif subject.kind == "Function":
        yield target, None
        yield from _inherited(target)
    elif subject.kind == "custom op":
        yield torch_compat.operator_source(target), "forward"
    else:
        yield (type(target) if subject.kind == "module" else inspect.unwrap(target)), "forward"


def _inherited(function: type[Function]) -> Iterator[tuple[Any, Role]]:
    """Give the methods that a Function class has from another class of the user's."""
    for name, role in ROLES.items():
        owner = next((cls for cls in function.__mro__ if name in vars(cls)), Function)
        if owner is not function and not owner.__module__.startswith(("torch.", "gradwright.")):
            yield inspect.unwrap(getattr(function, name)), role


def _piece(target: Any, role: Role | None) -> _Piece | None:
    found = source_lines(target)
    if found is None:
        return None
    first = max(found.first, 1)  # a whole module begins at line 0
    lines = [line.rstrip("\r\n") for line in found.lines]
    return _Piece(found.file, first, lines, _parts("".join(found.lines), first, role))


def _parts(text: str, first: int, role: Role | None) -> list[Part]:
    """Find the functions of a piece: the methods of a class, or the function that the piece is."""
    try:
        body = ast.parse(textwrap.dedent(text)).body
    except (SyntaxError, ValueError):  # a lambda in the middle of an expression
        return []
    if not body:
        return []
    found = body[0]
    nodes = found.body if isinstance(found, ast.ClassDef) else [found]
    parts = []
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            use = ROLES.get(node.name) if isinstance(found, ast.ClassDef) else role
            if use is not None:
                last = (node.end_lineno or node.lineno) + first - 1
                parts.append(Part(use, node.name, node.lineno + first - 1, last))
    return parts


def _shortened(piece: _Piece, limit: int) -> list[tuple[int, str]]:
    """Return the numbered lines of a piece, at most ``limit``: when long, its head and the beginning of each part."""
    numbered = [(piece.first + i, line[:MAX_WIDTH]) for i, line in enumerate(piece.lines)]
    if len(numbered) <= limit or not piece.parts:
        return numbered[:limit]
    each = max(limit // (len(piece.parts) + 1), 1)
    starts = [piece.first, *(part.first for part in piece.parts)]
    ends = [piece.first + len(numbered) - 1, *(part.last for part in piece.parts)]
    spans = [range(start, min(start + each, end + 1)) for start, end in zip(starts, ends)]
    return [line for line in numbered if any(line[0] in span for span in spans)]
