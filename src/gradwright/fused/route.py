"""Which implementation a call takes: the one place that chooses, by where it runs and on what device.

There are two. In blocks, with buffers of its own that every block uses again: in eager mode. As a formula that PyTorch
can follow, for compiled code, transforms and forward mode, where a buffer cannot be written to. Kernels for a device
would be chosen here as well.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from gradwright import torch_compat

CACHED_BYTES = {"cpu": 512 * 1024}
"""How much of a block of rows one thread may have, so that it is still in its cache when it is read again, by type of
device. No less: threads wait for each other after every operation, which costs more the smaller the block is.
"""
MATRIX_ROWS = 256
"""Rows from which on a matrix product runs at full speed; with fewer most of its time goes into reading the weight."""


def by_hand(*tensors: Tensor | None) -> bool:
    """Tell whether blocks with own buffers may be used: eager mode, and tensors that hold their numbers themselves."""
    if torch_compat.is_recording() or torch_compat.transforms_active() or torch_compat.forward_mode_on():
        return False
    return not any(tensor is not None and not _holds_numbers(tensor) for tensor in tensors)


def _holds_numbers(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, Parameter) and not tensor.is_meta and not torch_compat.may_be_batched(tensor)


def block_rows(rows: int, columns: int, itemsize: int, device: torch.device) -> int:
    """Return how many rows of ``columns`` numbers one block of elementwise work has; all of them on other devices."""
    cached = CACHED_BYTES.get(device.type)
    if cached is None:
        return max(rows, 1)
    return max(1, min(rows, torch.get_num_threads() * cached // max(columns * itemsize, 1)))


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which a matrix product takes a tensor: under autocast that of autocast, but for float64."""
    return torch.get_autocast_dtype(tensor.device.type) if autocasts(tensor) else tensor.dtype


def autocasts(tensor: Tensor) -> bool:
    """Tell whether autocast is on for a tensor, which leaves float64 as it is."""
    kind = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.amp.is_autocast_available(kind):
        return False
    return torch.is_autocast_enabled(kind)
