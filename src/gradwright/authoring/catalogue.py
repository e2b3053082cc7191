"""The catalogue: functions with a hand-written gradient that say, beside their code, what that gradient is.

A declaration is read by people (``gradwright show``), by ``gw.check`` (the surrogate) and by the suite that proves
every entry. A family of entries is one module of a folder; there is no central list.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradwright.authoring.definition import Definition, Options
from gradwright.authoring.rules import read_arguments

F = TypeVar("F", bound=Callable[..., Any])

SecondOrder: TypeAlias = Literal["surrogate", "raises"]
"""What a second derivative is: that of the surrogate, or refused (at least while parameters are learned)."""


@dataclass(frozen=True)
class Example:
    """Arguments of one call, for the proofs: at the places where a rule can be wrong.

    Where tensors require a gradient, exactly those are differentiated and the others are constants; else all are.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    """What it is about, for example ``edges`` or ``per channel``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """What every function of the catalogue declares."""

    name: str
    """As users write it after ``gw.``, for example ``ste.round``."""
    function: Callable[..., Any]
    forward: str
    """The formula of its values."""
    gradient: Mapping[str, str]
    """The formula of the gradient of each argument that has one, edges included."""
    examples: Callable[[torch.dtype], Sequence[Example]]
    """Calls at the places where the rule can be wrong: every edge and the numbers next to it, ties, zero, far outside.
    The tensors that have a gradient come first in the proofs, then the rest; all are of the dtype that is given."""
    paper: str
    """Where it comes from: authors, year, identifier."""

    @property
    def family(self) -> str:
        """The module it is in, for example ``rounding``."""
        return str(self.function.__module__).rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class SurrogateEntry(Entry):
    """A function whose gradient is, on purpose, that of another one.

    Steps and bounds of its examples are powers of two, so that no dtype rounds a value across an edge.
    """

    surrogate: Callable[..., Any]
    """Takes the same arguments; what PyTorch differentiates through it is the gradient. Where the rule is not linear in
    the cotangent, the surrogate is that of its linear part."""
    values: Callable[..., Any] | None = None
    """The formula of its values once more, as plain as can be, for float64; None where the forward is random."""
    codes: Callable[..., Tensor] | None = None
    """Takes the same arguments and returns every value that each element of the output may have, along one more
    dimension at the end; the others are broadcast against the output."""
    cotangent: Callable[..., Tensor] | None = None
    """For a rule that is not linear in its cotangent: takes it and then the same arguments, and returns what enters the
    linear part."""
    second_order: SecondOrder = "surrogate"
    random: str = ""
    """For a random forward, the property that holds, for example ``E[out] = x``."""
    saved: float = 0.0
    """Bytes an element that are kept for the backward beyond the arguments."""

    @property
    def linear(self) -> bool:
        """Whether the rule is linear in its cotangent."""
        return self.cotangent is None


def catalogued(
    *,
    forward: str,
    gradient: Mapping[str, str],
    surrogate: Callable[..., Any],
    examples: Callable[[torch.dtype], Sequence[Example]],
    paper: str,
    values: Callable[..., Any] | None = None,
    codes: Callable[..., Tensor] | None = None,
    cotangent: Callable[..., Tensor] | None = None,
    second_order: SecondOrder = "surrogate",
    random: str = "",
    saved: float = 0.0,
) -> Callable[[F], F]:
    """Enter a function into the catalogue; the arguments are those of :class:`SurrogateEntry`.

    It may be one with rules of its own, or one that is made of such: ``gw.check`` knows the surrogate of both.
    """

    def enter(function: F) -> F:
        entry = SurrogateEntry(
            name=public_name(function),
            function=function,
            forward=forward,
            gradient=dict(gradient),
            surrogate=surrogate,
            examples=examples,
            paper=paper,
            values=values,
            codes=codes,
            cotangent=cotangent,
            second_order=second_order,
            random=random,
            saved=saved,
        )
        definition = definition_of(function)
        definition.surrogate = surrogate
        definition.declared_linear = cotangent is None
        vars(function)["__catalogue_entry__"] = entry
        return function

    return enter


def public_name(function: Callable[..., Any]) -> str:
    """Return the name as users write it after ``gw.``: the folder and the function."""
    folder, _, _ = function.__module__.removeprefix("gradwright.").partition(".")
    return f"{folder}.{function.__name__}"


def definition_of(function: Callable[..., Any]) -> Definition:
    """Return the definition of a function with rules; one that is made of such gets one for what it declares."""
    definition = getattr(function, "__custom_gradient__", None)
    if not isinstance(definition, Definition):
        arguments = read_arguments(function.__name__, function, stars=True)
        definition = Definition(function.__name__, function, arguments, Options())
        vars(function)["__custom_gradient__"] = definition
    return definition


def entries(package: ModuleType) -> list[Entry]:
    """Return every entry of a package of the catalogue, by family and in the order of the source."""
    found = []
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            entry = getattr(value, "__catalogue_entry__", None)
            if isinstance(entry, Entry) and entry.function is value and value.__module__ == module.__name__:
                found.append(entry)
    return found


def around(*centres: float, dtype: torch.dtype, steps: int = 1) -> Tensor:
    """Return each centre with its neighbours in ``dtype``, ``steps`` representable numbers to each side, once each."""
    found = []
    for centre in centres:
        middle = torch.tensor(centre, dtype=dtype)
        found.append(middle)
        for towards in (-torch.inf, torch.inf):
            next_one = middle
            for _ in range(steps):
                next_one = torch.nextafter(next_one, torch.tensor(towards, dtype=dtype))
                found.append(next_one)
    return torch.stack(found)


def grid(low: float, high: float, count: int, dtype: torch.dtype) -> Tensor:
    """Return evenly spaced points that avoid simple fractions, where rules have their edges."""
    inner = torch.linspace(low, high, count, dtype=torch.float64)
    return (inner + 0.0123 * torch.cos(torch.arange(count, dtype=torch.float64))).to(dtype)


def joined(parts: Iterable[Tensor]) -> Tensor:
    """Return the points of all parts in one dimension."""
    return torch.cat([part.reshape(-1) for part in parts])
