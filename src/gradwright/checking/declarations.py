"""Reading the plain-Python hooks by which samples are declared.

A module has ``gradwright_samples`` and ``samples_<Name>``; a Function class, or a function with a custom gradient, has
an attribute ``examples`` (or ``gradwright_examples``, should ``examples`` be something else).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

from gradwright.checking.samples import FUNCTION_PREFIX, GUESSED_NAME, MAPPING_NAME, Sample
from gradwright.checking.subject import Subject
from gradwright.errors import SampleError


@dataclass(frozen=True)
class Declaration:
    """Samples declared for something: for what, how the declaration is called in messages, and its value."""

    target: Any
    """A name, or the object itself when the mapping has it as a key."""
    owner: str
    value: Any
    tentative: bool = False
    """True when it may be an ordinary function that happens to be called ``samples_...``."""
    doubtful: bool = False
    """True when what it gives may be no samples at all: it is then passed over with a note."""
    unconfirmed: bool = False
    """True when the samples are guesses that nobody has confirmed."""
    note: str = ""
    """Where it is, when that is neither the module nor a file that was named."""


def declarations(module: ModuleType) -> list[Declaration]:
    """Return what a module declares, whether or not it names anything.

    Raises:
        SampleError: ``gradwright_samples`` is not a mapping, or ``gradwright_guessed`` no list of names.
    """
    guessed = _guessed(module)
    declared = []
    mapping = vars(module).get(MAPPING_NAME)
    if isinstance(mapping, Mapping):
        for target, value in mapping.items():
            name = target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))
            unconfirmed = flat_name(name) in guessed
            declared.append(Declaration(target, f"{MAPPING_NAME}[{name!r}]", value, unconfirmed=unconfirmed))
    elif mapping is not None:
        raise SampleError(
            f"{MAPPING_NAME}: is of type {type(mapping).__name__}; expected a dictionary from names to samples; write "
            f'{MAPPING_NAME} = {{"Name": (x,)}}.'
        )
    for name, value in list(vars(module).items()):
        if name.startswith(FUNCTION_PREFIX) and name != FUNCTION_PREFIX and isinstance(value, FunctionType):
            # A hook takes no arguments; and one that was imported, or takes some, may be an ordinary function.
            needs = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty]
            tentative = value.__module__ != module.__name__ or bool(needs)
            target = name.removeprefix(FUNCTION_PREFIX)
            declared.append(Declaration(target, name, value, tentative, unconfirmed=flat_name(target) in guessed))
    return declared


def flat_name(name: str) -> str:
    """Return a name as it can be a part of the name of a function."""
    return name.replace(".", "_").replace("::", "_")


def _guessed(module: ModuleType) -> set[str]:
    names = vars(module).get(GUESSED_NAME, ())
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise SampleError(
            f"{GUESSED_NAME}: is of type {type(names).__name__}; expected a list of the names whose samples are "
            f'guesses; write {GUESSED_NAME} = ["Name"].'
        )
    return set(map(flat_name, names))


ATTRIBUTES = ("gradwright_examples", "examples")
"""What a Function class or a function with a custom gradient may declare its samples by; the first one wins."""


def own_declaration(subject: Subject) -> Declaration | None:
    """Return what a Function class, or a function with a custom gradient, declares itself.

    An ``examples`` that needs arguments, or is not what samples are written as, means something else.
    """
    if subject.kind not in ("Function", "custom gradient"):
        return None
    for name in ATTRIBUTES:
        # A property and the like is not evaluated.
        static = inspect.getattr_static(subject.target, name, None)
        value = getattr(subject.target, name) if isinstance(static, (staticmethod, classmethod)) else static
        if value is None:
            continue
        certain = name == ATTRIBUTES[0] and name in vars(subject.target)
        if certain or _may_be_samples(value):
            owner = f"{subject.name}.{name}"
            return Declaration(subject.target, owner, value, doubtful=not certain, note=f"samples from {owner}")
    return None


def _may_be_samples(value: Any) -> bool:
    if isinstance(value, (Tensor, tuple, list, Mapping, Sample)):
        return True
    if not inspect.isroutine(value):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
