"""The tensors that forward left on ``ctx``: as attributes, in containers, in objects, in the variables of a closure."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH = 5
MAX_OBJECTS = 2_000
"""So many objects are looked into."""
NOT_FOLLOWED = (ModuleType, type, torch.nn.Module, torch.Generator, str, bytes)
"""What a program shares between calls, or what holds no tensors."""


@dataclass(frozen=True)
class Kept:
    """A tensor that ``ctx`` holds, and how it is reached, for example ``ctx.state.x``."""

    path: str
    tensor: Tensor


def kept_on(node: Any) -> list[Kept]:
    """Return every tensor that the ctx of a Function holds otherwise than by ``save_for_backward``, each once.

    Arguments:
        node: the node of the autograd graph, which is the ctx.
    """
    found: dict[int, Kept] = {}
    seen: set[int] = set()
    alive = []  # what is made while looking must not be freed, or its id would be used again

    def visit(value: Any, path: str, depth: int) -> None:
        if isinstance(value, Tensor):
            found.setdefault(id(value), Kept(path, value))
            return
        if depth > MAX_DEPTH or id(value) in seen or len(seen) >= MAX_OBJECTS or isinstance(value, NOT_FOLLOWED):
            return
        seen.add(id(value))
        alive.append(value)
        for step, inner in _parts(value):
            visit(inner, path + step, depth + 1)

    for name, value in (vars(node) if hasattr(node, "__dict__") else {}).items():
        visit(value, f"ctx.{name}", 0)
    return list(found.values())


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Give what an object holds, each with how it is reached from there."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in list(value.items()))
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                yield f" (its variable `{name}`)", cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    elif isinstance(value, functools.partial):
        yield from ((f".args[{i}]", inner) for i, inner in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", inner) for name, inner in value.keywords.items())
        yield ".func", value.func
    elif isinstance(value, (MethodType, BuiltinMethodType)):
        yield ".__self__", value.__self__
    elif isinstance(value, (set, frozenset)):
        yield from ((" (a member)", inner) for inner in list(value))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{i}]", inner) for i, inner in enumerate(list(value)))
    else:
        yield from ((f".{name}", inner) for name, inner in list(getattr(value, "__dict__", {}).items()))
        for owner in type(value).__mro__:
            names = vars(owner).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else tuple(names):
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    yield f".{name}", getattr(value, name)
