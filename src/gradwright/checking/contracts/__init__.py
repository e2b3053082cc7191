"""Contracts: one property a custom gradient must have, one file each. The folder is the registry.

A contract is a module whose docstring explains it under fixed headings (What it checks, Why it matters, If it fails,
References) and which has one function decorated with :func:`contract`::

    @contract(asks="is the gradient right?")
    def examine(case: Case) -> Outcome: ...

Its id is the file name in kebab-case. Nothing else needs to be touched to add one.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from gradwright.checking.report import Outcome
from gradwright.typing import LEVELS, Level

if TYPE_CHECKING:
    from gradwright.checking.case import Case

Question: TypeAlias = Literal[
    "is the interface kept?",
    "is the gradient right?",
    "is it pure?",
    "any layout, any shape?",
    "does it compose?",
]
QUESTIONS: tuple[Question, ...] = (
    "is the interface kept?",
    "is the gradient right?",
    "is it pure?",
    "any layout, any shape?",
    "does it compose?",
)
"""The questions, in the order in which reports ask them."""

Examine: TypeAlias = "Callable[[Case], Outcome]"


@dataclass(frozen=True)
class Contract:
    """A property a custom gradient must have, and how to examine it."""

    id: str
    asks: Question
    level: Level
    """The lowest level at which it is examined."""
    depends_on_meaning: bool
    """True when a failure on guessed inputs may be the guess's fault; it is then reported as ``suspect``."""
    presupposes: tuple[str, ...]
    """Ids of contracts whose failure may cause this one's, which is then not counted again."""
    examine: Examine
    documentation: str

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return self.documentation.strip().splitlines()[0]

    def runs_at(self, level: Level) -> bool:
        """Tell whether the contract is examined at ``level``."""
        return LEVELS.index(level) >= LEVELS.index(self.level)


def contract(
    *, asks: Question, level: Level = "quick", depends_on_meaning: bool = False, presupposes: tuple[str, ...] = ()
) -> Callable[[Examine], Contract]:
    """Make a contract of the decorated function; the id and the documentation come from its module."""

    def decorate(examine: Examine) -> Contract:
        module = sys.modules[examine.__module__]
        name = examine.__module__.rpartition(".")[2].replace("_", "-")
        return Contract(name, asks, level, depends_on_meaning, presupposes, examine, module.__doc__ or "")

    return decorate


def summary_of(contract: str) -> str | None:
    """Return the first line of a contract's documentation without importing it; None for one that is not known."""
    documentation = documentation_of(contract)
    return None if documentation is None else documentation.partition("\n")[0]


@cache
def documentation_of(contract: str) -> str | None:
    """Return a contract's documentation without importing it; None for one that is not known."""
    file = Path(__path__[0]) / f"{contract.replace('-', '_')}.py"
    if not file.is_file():
        return None
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


@cache
def all_contracts() -> dict[str, Contract]:
    """Return every contract by id, in the order of :data:`QUESTIONS`, then by id."""
    found = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found.append(module.examine)
    found.sort(key=lambda item: (QUESTIONS.index(item.asks), item.id))
    return {item.id: item for item in found}
