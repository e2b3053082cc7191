"""What a call keeps for its backward, and the most memory that it allocates at one time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwright.checking.kept import kept_on


@dataclass(frozen=True)
class Kept:
    """What the graph of a call keeps beyond its arguments and its output, in bytes; each memory counts once."""

    saved: int
    """What passes the hooks for saved tensors."""
    hidden: int
    """What lies on the ctx of a Function besides, in its containers and closures."""

    @property
    def total(self) -> int:
        return self.saved + self.hidden


def kept(call: Callable[[], Any], arguments: Iterable[Any], hooks: bool = True) -> Kept:
    """Return what the graph of a call keeps, and by which way.

    Where ``hooks`` is false, the nodes of the graph are asked what they saved: for calls that PyTorch refuses to run
    with hooks, such as those that use ``torch.func`` in their forward.
    """
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.detach())
        return tensor

    hooked = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooked if hooks else contextlib.nullcontext():
        out = call()
    outs = [out] if isinstance(out, Tensor) else list(out)
    if not hooks:
        packed = [tensor for node in _nodes(outs) for tensor in _saved_by(node)]
    hidden = [found.tensor for node in _nodes(outs) for found in kept_on(node)]
    known = {_memory(x) for x in [*arguments, *outs] if isinstance(x, Tensor)}
    saved = {_memory(x): x.untyped_storage().nbytes() for x in packed if _memory(x) not in known}
    beside = {_memory(x): x.untyped_storage().nbytes() for x in hidden if _memory(x) not in known | set(saved)}
    return Kept(sum(saved.values()), sum(beside.values()))


def kept_bytes(call: Callable[[], Any], arguments: Iterable[Any]) -> int:
    """Return how many bytes the graph of a call keeps, by either way."""
    return kept(call, arguments).total


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _saved_by(node: Any) -> Iterator[Tensor]:
    """Give what a node saved: a Function by ``save_for_backward``, an operator of PyTorch by a name for each."""
    found = [*getattr(node, "saved_tensors", ()), *(getattr(node, n) for n in dir(node) if n.startswith("_saved_"))]
    for value in found:
        yield from (x for x in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(x, Tensor))


def _nodes(outs: Sequence[Tensor]) -> Iterator[Any]:
    left = [out.grad_fn for out in outs]
    seen = set()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            left += [following for following, _ in node.next_functions]


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most bytes that PyTorch's allocator for the CPU gives out during a run, beyond those before it.

    The profiler counts them; what ``run`` returns is still held at the end.
    """
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        held = run()
    now = most = 0
    for _, size in sorted((e.start_ns(), e.nbytes()) for e in _events(profiler) if e.name() == "[memory]"):
        now += size
        most = max(most, now)
    del held
    return most


def _events(profiler: Any) -> Any:
    return profiler.profiler.kineto_results.events()
