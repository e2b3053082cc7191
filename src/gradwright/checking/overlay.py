"""Curves of a function that works element by element: its value, and what its rule gives beside true differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.companions import companion_pass
from gradwright.checking.pattern import find_pattern
from gradwright.checking.shown import Curves, Line
from gradwright.checking.tensors import from_flat, to_flat

POINTS = 121
MAX_CALLS = 24
"""Forwards that the values of a curve may take; a sample of few elements gives fewer points."""
EVALUATIONS = 8 * MAX_CALLS
STEP = 1e-4
"""Of the differences, as a fraction of the range."""
STEEP = 4.0
"""Where the slopes of two steps are farther apart than by this factor, the function jumps and there is none."""


def curves(case: Case) -> tuple[Curves, ...]:
    """Return the value of a function of one number over the range of its sample, and its derivatives.

    Empty unless the case has a single output, of the shape of an input of which each element moves its own output
    alone, the same for all elements. Nothing outside the range of the sample is asked for: more may not be meant.
    """
    k = _variable(case)
    if k is None:
        return ()
    sample = case.base[k].to(torch.float64)
    low, high = float(sample.min()), float(sample.max())
    if not low < high or not math.isfinite(high - low):
        return ()
    x = torch.linspace(low, high, min(POINTS, MAX_CALLS * case.n[k]), dtype=torch.float64)
    ones = torch.ones(case.m, dtype=torch.float64)
    value = _along(case, k, x, lambda flat: case.value({k: flat}))
    rule = _along(case, k, x, lambda flat: case.pull_all(ones, {k: flat})[k])
    lines = [Line("forward", value)]
    slopes = [Line("used by backward", rule), Line("true, by differences", _differences(case, k, x))]
    if case.sample.surrogate is not None:
        lines.append(Line("surrogate", _along(case, k, x, lambda flat: _surrogate(case, k, flat)[0])))
        slopes.append(Line("of the surrogate", _along(case, k, x, lambda flat: _surrogate(case, k, flat)[1])))
    name, at = case.inputs[k].name, tuple(x.tolist())
    said = "Value of forward and of the surrogate" if len(lines) > 1 else "Value of forward"
    return (
        Curves(f"{said} over `{name}`.", name, "value", at, tuple(lines)),
        Curves("Derivative: what backward uses, and the true one.", name, "slope", at, tuple(slopes)),
    )


def _variable(case: Case) -> int | None:
    """Return the number of the input that the output is a function of, element by element."""
    if case.n_outputs != 1 or case.detached or case.draws or case.outputs[0].dtype.is_complex:
        return None
    fitting = [k for k, item in enumerate(case.inputs) if item.tensor.shape == case.outputs[0].shape]
    others = [k for k in range(len(case.inputs)) if k not in fitting[:1] and case.n[k] > 1]
    if len(fitting) != 1 or others or case.n[fitting[0]] < 2 or case.inputs[fitting[0]].tensor.is_complex():
        return None
    k = fitting[0]
    same = case.value({k: case.base[k][:1].expand_as(case.base[k]).contiguous()})
    alone = find_pattern(case, k, 0).groups == 1 and bool((same == same[0]).all())
    return k if alone else None


def _along(case: Case, k: int, x: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[float, ...]:
    """Evaluate a function of the whole input at points, as many at a time as the input has elements."""
    n = case.n[k]
    found = []
    for start in range(0, len(x), n):
        part = x[start : start + n]
        flat = torch.cat([part, part[-1:].expand(n - len(part))]).to(case.base[k].dtype)
        found.append(function(flat)[: len(part)])
    return tuple(torch.cat(found).tolist())


def _differences(case: Case, k: int, x: Tensor) -> tuple[float, ...]:
    """Return central differences, NaN where two steps tell that there is a jump."""
    exact = case.base[k].dtype == torch.float64
    h = (STEP if exact else 30 * STEP) * float(x[-1] - x[0])

    def slope(step: float) -> Tensor:
        inside = x.clamp(float(x[0]) + step, float(x[-1]) - step)
        above, below = (_along(case, k, inside + sign * step, lambda flat: case.value({k: flat})) for sign in (1, -1))
        return (torch.tensor(above, dtype=torch.float64) - torch.tensor(below, dtype=torch.float64)) / (2 * step)

    wide, narrow = slope(h), slope(h / 8)
    size = torch.maximum(wide.abs(), narrow.abs())
    typical = float(size.nanmedian())
    jumps = (size > STEEP * torch.minimum(wide.abs(), narrow.abs())) & (size > STEEP * typical)
    return tuple(torch.where(jumps, math.nan, narrow).tolist())


def _surrogate(case: Case, k: int, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value and the derivative of the declared surrogate."""
    run = companion_pass(case, "surrogate", {k: from_flat(flat, case.inputs[k].tensor)})
    out = run.outputs[0]
    if not out.requires_grad:
        return to_flat(out).to(torch.float64), torch.zeros(case.m, dtype=torch.float64)
    with case.sandbox():
        (slope,) = torch.autograd.grad(out, run.inputs[k], torch.ones_like(out), materialize_grads=True)
    return to_flat(out.detach()).to(torch.float64), to_flat(slope).to(torch.float64)
