"""The truth about a function: its values and derivatives, from numbers of as many digits as it takes.

A derivative is a central difference with a step 40 decades below the arguments, so that its error is below 1e-70 where
the function is smooth. How many digits the arithmetic must have is found out: there are more, and a smaller step, until
two results agree. So a derivative that does not exist does not settle. Zero, infinity and nan are believed only at the
most digits, since too few of them make such numbers as well. At a kink that is symmetric, a first difference is the
subgradient of minimum norm.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.exact import ExactEntry, Point, TrueEntry

DIGITS = (120, 480, 1200, 2400)
STEP = 133
"""The binary exponent of the first step below the arguments: 40 decades."""
FINER = 40
"""By how many the step is made smaller each time."""
TINY = -400
AGREEMENT = 1e-20
"""How near two results must be to each other, with digits and with more of them."""


@dataclass(frozen=True)
class Truth:
    """Values and derivatives at one point, in float64 (a number beyond its range is infinite, or zero)."""

    value: Tensor
    first: Mapping[str, Tensor]
    """The derivative of ``sum(g * out)``, by argument."""
    second: Mapping[str, Tensor]
    """The derivative of ``sum(v * first)``, by argument."""


def leaves_of(entry: TrueEntry, point: Any) -> dict[str, Tensor]:
    """Return the arguments of a point that are differentiated, by name: those that require it, else all tensors."""
    found = {name: value for name, value in arguments_of(entry, point).items() if _differentiable(value)}
    chosen = {name: value for name, value in found.items() if value.requires_grad}
    return chosen or found


def with_leaves(entry: TrueEntry, point: Any, leaves: Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with other tensors in the place of those that are differentiated."""
    bound = inspect.signature(entry.function).bind(*point.args, **point.kwargs)
    bound.arguments.update(leaves)
    return bound.args, bound.kwargs


def truth(
    entry: ExactEntry, point: Any, g: Tensor | None = None, v: Mapping[str, Tensor] | None = None, orders: int = 2
) -> Truth:
    """Return the truth at a point, for a cotangent ``g`` and directions ``v``; both are ones where they are None.

    Arguments:
        entry: what it is about.
        point: arguments of one call; what it says of the truth itself is taken as it is.
        g: like the output.
        v: like the arguments that are differentiated, by name.
        orders: how many derivatives to find, up to 2.

    Raises:
        ArithmeticError: the digits do not suffice, because the function has no derivative there.
    """
    leaves = leaves_of(entry, point)
    known = point if isinstance(point, Point) else Point(point.args, point.kwargs)
    if entry.elementwise:
        value, first, second = _elementwise(entry, known, leaves, orders)
    else:
        value, first, second = _joint(entry, known, leaves, g, v, orders)
    value = _given(known.value, value)
    shape = value.shape
    weights = torch.ones(shape, dtype=value.dtype) if g is None else g.detach().to(value.dtype)

    def weighed(parts: Mapping[str, Tensor], said: Mapping[str, Any]) -> dict[str, Tensor]:
        whole = {name: _given(said.get(name), part) for name, part in parts.items()}
        if not entry.elementwise:
            return whole
        return {name: _summed_to(part * weights, leaves[name].shape) for name, part in whole.items()}

    return Truth(value, weighed(first, known.first), weighed(second, known.second))


# -------------------------------------------------------------------- one number at a time


def _elementwise(entry: ExactEntry, point: Point, leaves: Mapping[str, Tensor], orders: int) -> Any:
    """Return value and derivatives of each element; the second is the row sum of its matrix of second derivatives."""
    bound = arguments_of(entry, point)
    tensors = {name: value for name, value in bound.items() if isinstance(value, Tensor)}
    shape = torch.broadcast_shapes(*(value.shape for value in tensors.values()))
    rows = {name: value.detach().expand(shape).reshape(-1).tolist() for name, value in tensors.items()}
    names = list(leaves)
    values: list[float] = []
    first: dict[str, list[float]] = {name: [] for name in names}
    second: dict[str, list[float]] = {name: [] for name in names}
    for number in range(math.prod(shape)):
        here = {name: row[number] for name, row in rows.items()}
        start = [here[name] for name in names]

        def evaluate(mp: Any, numbers: Sequence[Any], here: dict[str, Any] = here) -> list[Any]:
            given = {name: mp.mpf(x) if isinstance(x, float) else x for name, x in here.items()}
            args, kwargs = _call(entry, {**bound, **given, **dict(zip(names, numbers))})
            return [entry.reference(mp, *args, **kwargs)]

        found = _Differences(evaluate, start)
        values.append(found.values()[0])
        ones = [1.0] * len(names)
        for place, name in enumerate(names):
            asked = _asked(point, name, orders)
            first[name].append(found.first(place, [1.0]) if asked[0] else 0.0)
            second[name].append(found.second(place, ones, [1.0]) if asked[1] else 0.0)

    def tensor(row: list[float]) -> Tensor:
        return torch.tensor(row, dtype=torch.float64).reshape(shape)

    return tensor(values), {n: tensor(r) for n, r in first.items()}, {n: tensor(r) for n, r in second.items()}


