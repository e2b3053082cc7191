"""Where two estimators differ, on the user's own tensors: values, and the gradients that are really returned."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradwright.errors import ArgumentError

RANGES = 6
EXAMPLES = 3
"""How many are kept of each."""


@dataclass(frozen=True)
class Range:
    """Neighbouring values of ``x`` (when sorted) at all of which something differs."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Example:
    """One element that differs."""

    index: tuple[int, ...]
    x: float | None
    """The element of ``x``; None where what differs has another shape."""
    a: float
    b: float


@dataclass(frozen=True)
class Difference:
    """How two tensors differ, element by element."""

    what: str
    """``value``, or the name of what the gradient is of."""
    total: int
    differing: int
    """How many differ by more than rounding."""
    rounding: int
    """How many differ, but by no more than that."""
    largest: float
    ranges: tuple[Range, ...]
    """Where in ``x``, the widest populated first kept, in the order of ``x``."""
    more_ranges: int
    examples: tuple[Example, ...]

    @property
    def fraction(self) -> float:
        """The fraction of elements that differ by more than rounding."""
        return self.differing / self.total if self.total else 0.0


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found; ``str`` of it is for reading."""

    a: str
    b: str
    dtypes: tuple[str, str]
    value: Difference
    gradients: Mapping[str, Difference]
    """By the name of an argument or of a parameter."""
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    """Names of what only one of the two gives a gradient."""

    @property
    def same(self) -> bool:
        """Whether nothing differs by more than rounding."""
        alike = self.dtypes[0] == self.dtypes[1] and not (self.only_a or self.only_b)
        return alike and not any(d.differing for d in (self.value, *self.gradients.values()))

    def __str__(self) -> str:
        lines = [f"a = {self.a}, b = {self.b}"]
        if self.dtypes[0] != self.dtypes[1]:
            lines.append(f"dtype of the value: {self.dtypes[0]} in a, {self.dtypes[1]} in b")
        lines += _told("value", self.value)
        for name, difference in self.gradients.items():
            lines += _told(f"gradient of {name}", difference)
        for who, names in (("a", self.only_a), ("b", self.only_b)):
            lines += [f"gradient of {name}: only {who} has one" for name in names]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, text, lists and dicts, ready for JSON; what is not finite is text."""
        return {
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "dtypes": list(self.dtypes),
            "value": _as_dict(self.value),
            "gradients": {name: _as_dict(difference) for name, difference in self.gradients.items()},
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }


