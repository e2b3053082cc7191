"""What is done to the layers of a model that exists already: which of them the user means."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import nn

from gradwright.errors import OptionError, did_you_mean, kind_of

Names: TypeAlias = "str | type | Sequence[str | type]"
"""Names of layers or of what holds them, ``*`` allowed, and classes of layers."""


def meant(option: str, names: Names, layers: Mapping[str, nn.Module]) -> set[str]:
    """Return the names of the layers that an option means.

    Raises:
        OptionError: a part of it means none, or is neither a name nor a class.
    """
    if not isinstance(names, (str, type, Collection)):
        raise _no_names(option, names)
    found = set()
    for item in [names] if isinstance(names, (str, type)) else names:
        if not isinstance(item, (str, type)):
            raise _no_names(option, item)
        if isinstance(item, type):
            these = {name for name, layer in layers.items() if isinstance(layer, item)}
        else:
            these = {name for name in layers if any(fnmatchcase(part, item) for part in _prefixes(name))}
        if not these:
            said = item.__name__ if isinstance(item, type) else repr(item)
            known = [f"{shown(name)} ({type(layer).__name__})" for name, layer in layers.items()]
            can = f"it can mean {listed(known, 8)}" if known else "there is none that it can mean"
            hint = "" if isinstance(item, type) else did_you_mean(item, layers)
            raise OptionError(f"{option}: {said} means no layer here; {can}.{hint}")
        found |= these
    return found


def _no_names(option: str, value: object) -> OptionError:
    return OptionError(
        f"{option}: got {kind_of(value)}; expected names of layers, as `named_modules` gives them, or classes; give "
        "one or a list of them."
    )


def shown(name: str) -> str:
    """Return the name of a layer as reports say it."""
    return name or "the model itself"


def _prefixes(name: str) -> Iterator[str]:
    """Give the name of a layer and of everything that holds it."""
    parts = name.split(".")
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def grouped(layers: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names of layers by what is said of them, in the order in which it is first said."""
    groups: dict[str, list[str]] = {}
    for name, said in layers.items():
        groups.setdefault(said, []).append(name)
    return groups


def listed(names: Collection[str], most: int = 3) -> str:
    """Return names in one line, the first of them where there are many.

    Example:
        >>> listed(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    first = [shown(name) for name in list(names)[:most]]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
