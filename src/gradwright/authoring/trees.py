"""Containers of tensors: taken apart into a flat list of tensors, and put together again.

Autograd sees only tensors that are arguments or outputs themselves; those inside a list, a dict or a dataclass lose
their gradient without a word (pytorch/pytorch#144159). So values are taken apart before and put together after.
Everything that is not a tensor stays in the structure.
"""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import RuleError

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""Types of values that certainly hold no tensors."""
HOLDERS = (Tensor, list, tuple, dict, set)
"""Types of values that may hold tensors where an annotation says that there are none."""

_KEYED: tuple[Any, ...] = (collections.OrderedDict, collections.defaultdict)


@dataclass(frozen=True)
class Leaf:
    """The place of a tensor."""


@dataclass(frozen=True)
class Static:
    """A value that is no tensor and holds none."""

    value: Any


@dataclass(frozen=True)
class Node:
    """A container: what makes it, under which keys, and what is at each."""

    make: Callable[[list[Any]], Any]
    keys: tuple[Any, ...]
    children: tuple[Any, ...]
    how: str
    """``item`` for lists, tuples and dicts, ``field`` for dataclasses and named tuples, ``opaque`` for others."""


Structure: TypeAlias = Leaf | Static | Node

LEAF = Leaf()
NOTHING = Static(None)


def flatten(value: Any, leaves: list[Tensor]) -> Structure:
    """Append the tensors in ``value`` to ``leaves`` and return what :func:`rebuild` needs to put them back."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return LEAF
    if isinstance(value, PLAIN):
        return Static(value)
    node = _children(value)
    if node is None:
        return Static(value)
    make, keys, parts, how = node
    before = len(leaves)
    children = tuple([flatten(part, leaves) for part in parts])
    return Node(make, keys, children, how) if len(leaves) > before else Static(value)


def hidden_in(value: Any, *, attributes: bool = False) -> list[Tensor]:
    """Return the tensors in containers that :func:`flatten` does not take apart, such as a subclass of dict.

    With ``attributes`` also those that are attributes of other objects.
    """
    if isinstance(value, (Tensor, *PLAIN)):
        return []
    node = _children(value)
    if node is not None:
        return [tensor for part in node[2] for tensor in hidden_in(part, attributes=attributes)]
    own = vars(value).values() if attributes and hasattr(value, "__dict__") else ()
    return [*_held(value), *(part for part in own if isinstance(part, Tensor))]


def _held(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _held(part)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from _held(part)
    elif isinstance(value, types.SimpleNamespace):
        yield from _held(vars(value))


def holds(value: Any) -> bool:
    """Tell whether there is a tensor in a value, in whatever container."""
    return any(True for _ in _held(value))


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in a value, in order."""
    leaves: list[Tensor] = []
    flatten(value, leaves)
    return leaves


def rebuild(structure: Structure, leaves: Iterator[Any], *, statics: bool = True) -> Any:
    """Undo :func:`flatten`; ``statics=False`` puts None where there was no tensor, as in a cotangent."""
    if isinstance(structure, Leaf):
        return next(leaves)
    if isinstance(structure, Static):
        return structure.value if statics else None
    return structure.make([rebuild(child, leaves, statics=statics) for child in structure.children])


def count(structure: Structure) -> int:
    """Return how many tensors a structure holds."""
    if isinstance(structure, Node):
        return sum([count(child) for child in structure.children])
    return 1 if isinstance(structure, Leaf) else 0


def statics_in(structure: Structure) -> list[Any]:
    """Return the values in a structure that hold no tensors, in order."""
    if isinstance(structure, Node):
        return [value for child in structure.children for value in statics_in(child)]
    return [structure.value] if isinstance(structure, Static) else []


def distinct(outs: Sequence[Tensor], inputs: Sequence[Tensor], *, copies: bool, aliases: bool) -> list[Tensor]:
    """Return outputs of which none is an input or another output.

    PyTorch makes an alias of an input that is returned, but what is saved as ``out`` would still be the input, with its
    derivative; an output returned twice would lose one of its gradients; and forward mode wants the tangent of a view
    to be a view (``copies``).
    """
    distinct: list[Tensor] = []
    for i, out in enumerate(outs):
        if any(out is other for other in outs[:i]) or (copies and torch_compat.is_view(out)):
            out = out.clone()
        elif any(out is other for other in inputs) and (copies or aliases):
            out = out.clone() if copies else out.view_as(out)
        distinct.append(out)
    return distinct


def match(structure: Structure, value: Any, where: str, found: list[Tensor | None]) -> None:
    """Append to ``found`` what ``value`` has for each leaf of ``structure``; None and missing keys mean zero.

    ``where`` says in a message what is matched, for example ``linear: the rule 'linear_vjp' returned for 'params'``.

    Raises:
        RuleError: ``value`` is built otherwise.
    """
    if value is None or isinstance(structure, Static):
        found.extend([None] * count(structure))
    elif isinstance(structure, Leaf):
        if not isinstance(value, Tensor):
            raise RuleError(f"{where} {_described(value)}; expected a tensor, or None for zero.")
        found.append(value)
    else:
        given = parts(structure, value, where)
        for key, child in zip(structure.keys, structure.children):
            match(child, given.get(key), f"{where} at {key!r}", found)


def parts(structure: Node, value: Any, where: str) -> Mapping[Any, Any]:
    """Return what ``value`` has for each key of a container.

    Raises:
        RuleError: ``value`` is built otherwise.
    """
    keys = structure.keys
    if isinstance(value, Mapping):
        for key in value:
            if key not in keys:
                raise RuleError(f"{where} a value at {key!r}; expected one of {', '.join(map(repr, keys))}.")
        return value
    node = _children(value)
    if node is None or len(node[2]) != len(keys) or (structure.how == "field" and node[1] != keys):
        raise RuleError(
            f"{where} {_described(value)}; expected the same structure ({len(keys)} values: "
            f"{', '.join(map(repr, keys))}), or None for zero."
        )
    return dict(zip(keys, node[2]))


def _children(value: Any) -> tuple[Callable[[list[Any]], Any], tuple[Any, ...], Sequence[Any], str] | None:
    kind = type(value)
    if kind is tuple:
        return tuple, tuple(range(len(value))), value, "item"
    if kind is list:
        return list, tuple(range(len(value))), value, "item"
    if kind is dict:
        keys = tuple(value)
        return (lambda parts: dict(zip(keys, parts))), keys, list(value.values()), "item"
    if kind in _KEYED:
        keys, first = tuple(value), (value.default_factory,) if kind is collections.defaultdict else ()
        return (lambda parts: kind(*first, zip(keys, parts))), keys, list(value.values()), "item"
    fields = torch_compat.fields_of_tuple(value)
    if fields is not None:
        return (lambda parts: kind(*parts)), fields, list(value), "field"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        return (lambda parts: _made(kind, names, parts)), names, [getattr(value, n) for n in names], "field"
    leaves, structure = torch_compat.flatten(value)
    if len(leaves) == 1 and leaves[0] is value:
        return None
    return (lambda parts: torch_compat.unflatten(parts, structure)), tuple(range(len(leaves))), leaves, "opaque"


def _made(kind: type, names: tuple[str, ...], parts: list[Any]) -> Any:
    """Return a dataclass of these fields; ``__init__`` is not run, since it may refuse or change them.

    It is not made from the one that was taken apart: that would keep tensors alive out of sight of autograd, and an
    output would keep itself.
    """
    made: Any = object.__new__(kind)
    for name, part in zip(names, parts):
        object.__setattr__(made, name, part)
    return made


def _described(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
