"""Names of functions of torch as people write them on the command line."""

from __future__ import annotations

import re

OF_TORCH = re.compile(r"(?:torch|nn|functional|F|linalg|special|distributions|Tensor)\.(?:\w+\.)*(\w+)")


def without_torch(name: str) -> str | None:
    """Return the last part of a name that is written with a package of torch, ``None`` for any other.

    Example:
        >>> without_torch("torch.linalg.eigh"), without_torch("F.gelu"), without_torch("stable.gelu")
        ('eigh', 'gelu', None)
    """
    match = OF_TORCH.fullmatch(name)
    return match[1] if match else None
