"""Arrays described by jaxtyping annotations, such as ``Float[Tensor, "batch dim"]``: their dtypes and their axes.

Named axes are bound once for all arrays of a call. jaxtyping itself is not needed here: an annotation that is there was
made by it, and one that could not be evaluated is read as it is written.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
Family: TypeAlias = Literal["floating", "complex", "integer", "bool"]


@dataclass(frozen=True)
class Axis:
    """One axis, or one name for any number of them."""

    size: ast.expr | None
    """A number, a name or a sum; None for one without a name."""
    variadic: bool = False
    broadcast: bool = False
    """True when it may be 1, or be missing if it is variadic."""


@dataclass(frozen=True)
class ArrayType:
    """What an annotation says of a tensor."""

    text: str
    """The axes as they are written."""
    dtypes: tuple[torch.dtype, ...]
    """Those that are allowed, the one that is liked best first."""

    @property
    def axes(self) -> list[Axis]:
        """The axes, in order."""
        return [_axis(word) for word in self.text.split()]

    @property
    def family(self) -> Family:
        """What kind of number it has; floating-point numbers where those are allowed."""
        dtype = self.dtype(torch.float64)
        if dtype.is_floating_point:
            return "floating"
        return "complex" if dtype.is_complex else "bool" if dtype is torch.bool else "integer"

    def dtype(self, wanted: torch.dtype) -> torch.dtype:
        """Return the dtype to use: the one that is wanted if it is allowed, else the most accurate one."""
        return wanted if wanted in self.dtypes else self.dtypes[0]


@dataclass(frozen=True)
class Sizes:
    """How large axes are."""

    named: Shape
    """Of the named ones in the order in which they first appear, and of those without a name as they come."""
    variadic: Shape
    """Of each axis that stands for any number of them."""
    broadcast: bool = False
    """Whether the axes that may be 1, or may be missing, are."""


VARIANTS: tuple[tuple[float, Sizes], ...] = (
    (0.0, Sizes((3, 4, 2, 5, 6, 7), (2,))),
    (1.0, Sizes((2, 5, 3, 4, 7, 6), ())),
    (1.1, Sizes((4, 8, 2, 6, 12, 10), (2, 3))),  # where one is divided by another or by two
    (1.3, Sizes((3, 4, 2, 5, 6, 7), (2,), broadcast=True)),
    (1.6, Sizes((4,), (4,))),
    (2.5, Sizes((16, 32, 8, 64), (2,))),
)
"""Sizes to try, with how unlikely they are to be needed."""


def array_type(annotation: Any) -> ArrayType | None:
    """Return what a jaxtyping annotation of a tensor says; None for anything else, and for what cannot be bound."""
    if isinstance(annotation, str):
        written = _WRITTEN.search(annotation)
        return None if written is None else _readable(written["axes"], _written_dtypes(written["kind"]))
    kind, text = getattr(annotation, "array_type", None), getattr(annotation, "dim_str", None)
    if not isinstance(text, str) or not isinstance(kind, type) or not issubclass(kind, Tensor):
        return None
    names = getattr(annotation, "dtypes", None)  # something else for any
    return _readable(
        text, [dtype for dtype in _DTYPES if not isinstance(names, (tuple, list)) or _name(dtype) in names]
    )


def bind(arrays: Sequence[ArrayType], sizes: Sizes) -> tuple[Shape, ...] | None:
    """Return the shape of each array under some sizes; None when a sum comes out negative."""
    bound: dict[str, int] = {}
    left = iter(_endless(sizes.named))

    def value(size: ast.expr) -> int:
        for name in _names(size):
            if name not in bound:
                bound[name] = next(left)
        return _evaluate(size, bound)

    # Plain names first: a sum says nothing about the size of its terms.
    for array in arrays:
        for axis in array.axes:
            if isinstance(axis.size, ast.Name) and not axis.variadic:
                value(axis.size)
    shapes = []
    for array in arrays:
        shape: list[int] = []
        for axis in array.axes:
            narrow = sizes.broadcast and axis.broadcast
            if axis.variadic:
                shape += () if narrow else sizes.variadic
            elif axis.size is None:
                shape.append(next(left))
            else:
                full = value(axis.size)
                shape.append(1 if narrow else full)
        shapes.append(tuple(shape))
    return None if any(size < 0 for shape in shapes for size in shape) else tuple(shapes)


def bindings(arrays: Sequence[ArrayType]) -> Iterator[tuple[float, tuple[Shape, ...]]]:
    """Yield the shapes of some arrays under each of the sizes to try, with their cost, each once."""
    seen = set()
    for cost, sizes in VARIANTS:
        shapes = bind(arrays, sizes)
        if shapes is not None and shapes not in seen:
            seen.add(shapes)
            yield cost, shapes


_DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.complex128,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
"""The dtypes that are used, the most accurate of each family first."""

_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def _readable(text: str, dtypes: Sequence[torch.dtype]) -> ArrayType | None:
    array = ArrayType(text, tuple(dtypes))
    try:
        for axis in array.axes:
            if axis.size is not None:
                _evaluate(axis.size, dict.fromkeys(_names(axis.size), 12))
    except (SyntaxError, ValueError, ArithmeticError):
        return None
    return array if dtypes else None


def _axis(word: str) -> Axis:
    """Read one word of the axes: marks, perhaps a label before ``=``, and a name, a number or a sum."""
    if word == "...":
        return Axis(None, variadic=True)
    marks = re.match(r"[*#?]*", word)
    assert marks is not None
    rest = word[marks.end() :]
    variadic, broadcast = "*" in marks[0], "#" in marks[0]
    if rest.startswith("_") or not rest:  # a name that begins so is for the reader only
        return Axis(None, variadic, broadcast)
    label, equals, size = rest.partition("=")
    return Axis(ast.parse(size if equals and label.isidentifier() else rest, mode="eval").body, variadic, broadcast)


def _names(size: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(size) if isinstance(node, ast.Name)]


def _evaluate(size: ast.expr, bound: dict[str, int]) -> int:
    if isinstance(size, ast.Constant) and type(size.value) is int:
        return size.value
    if isinstance(size, ast.Name):
        return bound[size.id]
    if isinstance(size, ast.UnaryOp) and isinstance(size.op, ast.USub):
        return -_evaluate(size.operand, bound)
    if isinstance(size, ast.BinOp) and type(size.op) in _OPERATIONS:
        return _OPERATIONS[type(size.op)](_evaluate(size.left, bound), _evaluate(size.right, bound))
    raise ValueError("a size that depends on more than other sizes")


def _endless(sizes: Shape) -> Iterator[int]:
    while True:
        yield from sizes


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_WRITTEN = re.compile(r"""\b(?P<kind>\w+)\[\s*(torch\.)?Tensor\s*,\s*(?P<quote>['"])(?P<axes>[^'"]*)(?P=quote)\s*\]""")
_KINDS = {
    "Float": r"b?float\d+",
    "BFloat": r"bfloat\d+",
    "Complex": r"complex\d+",
    "Int": r"int\d+",
    "UInt": r"uint\d+",
    "Integer": r"u?int\d+",
    "Bool": "bool",
}


def _written_dtypes(kind: str) -> list[torch.dtype]:
    """Return the dtypes of a type of jaxtyping by its name, for example ``Int`` or ``Float32``."""
    pattern = _KINDS.get(kind, kind.lower() if re.fullmatch(r"[A-Z][A-Za-z]+\d+", kind) else ".*")
    return [dtype for dtype in _DTYPES if re.fullmatch(pattern, _name(dtype))]
