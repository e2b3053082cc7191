"""The formats in which arrays are handed to other programs and read back: npy, npz, txt, json."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Format:
    """A way to write arguments by name into bytes, and to read from bytes an array, a tuple, or a dict by name."""

    name: str
    dump: Callable[[Mapping[str, Any]], bytes]
    load: Callable[[bytes], Any]


def _dump_npy(values: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    for value in values.values():
        np.save(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


def _load_npy(data: bytes) -> Any:
    stream = io.BytesIO(data)
    arrays = [np.load(stream, allow_pickle=False)]
    while stream.tell() < len(data):
        arrays.append(np.load(stream, allow_pickle=False))
    return one_or_more(arrays)


def _dump_npz(values: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    arrays: Any = {name: np.asarray(value) for name, value in values.items()}
    np.savez(stream, **arrays)
    return stream.getvalue()


def _load_npz(data: bytes) -> Any:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _dump_txt(values: Mapping[str, Any]) -> bytes:
    if len(values) != 1:
        raise ValueError(f"a text holds one array, and there are {len(values)} ({', '.join(values)})")
    (array,) = map(np.asarray, values.values())
    if array.ndim > 2 or array.dtype.kind == "c":
        raise ValueError(
            f"a text holds a number, a vector or a matrix of real numbers, and got {array.dtype} {array.shape}"
        )
    stream = io.BytesIO()
    np.savetxt(stream, np.atleast_1d(array), fmt="%.17g" if array.dtype.kind == "f" else "%d")
    return stream.getvalue()


def _load_txt(data: bytes) -> Any:
    return np.loadtxt(io.BytesIO(data))


def _dump_json(values: Mapping[str, Any]) -> bytes:
    plain = {n: v.tolist() if isinstance(v, (np.ndarray, np.generic)) else v for n, v in values.items()}
    return json.dumps(plain).encode()


def _load_json(data: bytes) -> Any:
    found = json.loads(data)
    # What is written as 1 may have been 1.0.
    if not isinstance(found, dict):
        return np.asarray(found, dtype=np.float64)
    return {name: np.asarray(part, dtype=np.float64) for name, part in found.items()}


def one_or_more(arrays: Sequence[Any]) -> Any:
    """Return the only array, or a tuple of them.

    Raises:
        ValueError: there is none.
    """
    if not arrays:
        raise ValueError("there is no array in it")
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


FORMATS = {
    format_.name: format_
    for format_ in (
        Format("npy", _dump_npy, _load_npy),
        Format("npz", _dump_npz, _load_npz),
        Format("txt", _dump_txt, _load_txt),
        Format("json", _dump_json, _load_json),
    )
}
