"""The values of a plan, and the line of Python that declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwright.checking.axes import Shape
from gradwright.checking.guesses import TENSOR, TENSOR_ROLES, Candidate
from gradwright.checking.plans import SHAPES, Plan, Values
from gradwright.checking.samples import MAPPING_NAME
from gradwright.checking.subject import Parameter, Subject
from gradwright.checking.writing import UnwritableError, Writer


@dataclass(frozen=True)
class Built:
    """The values of a plan."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    leaves: tuple[Tensor, ...]
    """The floating-point tensors, which require grad."""
    names: tuple[str, ...]
    """The parameter of each."""


def build(plan: Plan, seed: int, draw: int = 0) -> Built:
    """Make the values of a plan; other values of the same kind for each ``draw``."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    leaves: list[Tensor] = []
    names: list[str] = []
    shapes = iter(plan.shapes)
    for position, (choice, parameter) in enumerate(plan.choices):
        if choice.role == "omitted":
            continue
        generator = torch.Generator().manual_seed((seed * 1009 + position) * 7 + draw)
        value: Any = choice.value
        shape = next(shapes) if choice.has_shape else None
        if choice.role in TENSOR_ROLES:
            assert shape is not None
            count = 1 if choice.role == "tensor" else 2
            dtype = plan.dtype if choice.array is None else choice.array.dtype(plan.dtype)
            tensors = [_floating(shape, plan.values, dtype, generator).requires_grad_() for _ in range(count)]
            leaves += tensors
            names += [parameter.name] * count
            value = tensors[0] if choice.role == "tensor" else choice.value(tensors)
        elif choice.role != "value":
            value = _discrete(choice, shape, plan, generator)
        if parameter.kind == "keyword":
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return Built(tuple(args), kwargs, tuple(leaves), tuple(names))


def written(subject: Subject, plan: Plan | None, constants: Iterable[str]) -> str:
    """Write a plan as a line of Python that declares it as a sample."""
    if plan is None:
        names = [p.name for p in subject.parameters or () if p.required]
        choices = tuple((TENSOR, Parameter(name)) for name in names) or ((TENSOR, Parameter("x")),)
        plan = Plan(choices, (SHAPES[0],) * len(choices))
    args, kwargs, names = [], [], []
    shapes = iter(plan.shapes)
    constants = set(constants)
    for choice, parameter in plan.choices:
        if choice.role == "omitted":
            continue
        text = _text(choice, next(shapes) if choice.has_shape else None, plan)
        if choice.role == "tensor" and constants and parameter.name not in constants:
            text += ".requires_grad_()"
        names.append(parameter.name)
        if parameter.kind == "keyword":
            kwargs.append(f'"{parameter.name}": {text}')
        else:
            args.append(text)
    sample = f"({', '.join(args)}{',' if len(args) == 1 else ''})"
    if kwargs:
        sample = f'{{"args": {sample}, "kwargs": {{{", ".join(kwargs)}}}}}'
    return f'{MAPPING_NAME} = {{"{subject.name}": {sample}}}  # {", ".join(names)}'


def _floating(shape: Shape, values: Values, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    real = torch.float64 if not dtype.is_complex else torch.complex128
    if values == "normal":
        tensor = torch.randn(shape, dtype=real, generator=generator)
        tensor = tensor + 0.1 * torch.sgn(tensor)  # away from the kink that so many functions have at 0
    else:
        tensor = torch.rand(shape, dtype=real, generator=generator)
        tensor = 0.5 + 1.5 * tensor if values == "positive" else 0.1 + 0.8 * tensor
    return tensor.to(dtype)


def _discrete(choice: Candidate, shape: Shape | None, plan: Plan, generator: torch.Generator) -> Tensor:
    if choice.role == "mask":
        return torch.rand(_discrete_shape(choice, shape, plan), generator=generator) > 0.4
    # Below every size of the small shapes, so that they are valid indices whatever they index.
    numbers = torch.randint(0, _below(plan), _discrete_shape(choice, shape, plan), generator=generator)
    return numbers if choice.array is None else numbers.to(choice.array.dtype(torch.int64))


def _below(plan: Plan) -> int:
    if not any(plan.arrays):
        return min([*_first(plan), 3]) if _first(plan) else 1
    return max(min([3, *(size for shape in plan.shapes for size in shape)]), 1)


def _first(plan: Plan) -> Shape:
    """Return the shape that indices and masks without axes of their own go by."""
    return plan.shapes[0] if plan.shapes else (3,)


def _discrete_shape(choice: Candidate, shape: Shape | None, plan: Plan) -> Shape:
    if shape is not None:
        return shape
    first = _first(plan)
    return {"index": first[:1], "index of rows": first[:-1]}.get(choice.role, first)


def _text(choice: Candidate, shape: Shape | None, plan: Plan) -> str:
    if choice.role == "value":
        return _value(choice.value)
    if choice.role == "mask":
        return f"torch.rand({_sizes(_discrete_shape(choice, shape, plan))}) > 0.4"
    if choice.role not in TENSOR_ROLES:
        text = f"torch.randint({_below(plan)}, {_discrete_shape(choice, shape, plan)}"
        dtype = torch.int64 if choice.array is None else choice.array.dtype(torch.int64)
        return f"{text})" if dtype is torch.int64 else f"{text}, dtype={dtype})"
    assert shape is not None
    dtype = plan.dtype if choice.array is None else choice.array.dtype(plan.dtype)
    text = {
        "normal": f"torch.randn({_sizes(shape)}, dtype={dtype})",
        "positive": f"(0.5 + 1.5 * torch.rand({_sizes(shape)}, dtype={dtype}))",
        "unit": f"(0.1 + 0.8 * torch.rand({_sizes(shape)}, dtype={dtype}))",
    }[plan.values]
    if choice.role == "tensors":
        text = f"{text}, {text}"
        return f"({text})" if choice.value is tuple else f"[{text}]"
    return text


def _value(value: Any) -> str:
    try:
        return str(Writer().value(value))
    except UnwritableError:
        return repr(value)


def _sizes(shape: Shape) -> str:
    return ", ".join(map(str, shape)) if shape else "()"
