"""What the code of a subject can reach beside its arguments: globals, closures, defaults and attributes.

Nothing is called and nothing is changed; the code objects tell which names are read. PyTorch's own code and that of
the standard library are not followed.
"""

from __future__ import annotations

import dis
import functools
import inspect
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking import trees
from gradwright.checking.subject import Subject
from gradwright.checking.tensors import same_bits

METHODS = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")
MAX_DEPTH = 4
MAX_LEAVES = 500
"""Containers are looked at up to this many leaves."""
DETACHING = ("detach", "detach_", "data", "item", "tolist", "clone_detached")
"""Attributes whose reading says that a captured tensor is meant as a constant."""

_PLAIN = (Tensor, int, float, complex, str, torch.Generator, random.Random)
_FOREIGN = ("torch", "numpy", "builtins")


@dataclass(frozen=True)
class Captured:
    """One value that the subject's code can reach: a tensor, a number, a random generator, the size of a container."""

    words: str
    """Where it is, for messages, for example ``the global `SCALE```."""
    value: Any
    function: type[Function] | None
    """The Function whose methods reach it; None for plain code."""
    constant: bool = False
    """True when the code reads it through ``.detach()`` or the like."""

    @property
    def is_generator(self) -> bool:
        """True for a source of random numbers."""
        return isinstance(self.value, (torch.Generator, random.Random)) or _is_numpy_generator(self.value)


def captured_by(subject: Subject, functions: tuple[type[Function], ...] = ()) -> list[Captured]:
    """Return what the subject's code, and that of the given Functions, can reach, each value once."""
    walk = _Walk()
    for function in (*functions, *([subject.function] if subject.function else [])):
        walk.visit_function_class(function, 0)
    if subject.function is None:
        walk.visit(subject.target, "", None, 0)
    return walk.found


class StateWatch:
    """Remembers what a subject can reach, to tell later which of it has changed."""

    def __init__(self, subject: Subject, functions: tuple[type[Function], ...] = ()) -> None:
        self.subject, self.functions = subject, functions
        self.before = {c.words: _frozen(c.value) for c in captured_by(subject, functions)}

    def changed(self) -> list[Captured]:
        """Return what differs from the time this watch was made."""
        now = captured_by(self.subject, self.functions)
        return [c for c in now if not _same(self.before.get(c.words, _NOTHING), _frozen(c.value))]


