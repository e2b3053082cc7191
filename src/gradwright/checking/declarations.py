"""Reading the plain-Python hooks by which a module declares samples: ``gradwright_samples`` and ``samples_<Name>``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from gradwright.checking.samples import FUNCTION_PREFIX, MAPPING_NAME
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


def declarations(module: ModuleType) -> list[Declaration]:
    """Return what a module declares, whether or not it names anything.

    Raises:
        SampleError: ``gradwright_samples`` is not a mapping.
    """
    declared = []
    mapping = vars(module).get(MAPPING_NAME)
    if isinstance(mapping, Mapping):
        for target, value in mapping.items():
            name = target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))
            declared.append(Declaration(target, f"{MAPPING_NAME}[{name!r}]", value))
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
            declared.append(Declaration(name.removeprefix(FUNCTION_PREFIX), name, value, tentative))
    return declared
