"""Hooks for tensors that autograd saves, as checkpointing and offloading set them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def saved_tensor_hooks_off() -> Iterator[None]:
    """Run without the hooks for saved tensors that are around (checkpointing has some): ``torch.func`` refuses them.

    What is saved within the block is not for a backward outside of it.
    """
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = []
    while top is not None and (pair := top(True)) is not None:
        hooks.append(pair)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(*pair)
