"""Plans: what to pass for each parameter, in which shapes and which range of values, the likeliest plan first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

import torch

from gradwright.checking.axes import ArrayType, Shape, bindings
from gradwright.checking.guesses import TENSOR, TENSOR_ROLES, Candidate, candidates, is_callable_by_name
from gradwright.checking.subject import Parameter, Subject

Values: TypeAlias = Literal["normal", "positive", "unit"]

SHAPES: tuple[Shape, ...] = ((3, 4), (4,), (4, 4), (2, 3, 4), (), (2, 3, 4, 4))
VALUES: tuple[tuple[Values, float], ...] = (("normal", 0.0), ("positive", 0.9), ("unit", 1.3))
"""Normal numbers away from 0; between 0.5 and 2; between 0.1 and 0.9."""
_FILLED_COST = 1.4
_MOST_COMBINATIONS = 20_000
"""Combinations looked at for a subject, divided by their number of dimensions: most may pass no tensor."""
_OMITTED = Candidate(0, "omitted")
_VECTORS = frozenset({"bias", "b", "shift"})


@dataclass(frozen=True)
class Plan:
    """What to pass for each parameter."""

    choices: tuple[tuple[Candidate, Parameter], ...]
    shapes: tuple[Shape, ...]
    """One for each floating-point tensor and each array with axes of its own, in order."""
    values: Values = "normal"
    dtype: torch.dtype = torch.float64

    @property
    def key(self) -> tuple[object, ...]:
        """What tells a plan from others; values are told by identity, since a default may be anything."""
        return tuple(id(choice) for choice, _ in self.choices), self.shapes, self.values, self.dtype

    @property
    def arrays(self) -> tuple[ArrayType | None, ...]:
        """What is known of the axes of each tensor that has a shape."""
        return tuple(choice.array for choice, _ in self.choices if choice.has_shape)

    def in_other_shapes(self) -> Iterator[Plan]:
        """Yield a few plans with other shapes for the same arguments, if it is plain how they change together."""
        arrays = [array for array in self.arrays if array is not None]
        if len(arrays) == len(self.shapes):
            for _, shapes in bindings(arrays):
                if shapes != self.shapes:
                    yield replace(self, shapes=shapes)
        elif not arrays and len(set(self.shapes)) == 1:
            for shape in ((2, 3, 2), (4,)):
                if shape != self.shapes[0]:
                    yield self._reshaped(shape)

    def _reshaped(self, shape: Shape) -> Plan:
        """Return the plan with another shape for every tensor whose axes are not known."""
        shapes = tuple(shape if array is None else old for old, array in zip(self.shapes, self.arrays))
        return replace(self, shapes=shapes)

    def variations(self) -> Iterator[Plan]:
        """Yield the plans that differ from this one in the shape common to all tensors and the range of values."""
        costs = [(place + cost, shape, values) for place, shape in enumerate(SHAPES) for values, cost in VALUES]
        for _, shape, values in sorted(costs, key=lambda item: item[0]):
            yield replace(self._reshaped(shape), values=values)

    def with_number(self, name: str) -> Plan | None:
        """Return the plan with a number instead of a tensor that was only guessed to be one, None if it was not."""
        choices = list(self.choices)
        shapes = list(self.shapes)
        tensor = 0
        for i, (choice, parameter) in enumerate(choices):
            if parameter.name == name and choice.role == "tensor" and parameter.kind != "variadic":
                if choice.from_annotation or choice.cost > 0 or len(shapes) == 1:
                    return None
                choices[i] = (Candidate(0, "value", 0.7), parameter)
                del shapes[tensor]
                return replace(self, choices=tuple(choices), shapes=tuple(shapes))
            tensor += choice.has_shape
        return None


def best_first(subject: Subject) -> Iterator[Plan]:
    """Yield plans for a subject without end in sight, the likeliest first."""
    yield from _walk(_dimensions(subject))


def with_optional_tensors(subject: Subject) -> Iterator[Plan]:
    """Yield plans that pass a tensor for each parameter that is None by default and seems to be one."""
    dimensions = _dimensions(subject)
    options = list(dimensions.options)
    for i, parameter in enumerate(dimensions.parameters):
        if parameter.default is None:
            tensors = tuple(c for c in candidates(subject, parameter)[:1] if c.role == "tensor")
            options[i] = tensors or options[i]
    if tuple(options) != dimensions.options:
        yield from _walk(_Dimensions(dimensions.parameters, tuple(options)))


@dataclass(frozen=True)
class _Dimensions:
    parameters: tuple[Parameter, ...]
    options: tuple[tuple[Candidate, ...], ...]


def _dimensions(subject: Subject) -> _Dimensions:
    """Return what each parameter may be, the likeliest first.

    A parameter with a default is left out. A Function that reads ``needs_input_grad`` by position may rely on being
    passed all of its parameters, so passing the default is an option too.
    """
    parameters = tuple(subject.parameters or ())
    lonely = not any(p.required for p in parameters)
    options: list[tuple[Candidate, ...]] = []
    for position, parameter in enumerate(parameters):
        guesses = [_distinct(guess, position) for guess in candidates(subject, parameter)]
        default = Candidate(_FILLED_COST, "value", parameter.default, from_annotation=True)  # the author's own
        if parameter.kind == "variadic":
            options.append((TENSOR, _OMITTED.dearer(3.0)) if lonely else (_OMITTED, TENSOR.dearer(1.0)))
        elif parameter.required:
            options.append(tuple(guesses) or (Candidate(0, "value", _placeholder(parameter)),))
        elif lonely and position == 0:
            options.append((*guesses, default.dearer(5.0)))  # something has to be an input
        else:
            options.append((_OMITTED, default))
    return _Dimensions(parameters, tuple(options))


def _distinct(guess: Candidate, position: int) -> Candidate:
    """Give each number its own value, so that it shows when two are mixed up."""
    if type(guess.value) is not float:
        return guess
    return replace(guess, value=round(guess.value * (1 + 0.1 * position), 4))


class _Placeholder:
    """A value that only a user can write."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _placeholder(parameter: Parameter) -> _Placeholder:
    return _Placeholder("lambda *args: args[0]" if is_callable_by_name(parameter.name) else "None")