# -------------------------------------------------------------------- whole tensors


def _joint(entry: ExactEntry, point: Point, leaves: Mapping[str, Tensor], g: Any, v: Any, orders: int) -> Any:
    import numpy as np

    bound = arguments_of(entry, point)
    shapes = {name: leaf.shape for name, leaf in leaves.items()}
    start = [x for leaf in leaves.values() for x in _numbers(leaf)]
    out_shape: list[Any] = []

    def evaluate(mp: Any, numbers: Sequence[Any]) -> list[Any]:
        rest = iter(numbers)
        given: dict[str, Any] = {}
        for name, value in bound.items():
            if name in shapes:
                given[name] = _array(np, mp, [next(rest) for _ in range(_count(leaves[name]))], leaves[name])
            elif isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                given[name] = _array(np, mp, [mp.mpf(x) for x in _numbers(value)], value)
            elif isinstance(value, Tensor):
                given[name] = np.array(value.tolist())
            else:
                given[name] = value
        args, kwargs = _call(entry, given)
        result = np.asarray(entry.reference(mp, *args, **kwargs), dtype=object)
        out_shape[:] = [result.shape]
        parts = [mp.mpmathify(x) for x in result.reshape(-1)]
        if any(isinstance(x, mp.mpc) for x in parts):
            return [part for x in parts for part in (mp.re(x), mp.im(x))]
        return parts

    found = _Differences(evaluate, start)
    row = found.values()
    (shape,) = out_shape
    two = len(row) == 2 * math.prod(shape)
    flat = torch.tensor(row, dtype=torch.float64)
    value = torch.view_as_complex(flat.reshape(*shape, 2)) if two else flat.reshape(shape)
    weights = [1.0, 0.0] * math.prod(shape) if two else [1.0] * len(row)
    weights = weights if g is None else list(_numbers(g if two or not g.is_complex() else g.real))
    directions = [x for n, leaf in leaves.items() for x in _numbers(torch.ones_like(leaf) if v is None else v[n])]
    asked = [_asked(point, name, orders) for name, leaf in leaves.items() for _ in range(_count(leaf))]
    first = [found.first(k, weights) if one else 0.0 for k, (one, _) in enumerate(asked)]
    second = [found.second(k, directions, weights) if two else 0.0 for k, (_, two) in enumerate(asked)]
    return value, _split(first, leaves), _split(second, leaves)


