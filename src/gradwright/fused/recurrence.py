"""Linear recurrences, ``h[t] = a[t] h[t - 1] + b[t]``, for the price of reading and writing them.

A loop in Python over ``a[t]`` selects each row from the whole, and PyTorch fills a tensor of zeros for the gradient of
each (pytorch#9701). The gradient is again a recurrence, from the end: with ``s[t] = g[t] + a[t + 1]* s[t + 1]`` it is
``s`` for ``b``, ``s[t] h[t - 1]*`` for ``a`` and ``a[0]* s[0]`` for the state before the first step. So all orders are
made of one function, and ``b`` is not kept.

In eager mode rows are worked on in blocks that stay in the cache, each as a tree (:mod:`~gradwright.fused.sweep`).
There, ``a`` is multiplied over many steps; where such a product leaves the range of the dtype, or a state could grow
back from below it, which is seen, the block is run through row by row. Compiled code and transforms have a formula of
as many steps as ``log(n)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, grid
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError
from gradwright.fused.route import by_hand
from gradwright.fused.sweep import Block, Desk, blocks, pairs, put
from gradwright.stable.arguments import not_a_tensor, require_dim, widened

WIDE = 4096
"""How many numbers side by side make a call for each row as fast as a tree, with its twice the arithmetic."""
PART = 8
"""How many steps are written out one by one in the formula: with more, compiling takes longer."""

# -------------------------------------------------------------------- along the first dimension


@custom_gradient
def recurrence(a: Tensor, b: Tensor, initial: Tensor | None, reverse: bool, late: bool) -> Tensor:
    """Return ``h[t] = a[t] h[t - 1] + b[t]`` along the first dimension, from the end with ``reverse``.

    With ``late`` each step has the factor of the one before it, ``h[t] = a[t - 1] h[t - 1] + b[t]``: the transpose of
    the one in the one direction is the other in the other direction. It has no initial state.
    """
    if not b.numel():
        return torch.empty_like(b)
    if by_hand(a, b, initial):
        return _in_blocks(a, b, initial, reverse, late)
    return _as_formula(a, b, initial, reverse, late)


@recurrence.vjp
def recurrence_vjp(
    g: Tensor, a: Tensor, initial: Tensor | None, out: Tensor, reverse: bool, late: bool, needs: dict[str, bool]
) -> dict[str, Tensor | None]:
    s = recurrence(a.conj(), g, None, not reverse, not late)
    found: dict[str, Tensor | None] = {"a": None, "b": s, "initial": None}
    if needs["a"] and late:
        found["a"] = times_previous(out.conj(), s, None, not reverse)
    elif needs["a"]:
        found["a"] = times_previous(s, out.conj(), None if initial is None else initial.conj(), reverse)
    if needs["initial"]:
        *_, first = neighbours(reverse)
        found["initial"] = (a[first].conj() * s[first]).sum(0)  # of one row, or of none
    return found


@recurrence.jvp
def recurrence_jvp(
    t: dict[str, Tensor | None], a: Tensor, initial: Tensor | None, out: Tensor, reverse: bool, late: bool
) -> Tensor:
    source = torch.zeros_like(out) if t["b"] is None else t["b"]
    if t["a"] is not None:
        moved = previous(t["a"] * out, None, reverse) if late else t["a"] * previous(out, initial, reverse)
        source = source + moved
    return recurrence(a, source, t["initial"], reverse, late)


def previous(x: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
    """Return for each row the one before it, and ``first`` (or zeros) for the first."""
    row = torch.zeros_like(x[:1]) if first is None else first.unsqueeze(0)
    return torch.cat([x, row])[1:] if reverse else torch.cat([row, x])[:-1]


def neighbours(reverse: bool) -> tuple[slice, slice, slice]:
    """Return the rows that have one before them, those before them, and the first row."""
    if reverse:
        return slice(None, -1), slice(1, None), slice(-1, None)
    return slice(1, None), slice(None, -1), slice(0, 1)


def times_previous(x: Tensor, y: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
    """Return ``x[t] y[t - 1]``, with ``first`` (or zeros) before the first row."""
    here, before, end = neighbours(reverse)
    if torch.is_grad_enabled() or not by_hand(x, y, first):
        row = torch.zeros_like(x[end]) if first is None else x[end] * first  # not a product: 0 times inf is nan
        rest = x[here] * y[before]
        return torch.cat([rest, row] if reverse else [row, rest])
    out = torch.empty_like(x)
    torch.mul(x[here], y[before], out=out[here])
    if first is None:
        out[end].zero_()
    else:
        torch.mul(x[end], first, out=out[end])
    return out


# -------------------------------------------------------------------- in blocks


def _in_blocks(a: Tensor, b: Tensor, initial: Tensor | None, reverse: bool, late: bool) -> Tensor:
    out = torch.empty_like(b)
    desk, other, state = Desk(out), Desk(out), initial
    if desk.direct and a.dtype == out.dtype and out[0].numel() >= WIDE:
        _row_by_row(_factors(a, Block((), slice(0, len(b)), True), reverse, late), b, initial, out, reverse)
        return out
    last = 0 if reverse else -1
    for block in blocks(out, reverse):
        if block.begins:
            state = None if initial is None else widened(initial[block.columns])
        factors, added, own = _factors(a, block, reverse, late), b[block.index], desk.rows(block)
        growth = _as_a_tree(_copied(factors, other.buffer(own), reverse), put(own, added), state, reverse)
        if growth > _room(own.dtype) or not bool(own.sum().isfinite()):
            _row_by_row(_copied(factors, other.buffer(own), reverse), put(own, added), state, own, reverse)
        state = own[last] if desk.direct else own[last].clone()
        desk.done(block, own)
    return out


def _factors(a: Tensor, block: Block, reverse: bool, late: bool) -> Tensor:
    """Return the factors of the rows of a block; the first row of all has none with ``late``."""
    if not late:
        return a[block.index]
    start, stop = block.rows.start, block.rows.stop
    rows = slice(start + 1, stop + 1) if reverse else slice(max(start - 1, 0), stop - 1)
    return a[replace(block, rows=rows).index]


def _copied(factors: Tensor, buffer: Tensor, reverse: bool) -> Tensor:
    """Return the buffer with the factors, and zero where there is none."""
    if reverse:
        put(buffer[: len(factors)], factors)
        buffer[len(factors) :].zero_()
    else:
        missing = len(buffer) - len(factors)
        buffer[:missing].zero_()
        put(buffer[missing:], factors)
    return buffer


def _as_a_tree(a: Tensor, h: Tensor, state: Tensor | None, reverse: bool) -> float:
    """Turn what is added into the states, in place, and the factors into products of them.

    Returned is a bound on how much a state may grow over any number of steps, as a logarithm to base 2. Of each number
    of steps that is joined at one time, they contain at most two products.
    """
    growth, first = _bits(a), -1 if reverse else 0
    watched = growth > 0
    if state is not None:
        h[first].addcmul_(a[first], state)
    for late, early, level in pairs(len(h), reverse):
        h[late].addcmul_(a[late], h[early])
        if level:
            a[late].mul_(a[early])
            growth += _bits(a[late]) if watched else 0.0
    return 2 * growth


def _bits(factors: Tensor) -> float:
    """Return the logarithm to base 2 of the largest factor, or 0 where none is above 1."""
    sizes = factors.abs() if factors.is_complex() else factors
    top = max(float(sizes.amax()), -float(sizes.amin()))  # in a quarter of the time of torch.aminmax
    return math.log2(top) if top > 1 else 0.0


def _room(dtype: torch.dtype) -> float:
    """Return the growth, as a logarithm, up to which what a product lost to underflow is not seen.

    What a state has lost by it is below the least normal number, and stays below the rounding of the largest state.
    """
    info = torch.finfo(dtype)
    return math.log2(info.eps / info.tiny)


def _row_by_row(a: Tensor, b: Tensor, state: Tensor | None, out: Tensor, reverse: bool) -> None:
    order = slice(None, None, -1 if reverse else 1)
    factors, added, places = a.unbind()[order], b.unbind()[order], out.unbind()[order]
    if state is None:
        state = places[0].copy_(added[0])
        added, places = added[1:], places[1:]
    for factor, own, place in zip(factors[len(factors) - len(places) :], added, places):
        state = torch.addcmul(own, factor, state, out=place)


# -------------------------------------------------------------------- as a formula


def _as_formula(a: Tensor, b: Tensor, initial: Tensor | None, reverse: bool, late: bool) -> Tensor:
    dtype = b.dtype
    b = widened(b)
    a = a.to(b.dtype)
    if reverse:
        a, b = a.flip(0), b.flip(0)
    if late:
        a = previous(a, None, False)
    if initial is not None:
        b = torch.cat([torch.addcmul(b[:1], a[:1], initial.to(b.dtype).unsqueeze(0)), b[1:]])
    out = _by_parts(a, b)
    return (out.flip(0) if reverse else out).to(dtype)


def _by_parts(a: Tensor, b: Tensor) -> Tensor:
    """Return the recurrence from that of the ends of its parts, which is as much shorter as a part has steps.

    Each part is run through from zero, and once more from the state before it. All parts are at the same step, so that
    there are few operations, which a compiler joins into one.
    """
    size, shape = b.shape[0], b.shape[1:]
    if size <= PART:
        return torch.stack(_steps(a.unbind(), b.unbind(), None))
    count = size // PART
    whole = count * PART
    factors = a[:whole].reshape(count, PART, *shape).unbind(1)
    added = b[:whole].reshape(count, PART, *shape).unbind(1)
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    ends = _by_parts(product, _steps(factors, added, None)[-1])
    states = _steps(factors, added, previous(ends, None, False))
    found = torch.stack(states, 1).reshape(whole, *shape)
    if whole == size:
        return found
    return torch.cat([found, torch.stack(_steps(a[whole:].unbind(), b[whole:].unbind(), ends[-1]))])


def _steps(a: Sequence[Tensor], b: Sequence[Tensor], state: Tensor | None) -> list[Tensor]:
    found = []
    for factor, added in zip(a, b):
        state = added if state is None else torch.addcmul(added, factor, state)
        found.append(state)
    return found


# -------------------------------------------------------------------- for users


def _loop(a: Tensor, b: Tensor, initial: Tensor | None = None, *, dim: int, reverse: bool = False) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    order = slice(None, None, -1 if reverse else 1)
    h, found = initial, []
    for factor, added in zip(a.unbind(dim)[order], b.unbind(dim)[order]):
        h = added if h is None else factor * h + added
        found.append(h)
    return torch.stack(found[order], dim)


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    a, b = grid(-0.75, 1.25, 30, dtype).reshape(5, 3, 2), grid(-2.0, 1.5, 30, dtype).flip(0).reshape(5, 3, 2)
    start = grid(-1.0, 1.0, 6, dtype).reshape(3, 2)
    return [
        Point((a, b), {"dim": 0}, note="ordinary"),
        Point((a, b, start), {"dim": 0}, note="an initial state"),
        Point((a, b, start[:1]), {"dim": 0, "reverse": True}, note="from the end, a state for all rows"),
        Point((a[0, 0], b), {"dim": 1, "reverse": True}, note="a broadcast"),
        Point((a, b[:, :, :1], grid(-1.0, 1.0, 5, dtype).reshape(5, 1)), {"dim": -2}, note="b broadcast"),
        Point((grid(-1.5, 1.5, 66, dtype), grid(-1.0, 2.0, 66, dtype)), {"dim": 0}, note="longer than a block"),
        Point((a[:1], b[:1], start), {"dim": 0}, note="one step"),
        Point((a.masked_fill(a < 0, 0.0), b), {"dim": 0}, note="zeros, where the state is forgotten"),
    ]


@cheaper(
    forward="out[t] = a[t] out[t - 1] + b[t]",
    gradient={
        "a": "s[t] out[t - 1], s[t] = g[t] + a[t + 1] s[t + 1]",
        "b": "s",
        "initial": "a[0] s[0]",
    },
    replaces=_loop,
    goal=Goal(time=0.5, kept=0.5),
    domain="finite numbers, whose products over some steps stay in the range of the dtype in compiled code",
    bars=relative(1e-12, 1e-6, *HALF),
    measure="tensor",
    examples=_examples,
    ordinary=lambda: (torch.rand(1024, 8, 256), torch.randn(1024, 8, 256)),
    options={"dim": 0},
    paper="Blelloch 1990, Prefix sums and their applications; Martin and Cundy 2018, arXiv:1709.04057; pytorch#9701",
)
def linear_recurrence(
    a: Tensor, b: Tensor, initial: Tensor | None = None, *, dim: int, reverse: bool = False
) -> Tensor:
    """Return the states of ``h[t] = a[t] h[t - 1] + b[t]``, with what is kept being ``a`` and the states.

    It is the core of gated recurrent layers and of state-space models such as LRU, S4 and Mamba. A state does not
    enter its own factor: ``a`` and ``b`` are known before the first step.

    Arguments:
        a: the factors, floating point or complex.
        b: what is added; both are broadcast.
        initial: the state before the first step, without ``dim``, broadcast as well; None for zero.
        dim: the dimension of the steps, counted in the broadcast shape.
        reverse: whether it runs from the end: ``h[t] = a[t] h[t + 1] + b[t]``.

    Returns:
        all states, of the broadcast shape and the common dtype.

    Raises:
        ArgumentError: a tensor is of integers, or shapes do not fit.

    Example:
        A gated recurrent layer and a selective state-space scan, each without a loop:

        >>> import torch, gradwright as gw
        >>> gate, new = torch.rand(8, 100, 32), torch.randn(8, 100, 32)  # batch, time, channel
        >>> h = gw.fused.linear_recurrence(gate, (1 - gate) * new, dim=1)
        >>> step, A, Bu = torch.rand(8, 100, 32, 1), -torch.rand(32, 16), torch.randn(8, 100, 32, 16)
        >>> h = gw.fused.linear_recurrence(torch.exp(step * A), step * Bu, dim=1)
        >>> h.shape
        torch.Size([8, 100, 32, 16])
    """
    given = {"a": a, "b": b} if initial is None else {"a": a, "b": b, "initial": initial}
    _require_numbers(given)
    require_dim("linear_recurrence", dim)
    dtype = a.dtype
    for x in given.values():
        dtype = torch.promote_types(dtype, x.dtype)
    try:
        a, b = torch.broadcast_tensors(a.to(dtype), b.to(dtype))
    except RuntimeError:
        raise ArgumentError(
            f"linear_recurrence: a has the shape {tuple(a.shape)} and b {tuple(b.shape)}; expected shapes that can be "
            "broadcast; add dimensions of size 1 where one is constant."
        ) from None
    if b.dim() == 0:
        raise ArgumentError(
            "linear_recurrence: a and b have no dimension; expected one of steps; write a * initial + b for one step."
        )
    a, b = a.movedim(dim, 0), b.movedim(dim, 0)
    if initial is not None:
        initial = _expanded(initial.to(dtype), b.shape[1:])
    return recurrence(a, b, initial, reverse, False).movedim(0, dim)


def _require_numbers(given: dict[str, Tensor]) -> None:
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise not_a_tensor("linear_recurrence", name, x, "a floating-point or complex tensor")
        if not (x.is_floating_point() or x.is_complex()):
            raise ArgumentError(
                f"linear_recurrence: {name} is {x.dtype}; expected a floating-point or complex tensor; convert it."
            )


def _expanded(initial: Tensor, shape: torch.Size) -> Tensor:
    try:
        return initial.expand(shape)
    except RuntimeError:
        raise ArgumentError(
            f"linear_recurrence: initial has the shape {tuple(initial.shape)}; expected one that can be broadcast to "
            f"that of a step, {tuple(shape)}; leave away the dimension of the steps."
        ) from None