def _walk(dimensions: _Dimensions) -> Iterator[Plan]:
    """Yield the combinations of candidates, shapes and values that pass a tensor, in the order of their cost."""
    start = (0,) * (len(dimensions.options) + 2)
    heap = [(0.0, start)]
    seen = {start}
    for _ in range(max(_MOST_COMBINATIONS // len(start), 300)):
        if not heap:
            return
        _, place = heapq.heappop(heap)
        chosen = _chosen(dimensions, place)
        plan = None if chosen is None else _plan(dimensions, place, chosen)
        if plan is not None:
            yield plan
        for axis in range(len(place)):
            following = (*place[:axis], place[axis] + 1, *place[axis + 1 :])
            if following not in seen:
                seen.add(following)
                cost = _cost(dimensions, following)
                if cost is not None:
                    heapq.heappush(heap, (cost, following))


def _chosen(dimensions: _Dimensions, place: tuple[int, ...]) -> list[Candidate] | None:
    """Return the candidates at a place, or None when an argument would be left out before one that is passed."""
    chosen = [options[i] for options, i in zip(dimensions.options, place)]
    gap = False
    for choice, parameter in zip(chosen, dimensions.parameters):
        if parameter.kind == "positional":
            if gap and choice.role != "omitted":
                return None
            gap = gap or choice.role == "omitted"
        elif parameter.kind == "variadic" and gap and choice.role != "omitted":
            return None
    return chosen


def _plan(dimensions: _Dimensions, place: tuple[int, ...], chosen: list[Candidate]) -> Plan | None:
    schemes = _schemes(_with_shapes(dimensions, chosen))
    if not any(choice.role in TENSOR_ROLES for choice in chosen) or place[-2] >= len(schemes):
        return None
    choices = tuple(zip(chosen, dimensions.parameters))
    return Plan(choices, schemes[place[-2]][1], VALUES[place[-1]][0])


def _cost(dimensions: _Dimensions, place: tuple[int, ...]) -> float | None:
    if place[-1] >= len(VALUES) or any(i >= len(options) for options, i in zip(dimensions.options, place)):
        return None
    chosen = [options[i] for options, i in zip(dimensions.options, place)]
    schemes = _schemes(_with_shapes(dimensions, chosen))
    if place[-2] >= max(len(schemes), 1):
        return None
    shapes = schemes[place[-2]][0] if schemes else 0.0
    return sum(choice.cost for choice in chosen) + shapes + VALUES[place[-1]][1]


def _with_shapes(dimensions: _Dimensions, chosen: Sequence[Candidate]) -> tuple[tuple[str, ArrayType | None], ...]:
    pairs = zip(chosen, dimensions.parameters)
    return tuple((parameter.name, choice.array) for choice, parameter in pairs if choice.has_shape)


@cache
def _schemes(tensors: tuple[tuple[str, ArrayType | None], ...]) -> list[tuple[float, tuple[Shape, ...]]]:
    """Return the shapes to try for tensors of these names and axes, with their costs, cheapest first."""
    arrays = [array for _, array in tensors if array is not None]
    free = _free_schemes(tuple(name for name, array in tensors if array is None))
    if not arrays:
        return free
    joined = []
    for cost, bound in bindings(arrays):
        for dearer, shapes in free or [(0.0, ())]:
            known, others = iter(bound), iter(shapes)
            joined.append((cost + dearer, tuple(next(others if array is None else known) for _, array in tensors)))
    return sorted(joined)


def _free_schemes(names: tuple[str, ...]) -> list[tuple[float, tuple[Shape, ...]]]:
    """Return the shapes to try for floating-point tensors of which only the names are known."""
    count = len(names)
    if not count:
        return []
    schemes = [(float(cost), (shape,) * count) for cost, shape in enumerate(SHAPES)]
    if count > 1:
        vectors = [name.lower() in _VECTORS for name in names]
        rest = count - 2

        def add(cost: float, first: Shape, second: Shape, others: Shape) -> None:
            schemes.append((cost, (first, second) + (others,) * rest))

        if any(vectors) and not all(vectors):
            schemes.append((-0.5, tuple((4,) if vector else (3, 4) for vector in vectors)))
        add(0.5, (3, 4), (4, 5), (5,))  # a matrix product, with a bias
        add(0.6, (3, 4), (5, 4), (5,))  # the same with the matrix transposed, as in nn.Linear
        add(0.8, (3, 4), (4,), (4,))  # one number for each column
        add(1.1, (3, 4), (), ())  # one number for all
        add(1.4, (3, 4), (3, 1), (3, 1))
        add(1.6, (3, 4), (3,), (3,))
        add(1.8, (2, 3, 4), (4,), (4,))
        add(1.9, (2, 3, 4), (2, 4, 5), (2, 3, 5))
        add(2.1, (2, 3, 4), (3,), (3,))
        add(2.2, (2, 3, 4), (5, 4), (5,))
        add(2.4, (2, 3, 6, 6), (4, 3, 3, 3), (4,))  # a convolution
        add(2.5, (2, 3, 6), (4, 3, 3), (4,))
        add(2.7, (2, 3, 4, 4), (3,), (3,))
        for i, first in enumerate(SHAPES):
            for j, second in enumerate(SHAPES):
                add(3.0 + 0.4 * (i + j), first, second, second)
                if rest:
                    add(3.2 + 0.4 * (i + j), first, second, first)
    kept: dict[tuple[Shape, ...], float] = {}
    for cost, shapes in sorted(schemes):
        kept.setdefault(shapes, cost)
    return [(cost, shapes) for shapes, cost in kept.items()]
