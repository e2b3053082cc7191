"""The call of a subject with nothing around it, for transforms that read code: compile and export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradwright import torch_compat
from gradwright.checking import trees
from gradwright.checking.case import Case


@dataclass(frozen=True)
class PlainCall:
    """The call of a subject as a function of a flat list of tensors, with nothing of gradwright in it."""

    run: Callable[..., tuple[Tensor, ...]]
    """Called with all tensors of a call; returns the differentiable outputs."""
    arguments: Callable[[Sequence[Tensor]], list[Tensor]]
    """Called with the inputs; returns all tensors of a call, fresh copies of those that are no inputs."""
    places: list[int]
    """Where each input stands among them."""


def plain_call(case: Case) -> PlainCall:
    """Return the call of the subject as compilers get it."""
    subject, positions = case.subject, [o.position for o in case.outputs]
    target = subject.target

    def parts(inputs: Sequence[Tensor]) -> tuple[list[Any], Any]:
        arguments = case.rebuild(inputs)
        positional = [a.value for a in arguments if a.origin == "positional"]
        keyword = {a.name: a.value for a in arguments if a.origin == "keyword"}
        state = {a.name: a.value for a in arguments if a.origin in ("parameter", "buffer")}
        return trees.flatten((positional, keyword, state))

    template, structure = parts([item.tensor for item in case.inputs])
    places = [i for i, leaf in enumerate(template) if isinstance(leaf, Tensor)]
    constants = [None if isinstance(leaf, Tensor) else leaf for leaf in template]
    kind = subject.kind
    # Without containers and keywords the call needs no pytrees, whose tracing costs more than that of most subjects.
    # A container of one is one leaf as well, and none itself.
    bare = all(a.origin == "positional" and _leaf(a.value) for a in case.arguments)
    function = target.apply if kind == "Function" else target
    module_places = torch_compat.module_places(target) if kind == "module" else {}

    def bare_run(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = list(constants)
        for place, tensor in zip(places, tensors):
            values[place] = tensor
        return picked(function(*values))

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = list(constants)
        for place, tensor in zip(places, tensors):
            values[place] = tensor
        positional, keyword, state = trees.unflatten(values, structure)
        if kind == "module":
            return picked(torch_compat.call_module(target, module_places, state, positional, keyword))
        return picked(function(*positional, **keyword))

    def picked(result: Any) -> tuple[Tensor, ...]:
        if isinstance(result, Tensor):
            return (result,)
        outputs = [leaf for leaf in trees.flatten(result)[0] if isinstance(leaf, Tensor)]
        return tuple(outputs[position] for position in positions)

    def arguments(inputs: Sequence[Tensor]) -> list[Tensor]:
        # An in-place subject refuses leaves that require grad, so it gets something computed.
        passed = [t.clone() for t in inputs] if case.in_place else list(inputs)
        values, _ = parts(passed)
        return [values[place] for place in places]

    probes = [item.tensor.detach() for item in case.inputs]
    tensors = [leaf for leaf in parts(probes)[0] if isinstance(leaf, Tensor)]
    order = [next(i for i, tensor in enumerate(tensors) if tensor is probe) for probe in probes]
    return PlainCall(bare_run if bare else run, arguments, order)


def _leaf(value: Any) -> bool:
    leaves, _ = trees.flatten(value)
    return len(leaves) == 1 and leaves[0] is value
