"""Tensors as arrays and arrays as tensors, sharing their memory where that is safe.

It is safe towards the foreign code when it cannot write into what autograd keeps: arrays that lie in a tensor's memory
are read-only. It is safe towards autograd when nobody else can write into the result: an array that something else
refers to, such as a work buffer that a solver returns from each call, is copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwright.errors import ExternalError, kind_of

DTYPES: dict[torch.dtype, Any] = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.complex128: np.complex128,
    torch.complex64: np.complex64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.bool: np.bool_,
}
"""The dtypes that both libraries have."""

READABLE = {np.dtype(value): key for key, value in DTYPES.items()}
"""The same by NumPy's dtypes, in the byte order of this machine."""
_WIDER = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
"""In what a dtype that NumPy does not have is handed over."""


def array_of(tensor: Tensor, dtype: torch.dtype | None = None, order: str = "K", may_copy: bool = True) -> Any:
    """Return the values of a tensor as an array, read-only where it lies in the tensor's memory.

    Arguments:
        tensor: of any strided layout, dtype and device.
        dtype: of the array; None for the tensor's own (bfloat16, which NumPy does not have, becomes float32).
        order: ``"C"``, ``"F"`` or ``"K"`` (as it is).
        may_copy: whether the values may be copied where they must be.

    Raises:
        ExternalError: the tensor has no values to hand over, or they would have to be copied.
    """
    if tensor.layout is not torch.strided:
        raise ExternalError(f"a tensor of layout {tensor.layout}; expected a dense one; write x.to_dense().")
    wanted = dtype or _WIDER.get(tensor.dtype, tensor.dtype)
    if wanted not in DTYPES:
        raise ExternalError(
            f"a tensor of dtype {wanted}, which NumPy does not have; expected one that it has; declare "
            "dtype=torch.float32, or pass it converted."
        )
    found = tensor.detach()
    if found.dtype is not wanted:
        found = found.to(wanted)
    if found.device.type != "cpu":
        found = found.cpu()
    if found.is_complex() or found.is_neg():
        found = found.resolve_conj().resolve_neg()  # a conjugated tensor is a flag on the memory of another
    array = found.numpy()
    shared = found.data_ptr() == tensor.data_ptr()
    flags = array.flags
    if (order == "C" and not flags.c_contiguous) or (order == "F" and not flags.f_contiguous):
        array, shared = np.array(array, order=order), False  # type: ignore[call-overload]
    if shared:
        array.flags.writeable = False
    elif not may_copy:
        raise ExternalError(
            f"a tensor ({tensor.dtype}, strides {tensor.stride()}, on {tensor.device}) that must be copied to be an "
            f"array of dtype {wanted} and order {order!r}, with copy=False; pass it as it is needed, or drop copy."
        )
    return array


def own(value: Any) -> Any:
    """Return a value, or a tuple, list or dict of them, with arrays that the caller may write into."""
    return _mapped(np.array, value)


def locked(value: Any) -> Any:
    """Return a value, or a tuple, list or dict of them, with arrays that may not be written into."""
    return _mapped(_read_only, value)


def arranged(value: Any, order: Any) -> Any:
    """Return a value, or a tuple, list or dict of them, with arrays whose elements are in this order in memory."""
    return _mapped(lambda array: np.asarray(array, order=order), value)


def _read_only(array: Any) -> Any:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)([_mapped(function, part) for part in value])
    return {key: _mapped(function, part) for key, part in value.items()} if type(value) is dict else value


def as_array(value: Any, what: str) -> Any:
    """Return what foreign code returned as an array that torch can read: its dtype and byte order are torch's.

    ``what`` says in messages what it is, for example ``simulate: it returned``.

    Raises:
        ExternalError: it is no number and no array, or of a dtype that torch does not have.
    """
    array = value
    if type(value) is not np.ndarray:
        if isinstance(value, Tensor):
            return np.array(array_of(value))
        if value is None or isinstance(value, (str, bytes, dict, set, list, tuple)) or callable(value):
            remedy = "does it end without `return`?" if value is None else "return np.asarray(...)."
            raise ExternalError(f"{what} {kind_of(value)}; expected an array or a number, or a tuple of them; {remedy}")
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise ExternalError(
                f"{what} a masked array with masked elements, whose values mean nothing; expected an array; return "
                "result.filled(...) with the value that they are to have."
            )
        array = np.asarray(value)
    if array.dtype not in READABLE:
        if array.dtype.newbyteorder("=") in READABLE:
            return array.astype(array.dtype.newbyteorder("="))
        raise ExternalError(
            f"{what} an array of dtype {array.dtype}, which torch does not have; expected numbers; return "
            "result.astype(np.float64)."
        )
    return array


def owned(box: list[Any], what: str) -> Any:
    """Return what foreign code returned, bare or in a tuple or dict, with arrays that nobody else can reach.

    An array that something else refers to, such as a buffer that is used again in the next call, is copied; so is a
    view of another's memory. That is told by counting references, so the caller must not have one: it hands over the
    value in a list, out of which it is taken. All are counted in this very frame: while torch.compile watches, Python
    counts one more for what is passed from function to function.

    Raises:
        ExternalError: a part is neither None nor something that torch can read.
    """
    returned = box.pop()
    if type(returned) is tuple:
        parts = []
        for part in returned:
            references = sys.getrefcount(part)
            parts.append(None if part is None else _owned(part, references, what))
        return tuple(parts)
    if type(returned) is dict:
        found = {}
        for key in returned:
            part = returned[key]
            references = sys.getrefcount(part)
            found[key] = None if part is None else _owned(part, references, what)
        return found
    part = returned
    references = sys.getrefcount(part)
    return _owned(part, references, what)


def _owned(part: Any, references: int, what: str) -> Any:
    if type(part) is not np.ndarray or part.dtype not in READABLE:
        array = as_array(part, what)
        return array if array is not part and array.base is None and array.flags.owndata else np.array(array)
    if references > LONE + 1:
        return np.array(part)
    base = part.base
    if base is None:
        return part if part.flags.owndata else np.array(part)
    alone = type(base) is np.ndarray and base.base is None and base.flags.owndata and sys.getrefcount(base) <= LONE + 1
    return part if alone else np.array(part)


def _lone() -> int:
    """Return how many references are counted to an array in one variable, and nowhere else."""
    array = np.empty(1)
    return sys.getrefcount(array)


LONE = _lone()


def tensor_of(array: Any, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """Return an array as a tensor that lies in its memory where torch can read it; nobody else may write into that.

    Arguments:
        array: of a dtype that torch has.
        dtype: of the tensor; None for the array's own.
        device: where the tensor is to be; None for the CPU.
    """
    if not array.flags.writeable or _awkward(array):
        array = np.array(array, order="C")
    tensor = torch.from_numpy(array)
    if dtype is not None and tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    return tensor if device is None or device.type == "cpu" else tensor.to(device)


def _awkward(array: Any) -> bool:
    """Tell whether torch refuses the strides of an array, or reads several elements from one place."""
    return any(stride <= 0 or stride % array.itemsize for stride in array.strides)


def described(array: Any) -> str:
    """Return dtype and shape of an array, as messages say them."""
    return f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else repr(array)[:60]
