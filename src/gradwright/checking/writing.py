"""Writing values as Python source that a person can read and edit: small tensors as they are, large ones drawn.

Lines are broken as the usual formatters break them.
"""

from __future__ import annotations

import builtins
import enum
import inspect
import keyword
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WIDTH = 88
FEW = 16
"""Elements of a tensor that is written number by number."""
_GENERATOR = "generator"
_GUESSED_RANGES = ((0.1, 0.9), (0.5, 2.0))
"""Ranges in which positive numbers are guessed; a sample shows a part of one."""


class UnwritableError(Exception):
    """A value that cannot be written as source, and why."""


@dataclass(frozen=True)
class Group:
    """Brackets around several items; the items of a call may share a line of their own."""

    opening: str
    items: tuple[Text, ...]
    closing: str

    @property
    def is_call(self) -> bool:
        """True for the arguments of a call."""
        return len(self.opening) > 1 or self.closing != {"(": ")", "[": "]", "{": "}"}.get(self.opening)

    def __str__(self) -> str:
        alone = self.opening == "(" and len(self.items) == 1 and not self.is_call
        return f"{self.opening}{', '.join(map(str, self.items))}{',' if alone else ''}{self.closing}"


@dataclass(frozen=True)
class Prefixed:
    """An item with words before it, as a keyword argument or an entry of a dictionary has."""

    before: str
    item: Text

    def __str__(self) -> str:
        return f"{self.before}{self.item}"


Text = str | Group | Prefixed


@dataclass
class Writer:
    """Writes values, and remembers what has to be imported for them.

    Arguments:
        drawn: True where large and floating-point tensors need only be alike, as guesses are; else numbers are kept as
            far as they are few.
        most: elements of a tensor that is written number by number.
    """

    drawn: bool = False
    most: int = FEW
    imports: set[tuple[str, str]] = field(default_factory=set)
    """Modules and what is imported from each."""
    uses_generator: bool = False

    def value(self, value: Any) -> Text:
        """Return the source of a value.

        Raises:
            UnwritableError: it is an object of which the source is not known.
        """
        if isinstance(value, Tensor):
            return self._tensor(value)
        if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes, complex):
            return repr(value).replace("'", '"') if type(value) is str and '"' not in value else repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return f'torch.device("{value}")'
        if type(value) in (list, tuple, torch.Size):
            opening, closing = ("[", "]") if type(value) is list else ("(", ")")
            items = Group(opening, tuple(map(self.value, value)), closing)
            return Group("torch.Size(", (items,), ")") if type(value) is torch.Size else items
        if type(value) is dict:
            pairs = (Prefixed(f"{self.value(key)}: ", self.value(item)) for key, item in value.items())
            return Group("{", tuple(pairs), "}")
        return self._named(value)

    def _named(self, value: Any) -> str:
        """Write what a module has under a name: a member of an enumeration, a function, a class."""
        if isinstance(value, enum.Enum):
            return f"{self._named(type(value))}.{value.name}"
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str) or (found := sys.modules.get(module)) is None:
            raise UnwritableError(f"an object of type {type(value).__name__}")
        for part in name.split("."):
            found = inspect.getattr_static(found, part, None)
        found = getattr(found, "__func__", found)
        if found is not value:
            raise UnwritableError(f"an object of type {type(value).__name__} that no module has under its name")
        if module != builtins.__name__:
            self.imports.add((module, name.partition(".")[0]))
        return name

    def _tensor(self, tensor: Tensor) -> Text:
        if type(tensor) is not Tensor and not isinstance(tensor, torch.nn.Parameter):
            raise UnwritableError(f"a tensor of type {type(tensor).__name__}")
        if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            raise UnwritableError(f"a tensor with layout {tensor.layout} on {tensor.device.type}")
        plain = tensor.detach().cpu()
        after = ""
        if not plain.is_contiguous():
            size, stride = tuple(plain.shape), plain.stride()
            span = 1 + sum((n - 1) * step for n, step in zip(size, stride)) if plain.numel() else 0
            after = f".as_strided({size}, {stride})"
            plain = plain.as_strided((span,), (1,), plain.storage_offset())
        text = self._contiguous(plain)
        after += f'.to("{tensor.device}")' if tensor.device.type != "cpu" else ""
        return _followed(text, after)

    def _contiguous(self, tensor: Tensor) -> Text:
        dtype = Prefixed("dtype=", str(tensor.dtype))
        floating = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        if tensor.numel() <= (0 if self.drawn and floating else self.most):
            if tensor.numel() == 0:
                return Group("torch.zeros(", (*_sizes(tensor), dtype), ")")
            return Group("torch.tensor(", (self._numbers(tensor.tolist(), tensor.dtype), dtype), ")")
        self.uses_generator = True
        seeded = Prefixed("generator=", _GENERATOR)
        if tensor.dtype is torch.bool:
            share = round(float(tensor.float().mean()), 2)
            return _followed(Group("torch.rand(", (*_sizes(tensor), seeded), ")"), f" < {share}")
        if not floating:
            low, high = int(tensor.min()), int(tensor.max()) + 1
            drawn = Group("torch.randint(", (str(low), str(high), str(tuple(tensor.shape)), dtype, seeded), ")")
            ascending = tensor.dim() > 0 and bool((tensor.diff(dim=-1) >= 0).all())
            return Group("torch.sort(", (drawn,), ").values") if ascending else drawn
        return _floats(tensor, dtype, seeded, self.drawn)

    def _numbers(self, numbers: Any, dtype: torch.dtype) -> Text:
        if isinstance(numbers, list):
            return Group("[", tuple(self._numbers(number, dtype) for number in numbers), "]")
        return self.value(_shortest(numbers, dtype) if isinstance(numbers, float) else numbers)


