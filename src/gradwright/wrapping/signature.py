"""The language in which ``gw.native`` is told what a compiled function takes and returns.

A signature lists the arguments of the function in the order in which it takes them, and after ``->`` what it returns::

    n:int, *lda:int=n, a[n,n]:f8:F, b[n]:f8:inout, *info:int:status -> f8

:func:`~gradwright.wrapping.native.native` says what each part means. Nothing here needs torch or NumPy.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from gradwright.errors import DefinitionError, did_you_mean

Intent: TypeAlias = Literal["in", "out", "inout", "work", "status"]
Passed: TypeAlias = Literal["value", "address", "array"]

TYPES = ("int", "i4", "i8", "f4", "f8")
INTENTS = ("in", "out", "inout", "work", "status")
ORDERS = ("C", "F")

_PARAMETER = re.compile(
    r"(?P<star>\*?)\s*(?P<name>\w+)\s*(?:\[(?P<sizes>[^\]]*)\])?\s*:(?P<words>[^=]*)(?:=(?P<value>.*))?", re.DOTALL
)
_WITH_CODES = re.compile(r"(\w+)\s*\(([-\d\s,]*)\)")
_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Size:
    """A size, or a value that is always passed: a name, a number, or a sum or product of them."""

    text: str
    tree: ast.expr

    @cached_property
    def name(self) -> str | None:
        """The name, where it is nothing else."""
        return self.tree.id if isinstance(self.tree, ast.Name) else None

    @property
    def names(self) -> list[str]:
        """All names in it."""
        return [node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)]

    def value(self, known: Mapping[str, Any]) -> Any:
        """Return what it is for the names that are known."""
        return known[self.name] if self.name is not None else _value(self.tree, known)


@dataclass(frozen=True)
class Parameter:
    """One argument of the compiled function, or what it returns."""

    name: str
    type: str
    passed: Passed = "value"
    sizes: tuple[Size, ...] = ()
    order: str = "C"
    intent: Intent = "in"
    codes: tuple[int, ...] = (0,)
    """What a status may be."""
    fixed: Size | None = None
    """What is always passed."""

    @property
    def text(self) -> str:
        """The parameter as it is written."""
        return f"{self.name}[{','.join(size.text for size in self.sizes)}]" if self.passed == "array" else self.name

    @property
    def floating(self) -> bool:
        """Whether it is of a type that has derivatives."""
        return self.type.startswith("f")

    @property
    def given(self) -> bool:
        """Whether it has a value before the call."""
        return self.intent in ("in", "inout")

    @property
    def returned(self) -> bool:
        """Whether it has one afterwards that is returned."""
        return self.intent in ("out", "inout")


@dataclass(frozen=True)
class Signature:
    """What a compiled function takes and returns."""

    text: str
    parameters: tuple[Parameter, ...]
    result: Parameter | None
    """What it returns, None for nothing."""
    filled: frozenset[str]
    """The names of the sizes that follow from arrays that are handed over."""

    @cached_property
    def arguments(self) -> tuple[Parameter, ...]:
        """What somebody has to give, in this order."""
        return tuple(p for p in self.parameters if p.given and p.fixed is None and p.name not in self.filled)

    @cached_property
    def outputs(self) -> tuple[Parameter, ...]:
        """What comes back, in this order: what the function returns, and then what it writes."""
        first = () if self.result is None or self.result.intent == "status" else (self.result,)
        return (*first, *(p for p in self.parameters if p.returned))

    def sizes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return every name that sizes are made of, for arrays or tensors and numbers by name."""
        known = {p.name: values[p.name] for p in self.arguments if p.passed != "array"}
        for p in self.arguments:
            if p.passed == "array":
                for size, found in zip(p.sizes, values[p.name].shape):
                    if size.name is not None and size.name in self.filled:
                        known.setdefault(size.name, found)
        known.update({p.name: p.fixed.value(known) for p in self.parameters if p.fixed is not None})
        return known


def parse(name: str, text: str) -> Signature:
    """Read a signature.

    Arguments:
        name: of the function, for messages.
        text: the signature.

    Raises:
        DefinitionError: something in it cannot be understood.

    Example:
        >>> found = parse("solve", "n:int, a[n,n]:f8:F, b[n]:f8, x[n]:f8:out -> int")
        >>> [p.name for p in found.arguments], [p.name for p in found.outputs]
        (['a', 'b'], ['x'])
    """
    if not isinstance(text, str):
        raise DefinitionError(
            f"{name}: the signature is {text!r}; expected text such as 'n:int, x[n]:f8, y[n]:f8:out'."
        )
    left, arrow, right = text.partition("->")
    parameters = tuple(_parameter(name, each) for each in _split(left))
    result = _result(name, right.strip()) if arrow else None
    names = [p.name for p in parameters] + ([result.name] if result is not None and result.returned else [])
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise DefinitionError(f"{name}: the signature has two arguments {twice!r}; expected different names.")
    filled = _filled(name, parameters)
    found = Signature(text, parameters, result, filled)
    if not found.outputs:
        raise DefinitionError(
            f"{name}: by its signature it returns nothing; expected an output; declare the array that it writes as "
            "`out` or `inout`, or what it returns: `-> f8`."
        )
    return found


def _split(text: str) -> Iterator[str]:
    """Give the parts between the commas that are outside of brackets."""
    depth, start = 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()


