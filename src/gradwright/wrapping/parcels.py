"""Values on their way to another process: large arrays beside the pickle, through shared memory on one machine.

Imports neither torch nor numpy: arrays hand out their memory by themselves when they are pickled.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import pickle
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, SupportsIndex

LARGE = 1 << 20
"""Bytes from which an array travels beside the pickle."""
_ALIGNMENT = 64
_FOLDER = Path("/dev/shm")
"""Where Linux keeps shared memory."""
_names = (f"gw_{secrets.token_hex(6)}_{number:x}" for number in itertools.count())


def fresh_name() -> str:
    """Return a name for shared memory that nothing else has."""
    return next(_names)


def dumps(value: Any, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Pickle a value; by value what belongs to ``__main__`` or has no name, where cloudpickle is installed.

    Arguments:
        value: anything.
        buffers: takes the memory of large arrays, which is then left out.

    Raises:
        Exception: whatever the value raises, if it cannot be pickled.
    """

    def beside(buffer: pickle.PickleBuffer) -> bool:
        if buffers is None or buffer.raw().nbytes < LARGE:
            return True
        buffers.append(buffer)
        return False

    try:
        data = pickle.dumps(value, 5, buffer_callback=beside)
        if b"__main__" not in data:  # a worker has a `__main__` of its own
            return data
    except Exception:
        if not has_cloudpickle():
            raise
    if not has_cloudpickle():
        return data
    if buffers is not None:
        buffers.clear()
    stream = io.BytesIO()
    importlib.import_module("cloudpickle").CloudPickler(stream, 5, buffer_callback=beside).dump(value)
    return stream.getvalue()


def has_cloudpickle() -> bool:
    """Tell whether functions without an importable name can be pickled."""
    try:
        importlib.import_module("cloudpickle")
    except ImportError:
        return False
    return True


class Parcel:
    """A pickled value with the memory of its large arrays beside it.

    A pickler that can keep memory out of the pickle, as those of Ray and Dask, gets it without a copy.
    """

    def __init__(self, data: bytes, buffers: Sequence[Any]) -> None:
        self.data = data
        self.buffers = buffers

    @classmethod
    def of(cls, value: Any) -> Parcel:
        """Pickle a value."""
        buffers: list[pickle.PickleBuffer] = []
        return cls(dumps(value, buffers), buffers)

    def open(self) -> Any:
        """Return the value."""
        return pickle.loads(self.data, buffers=self.buffers)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        if int(protocol) >= 5:
            buffers: list[Any] = [pickle.PickleBuffer(buffer) for buffer in self.buffers]
        else:
            buffers = [bytearray(buffer) for buffer in self.buffers]
        return Parcel, (self.data, buffers)


@dataclass(frozen=True)
class Posted:
    """A parcel whose arrays lie in shared memory, of which the receiver makes copies."""

    data: bytes
    name: str
    places: tuple[tuple[int, int], ...]
    """Where each array begins and ends."""


def post(parcel: Parcel, name: str) -> Parcel | Posted:
    """Put the arrays of a parcel into shared memory of this name; the receiver gives it back with :func:`discard`.

    Without arrays, and where there is no room, the parcel stays as it is. So it does on Windows, where shared memory
    ends with the last process that has it open, which may be the sender.
    """
    if not parcel.buffers or os.name == "nt":
        return parcel
    views = [pickle.PickleBuffer(buffer).raw() for buffer in parcel.buffers]
    places, end = [], 0
    for view in views:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + view.nbytes
        places.append((start, end))
    memory = _reserve(name, end)
    if memory is None:
        return parcel
    whole = _view(memory)
    for view, (start, stop) in zip(views, places):
        whole[start:stop] = view
    memory.close()
    return Posted(parcel.data, name, tuple(places))


def receive(sent: Parcel | Posted) -> Parcel:
    """Take a parcel out of shared memory."""
    if isinstance(sent, Parcel):
        return sent
    memory = SharedMemory(sent.name)
    try:
        whole = _view(memory)
        buffers = [bytearray(whole[start:end]) for start, end in sent.places]
    finally:
        memory.close()
    return Parcel(sent.data, buffers)


def discard(name: str) -> None:
    """Give the shared memory of this name back, if there is any."""
    with contextlib.suppress(FileNotFoundError):
        memory = SharedMemory(name)
        memory.close()
        memory.unlink()


def _reserve(name: str, size: int) -> SharedMemory | None:
    """Return shared memory that is really there: writing beyond what the machine has would end the process."""
    try:
        memory = SharedMemory(name, create=True, size=size)
    except OSError:
        return None
    try:
        if (_FOLDER / name).exists():
            with (_FOLDER / name).open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        memory.close()
        memory.unlink()
        return None
    return memory


def _view(memory: SharedMemory) -> memoryview:
    assert memory.buf is not None
    return memory.buf
