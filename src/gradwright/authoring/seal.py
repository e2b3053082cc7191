"""The seal: a gradient that must not be differentiated again raises when it is, instead of being wrong.

PyTorch's ``once_differentiable`` hangs its error on fresh leaves and only when the cotangent requires a gradient, so
that the engine prunes it in many patterns, and the second derivative comes out wrong or zero. Here the error is joined
to everything the rule read: whatever way leads back to the inputs, it is met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring.derive import smooth
from gradwright.errors import RuleError


class _Refuses(Function):
    """A Function whose result can be used but not differentiated; ``ctx.message`` says why."""

    generate_vmap_rule = True

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Refuse."""
        raise RuleError(ctx.message)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Refuse."""
        raise RuleError(ctx.message)


class Seal(_Refuses):
    """Copies of the first ``number`` tensors, which can be used but not differentiated."""

    @staticmethod
    def forward(message: str, number: int, *tensors: Tensor) -> Any:
        """Return the copies."""
        # int(): where torch.compile reads this, it takes the number for a symbol, which it does not slice by (2.13)
        return tuple(tensor.clone() for tensor in tensors[: int(number)])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep what to say."""
        ctx.message = inputs[0]


def may_be_differentiated() -> bool:
    """Tell whether what is computed now could be differentiated later or is being differentiated."""
    return torch.is_grad_enabled() or torch_compat.forward_mode_on()


def seal(message: str, values: Sequence[Tensor | None], read: Sequence[Any]) -> list[Tensor | None]:
    """Return copies of ``values`` that raise ``message`` when they are differentiated.

    ``read`` is everything they were computed from. Values of an integer type are left alone.
    """
    places = [i for i, value in enumerate(values) if isinstance(value, Tensor) and smooth(value)]
    if not places:
        return list(values)
    joined = [tensor for tensor in read if isinstance(tensor, Tensor) and smooth(tensor)]
    copies: Sequence[Tensor] = Seal.apply(  # type: ignore[no-untyped-call]
        message, len(places), *(values[i] for i in places), *joined
    )
    sealed = list(values)
    for place, copy in zip(places, copies):
        sealed[place] = copy
    return sealed


@dataclass
class Task:
    """A computation of :func:`opaque`; an object, since PyTorch would take lists apart."""

    message: str
    function: Callable[[Sequence[Any], Sequence[Any]], Sequence[Tensor | None]]
    given: tuple[tuple[bool, ...], tuple[bool, ...]]
    """What of its two arguments is a tensor; the rest is None."""


@dataclass
class Present:
    """Which of the results are tensors."""

    flags: tuple[bool, ...]


class Opaque(_Refuses):
    """A computation that is run on bare tensors, whatever transforms are around it, and has no derivative."""

    @staticmethod
    def forward(task: Task, *tensors: Any) -> Any:
        """Run it; tensors that are left over are what else the result depends on."""
        left = iter(tensors)
        first, second = ([next(left) if given else None for given in part] for part in task.given)
        found = task.function(first, second)
        present = Present(tuple(value is not None for value in found))
        return (*(value.clone() for value in found if value is not None), present)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep what to say."""
        ctx.message = inputs[0].message


def opaque(
    message: str,
    function: Callable[[Sequence[Any], Sequence[Any]], Sequence[Tensor | None]],
    first: Sequence[Any],
    second: Sequence[Any],
    read: Sequence[Any],
) -> list[Tensor | None]:
    """Return ``function(first, second)``, which raises ``message`` when it is differentiated.

    ``read`` is everything else that it was computed from.
    """
    given = [value for value in (*first, *second) if value is not None]
    flags = (tuple(value is not None for value in first), tuple(value is not None for value in second))
    joined = [tensor for tensor in read if isinstance(tensor, Tensor) and smooth(tensor)]
    task = Task(message, function, flags)
    *tensors, present = Opaque.apply(task, *given, *joined)  # type: ignore[no-untyped-call]
    left = iter(tensors)
    return [next(left) if there else None for there in present.flags]