def _floats(tensor: Tensor, dtype: Text, seeded: Text, as_guessed: bool) -> Text:
    """Draw floating-point numbers: normal ones where negative numbers were guessed, else uniform in the same range."""
    if tensor.dtype.itemsize == 1:  # nothing can be drawn in so few bits
        drawn = _floats(tensor.float(), Prefixed("dtype=", "torch.float32"), seeded, as_guessed)
        return Group("torch.as_tensor(", (drawn, dtype), ")")
    finite = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor.flatten().double()
    finite = finite[finite.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    if (as_guessed and low < 0) or tensor.is_complex():
        return Group("torch.randn(", (*_sizes(tensor), dtype, seeded), ")")
    if as_guessed:
        low, high = next(((a, b) for a, b in _GUESSED_RANGES if a <= low and high <= b), (low, high))
    if low == high:
        return Group("torch.full(", (str(tuple(tensor.shape)), f"{low!r}", dtype), ")")
    uniform = Group("torch.rand(", (*_sizes(tensor), dtype, seeded), ")")
    return Prefixed(f"{low:.4g} + {high - low:.4g} * ", uniform)


def _shortest(number: float, dtype: torch.dtype) -> float:
    """Return the number with the fewest digits that is the same in a dtype."""
    exact = torch.tensor(number, dtype=dtype)
    for digits in range(1, 17):
        short = float(f"{number:.{digits}g}")
        if torch.equal(torch.tensor(short, dtype=dtype), exact):
            return short
    return number


def _sizes(tensor: Tensor) -> tuple[Text, ...]:
    return tuple(map(str, tensor.shape)) if tensor.dim() else ("()",)


def _followed(text: Text, after: str) -> Text:
    """Put something behind a text, which binds as strongly as it looks."""
    if not after:
        return text
    if isinstance(text, Group):
        return Group(text.opening, text.items, text.closing + after)
    return Group("(", (text,), ")" + after)


def statement(before: str, text: Text, indent: int = 4) -> list[str]:
    """Return the lines of ``before`` with a text behind it, for example of an assignment."""
    return [" " * indent + line for line in _lines(before, text, "", WIDTH - indent)]


def _lines(before: str, text: Text, after: str, room: int) -> list[str]:
    if isinstance(text, Prefixed):
        return _lines(before + text.before, text.item, after, room)
    flat = f"{before}{text}{after}"
    if len(flat) <= room or isinstance(text, str):
        return [flat]
    body = ", ".join(map(str, text.items))
    if text.is_call and len(body) <= room - 4:
        inner = [body]
    else:
        inner = [line for item in text.items for line in _lines("", item, ",", room - 4)]
    return [before + text.opening, *("    " + line for line in inner), text.closing + after]


def variable(name: str, taken: Sequence[str]) -> str:
    """Return a name for a variable that holds an argument, different from those that are taken."""
    made = re.sub(r"\W", "_", name).strip("_") or "value"
    while made in (*taken, _GENERATOR, "torch") or keyword.iskeyword(made):
        made += "_"
    return made
