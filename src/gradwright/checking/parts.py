"""What a case is made of: the tensors it differentiates, its differentiable outputs, and one recorded forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright.checking import trees
from gradwright.checking.subject import Argument, Subject
from gradwright.checking.tensors import from_flat, to_flat
from gradwright.errors import SampleError

Adjustment: TypeAlias = "Callable[[list[Tensor | None], Mapping[int, Tensor]], list[Tensor | None]]"
"""Makes the gradients that are compared of those that backward gave, which are real flat vectors or None."""


@dataclass(frozen=True)
class Input:
    """One tensor that the case differentiates with respect to."""

    name: str
    tensor: Tensor
    argument: int
    """Position of its argument in the call."""
    leaf: int
    """Position within the argument, when the argument is a container; else 0."""


@dataclass(frozen=True)
class Output:
    """One differentiable output: its position among all output tensors, shape and dtype."""

    position: int
    shape: torch.Size
    dtype: torch.dtype


@dataclass
class Pass:
    """One recorded forward pass, ready for a backward."""

    arguments: list[Argument]
    """What was passed, with the fresh tensors."""
    inputs: list[Tensor]
    """The fresh tensors that require grad, one for each :class:`Input`."""
    outputs: list[Tensor]
    """All output tensors, in order."""
    differentiable: list[Tensor]
    """Those that the case counts as differentiable."""
    returned: Any = None
    """What the subject returned, containers included."""

    def gradients(self, cotangents: Sequence[Tensor], *, create_graph: bool = False) -> list[Tensor | None]:
        """Run backward; the result has one gradient (or None) for each input."""
        gradients = torch.autograd.grad(
            self.differentiable, self.inputs, list(cotangents), create_graph=create_graph, allow_unused=True
        )
        return list(gradients)


def is_symmetric(item: Input) -> bool:
    """Tell whether an input is a symmetric or Hermitian matrix, or a batch of them."""
    t = item.tensor.detach()
    square = t.layout == torch.strided and t.ndim >= 2 and t.shape[-1] == t.shape[-2] > 1
    return square and torch.allclose(t, t.mH)


def in_kind(item: Input, u: Tensor) -> Tensor:
    """Return a direction that keeps a symmetric or Hermitian matrix what it is.

    Functions of such matrices (Cholesky factor, eigenvalues, solves) may read one triangle and give the gradient that
    is symmetric; in other directions value and gradient are those of two different functions.
    """
    if not is_symmetric(item):
        return u
    direction = from_flat(u, torch.empty(item.tensor.shape, dtype=item.tensor.dtype))
    return to_flat((direction + direction.mH) / 2).to(torch.float64)


def differentiable_inputs(subject: Subject, arguments: Sequence[Argument]) -> list[Input]:
    """Return the tensors to differentiate: those that require grad, or all floating ones when none does.

    Raises:
        SampleError: a tensor has no numbers, or no such memory as can be copied and varied.
    """
    for argument in arguments:
        for leaf in trees.flatten(argument.value)[0]:
            if isinstance(leaf, Tensor):
                _refuse_odd(f"{subject.name}: {argument.name}", leaf)
    found: list[tuple[Input, bool]] = []
    for number, argument in enumerate(arguments):
        if argument.origin == "buffer":
            continue
        leaves, _ = trees.flatten(argument.value)
        alone = isinstance(argument.value, Tensor)
        if not alone and subject.kind == "Function":
            continue  # autograd does not track tensors inside containers that are passed to a Function
        paths = [""] if alone else trees.leaf_paths(argument.value)
        for i, (leaf, path) in enumerate(zip(leaves, paths)):
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
                asked = leaf.requires_grad or argument.origin == "parameter"
                found.append((Input(argument.name + path, leaf.detach(), number, i), asked))
    some = any(asked and arguments[item.argument].origin != "parameter" for item, asked in found)
    chosen = [item for item, asked in found if asked or not some]
    for item in chosen:
        _refuse_layout(f"{subject.name}: {item.name}", item.tensor)
    return chosen


def _refuse_odd(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise SampleError(
            f"{name} is a meta tensor, which has a shape but no numbers; expected one with values, since a check "
            f"compares numbers; pass torch.randn({tuple(tensor.shape)}, dtype=torch.float64), say."
        )
    if tensor.is_nested:
        raise SampleError(
            f"{name} is a nested tensor; expected one of a single shape; check a function of its components that "
            "builds the nested tensor inside: lambda a, b: f(torch.nested.as_nested_tensor([a, b])).unbind()."
        )


def _refuse_layout(name: str, tensor: Tensor) -> None:
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        layout = str(tensor.layout).removeprefix("torch.")
        raise SampleError(
            f"{name} has the layout {layout}; expected a strided or sparse COO tensor to differentiate; check a "
            "function of its values that builds the sparse tensor inside, or let only others require grad."
        )
