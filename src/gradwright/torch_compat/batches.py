"""The transforms of ``torch.func``: whether one is running, and whether a tensor is a batch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

transforms_active: Callable[[], bool]
"""Tell whether a transform of ``torch.func`` (grad, vmap, jvp, ...) is running; without the probe: always."""
try:
    from torch._C import _are_functorch_transforms_active as transforms_active
except ImportError:  # pragma: no cover - depends on the torch version

    def transforms_active() -> bool:
        """Tell whether a transform is running; not known in this version, so perhaps."""
        return True


unwrap_dead: Callable[[Any], Any]
"""Take off a tensor what a transform that has ended left around it, as every operation of torch does."""
functorch: Any
try:
    functorch = importlib.import_module("torch._C._functorch")
    unwrap_dead = functorch.unwrap_if_dead
except (ImportError, AttributeError):  # pragma: no cover - depends on the torch version
    functorch = None

    def _as_it_is(tensor: Any) -> Any:
        return tensor

    unwrap_dead = _as_it_is


def any_batched(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether ``vmap`` is around some tensor."""
    return functorch is not None and any(functorch.is_batchedtensor(tensor) for tensor in tensors)


def under_vmap(tensor: torch.Tensor) -> bool:
    """Tell whether ``vmap`` is around a tensor at any level, so that its values cannot be looked at."""
    while functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def batched_like(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Give tensors without a batch the batch that one of ``others`` has at the innermost level of ``vmap``."""
    if functorch is None or not hasattr(functorch, "maybe_current_level"):
        return list(tensors)  # pragma: no cover - depends on the torch version
    level = functorch.maybe_current_level()

    def batched(tensor: torch.Tensor) -> bool:
        return bool(functorch.is_batchedtensor(tensor)) and functorch.maybe_get_level(tensor) == level

    source = next((t for t in others if batched(t)), None)
    if source is None:
        return list(tensors)
    size = functorch.get_unwrapped(source).shape[functorch.maybe_get_bdim(source)]
    return [t if batched(t) else functorch._add_batch_dim(t.expand(size, *t.shape).clone(), 0, level) for t in tensors]


def may_be_batched(tensor: torch.Tensor) -> bool:
    """Tell whether ``vmap``, or the older one behind ``is_grads_batched=True``, may be around a tensor.

    It may where that cannot be told: while torch.compile traces, and in a version of torch without the probes.
    """
    if torch.compiler.is_compiling() or not hasattr(functorch, "is_legacy_batchedtensor"):
        return True
    return transforms_active() or is_legacy_batch(tensor)


def is_legacy_batch(tensor: Any) -> bool:
    """Tell whether a tensor is one that ``is_grads_batched=True`` hands out."""
    probe = getattr(functorch, "is_legacy_batchedtensor", None)
    return probe is not None and isinstance(tensor, torch.Tensor) and bool(probe(tensor))


def legacy_batch_first(tensor: torch.Tensor) -> torch.Tensor:
    """Return what ``is_grads_batched=True`` handed out as a plain tensor, with the batch as first dimension."""
    return torch._remove_batch_dim(tensor, _LEGACY_LEVEL, 1, 0)


def legacy_batched(tensor: torch.Tensor) -> torch.Tensor:
    """Undo :func:`legacy_batch_first`."""
    return torch._add_batch_dim(tensor, 0, _LEGACY_LEVEL)


_LEGACY_LEVEL = 1
"""There is never a batch inside of another."""


def bare_sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor without the transforms around it; of a batch those of the first sample."""
    places = []
    while functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            places.append(functorch.maybe_get_bdim(tensor))
        tensor = functorch.get_unwrapped(tensor)
    for place in reversed(places):
        tensor = tensor.select(place, 0)  # where a transform is running, it wraps this
        while functorch.is_functorch_wrapped_tensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
    return tensor.detach()


def outside_transforms() -> AbstractContextManager[Any]:
    """Return a context in which operations on plain tensors are not part of the transforms that are running."""
    pyfunctorch = sys.modules.get("torch._functorch.pyfunctorch")  # imported where a transform is running
    clear = getattr(pyfunctorch, "temporarily_clear_interpreter_stack", nullcontext)
    return clear() if transforms_active() else nullcontext()