class _Walk:
    def __init__(self) -> None:
        self.found: list[Captured] = []
        self.seen: set[tuple[int, Any]] = set()

    def visit_function_class(self, function: type[Function], depth: int) -> None:
        if not self._first_time(function, function):
            return
        for name in METHODS:
            method = inspect.getattr_static(function, name, None)
            method = getattr(method, "__func__", method)
            if isinstance(method, FunctionType) and not _is_foreign(method):
                self.visit_code(method, function, depth + 1)
        for owner in function.__mro__:
            if owner is Function:
                break
            for name, value in vars(owner).items():
                if not name.startswith("__") and not isinstance(value, (staticmethod, classmethod, property)):
                    self.visit(value, f"the class attribute `{owner.__name__}.{name}`", function, depth + 1)

    def visit_code(self, code_of: FunctionType, inside: type[Function] | None, depth: int) -> None:
        if depth > MAX_DEPTH or not self._first_time(code_of, inside):
            return
        variables = inspect.getclosurevars(code_of)
        constants = set(_read_as_constants(code_of.__code__))
        for name, value in variables.nonlocals.items():
            self.visit(value, f"`{name}` of the enclosing function", inside, depth, name in constants)
        names = set(_names(code_of.__code__))
        for name in sorted(names & code_of.__globals__.keys()):
            value = code_of.__globals__[name]
            if isinstance(value, ModuleType):
                if not _is_foreign(value):
                    for attribute in sorted(names & vars(value).keys()):
                        self.visit(getattr(value, attribute), f"`{name}.{attribute}`", inside, depth)
            else:
                self.visit(value, f"the global `{name}`", inside, depth, name in constants)
        defaults = [*(code_of.__defaults__ or ()), *(code_of.__kwdefaults__ or {}).values()]
        for value in defaults:
            if value is not None:
                self.visit(value, f"a default of `{code_of.__name__}`", inside, depth)

    def visit(self, value: Any, words: str, inside: type[Function] | None, depth: int, constant: bool = False) -> None:
        if depth > MAX_DEPTH:
            return
        if isinstance(value, _PLAIN) or _is_array(value):
            if not isinstance(value, Tensor) or self._first_time(value, inside):
                self.found.append(Captured(words or "an attribute", value, inside, constant))
        elif isinstance(value, (list, tuple, dict, set)):
            self._visit_container(value, words, inside, depth)
        elif isinstance(value, (functools.partial, MethodType, FunctionType)):
            self._visit_callable(value, words, inside, depth)
        elif isinstance(value, type):
            self._visit_class(value, words, inside, depth)
        elif not _is_foreign(type(value)) or isinstance(value, torch.nn.Module):
            call = getattr(type(value), "forward" if isinstance(value, torch.nn.Module) else "__call__", None)
            if isinstance(call, FunctionType) and not _is_foreign(call):
                self.visit_code(call, inside, depth + 1)
            self._visit_attributes(value, words, inside, depth)

    def _visit_callable(self, value: Any, words: str, inside: type[Function] | None, depth: int) -> None:
        if isinstance(value, functools.partial):
            self.visit(value.func, words, inside, depth)
            for k, bound in enumerate((*value.args, *value.keywords.values())):
                self.visit(bound, f"argument {k} bound by functools.partial", inside, depth + 1)
        elif isinstance(value, FunctionType):
            if not _is_foreign(value):
                self.visit_code(value, inside, depth + 1)
        elif isinstance(value.__self__, type):  # a class method, such as `apply`
            self._visit_class(value.__self__, words, inside, depth)
        elif isinstance(value.__func__, FunctionType):
            self.visit_code(value.__func__, inside, depth)
            self._visit_attributes(value.__self__, "self", inside, depth)

    def _visit_class(self, value: type, words: str, inside: type[Function] | None, depth: int) -> None:
        if _is_foreign(value):
            return
        if issubclass(value, Function):
            self.visit_function_class(value, depth)
        else:
            self._visit_attributes(value, words, inside, depth)

    def _visit_container(self, value: Any, words: str, inside: type[Function] | None, depth: int) -> None:
        if not self._first_time(value, inside):
            return
        self.found.append(Captured(f"the number of entries of {words}", len(value), inside))
        leaves, _ = trees.flatten(list(value) if isinstance(value, set) else value)
        for k, leaf in enumerate(leaves[:MAX_LEAVES]):
            if isinstance(leaf, (Tensor, int, float, complex)) or _is_array(leaf):
                self.visit(leaf, f"entry {k} of {words}", inside, depth + 1)

    def _visit_attributes(self, owner: Any, words: str, inside: type[Function] | None, depth: int) -> None:
        if isinstance(owner, ModuleType) or depth >= MAX_DEPTH or not self._first_time(owner, inside):
            return
        if isinstance(owner, torch.nn.Module):
            for name, tensor in (*owner.named_parameters(), *owner.named_buffers()):
                self.visit(tensor, f"`{name}` of {words or 'the module'}", inside, depth + 1)
        for name, value in (vars(owner) if hasattr(owner, "__dict__") else {}).items():
            if not name.startswith("_"):
                self.visit(value, f"the attribute `{name}` of {words or 'the object'}", inside, depth + 1)

    def _first_time(self, value: Any, inside: Any) -> bool:
        key = (id(value), inside)
        fresh = key not in self.seen
        self.seen.add(key)
        return fresh


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        yield from part.co_names


def _read_as_constants(code: CodeType) -> Iterator[str]:
    """Give the names of globals and closure variables that are read as ``name.detach()`` or the like."""
    for part in _codes(code):
        previous = None
        for instruction in dis.get_instructions(part):
            reads = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in DETACHING
            if reads and previous is not None and previous.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
                yield str(previous.argval)
            previous = instruction


def _is_foreign(value: Any) -> bool:
    """Tell whether code or a type belongs to PyTorch, NumPy or the standard library."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    top = str(name).partition(".")[0]
    return top in _FOREIGN or (top in sys.stdlib_module_names and top != "__main__")


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and (isinstance(value, numpy.ndarray) or _is_numpy_generator(value))


def _is_numpy_generator(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


_NOTHING = object()


def _frozen(value: Any) -> Any:
    """Return something that does not change when the value does, comparable by :func:`_same`."""
    if isinstance(value, Tensor):
        return value.detach().clone() if value.layout == torch.strided else None
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if _is_numpy_generator(value):
        return repr(value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state())
    return value.copy() if _is_array(value) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return same_bits(a, b)
    if _is_array(a) and _is_array(b):
        return bool(a.tobytes() == b.tobytes())
    return type(a) is type(b) and bool(a == b)