def _split(row: list[float], leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    rest = iter(row)
    found = {}
    for name, leaf in leaves.items():
        part = torch.tensor([next(rest) for _ in range(_count(leaf))], dtype=torch.float64)
        found[name] = (
            torch.view_as_complex(part.reshape(*leaf.shape, 2)) if leaf.is_complex() else part.view(leaf.shape)
        )
    return found


def _numbers(x: Tensor) -> list[float]:
    x = torch.view_as_real(x.detach().resolve_conj()) if x.is_complex() else x.detach()
    row: list[float] = x.double().reshape(-1).tolist()
    return row


def _count(x: Tensor) -> int:
    return 2 * x.numel() if x.is_complex() else x.numel()


def _array(np: Any, mp: Any, numbers: list[Any], like: Tensor) -> Any:
    if like.is_complex():
        numbers = [mp.mpc(re, im) for re, im in zip(numbers[::2], numbers[1::2])]
    array = np.empty(len(numbers), dtype=object)
    array[:] = numbers
    return array.reshape(tuple(like.shape))


# -------------------------------------------------------------------- differences


class _Differences:
    """Central differences of a function of many numbers, in as much precision as they need."""

    def __init__(self, evaluate: Callable[[Any, Sequence[Any]], list[Any]], start: Sequence[float]) -> None:
        self.evaluate = evaluate
        self.start = start
        sizes = [abs(x) for x in start if x != 0 and math.isfinite(x)]
        self.scale = min(sizes, default=1.0)
        self.infinite: list[bool] | None = None

    def values(self) -> list[float]:
        """Return the values."""
        import mpmath

        before = None
        for digits in DIGITS:
            with mpmath.workdps(digits):
                now = self.evaluate(mpmath, list(map(mpmath.mpf, self.start)))
            if before is not None and all(_believed(b) and _agree(a, b) for a, b in zip(before, now)):
                break
            before = now
        return [float(x) if not isinstance(x, mpmath.mpc) else math.nan for x in now]

    def first(self, place: int, weights: Sequence[float]) -> float:
        """Return the derivative of the weighed sum of the outputs with respect to one number."""
        if not math.isfinite(self.start[place]):
            return 0.0

        def difference(mp: Any, h: Any) -> Any:
            up, down = (self._at(mp, {place: sign * h}, weights) for sign in (1, -1))
            return (up - down) / (2 * h)

        return self._settled(difference)

    def second(self, place: int, direction: Sequence[float], weights: Sequence[float]) -> float:
        """Return the derivative of ``sum(direction * first)`` with respect to one number."""
        if not math.isfinite(self.start[place]):
            return 0.0

        def difference(mp: Any, h: Any) -> Any:
            total = mp.mpf(0)
            for one in (1, -1):
                for other in (1, -1):
                    moved = {k: other * h * mp.mpf(d) for k, d in enumerate(direction) if math.isfinite(self.start[k])}
                    moved[place] += one * h
                    total += one * other * self._at(mp, moved, weights)
            return total / (4 * h * h)

        return self._settled(difference)

    def _at(self, mp: Any, moved: Mapping[int, Any], weights: Sequence[float]) -> Any:
        numbers = [mp.mpf(x) + moved.get(k, 0) for k, x in enumerate(self.start)]
        outs = zip(weights, self.evaluate(mp, numbers), self._infinite())
        return mp.fsum(mp.mpf(w) * out for w, out, infinite in outs if w != 0 and not infinite)

    def _infinite(self) -> list[bool]:
        """Tell which outputs are infinite: as an infinite argument has no derivative, they are constants."""
        import mpmath

        if self.infinite is None:
            for digits in (DIGITS[0], DIGITS[-1]):  # too few of them make infinities as well
                with mpmath.workdps(digits):
                    outs = self.evaluate(mpmath, list(map(mpmath.mpf, self.start)))
                self.infinite = [bool(mpmath.isinf(x)) for x in outs]
                if not any(self.infinite):
                    break
        assert self.infinite is not None
        return self.infinite

    def _settled(self, difference: Callable[[Any, Any], Any]) -> float:
        import mpmath

        before = None
        for number, digits in enumerate(DIGITS):
            with mpmath.workdps(digits):
                # A power of two: sums are exact where they can be.
                step = math.frexp(self.scale)[1] - STEP - FINER * number
                now = difference(mpmath, mpmath.ldexp(1, step))
                if isinstance(now, mpmath.mpc):
                    return math.nan
                if before is not None and _believed(now) and _agree(before, now):
                    return float(now)
                # What is zero but for rounding falls with every digit, and what is zero but for the next term of the
                # difference with the square of the step; what no float holds is zero as well.
                falls = before is not None and abs(now) <= mpmath.ldexp(abs(before), -FINER)
                vanishes = falls or abs(now) < mpmath.mpf(10) ** TINY
            before = now
        if not math.isfinite(float(now)):  # infinite, or beyond what float64 holds
            return float(now)
        if vanishes:
            return 0.0
        raise ArithmeticError(f"the derivative at {self.start} does not settle with {DIGITS[-1]} digits")


def _believed(x: Any) -> bool:
    """Tell whether a number may be taken for true as soon as more digits give it again."""
    import mpmath

    return bool(mpmath.isfinite(x)) and x != 0


def _agree(a: Any, b: Any) -> bool:
    if a == b:
        return True
    return bool(abs(a - b) <= AGREEMENT * abs(b))


# -------------------------------------------------------------------- arguments


def arguments_of(entry: TrueEntry, point: Any) -> dict[str, Any]:
    """Return every argument of a call by name, defaults included."""
    bound = inspect.signature(entry.function).bind(*point.args, **point.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _call(entry: TrueEntry, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by name as a call takes them."""
    bound = inspect.BoundArguments(inspect.signature(entry.function), dict(given))  # type: ignore[arg-type]
    return bound.args, bound.kwargs


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _asked(point: Point, name: str, orders: int) -> tuple[bool, bool]:
    """Return whether the first and the second derivative must be found, or the point says what they are."""
    return orders > 0 and name not in point.first, orders > 1 and name not in point.second


def _given(said: Any, found: Tensor) -> Tensor:
    if said is None:
        return found
    return torch.as_tensor(said, dtype=found.dtype).expand(found.shape)


def _summed_to(x: Tensor, shape: torch.Size) -> Tensor:
    """Return the sum over the dimensions in which an argument was broadcast."""
    return x.sum_to_size(shape)
