"""Whether a tensor may be a batch in the eyes of another one."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch

_active: Callable[[], bool] | None
_is_batched: Callable[[torch.Tensor], bool] | None
try:
    _active = importlib.import_module("torch._C")._are_functorch_transforms_active
    _is_batched = importlib.import_module("torch._C._functorch").is_legacy_batchedtensor
except (ImportError, AttributeError):  # pragma: no cover - depends on the torch version
    _active = _is_batched = None


def may_be_batched(tensor: torch.Tensor) -> bool:
    """Tell whether ``vmap``, or the older one behind ``is_grads_batched=True``, may be around a tensor.

    It may where that cannot be told: while torch.compile traces, and in a version of torch without the probes.
    """
    if torch.compiler.is_compiling() or _active is None or _is_batched is None:
        return True
    return _active() or _is_batched(tensor)