def _parameter(name: str, text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None or not match["name"].isidentifier() or keyword.iskeyword(match["name"]):
        raise DefinitionError(
            f"{name}: the signature has {text!r}; expected `name:type`, `*name:type` or `name[sizes]:type`, and after "
            "that the order and what is done with it: `a[n,n]:f8:F:inout`."
        )
    own, *words = [word.strip() for word in match["words"].split(":")]
    found: dict[str, Any] = {}
    for word in words:
        code = _WITH_CODES.fullmatch(word)
        if word in ORDERS:
            found["order"] = word
        elif word in INTENTS:
            found["intent"] = word
        elif code is not None and code[1] == "status":
            found.update(intent="status", codes=_codes(code[2]))
        else:
            raise _unknown(name, text, word, (*ORDERS, *INTENTS))
    if own not in TYPES:
        raise _unknown(name, text, own, TYPES)
    array = match["sizes"] is not None
    sizes = tuple(_size(name, each) for each in _split(match["sizes"] or ""))
    passed: Passed = "array" if array else "address" if match["star"] else "value"
    fixed = None if match["value"] is None else _size(name, match["value"])
    made = Parameter(match["name"], own, passed, sizes, fixed=fixed, **found)
    _check(name, text, made, bool(match["star"]))
    return made


def _check(name: str, text: str, made: Parameter, star: bool) -> None:
    """Refuse what cannot be meant."""
    wrong = None
    if star and made.passed == "array":
        wrong = "which is an array, and arrays are passed by their address always; drop the *"
    elif made.passed == "value" and made.intent != "in":
        wrong = f"which is passed by value, and so cannot be {made.intent}; write *{made.name}"
    elif made.intent == "status" and (made.floating or made.passed == "array"):
        wrong = f"but a status is one whole number; write *{made.name}:int:status"
    elif made.fixed is not None and (made.passed == "array" or made.intent != "in"):
        wrong = "but only a number that is handed over can have a value; drop it"
    if wrong is not None:
        raise DefinitionError(f"{name}: the signature has {text!r}, {wrong}.")


def _result(name: str, text: str) -> Parameter | None:
    own, word = ("", text) if ":" not in text else [part.strip() for part in text.split(":", 1)]
    code = _WITH_CODES.fullmatch(word)
    if not own and (word == "int" or (code is not None and code[1] == "int")):
        return Parameter("status", "int", intent="status", codes=(0,) if code is None else _codes(code[2]))
    if word == "void":
        raise DefinitionError(f"{name}: the signature has '-> void'; expected the type of a result; leave it away.")
    if word not in TYPES or (own and not own.isidentifier()):
        raise _unknown(name, f"-> {text}", word, TYPES)
    return Parameter(own or "result", word, intent="out")


def _codes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _size(name: str, text: str) -> Size:
    text = "".join(text.split())
    try:
        tree = ast.parse(text, mode="eval").body
        _value(tree, _Any())
    except (SyntaxError, TypeError):
        raise DefinitionError(
            f"{name}: the signature has the size or value {text!r}; expected a name, a number, or a sum, difference, "
            "product or // of them."
        ) from None
    return Size(text, tree)


class _Any(dict):  # type: ignore[type-arg]
    """Knows every name, to see whether an expression is one."""

    def __missing__(self, key: str) -> int:
        return 1


def _value(tree: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        return tree.value
    if isinstance(tree, ast.Name):
        return known[tree.id]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_value(tree.operand, known)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATIONS:
        return _OPERATIONS[type(tree.op)](_value(tree.left, known), _value(tree.right, known))
    raise TypeError


def _filled(name: str, parameters: tuple[Parameter, ...]) -> frozenset[str]:
    """Return the sizes that follow from arrays, and look whether all others are numbers that are given."""
    numbers = {p.name: p for p in parameters if p.passed != "array" and p.given}
    filled = {size.name for p in parameters if p.passed == "array" and p.given for size in p.sizes if size.name}
    for p in parameters:
        if p.passed == "array" and p.name in filled:
            raise DefinitionError(
                f"{name}: the signature has an array and a size {p.name!r}; expected different names."
            )
        for each in (each for size in (*p.sizes, *([] if p.fixed is None else [p.fixed])) for each in size.names):
            known = numbers.get(each)
            if known is None and each not in filled:
                raise DefinitionError(
                    f"{name}: the signature has {p.text}, and nothing tells {each!r}; expected a size of an array "
                    f"that is handed over, or a number that is: `{each}:int`.{did_you_mean(each, [*numbers, *filled])}"
                )
            if known is not None and known.floating and p.passed == "array":
                raise DefinitionError(f"{name}: the size {each!r} of {p.text} is {known.type}; expected int, i4 or i8.")
            if known is not None and known.fixed is not None and p.fixed is not None:
                raise DefinitionError(
                    f"{name}: the value of {p.name!r} is made of {each!r}, which has one itself; write it out."
                )
    return frozenset(each for each in filled if each not in numbers or numbers[each].fixed is None)


def _unknown(name: str, text: str, word: str, known: tuple[str, ...]) -> DefinitionError:
    return DefinitionError(
        f"{name}: the signature has {text!r}, and {word!r} is not known; expected one of {', '.join(known)}."
        f"{did_you_mean(word, known)}"
    )