def compare(
    a: Callable[..., Tensor],
    b: Callable[..., Tensor],
    x: Tensor,
    *others: Any,
    cotangent: Tensor | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Comparison:
    """Show where the values and the gradients of two estimators differ on given tensors.

    Arguments:
        a, b: functions or modules; ``functools.partial`` gives one options of its own.
        x: floating point; the elements are what differences are located by.
        others: more arguments for both, for example a step; floating tensors among them are compared in their gradients
            too. So are tensors that ``functools.partial`` holds by name, and the parameters of modules; a copy of these
            runs.
        cotangent: the gradient of the loss with respect to the output; None is ones.
        tolerance: the relative difference that is taken for rounding; None is 8 units of the coarser dtype, and the
            square root of that many more for a gradient that is summed over many elements.
        seed: of the random numbers that either draws.
        options: more keyword arguments for both.

    Returns:
        the differences; print them.

    Raises:
        ArgumentError: ``x`` is not floating point, or the outputs have different shapes.

    Example:
        >>> import functools, torch, gradwright as gw
        >>> quantize = functools.partial(gw.ste.fake_quantize, scale=0.5, low=-4, high=3)
        >>> lsq = functools.partial(quantize, mask="pre-round")
        >>> print(gw.ste.compare(quantize, lsq, torch.tensor([0.3, 1.6, 1.7, 9.0])))
        a = fake_quantize(scale=0.5, low=-4, high=3), b = fake_quantize(scale=0.5, low=-4, high=3, mask='pre-round')
        value: the same in all of 4 elements
        gradient of x: 2 of 4 elements differ (50 %), by 1 at most
          where x is 1.6 to 1.7 (2)
          [1] x = 1.6: a 1, b 0
          [2] x = 1.7: a 1, b 0
    """
    if not x.is_floating_point():
        raise ArgumentError(f"compare: x is {x.dtype}; expected a floating-point tensor.")
    names = _names(a, len(others))
    first, second = (_run(f, x, others, options, names, cotangent, seed) for f in (a, b))
    if first.out.shape != second.out.shape:
        raise ArgumentError(
            f"compare: the outputs have shapes {tuple(first.out.shape)} and {tuple(second.out.shape)}; expected one."
        )
    place = x.detach()
    gradients = {
        name: _difference(name, grad, second.grads[name], place, tolerance)
        for name, grad in first.grads.items()
        if name in second.grads and grad.shape == second.grads[name].shape
    }
    return Comparison(
        _called(a),
        _called(b),
        (_short(first.out.dtype), _short(second.out.dtype)),
        _difference("value", first.out, second.out, place, tolerance),
        gradients,
        tuple(name for name in first.grads if name not in gradients),
        tuple(name for name in second.grads if name not in gradients),
    )


# -------------------------------------------------------------------- running them


@dataclass(frozen=True)
class _Outcome:
    out: Tensor
    grads: dict[str, Tensor]


def _run(
    function: Callable[..., Tensor],
    x: Tensor,
    others: tuple[Any, ...],
    options: Mapping[str, Any],
    names: list[str],
    cotangent: Tensor | None,
    seed: int,
) -> _Outcome:
    """Return the output and the gradients of the arguments and parameters, those that there are."""
    leaves: dict[str, Tensor] = {}

    def own(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        leaves[name] = value.detach().clone().requires_grad_()
        return leaves[name]

    args = [own(name, value) for name, value in zip(names, (x, *others))]
    held = function.keywords if isinstance(function, functools.partial) else {}
    kwargs = {name: own(name, value) for name, value in {**held, **options}.items()}
    module = function.func if isinstance(function, functools.partial) else function
    if isinstance(module, nn.Module):
        module = copy.deepcopy(module)  # it may keep something of what it sees, such as the first data
        function = functools.partial(module, *function.args) if isinstance(function, functools.partial) else module
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                leaves[f"parameter {name}" if name in leaves else name] = parameter
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.enable_grad():
        torch.manual_seed(seed)
        out = function(*args, **kwargs)
        if not isinstance(out, Tensor):
            raise ArgumentError(f"compare: {_called(function)} returned {type(out).__name__}; expected one tensor.")
        if not out.is_floating_point():
            raise ArgumentError(
                f"compare: {_called(function)} returned a tensor of {out.dtype}; expected a floating-point one; to "
                "compare values alone, let it return `.float()`."
            )
        grads: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if out.requires_grad and leaves:
            g = torch.ones_like(out) if cotangent is None else cotangent.to(out.device, out.dtype).expand_as(out)
            grads = torch.autograd.grad(out, list(leaves.values()), g, allow_unused=True)
    return _Outcome(out.detach(), {name: grad for name, grad in zip(leaves, grads) if grad is not None})


def _names(function: Callable[..., Any], others: int) -> list[str]:
    """Return names for the arguments: ``x``, and what a function calls the others."""
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        known = list(inspect.signature(target).parameters)[1 : others + 1]
    except (TypeError, ValueError):
        known = []
    return ["x", *known, *(f"argument {number + 1}" for number in range(len(known) + 1, others + 1))]


def _called(function: Callable[..., Any]) -> str:
    """Return what to call a function, with the options of a partial one."""
    if isinstance(function, nn.Module):
        return repr(function)
    inner, keywords = (function.func, function.keywords) if isinstance(function, functools.partial) else (function, {})
    name = str(getattr(inner, "__name__", type(inner).__name__))
    shown = [
        f"{key}={_short_tensor(value) if isinstance(value, Tensor) else repr(value)}" for key, value in keywords.items()
    ]
    return f"{name}({', '.join(shown)})" if shown else name


# -------------------------------------------------------------------- what differs


def _difference(what: str, a: Tensor, b: Tensor, x: Tensor, tolerance: float | None) -> Difference:
    """Compare two tensors of one shape."""
    if tolerance is None:
        terms = max(x.numel() / max(a.numel(), 1), 1.0)
        tolerance = 8 * max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps) * terms**0.5
    first, second = a.double().reshape(-1), b.double().reshape(-1)
    unequal = ~((first == second) | (first.isnan() & second.isnan()))
    size = torch.maximum(first.abs(), second.abs())
    # An infinite number differs from every other by more than rounding; so does nan, which no comparison holds for.
    far = unequal & ~(((first - second).abs() <= tolerance * size) & size.isfinite())
    where = x.reshape(-1).double() if a.shape == x.shape else None
    ranges = [] if where is None else _ranges(where, far)
    kept = sorted(sorted(ranges, key=lambda r: -r.count)[:RANGES], key=lambda r: r.low)
    chosen = far.nonzero().reshape(-1)
    gap = (first - second).abs()[chosen]
    return Difference(
        what,
        a.numel(),
        len(chosen),
        int(unequal.sum()) - len(chosen),
        float(gap.max()) if len(chosen) else 0.0,
        tuple(kept),
        len(ranges) - len(kept),
        tuple(
            Example(
                tuple(int(i) for i in torch.unravel_index(position, a.shape)),
                None if where is None else float(where[position]),
                float(first[position]),
                float(second[position]),
            )
            for position in chosen[:EXAMPLES]
        ),
    )


def _ranges(x: Tensor, differs: Tensor) -> list[Range]:
    """Return the runs of neighbouring values of ``x`` at which all elements differ."""
    values, order = x.sort()
    marks = differs[order]
    # Of equal values some may differ and others not (for different steps): those do not end a run.
    unique, group = values.unique_consecutive(return_inverse=True)
    counts = torch.zeros(len(unique), dtype=torch.int64, device=x.device).index_add_(0, group, marks.to(torch.int64))
    found: list[Range] = []
    marked = torch.cat([torch.tensor([0]), (counts > 0).to(torch.int64).cpu(), torch.tensor([0])]).diff()
    sums = torch.cat([torch.tensor([0]), counts.cpu().cumsum(0)])
    for start, end in zip((marked == 1).nonzero().reshape(-1).tolist(), (marked == -1).nonzero().reshape(-1).tolist()):
        found.append(Range(float(unique[start]), float(unique[end - 1]), int(sums[end] - sums[start])))
    return found


# -------------------------------------------------------------------- telling it


def _told(what: str, difference: Difference) -> list[str]:
    """Return the lines about one difference."""
    d = difference
    tail = f"; {d.rounding} more by rounding" if d.rounding else ""
    if not d.differing:
        alike = f"the same in all of {d.total} elements" if d.total != 1 else "the same"
        return [f"{what}: {alike}" + (f", {d.rounding} of them up to rounding" if d.rounding else "")]
    share = f"{d.differing} of {d.total} elements differ ({_percent(d.fraction)})" if d.total != 1 else "differs"
    lines = [f"{what}: {share}, by {d.largest:.4g} at most{tail}" if d.total != 1 else f"{what}: differs{tail}"]
    spans = [f"{r.low:.6g}" + (f" to {r.high:.6g}" if r.low < r.high else "") + f" ({r.count})" for r in d.ranges]
    if spans:
        more = f", and {d.more_ranges} more ranges" if d.more_ranges else ""
        lines.append(f"  where x is {', '.join(spans)}{more}")
    for example in d.examples:
        index = f"[{', '.join(map(str, example.index))}] " if example.index else ""
        at = "" if example.x is None else f"x = {example.x:.6g}: "
        lines.append(f"  {index}{at}a {example.a:.6g}, b {example.b:.6g}")
    return lines


def _percent(fraction: float) -> str:
    percent = 100 * fraction
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.2g} %"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short_tensor(value: Tensor) -> str:
    return f"{value.item():g}" if value.numel() == 1 else f"tensor{tuple(value.shape)}"


def _as_dict(difference: Difference) -> dict[str, Any]:
    d = difference
    return {
        "what": d.what,
        "total": d.total,
        "differing": d.differing,
        "fraction": d.fraction,
        "rounding": d.rounding,
        "largest": _number(d.largest),
        "ranges": [{"low": _number(r.low), "high": _number(r.high), "count": r.count} for r in d.ranges],
        "more_ranges": d.more_ranges,
        "examples": [
            {"index": list(e.index), "x": _number(e.x), "a": _number(e.a), "b": _number(e.b)} for e in d.examples
        ],
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or value - value == 0 else str(value)
