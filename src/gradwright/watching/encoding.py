"""Values of calls as JSON, and back; tensors are put aside, and nothing that is read back can be code."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.watching.calls import Elsewhere, Unkept
from gradwright.watching.specs import TensorSpec

NOT_ON_DISK = "it is an object of the program, which a store cannot hold"


class Encoder:
    """Turns values into what JSON can hold, and collects their tensors."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._places: dict[int, int] = {}

    def encode(self, value: Any) -> Any:
        """Return ``value`` for JSON: plain ones as they are, others as a dictionary whose first key tells the kind."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is complex:
            return {"complex": [self.encode(value.real), self.encode(value.imag)]}
        if kind in (list, tuple):
            return {kind.__name__: [self.encode(item) for item in value]}
        if kind is dict:
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if kind is slice:
            return {"slice": [self.encode(value.start), self.encode(value.stop), self.encode(value.step)]}
        return self._of_torch(value, kind)

    def _of_torch(self, value: Any, kind: type) -> Any:
        if kind is Tensor:
            return {"tensor": self._place(value), **_look(value)}
        if kind is Elsewhere:
            return {"tensor": self._place(value.values), "device": value.device, **_look(value.values)}
        if kind is torch.Size:
            return {"size": list(value)}
        if kind in (torch.dtype, torch.layout, torch.memory_format, torch.device):
            return {kind.__name__: str(value).removeprefix("torch.")}
        if kind is TensorSpec:
            return {"spec": {item.name: self.encode(getattr(value, item.name)) for item in dataclasses.fields(value)}}
        if kind is Unkept:
            return {"opaque": value.what, "reason": value.reason}
        return {"opaque": f"{kind.__module__}.{kind.__qualname__}", "reason": NOT_ON_DISK}

    def _place(self, tensor: Tensor) -> int:
        if id(tensor) not in self._places:
            self._places[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._places[id(tensor)]


def decode(coded: Any, tensors: Sequence[Tensor]) -> Any:
    """Undo :meth:`Encoder.encode`; an object that a store cannot hold comes back as :class:`Unkept`.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError: it is not what :class:`Encoder` writes.
    """
    if coded is None or type(coded) in (bool, int, float, str):
        return coded
    if not isinstance(coded, dict) or not coded:
        raise ValueError(f"a value is written as {type(coded).__name__}")
    kind, held = next(iter(coded.items()))

    def each(items: Any) -> list[Any]:
        return [decode(item, tensors) for item in items]

    if kind == "tensor":
        tensor = tensors[_checked(held, int)]
        return Elsewhere(tensor, _checked(coded["device"], str)) if "device" in coded else tensor
    if kind == "dict":
        return {decode(key, tensors): decode(item, tensors) for key, item in held}
    if kind == "opaque":
        return Unkept(_checked(held, str), _checked(coded["reason"], str))
    if kind == "spec":
        return _spec({name: decode(item, tensors) for name, item in held.items()})
    if kind in ("dtype", "layout", "memory_format"):
        found = getattr(torch, _checked(held, str))
        return _checked(found, getattr(torch, kind))
    makers: dict[str, Any] = {
        "float": float,
        "list": each,
        "tuple": lambda items: tuple(each(items)),
        "size": torch.Size,
        "complex": lambda parts: complex(*each(parts)),
        "slice": lambda parts: slice(*each(parts)),
        "device": torch.device,
    }
    return makers[kind](held)


def _spec(fields: dict[str, Any]) -> TensorSpec:
    spec = TensorSpec(**fields)
    _checked(spec.dtype, torch.dtype)
    numbers = (*spec.shape, *spec.stride)
    if len(spec.shape) != len(spec.stride) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError("a specification has sizes that are not possible")
    for value in (spec.low, spec.high, spec.mean, spec.deviation, spec.hidden):
        _checked(value, float)
    return spec


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r:.80} is written where {kind.__name__} belongs")
    return value


def _look(tensor: Tensor) -> dict[str, Any]:
    """Say what a tensor looks like, for people who read the file."""
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "requires_grad": tensor.requires_grad}
