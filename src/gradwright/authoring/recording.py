"""The ``ctx`` that an adopted Function sees: it writes down what the forward does, and gives it to the backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradwright import torch_compat
from gradwright.authoring import trees


class Context:
    """What an old ``forward`` or ``backward`` is given as ``ctx``.

    Everything that the user sets is an ordinary attribute; what belongs to gradwright starts with ``gw_``.
    """

    def __init__(
        self, needs: Sequence[bool], saved: Sequence[Any] = (), attributes: Mapping[str, Any] | None = None
    ) -> None:
        vars(self).update(attributes or {})
        self.needs_input_grad = tuple(needs)
        self.gw_saved: tuple[Any, ...] = tuple(saved)
        self.gw_dirty: tuple[Any, ...] = ()
        self.gw_still: tuple[Any, ...] = ()
        self.gw_materialize = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved."""
        return self.gw_saved

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for the backward; a second call replaces the first, as in PyTorch."""
        self.gw_saved = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Do nothing: forward mode is derived from the backward and uses what that uses."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Say that inputs were changed in place."""
        self.gw_dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Say that outputs have no derivative."""
        self.gw_still = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether the gradient of an unused output arrives as zeros."""
        self.gw_materialize = value

    def gw_kept(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what was saved, and the attributes that the user set."""
        own = {k: v for k, v in vars(self).items() if not k.startswith("gw_") and k != "needs_input_grad"}
        return self.gw_saved, own


class Needed(TorchFunctionMode):
    """Makes a forward that looks at ``requires_grad`` see what is needed: inside a transform, tensors are bare."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.tensors = tensors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer for the tensors that are needed."""
        if func == _REQUIRES_GRAD and any(args[0] is tensor for tensor in self.tensors):
            return True
        return func(*args, **(kwargs or {}))


_REQUIRES_GRAD: Any = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


class Held:
    """Holds a tensor with a graph of its own, which must stay the object that it is."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@dataclass
class Kept:
    """What one forward kept for the backward: the structure of it, and where each tensor in it comes from."""

    structure: trees.Structure | None
    """None where only tensors were saved and no attributes set."""
    sources: tuple[tuple[str, int], ...]
    """For each tensor: ``argument``, ``output`` or ``own``, and which."""
    held: bool
    """True when some tensor has a graph of its own."""
    numbers: bool = False
    """True when it holds numbers or arrays that may have been read out of a tensor; see :func:`own_numbers`."""
    objects: bool = False
    """True when an object that forward made holds tensors."""

    def rebuild(self, tensors: Iterator[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what :meth:`Context.gw_kept` returned, with these tensors in it."""
        if self.structure is None:
            return tuple(tensors), {}
        saved, attributes = trees.rebuild(self.structure, tensors)
        return tuple(_release(saved)), {name: _release(value) for name, value in attributes.items()}


def read_kept(context: Context, arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Kept, list[Tensor]]:
    """Return what a forward kept, and those of its tensors that are neither argument nor output."""
    saved, attributes = context.gw_kept()
    structure, held = None, False
    tensors = list(saved)
    own: list[Tensor] = []
    if attributes or not all(isinstance(t, Tensor) and not t.requires_grad for t in tensors):
        known = [*arguments, *outputs]
        marked = [_hold(tensors, known), {name: _hold(value, known) for name, value in attributes.items()}]
        held = any(isinstance(v, Held) for v in _values(marked))
        tensors = []
        structure = trees.flatten(marked, tensors)
    sources = []
    # An input that was changed in place and is an output has the new values, and is no longer what was passed.
    unchanged = [None if any(t is dirty for dirty in context.gw_dirty) else t for t in arguments]
    for tensor in tensors:
        for kind, pool in (("argument", unchanged), ("output", outputs), ("own", own)):
            place = next((i for i, other in enumerate(pool) if other is tensor), None)
            if place is not None:
                sources.append((kind, place))
                break
        else:
            sources.append(("own", len(own)))
            own.append(tensor)
    return Kept(structure, tuple(sources), held), own


def own_numbers(kept: Any, known: Iterable[Any]) -> bool:
    """Tell whether there are real numbers or NumPy arrays in ``kept`` that are not among ``known``, the very objects.

    They may come from a tensor (``item``, ``tolist``, ``numpy``), which no derivative sees.
    """
    ids = {id(value) for group in known for value in _values(group)}
    return any(
        (type(value) in (float, complex) or type(value).__module__ == "numpy") and id(value) not in ids
        for value in _values(kept)
    )


def tensors_inside(value: Any, given: Sequence[Any], depth: int = 4) -> list[Tensor]:
    """Return the tensors in objects that a forward made and kept on ctx, where no transform sees them.

    Modules are left out, and what is among ``given``, the arguments: they were there before.
    """
    if isinstance(value, Tensor):
        return [value] if depth < 4 else []
    if depth == 0 or isinstance(value, (torch.nn.Module, type)) or any(value is other for other in given):
        return []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        parts = list(value)
    elif type(value).__module__ != "builtins":
        parts, depth = list(getattr(value, "__dict__", {}).values()), depth - 1
    else:
        return []
    return [tensor for part in parts for tensor in tensors_inside(part, given, depth)]


def _hold(value: Any, known: Sequence[Tensor]) -> Any:
    """Wrap tensors with a graph of their own: a Function runs without one, so the user made it, to use it later."""
    if isinstance(value, Tensor):
        return Held(value) if _has_graph(value) and not any(value is other for other in known) else value
    if type(value) in (list, tuple):
        return type(value)(_hold(part, known) for part in value)
    return {key: _hold(part, known) for key, part in value.items()} if type(value) is dict else value


def _has_graph(tensor: Tensor) -> bool:
    """Tell whether a graph starts or ends here; a view of an input, taken without gradients, only says that it does."""
    return tensor.requires_grad and not (tensor.is_leaf and torch_compat.is_view(tensor))


def _release(value: Any) -> Any:
    if isinstance(value, Held):
        return value.tensor
    if type(value) in (list, tuple):
        return type(value)(map(_release, value))
    return {key: _release(part) for key, part in value.items()} if type(value) is dict else value


def _values(value: Any) -> Iterator[Any]:
    parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else None
    if parts is None:
        yield value
    else:
        for part in parts:
            yield from _values(part)
