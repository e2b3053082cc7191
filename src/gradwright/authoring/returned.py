"""What a function returns, as far as its bytecode tells without running it.

Used to refuse at definition what would otherwise fail at the first call or the first backward. Where every return is
not plain to see, nothing is said.
"""

from __future__ import annotations

import collections
import dis
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MADE = ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE")
"""What stands at the end of making a function; the second from Python 3.13 on."""


def tuple_lengths(function: Any) -> set[int]:
    """Return the lengths of the tuples that ``function`` returns; nothing unless each return writes a tuple out."""
    lengths = set()
    for before in _returns(function):
        last = before[-1] if before else None
        if last is not None and last.opname == "BUILD_TUPLE":
            lengths.add(int(last.arg or 0))
        elif last is not None and last.opname in ("LOAD_CONST", "RETURN_CONST") and isinstance(last.argval, tuple):
            lengths.add(len(last.argval))
        else:
            return set()
    return lengths


def ends_with_function(function: Any) -> bool:
    """Tell whether ``function`` can return nothing but tuples whose last part is a function that is defined in it."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not any(isinstance(constant, CodeType) for constant in code.co_consts):
        return False
    own = _own_functions(code)
    ends = [
        len(before) > 1
        and before[-1].opname == "BUILD_TUPLE"
        and not before[-1].is_jump_target
        and int(before[-1].arg or 0) > 1
        and (before[-2].opname in _MADE or _loaded(before[-2]) in own)
        for before in _returns(function)
    ]
    return bool(ends) and all(ends)


def _returns(function: Any) -> list[Sequence[dis.Instruction]]:
    """Return for each place where ``function`` returns the two instructions that lead there."""
    if not isinstance(function, FunctionType) or function.__code__.co_flags & _GENERATORS:
        return []
    found: list[Sequence[dis.Instruction]] = []
    last: collections.deque[dis.Instruction] = collections.deque(maxlen=2)
    for instruction in dis.get_instructions(function.__code__):
        if instruction.opname == "RETURN_CONST":
            found.append([instruction])
        elif instruction.opname == "RETURN_VALUE":
            # What is jumped to may return what was computed elsewhere.
            found.append([] if instruction.is_jump_target else list(last))
        last.append(instruction)
    return found


def _own_functions(code: CodeType) -> set[str]:
    """Return the names of local variables that are never anything but one function defined there."""
    stored: collections.Counter[str] = collections.Counter(code.co_varnames[: _number_of_arguments(code)])
    stored.update(_stored_by_inner_code(code))
    functions = set()
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(("STORE_", "DELETE_")):
            names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            stored.update(str(name) for name in names)
            if before in _MADE and instruction.opname in ("STORE_FAST", "STORE_DEREF"):
                functions.add(str(instruction.argval))
        before = instruction.opname
    return {name for name in functions if stored[name] == 1}


def _stored_by_inner_code(code: CodeType) -> Iterator[str]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from (str(i.argval) for i in dis.get_instructions(inner) if i.opname == "STORE_DEREF")
            yield from _stored_by_inner_code(inner)


def _number_of_arguments(code: CodeType) -> int:
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + stars


def _loaded(instruction: dis.Instruction) -> str | None:
    """Return the local variable that an instruction puts on the stack, the last one if there are two."""
    if not instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return None
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return str(names[-1])
