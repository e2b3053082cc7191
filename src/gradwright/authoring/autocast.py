"""Autocast in both directions: the backward runs as the forward did.

``torch.amp.custom_fwd`` and ``custom_bwd`` do this for Functions, but not for those with ``setup_context``
(pytorch/pytorch#132388), and the backward of a plain Function runs under whatever is on when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Policy: TypeAlias = Literal["replay", "float32", "off"]
State: TypeAlias = tuple[str, bool, torch.dtype]
"""Device type, whether autocast is on, and the dtype it casts to."""


def state_of(leaves: Sequence[Any]) -> State | None:
    """Return the state of autocast for the device of the tensors, or None where there is no autocast.

    A number beside tensors of another device may be a tensor on the CPU, which is not where the work is done.
    """
    kinds = [leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)]
    kind = next((k for k in kinds if k != "cpu"), "cpu")
    if not kinds or not torch.amp.is_autocast_available(kind):
        return None
    return kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def replay(state: State | None, beside: Tensor | None = None) -> AbstractContextManager[Any]:
    """Return a context with autocast as it was; without a state it was off, also for the device of ``beside``."""
    if state is None:
        state = None if beside is None else state_of([beside])
        return nullcontext() if state is None or not state[1] else torch.autocast(state[0], enabled=False)
    kind, enabled, dtype = state
    # torch.compile traces the backward where the forward stands and runs it elsewhere, so there it must be said.
    same = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) == (enabled, dtype)
    if same and not torch.compiler.is_compiling():
        return nullcontext()
    return torch.autocast(kind, enabled=enabled, dtype=dtype)


def enter(policy: Policy, leaves: Sequence[Any]) -> tuple[AbstractContextManager[Any], Sequence[Any], State | None]:
    """Return the context for the forward, its tensors, and the state for the backward."""
    state = state_of(leaves)
    if policy == "replay" or state is None or not state[1]:
        return nullcontext(), leaves, state
    off = (state[0], False, state[2])
    if policy == "float32":
        leaves = [t.float() if t.is_floating_point() and t.dtype != torch.float64 else t for t in leaves]
    return torch.autocast(state[0], enabled=False), leaves, off
