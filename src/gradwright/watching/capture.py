"""Copies of what a running program hands to a custom gradient, made so that the program does not notice.

Tensors are copied with their strides, within a budget; a tensor above it becomes a
:class:`~gradwright.watching.specs.TensorSpec`. Numbers, text and objects are kept as they are. What cannot be kept at
all becomes an :class:`~gradwright.watching.calls.Unkept` with the reason.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking import trees
from gradwright.errors import describe_exception
from gradwright.watching.calls import Call, Elsewhere, Unkept
from gradwright.watching.copies import bytes_of, copy_tensor
from gradwright.watching.specs import specify

MIB = 2**20


_PLAIN = {int, float, bool, str, complex, torch.Size, torch.dtype, torch.device}
"""What is kept as it is without a closer look."""


class Budget:
    """What may still be kept, in bytes.

    Arguments:
        sample: the most of one tensor; 0 keeps no values at all.
        total: the most of all tensors together.
    """

    def __init__(self, sample: int = 16 * MIB, total: int = 256 * MIB) -> None:
        self.sample = sample
        self.left = total
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take ``size`` bytes; False, and nothing is taken, where that is too much."""
        if size > self.sample:
            return False
        with self._lock:
            if size > self.left:
                return False
            self.left -= size
        return True

    def give_back(self, captured: Any) -> None:
        """Give back what a captured value took, when it is not kept after all."""
        with self._lock:
            self.left += size_of(captured)


def capture(value: Any, budget: Budget) -> Any:
    """Return a copy of a value that a program is about to use.

    Containers (list, tuple, named tuple, dict, dataclass) are copied with what is in them; a tensor that occurs twice
    occurs twice in the copy. Of a tensor inside a transform of ``torch.func`` its own values are kept, of a batch the
    first sample. Random numbers, grad mode and the originals stay as they are, and nothing is raised.
    """
    try:
        with torch_compat.unseen(), _outside():
            return _Copier(budget).copy(value)
    except Exception as error:
        return Unkept(_kind(value), describe_exception(error))


def capture_call(args: tuple[Any, ...], kwargs: dict[str, Any], budget: Budget) -> Call:
    """Keep the arguments of a call that is about to be made, and the state of the random generator."""
    kept = capture((args, kwargs), budget)
    if isinstance(kept, Unkept):
        kept = (kept,), {}
    args, kwargs = kept
    return Call(args, kwargs, random_state=torch.get_rng_state())


def leaves_of(captured: Any) -> list[Any]:
    """Return what is in a captured value, without the containers."""
    return trees.flatten(captured)[0]


def size_of(captured: Any) -> int:
    """Return how many bytes the tensors in a captured value take."""
    sizes = {}
    for leaf in leaves_of(captured):
        tensor = leaf.values if isinstance(leaf, Elsewhere) else leaf
        if isinstance(tensor, Tensor):
            sizes[id(tensor)] = bytes_of(tensor)
    return sum(sizes.values())


def _outside() -> AbstractContextManager[Any]:
    """Return a context outside of transforms and of inference mode, of which a copy would otherwise be a part."""
    if torch_compat.transforms_active():
        return torch_compat.outside_transforms()
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def _kind(value: Any) -> str:
    return type(value).__name__


class _Copier:
    """Copies one value; a tensor that it meets again is the same copy."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.known: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            key = id(value)
            if key not in self.known:
                self.known[key] = self._tensor(value)
            return self.known[key]
        if value is None or kind in _PLAIN:
            return value
        if kind is tuple:
            return tuple(map(self.copy, value))
        if kind is list:
            return list(map(self.copy, value))
        if kind is dict:
            return {key: self.copy(item) for key, item in value.items()}
        try:
            leaves, structure = trees.flatten(value)
        except Exception:  # a container whose own code fails is kept as an object
            return value
        if len(leaves) == 1 and leaves[0] is value:
            return value
        return trees.unflatten(list(map(self.copy, leaves)), structure)

    def _tensor(self, tensor: Tensor) -> Any:
        try:
            return self._kept(tensor)
        except Exception as error:
            return Unkept(_kind(tensor), describe_exception(error))

    def _kept(self, tensor: Tensor) -> Any:
        wanted = torch_compat.in_graph(tensor) if torch_compat.transforms_active() else tensor.requires_grad
        bare = torch_compat.bare_sample(tensor)
        reason = _obstacle(tensor, bare)
        if reason is not None:
            return Unkept(_kind(tensor), reason)
        if torch_compat.forward_mode_on():
            bare = torch_compat.primal(bare)
        size = bytes_of(bare)
        if not self.budget.take(size):
            if bare.layout != torch.strided or bare.is_quantized:
                return Unkept(_kind(tensor), f"it is too large to keep ({size} bytes) and not a dense tensor")
            return specify(bare, requires_grad=wanted)
        copied = _of_class(copy_tensor(bare), tensor)
        if wanted:
            copied.requires_grad_()
        return copied if bare.is_cpu else Elsewhere(copied, str(bare.device))


def _obstacle(tensor: Tensor, bare: Tensor) -> str | None:
    """Say why a tensor cannot be kept, not even by a specification; None where it can."""
    if bare.is_nested:
        return "a nested tensor"
    if bare.is_meta or not torch_compat.has_memory(bare):
        return "it has no values"
    if torch_compat.is_legacy_batch(bare):
        return "a batch of is_grads_batched=True"
    if bare.layout == torch.strided and bare.numel() and not bare.data_ptr():
        return "its memory was given back"  # as sharding does with parameters; reading it ends the process
    kind = type(tensor)
    if (
        kind is not Tensor
        and kind is not torch.nn.Parameter
        and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    ):
        return "its class takes part in every operation, and would see the copy"
    if bare.is_cuda and torch.cuda.is_current_stream_capturing():
        return "it was used while a CUDA graph was recorded"
    return None


def _of_class(copied: Tensor, original: Tensor) -> Tensor:
    """Give a copy the class of the original, and its attributes; a parameter becomes a plain tensor."""
    kind = type(original)
    if kind is Tensor or kind is torch.nn.Parameter:
        return copied
    copied = copied.as_subclass(kind)
    vars(copied).update(vars(original))
    return copied
