"""What the Functions inside a composite subject returned from backward, before the engine sums, expands and casts it.

Unlike a subject that is a Function, they cannot be replaced by a watched stand-in: the subject's code names them.
Their backwards are exchanged for the time of one backward pass and put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.checking.audit import backward_name, functions_in_graph, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.subject import as_subject


@dataclass(frozen=True)
class Expected:
    """What a gradient should be like: its input."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Expected:
        """Return what the gradient of a tensor should be like."""
        return cls(tensor.shape, tensor.dtype, tensor.device)


@dataclass(frozen=True)
class Returned:
    """One gradient that a Function in the graph returned."""

    function: type[Function]
    argument: str
    """The name of forward's argument that it is the gradient of."""
    gradient: Any
    expected: Expected


def returned_in_graph(case: Case) -> list[Returned]:
    """Run one backward of a composite subject and return what each of the user's Functions in its graph returned."""
    functions = [f for f in functions_in_graph(case) if not f.__module__.startswith("torch.")]
    found: list[Returned] = []
    run = case.forward()
    with ExitStack() as stack:
        for function, original in [(f, getattr(f, backward_name(f) or "backward")) for f in functions]:
            stack.enter_context(_watched(function, original, found))
        with case.sandbox():
            run.gradients(case.cotangents(random_cotangent(case)))
    return found


@contextmanager
def _watched(function: type[Function], original: Any, found: list[Returned]) -> Iterator[None]:
    name = backward_name(function) or "backward"
    inherited = name not in vars(function)
    own = vars(function).get(name)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        returned = original(ctx, *cotangents)
        gradients = returned if isinstance(returned, tuple) else (returned,)
        found.extend(_paired(function, ctx, gradients))
        return returned

    setattr(function, name, staticmethod(backward))
    try:
        yield
    finally:
        if inherited:
            delattr(function, name)
        else:
            setattr(function, name, own)


def _paired(function: type[Function], ctx: Any, gradients: Sequence[Any]) -> Iterator[Returned]:
    """Pair gradients with what the graph expects: its edges are those arguments of forward that need a gradient."""
    needed = [i for i, needs in enumerate(ctx.needs_input_grad) if needs]
    expected = torch_compat.expected_gradients(ctx)
    if len(needed) != len(expected) or len(gradients) < len(ctx.needs_input_grad):
        return  # what the engine makes of that is reported elsewhere
    subject = as_subject(function)
    for i, (shape, dtype, device) in zip(needed, expected):
        if gradients[i] is not None:
            yield Returned(function, subject.position_name(i), gradients[i], Expected(shape, dtype, device))
