"""Calling a module with other tensors than its own, which puts them into it for that time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_MAKING = threading.Lock()


def module_lock(module: nn.Module) -> Any:
    """Return the lock of a module, which a thread holds while the module has other tensors, or while it reads them."""
    with _MAKING:
        return _LOCKS.setdefault(module, threading.RLock())


def module_places(module: nn.Module) -> dict[str, list[str]]:
    """Return for each parameter and buffer, by the first name that it has, every place where the tensor is used.

    A module within that is reached by several names is named once: ``torch.func.functional_call`` knows it by all of
    them, so that it puts the new tensors in several times, and back what was there the second time: the new ones.
    """
    first: dict[int, str] = {}
    places: dict[str, list[str]] = {}
    for prefix, part in module.named_modules():
        own = [
            *part.named_parameters(prefix, recurse=False, remove_duplicate=False),
            *part.named_buffers(prefix, recurse=False, remove_duplicate=False),
        ]
        for name, tensor in own:
            places.setdefault(first.setdefault(id(tensor), name), []).append(name)
    return places


def call_module(
    module: nn.Module,
    places: Mapping[str, Sequence[str]],
    tensors: Mapping[str, Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call a module with tensors in the place of its own, which have these names; ``places`` are its places."""
    state = {place: tensor for name, tensor in tensors.items() for place in places[name]}
    return torch.func.functional_call(module, state, tuple(args), dict(kwargs or {}), tie_weights=False)
