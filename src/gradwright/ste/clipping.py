"""Clipping with gradients that are declared at every bound.

What ``torch.clamp`` gives at its bounds has changed between versions of PyTorch, and "straight-through" alone does not
say whether clipped elements get a gradient. Here masks and edges are options (:mod:`~gradwright.ste.masks`), made of
comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError, unknown_choice
from gradwright.ste.masks import EDGES, Edges, Mask, check_mask, passing, working_dtype
from gradwright.ste.parameters import arranged, by_element
from gradwright.ste.rounding import BENGIO

CLIPPING_MASKS: tuple[Mask, ...] = ("none", "range")


def check_bounds(function: str, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the bounds as numbers, an infinite one for None.

    Raises:
        OptionError: both are None, or they do not leave a range.
    """
    if low is None and high is None:
        raise OptionError(f"{function}: low and high are both None; expected a bound; give one of them, or both.")
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    if not least < most:
        raise OptionError(f"{function}: low is {low} and high {high}; expected low < high; exchange them.")
    return least, most


def _bound_points(low: float, high: float, dtype: torch.dtype) -> Tensor:
    """Return the bounds and zero with their neighbours, points in between and far outside."""
    far = torch.tensor([-1e4, 1e4, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    return joined([around(low, 0.0, high, dtype=dtype), grid(2 * low, 2 * high, 9, dtype), far])


# -------------------------------------------------------------------- fixed bounds


def outside(x: Tensor, low: float | None, high: float | None, edges: Edges) -> Tensor:
    """Return whether each element is outside a range (for surrogates); None is no bound."""
    exclusive = edges == "exclusive"
    found = torch.zeros_like(x, dtype=torch.bool)
    if low is not None:
        found |= x <= low if exclusive else x < low
    if high is not None:
        found |= x >= high if exclusive else x > high
    return found


def _clamp_surrogate(
    x: Tensor,
    low: float | None = None,
    high: float | None = None,
    *,
    mask: Mask = "range",
    edges: Edges = "inclusive",
) -> Tensor:
    return x.clone() if mask == "none" else torch.where(outside(x, low, high, edges), 0.0, x)


def _clamp_values(x: Tensor, low: float | None = None, high: float | None = None, **_: Any) -> Tensor:
    return x.double().clamp(low, high)


def _clamp_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _bound_points(-0.5, 2.0, dtype)
    found = [Example((x, -0.5, 2.0), note="usual")]
    found += [
        Example((x, -0.5, 2.0), {"mask": mask, "edges": edges}, f"{mask}, {edges}")
        for mask in CLIPPING_MASKS
        for edges in EDGES
    ]
    numbers = x[:-3]
    found.append(Example((numbers, -0.5), {"edges": "exclusive"}, "low alone"))
    found.append(Example((numbers[:16].reshape(2, 8), None, 2.0), note="high alone"))
    return found


@catalogued(
    forward="out = min(max(x, low), high)",
    gradient={"x": "mask none: g everywhere; range: g where low <= x <= high (exclusive: low < x < high), else 0"},
    surrogate=_clamp_surrogate,
    examples=_clamp_examples,
    values=_clamp_values,
    paper=BENGIO,
)
@custom_gradient
def clamp(
    x: Tensor, low: float | None = None, high: float | None = None, *, mask: Mask = "range", edges: Edges | None = None
) -> Tensor:
    """Clip to a range; the mask says whether clipped elements have a gradient.

    Arguments:
        x: floating point, of any shape.
        low, high: the bounds; None for none.
        mask: ``"range"``: the gradient passes inside the range; ``"none"``: it passes everywhere (straight-through).
        edges: for ``"range"``, whether a value at a bound is inside: ``"inclusive"``, as None means, or
            ``"exclusive"``.

    Returns:
        a tensor like ``x``.

    Raises:
        OptionError: an option has no value that is known, or the bounds leave no range.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-3.0, 0.5, 1.0], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.clamp(x, -1.0, 1.0).sum(), x)
        (tensor([0., 1., 1.]),)
        >>> torch.autograd.grad(gw.ste.clamp(x, -1.0, 1.0, mask="none").sum(), x)
        (tensor([1., 1., 1.]),)
    """
    if mask not in CLIPPING_MASKS:
        raise unknown_choice("clamp: mask", mask, CLIPPING_MASKS)
    check_mask("clamp", mask, edges)
    check_bounds("clamp", low, high)
    return torch.clamp(x, low, high)


@clamp.vjp
def _clamp_vjp(g: Tensor, x: Tensor, low: float | None, high: float | None, mask: Mask, edges: Edges | None) -> Tensor:
    if mask == "none":
        return g
    _, edges = check_mask("clamp", mask, edges)
    with torch.no_grad():  # where the gradient passes is a constant
        keep = passing(x.to(working_dtype(x.dtype)), *check_bounds("clamp", low, high), edges)
    return keep(g.to(working_dtype(x.dtype)))


# -------------------------------------------------------------------- learned bounds


@custom_gradient
def _clamp_learned(x: Tensor, low: Tensor | float, high: Tensor | float, edges: Edges) -> Tensor:
    """Clip to bounds that are broadcast against ``x``; see :func:`clamp_learned`."""
    return _one_of_three(x, low, high, edges)


@_clamp_learned.vjp
def _clamp_learned_vjp(
    g: Tensor, x: Tensor, low: Any, high: Any, edges: Edges, needs: Mapping[str, bool]
) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    with torch.no_grad():  # which of the three the output is, is a constant
        x = x.to(g.dtype)
        not_low, inside = passing(x, low, math.inf, edges), passing(x, low, high, edges)
    grads = {"x": inside(g)}
    if needs["low"]:
        grads["low"] = g - not_low(g)
    if needs["high"]:
        grads["high"] = not_low(g) - grads["x"]
    return grads


def _one_of_three(x: Tensor, low: Any, high: Any, edges: Edges) -> Tensor:
    """Return the lower bound, the upper one or ``x``, whichever an element is clipped to."""
    working_dtype(x.dtype)  # refuses integers, whose bounds would be rounded
    low, high = (torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in (low, high))
    below, above = (x <= low, x >= high) if edges == "exclusive" else (x < low, x > high)
    return torch.where(below, low, torch.where(above, high, x))


def _learned_surrogate(
    x: Tensor, low: Any, high: Any, *, edges: Edges = "exclusive", axis: int | None = None
) -> Tensor:
    _, (low, high) = arranged("clamp_learned", x, (low, high), axis, None)
    return _one_of_three(x, low, high, edges)


def _learned_values(x: Tensor, low: Any, high: Any, *, axis: int | None = None, **_: Any) -> Tensor:
    low, high = (by_element(x, bound, axis, None) for bound in (low, high))
    return torch.where(x < low, low, torch.where(x > high, high, x.double()))


def _learned_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _bound_points(-0.5, 2.0, dtype)
    low, high = torch.tensor(-0.5, dtype=dtype), torch.tensor([2.0], dtype=dtype)
    rows, lows = grid(-2.0, 2.0, 24, dtype).reshape(3, 8), torch.tensor([-1.0, -0.5, 0.125], dtype=dtype)
    rows[:, 0] = lows
    return [
        Example((x, low, high), note="both bounds"),
        Example((x, low, high), {"edges": "inclusive"}, "inclusive"),
        Example((x, 0.0, high), note="high alone"),
        Example((x, low, 2.0), note="low alone"),
        Example((rows, lows, lows + 1), {"axis": 0}, "per channel"),
    ]


@catalogued(
    forward="out = min(max(x, low), high)",
    gradient={
        "x": "g where low < x < high (inclusive: low <= x <= high), else 0",
        "low": "sum of g where x <= low (inclusive: x < low)",
        "high": "sum of g where x >= high (inclusive: x > high)",
    },
    surrogate=_learned_surrogate,
    examples=_learned_examples,
    values=_learned_values,
    paper="PACT: Choi et al. 2018, arXiv 1805.06085",
)
def clamp_learned(
    x: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    *,
    edges: Edges = "exclusive",
    axis: int | None = None,
) -> Tensor:
    """Clip to bounds that may be learned; what is clipped moves its bound.

    Each element's gradient goes to exactly one of the three: to a bound where it is clipped, else to ``x``.

    Arguments:
        x: floating point, of any shape.
        low, high: the bounds, ``low < high``; one number or scalar tensor, or with ``axis`` one for each slice.
        edges: whether a value at a bound is inside: ``"exclusive"``, where the bound gets its gradient, or
            ``"inclusive"``, where ``x`` does.
        axis: the dimension along which the bounds change.

    Returns:
        a tensor like ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of a bound does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x, high = torch.tensor([-1.0, 0.5, 6.0, 9.0]), torch.tensor(6.0, requires_grad=True)
        >>> torch.autograd.grad(gw.ste.clamp_learned(x, 0.0, high).sum(), high)
        (tensor(2.),)
    """
    if edges not in EDGES:
        raise unknown_choice("clamp_learned: edges", edges, EDGES)
    _, (least, most) = arranged("clamp_learned", x, (low, high), axis, None)
    assert least is not None
    assert most is not None
    return _clamp_learned(x, least, most, edges)


# -------------------------------------------------------------------- a gradient that leads back into the range


def _inward_surrogate(x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    return x.clone()


def inward_cotangent(g: Tensor, x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """Return the cotangent where it leads back into a range, else zero."""
    lost = outside(x, low, None, "inclusive") & (g > 0) | outside(x, None, high, "inclusive") & (g < 0)
    return g * ~lost


def _inward_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _bound_points(-0.5, 2.0, dtype)
    pairs = x.repeat_interleave(4)  # so that both signs of the cotangent occur at each
    return [Example((pairs, -0.5, 2.0)), Example((pairs, -0.5), note="low alone"), Example((x, None, 2.0), note="high")]


@catalogued(
    forward="out = min(max(x, low), high)",
    gradient={"x": "0 where x < low and g > 0 or x > high and g < 0, else g"},
    surrogate=_inward_surrogate,
    cotangent=inward_cotangent,
    examples=_inward_examples,
    values=_clamp_values,
    second_order="raises",
    paper="the practice of optimising images, for example under CLIP; cf. Ballé et al. 2017, arXiv 1611.01704",
)
@custom_gradient(double_backward="once", forward_mode="none")
def clamp_inward(x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """Clip to a range; what is clipped still gets the gradients that lead back into the range.

    The gradient passes inside the range, and outside of it where a step of gradient descent moves ``x`` towards the
    range. It is not linear in the cotangent ``g``, whose sign decides: there is no forward mode, and no second
    derivative. With an inverted loss (gradient ascent) put a minus before the loss, not behind the gradient.

    Arguments:
        x: floating point, of any shape.
        low, high: the bounds; None for none.

    Returns:
        a tensor like ``x``.

    Raises:
        OptionError: the bounds leave no range.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([3.0, 3.0], requires_grad=True)
        >>> torch.autograd.grad(gw.ste.clamp_inward(x, -1.0, 1.0), x, torch.tensor([0.5, -0.5]))
        (tensor([0.5000, 0.0000]),)
    """
    check_bounds("clamp_inward", low, high)
    return torch.clamp(x, low, high)


@clamp_inward.vjp
def _clamp_inward_vjp(g: Tensor, x: Tensor, low: float | None, high: float | None) -> Tensor:
    x, g = x.to(working_dtype(x.dtype)), g.to(working_dtype(x.dtype))
    least, most = check_bounds("clamp_inward", low, high)
    not_below, not_above = passing(x, least, math.inf, "inclusive"), passing(x, -math.inf, most, "inclusive")
    return not_below(torch.relu(g)) - not_above(torch.relu(-g))
