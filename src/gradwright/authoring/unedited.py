"""Functions must leave their arguments alone: what others keep of a tensor would be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import RuleError

T = TypeVar("T")


def unedited(function: Callable[[], T], leaves: Sequence[Tensor], message: str) -> T:
    """Call a function that must leave some tensors as they are.

    Raises:
        RuleError: it edited one of them.
    """
    if torch_compat.is_recording():
        return function()
    if torch_compat.transforms_active():  # what vmap hands out does not count its edits
        leaves = [torch.func.debug_unwrap(leaf, recurse=True) for leaf in leaves]
    before = torch_compat.all_edits(leaves)
    found = function()
    if torch_compat.all_edits(leaves) != before:
        raise RuleError(message)
    return found
