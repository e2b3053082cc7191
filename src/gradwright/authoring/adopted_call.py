"""What is known of an adopted Function and of one call of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import trees, warned
from gradwright.authoring.derive import smooth
from gradwright.authoring.recording import Kept
from gradwright.errors import RuleError


@dataclass(eq=False)
class Old:
    """What is known of a Function that was adopted."""

    name: str
    names: tuple[str, ...]
    """Of the arguments of forward, without ctx; the last may be that of ``*args``."""
    forward: Callable[..., Any]
    """``forward(ctx, *arguments)``, whatever the style."""
    body: Any
    """The function that computes."""
    backward: Callable[..., Any]
    once: bool
    """True when its backward is decorated with ``once_differentiable``."""
    edits: bool
    """True when it may change its inputs in place."""
    casts: bool
    """True when its forward is decorated with ``custom_fwd``, so that gradients may well have another dtype."""
    constants: tuple[Any, ...]
    """Those that are written in its forward."""
    linear: bool = False
    """True once its backward was seen to be linear."""
    teach: bool = False
    """True when it is told once of what works but should be done otherwise."""
    told: set[str] = field(default_factory=set)
    """What it was told."""

    def tell(self, what: str, message: str) -> None:
        """Warn once, where that is wanted."""
        if self.teach and what not in self.told:
            self.told.add(what)
            warned.warn(f"{self.name}: {message}")

    def argument(self, position: int) -> str:
        """Return what to call an argument."""
        return self.names[position] if position < len(self.names) else f"{self.names[-1]}[{position}]"


@dataclass
class Call:
    """The arguments of one call without their tensors."""

    old: Old
    structures: tuple[trees.Structure, ...]
    needs: tuple[bool, ...]
    """For each argument, whether a gradient may be asked for."""
    everywhere: bool
    """True when there may be tangents or a transform."""

    def owners(self) -> list[int]:
        """Return for each tensor the position of the argument that it belongs to."""
        return [i for i, structure in enumerate(self.structures) for _ in range(trees.count(structure))]

    def needs_leaf(self) -> list[bool]:
        """Return for each tensor whether a gradient may be asked for."""
        return [self.needs[owner] for owner in self.owners()]

    def needed(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of which a gradient may be asked for."""
        return [leaf for leaf, need in zip(leaves, self.needs_leaf()) if need]

    def needs_arguments(self, result: Result) -> bool:
        """Tell whether forward may have to be run again, or the seal be joined to the inputs."""
        kept = result.kept
        own = any(kind == "own" for kind, _ in kept.sources)
        return own or self.old.once or kept.held or kept.numbers or kept.objects


@dataclass
class Result:
    """What one call returned and kept, without the tensors."""

    structure: trees.Structure
    number: int
    """How many tensors the output holds; hidden ones follow."""
    shown: tuple[int | None, ...]
    """For each output, its place among the tensors, or None for one that is no tensor."""
    still: tuple[int, ...]
    """The outputs that have no derivative."""
    dirty: tuple[tuple[int, int], ...]
    """Inputs that were changed in place, and the outputs that hold the new values."""
    kept: Kept
    materialize: bool


@dataclass
class State:
    """All that a backward or a JVP works with."""

    call: Call
    result: Result
    leaves: Sequence[Tensor] | None
    """The tensors of the arguments; None where they were not needed."""
    kept: list[Any]
    metas: Sequence[Any]
    out_metas: Sequence[Any]
    trouble: str | None = None
    """Why forward cannot be run again."""


def no_transform(old: Old, part: str, error: BaseException) -> str:
    """Say that the forward or the backward does not run under a transform."""
    return (
        f"{old.name}: its {part} failed under a transform ({type(error).__name__}: {first_line(error)}); expected "
        "PyTorch operations whose course does not depend on the values of tensors, without NumPy, item() or kernels of "
        "other libraries; write branches with torch.where; without vmap, decorate a NumPy backward with "
        "once_differentiable; or write it with gw.custom_gradient, which takes a batching rule under .vmap."
    )


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """Return how often each tensor was edited, whatever transforms are around it."""
    bare = tensors
    if torch_compat.transforms_active():
        bare = [torch.func.debug_unwrap(t, recurse=True) for t in tensors]
    return torch_compat.all_edits(bare)


def refuse_edits(
    old: Old, owners: Iterable[int], needs: Iterable[bool], tensors: Sequence[Tensor], before: Sequence[int]
) -> None:
    """Raise where a tensor whose gradient may be asked for was edited since ``before``; it is in argument ``owner``."""
    for owner, need, tensor, one, other in zip(owners, needs, tensors, before, versions(tensors)):
        if need and one != other and smooth(tensor):
            raise RuleError(
                f"{old.name}: its forward edited {old.argument(owner)!r} in place without saying so, so that "
                "gradients of what used it before are wrong; expected ctx.mark_dirty on it, called by forward itself, "
                "or an edit of a copy (`x = x.clone()`); where the class is not yours, stay with its apply."
            )


def first_line(error: BaseException) -> str:
    """Return the start of what an error says."""
    return (str(error).strip().splitlines() or [""])[0][:200]
