"""Containers of tensors as checks see them: those that PyTorch knows, and dataclasses, known to it or not.

PyTorch takes a dataclass that nobody registered for one opaque value, so that the tensors in it would be constants.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat


@dataclass(frozen=True)
class _Part:
    """What is known of one dataclass beside its leaves."""

    kind: type
    others: dict[str, Any]
    """Attributes that are no fields."""
    structure: Any
    """The structure of the dictionary of its fields."""
    number: int
    """How many leaves that has."""


@dataclass(frozen=True)
class _Opened:
    """The structure of a value with dataclasses in it."""

    outer: Any
    """The structure in which each dataclass is one leaf."""
    parts: tuple[_Part | None, ...]
    """For each leaf of it, the dataclass that is there, or None."""


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of nested containers (list, tuple, dict, dataclass and what PyTorch knows) and their structure.

    A dataclass without tensors is one leaf, and so is a size.
    """
    tops, outer = torch_compat.flatten(value, torch.Size)
    fields = [_fields(top) for top in tops]
    if all(field is None for field in fields):
        return tops, outer
    leaves: list[Any] = []
    parts: list[_Part | None] = []
    for top, field in zip(tops, fields):
        if field is None:
            leaves.append(top)
            parts.append(None)
        else:
            inner, structure = flatten(field)
            leaves += inner
            parts.append(_Part(type(top), _others(top, field), structure, len(inner)))
    return leaves, _Opened(outer, tuple(parts))


def unflatten(leaves: list[Any], structure: Any) -> Any:
    """Undo :func:`flatten`; each dataclass is a copy, made without its ``__init__``, which may refuse or change."""
    if not isinstance(structure, _Opened):
        return torch_compat.unflatten(leaves, structure)
    tops, start = [], 0
    for part in structure.parts:
        if part is None:
            tops.append(leaves[start])
            start += 1
        else:
            fields = unflatten(leaves[start : start + part.number], part.structure)
            tops.append(_made(part.kind, {**part.others, **fields}))
            start += part.number
    return torch_compat.unflatten(tops, structure.outer)


def leaf_paths(value: Any) -> list[str]:
    """Return how each leaf of ``value`` is reached from it, for example ``['weight'].first``, in order of flatten."""
    tops, _ = torch_compat.flatten(value, torch.Size)
    paths: list[str] = []
    for top, path in zip(tops, torch_compat.leaf_paths(value, torch.Size)):
        fields = _fields(top)
        if fields is None:
            paths.append(path)
        else:
            for name, field in fields.items():
                paths += [f"{path}.{name}{rest}" for rest in leaf_paths(field)]
    return paths


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass with tensors in it; None for anything else."""
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, Tensor, torch.nn.Module)):
        return None
    names = [field.name for field in dataclasses.fields(value)]
    fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return fields if any(isinstance(leaf, Tensor) for leaf in flatten(fields)[0]) else None


def _others(value: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that are no fields, without what was computed once and is kept: it is computed again."""
    kept = getattr(value, "__dict__", {})
    once = {name for name in kept if isinstance(getattr(type(value), name, None), functools.cached_property)}
    return {name: attribute for name, attribute in kept.items() if name not in fields and name not in once}


def _made(kind: type, attributes: dict[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    for name, attribute in attributes.items():
        object.__setattr__(made, name, attribute)
    return made
