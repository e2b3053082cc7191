"""Functions that are evaluated only where a mask selects, so that what is not taken cannot spoil a gradient.

``torch.where(mask, f(x), fill)`` evaluates ``f`` everywhere, and its backward multiplies the derivative by zero where
the mask is false; where that derivative is infinite or nan, so is the product (pytorch#52248, #68425). Here ``f`` never
sees what the mask leaves out. In its place it gets what its tensors hold, all of them together, at one place that is
selected, where ``f`` is wanted anyway. What it returns for that is dropped, and so is the gradient on both sides of it.
Shapes stay as they are, so that ``vmap`` and ``torch.compile`` have nothing to refuse, as they have with ``x[mask]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.exact import HALF, Point, exact, ulps
from gradwright.errors import ArgumentError, kind_of
from gradwright.stable.places import called, check, combined, results, substituted

Dim: TypeAlias = int | tuple[int, ...] | list[int] | None

PAPER = "pytorch#52248, #68425, #187297, #156212; the double where of the JAX FAQ, with a safe point that is found"


# -------------------------------------------------------------------- what is declared


def _true_masked(mp: Any, f: Any, mask: bool, x: Any, fill: Any = 0, **_: Any) -> Any:
    return getattr(mp, f.__name__)(x) if mask else mp.mpf(fill)


def _true_where(mp: Any, mask: bool, f: Any, g: Any, x: Any, **_: Any) -> Any:
    taken = f if mask else g
    return getattr(mp, taken.__name__)(x) if callable(taken) else mp.mpf(taken)


def _true_sum(mp: Any, f: Any, mask: Any, x: Any, dim: Any = None, **_: Any) -> Any:
    import numpy as np

    value = getattr(mp, f.__name__)
    rows = [[value(a) if m else mp.mpf(0) for a, m in zip(*row)] for row in zip(x, mask)]
    return np.array(rows, dtype=object).sum(axis=dim)


def _true_mean(mp: Any, f: Any, mask: Any, x: Any, dim: Any = None, **_: Any) -> Any:
    return _true_sum(mp, f, mask, x, dim) / mask.sum(axis=dim).clip(min=1)


def _awkward(dtype: torch.dtype) -> Tensor:
    return torch.tensor([4.0, 0.25, -1.0, 0.0, 9.0, torch.nan, torch.inf, -torch.inf, 1e4], dtype=dtype)


def _masked_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _awkward(dtype)
    finite = (x > 0) & (x < torch.inf)
    return [
        Point((torch.sqrt, x[:5] > 0, x[:5]), note="roots of positive numbers only"),
        Point((torch.sqrt, finite, x), {"fill": -2.5}, note="nan and infinities left out", extreme=True),
        Point((torch.exp, x < 1, x), note="overflow left out", extreme=True),
        Point((torch.log, torch.tensor([[True], [False]]), x[:2]), note="a mask that has more dimensions"),
        Point((torch.exp, torch.tensor([True, False]), x[:4].reshape(2, 2)), note="a mask that has fewer"),
        Point((torch.sqrt, torch.zeros_like(finite), x), note="nothing is selected", extreme=True),
        Point((torch.log, finite, x), {"safe": 1.0}, note="a safe point is given", extreme=True),
    ]


def _where_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _awkward(dtype)
    x = x[~x.isnan()]
    return [
        Point((x[:5] > 0, torch.sqrt, torch.exp, x[:5]), note="two functions"),
        Point((x < 1, torch.exp, torch.sqrt, x), note="overflow left out", extreme=True),
        Point((x <= 0, 0.5, torch.log, x), note="a number and a function", extreme=True),
        Point((x < 1, torch.exp, 2.0, x), note="a function and a number", extreme=True),
    ]


def _reduced_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = torch.tensor([[4.0, 0.25, -1.0, 3.0], [0.5, 0.0, 6.0, 2.0], [-1.0, -2.0, 0.0, -4.0]], dtype=dtype)
    awkward = _awkward(dtype).reshape(3, 3)
    finite = (awkward > 0) & (awkward < torch.inf)
    return [
        Point((torch.log, x[:2] > 0, x[:2])),
        Point((torch.sqrt, x > 0, x), {"dim": 1}, note="by row, one of which has nothing selected"),
        Point((torch.exp, awkward < 1, awkward), {"dim": 0}, note="overflow left out", extreme=True),
        Point((torch.log, finite, awkward), note="nan and infinities left out", extreme=True),
    ]


def _plain(f: Callable[..., Tensor], mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask, f(x), 0.0)


def _plain_where(mask: Tensor, f: Callable[..., Tensor], g: Callable[..., Tensor], x: Tensor) -> Tensor:
    return torch.where(mask, f(x), g(x))


def _plain_sum(f: Callable[..., Tensor], mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask, f(x), 0.0).sum()


def _plain_mean(f: Callable[..., Tensor], mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask, f(x), 0.0).sum() / mask.sum()


def _ordinary() -> tuple[Any, ...]:
    return torch.sqrt, torch.rand(1_000_000) > 0.5, torch.rand(1_000_000) + 0.5


def _ordinary_where() -> tuple[Any, ...]:
    return torch.rand(1_000_000) > 0.5, torch.sqrt, torch.exp, torch.rand(1_000_000) + 0.5


# -------------------------------------------------------------------- what is offered


@exact(
    forward="out = f(x, ...) where the mask is true, else fill",
    gradient={"x": "g f'(x, ...) where the mask is true, else 0"},
    reference=_true_masked,
    domain="every argument that f takes where the mask is true; anything, nan and infinities too, where it is false",
    bars=ulps(4),
    examples=_masked_examples,
    replaces=_plain,
    ordinary=_ordinary,
    paper=PAPER,
)
def masked(
    f: Callable[..., Any],
    mask: Tensor,
    x: Any,
    /,
    *more: Any,
    fill: Any = 0,
    safe: Any = None,
    **kwargs: Any,
) -> Any:
    """Return ``f(x, *more, **kwargs)`` where the mask is true and ``fill`` elsewhere, with no trace of the rest of f.

    No derivative, of any order or mode, sees what lies where the mask is false: the gradients of ``x``, of ``more`` and
    of all that ``f`` uses besides, such as parameters of a module, are those of the selected places alone.

    What ``f`` returns at a place of the mask may depend on that place only. It may be elementwise, or treat rows
    (``x[i, :]``) each by itself, with a mask of shape ``(n, 1)``. One that mixes places, as a softmax or a mean over
    what is masked does, would see the substitutes; one that changes shapes so that places are lost is refused.

    Arguments:
        f: any function of tensors. It gets tensors of the shape that its arguments have together with the mask.
        mask: booleans.
        x, more: what ``f`` takes by position. Tensors must have a place for each element of the mask, or broadcast to
            it: where it is false they are replaced. Anything else is passed on.
        fill: a number, or a tensor that broadcasts, which then has a gradient; a tuple if ``f`` returns several.
        safe: a number or tensor to put in the place of what is left out, or a tuple of one for each of ``x, *more``.
            By default, what they all hold at one selected place. It is needed where ``f`` differs from place to place
            by a tensor that it holds itself, so that another place's values may be outside of its domain; better,
            pass that tensor as one of ``more``. And where nothing is selected but the parameters of ``f`` need a
            gradient (it is zero): ``f`` is then evaluated at 1/2 (1/4, ... for further arguments, 0 for integers).
        kwargs: passed on to ``f`` as they are, tensors too.

    Returns:
        a tensor, or several in whatever container ``f`` returns; of the dtype that ``torch.where`` gives.

    Raises:
        ArgumentError: the mask is not boolean, shapes do not fit, or ``f`` returns no place for each of the mask's.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([4.0, -1.0, 0.0], requires_grad=True)
        >>> torch.autograd.grad(torch.where(x > 0, torch.sqrt(x), 0.0).sum(), x)
        (tensor([0.2500,    nan,    nan]),)
        >>> torch.autograd.grad(gw.stable.masked(torch.sqrt, x > 0, x).sum(), x)
        (tensor([0.2500, 0.0000, 0.0000]),)
    """
    return _masked("masked", ("fill", "safe"), f, mask, (x, *more), fill, safe, kwargs)


def _masked(
    name: str,
    own: Sequence[str],
    f: Callable[..., Any],
    mask: Tensor,
    given: Sequence[Any],
    fill: Any,
    safe: Any,
    kwargs: dict[str, Any],
) -> Any:
    check(name, f, mask, given)
    out = called(name, own, f, substituted(name, mask, given, safe), kwargs)
    return combined(name, mask, results(name, f, out, mask, given), fill)


@exact(
    forward="out = f(x, ...) where the mask is true, else g(x, ...)",
    gradient={"x": "g f'(x, ...) where the mask is true, else g g'(x, ...)"},
    reference=_true_where,
    domain="every argument that f takes where the mask is true, and that g takes where it is false",
    bars=ulps(4),
    examples=_where_examples,
    replaces=_plain_where,
    ordinary=_ordinary_where,
    paper=PAPER,
)
def where(mask: Tensor, f: Any, g: Any, x: Any = None, /, *more: Any, safe: Any = None, **kwargs: Any) -> Any:
    """Return ``f(x, *more)`` where the mask is true and ``g(x, *more)`` elsewhere; neither sees the other's places.

    As :func:`masked` else, of which this is the form with two functions.

    Arguments:
        mask: booleans.
        f, g: functions of the same arguments; one of them may be a number or a tensor instead.
        x, more: what they take by position.
        safe: a number or tensor that both take, or a tuple of one for each of ``x, *more``, to put in the place of what
            is left out; by default, what they hold at one place where the function is wanted.
        kwargs: passed on to both as they are.

    Returns:
        a tensor, or several in the container that the functions return.

    Raises:
        ArgumentError: as :func:`masked`; neither is a function; or they return different numbers of tensors.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([-2.0, 1000.0], requires_grad=True)
        >>> out = gw.stable.where(x < 1, torch.exp, lambda x: x, x)
        >>> torch.autograd.grad(out.sum(), x)
        (tensor([0.1353, 1.0000]),)
    """
    given = (x, *more)
    if not callable(f) and not callable(g):
        raise ArgumentError(
            f"where: f is {kind_of(f)} and g {kind_of(g)}; expected a function of x for one of them at least, so that "
            "it is not evaluated where it is not taken; pass torch.log, not torch.log(x); for two tensors torch.where."
        )
    check("where", f if callable(f) else g, mask, given)
    sides = []
    for side, taken in ((f, mask), (g, ~mask)):
        if callable(side):
            out = called("where", ("safe",), side, substituted("where", taken, given, safe), kwargs)
            sides.append(results("where", side, out, mask, given))
        else:
            sides.append(side)
    return combined("where", mask, *sides)


@exact(
    forward="out = the sum of f(x, ...) over the places where the mask is true",
    gradient={"x": "g f'(x, ...) where the mask is true, else 0"},
    reference=_true_sum,
    domain="as that of masked",
    bars=ulps(16),
    examples=_reduced_examples,
    elementwise=False,
    replaces=_plain_sum,
    ordinary=_ordinary,
    paper=PAPER,
)
def masked_sum(
    f: Callable[..., Tensor],
    mask: Tensor,
    x: Any,
    /,
    *more: Any,
    dim: Dim = None,
    keepdim: bool = False,
    safe: Any = None,
    **kwargs: Any,
) -> Tensor:
    """Return the sum of ``f(x, *more, **kwargs)`` over the places where the mask is true; 0 where there are none.

    Arguments:
        f, mask, x, more, safe, kwargs: those of :func:`masked`; ``f`` returns one tensor.
        dim: one dimension of what ``f`` returns or several, to sum over; all by default.
        keepdim: keep these dimensions, with size 1.

    Returns:
        a tensor of the dtype that ``f`` returns.

    Raises:
        ArgumentError: as :func:`masked`, or ``f`` returns something other than one tensor.

    Example:
        >>> import torch, gradwright as gw
        >>> x, y = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([0.0, torch.nan])
        >>> loss = gw.stable.masked_sum(lambda x, y: (x - y) ** 2, ~y.isnan(), x, y)
        >>> torch.autograd.grad(loss, x)
        (tensor([2., 0.]),)
    """
    return _one("masked_sum", f, mask, (x, *more), safe, kwargs).sum(dim, keepdim)


@exact(
    forward="out = the mean of f(x, ...) over the places where the mask is true",
    gradient={"x": "g f'(x, ...) / n at the n places where the mask is true, else 0"},
    reference=_true_mean,
    domain="as that of masked",
    bars=ulps(16),
    examples=_reduced_examples,
    elementwise=False,
    replaces=_plain_mean,
    ordinary=_ordinary,
    paper=PAPER,
)
def masked_mean(
    f: Callable[..., Tensor],
    mask: Tensor,
    x: Any,
    /,
    *more: Any,
    dim: Dim = None,
    keepdim: bool = False,
    safe: Any = None,
    **kwargs: Any,
) -> Tensor:
    """Return the mean of ``f(x, *more, **kwargs)`` over the places where the mask is true.

    Where there are none it is 0, and so is the gradient: a batch without a target changes nothing.

    Arguments:
        f, mask, x, more, dim, keepdim, safe, kwargs: those of :func:`masked_sum`.

    Returns:
        a tensor of the dtype that ``f`` returns. Half types are summed in float32.

    Raises:
        ArgumentError: as :func:`masked_sum`.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([1.0, 0.0, 3.0], requires_grad=True)
        >>> mean = gw.stable.masked_mean(torch.log, x > 0, x)
        >>> torch.autograd.grad(mean, x)
        (tensor([0.5000, 0.0000, 0.1667]),)
    """
    out = _one("masked_mean", f, mask, (x, *more), safe, kwargs)
    half = out.dtype in HALF
    total = out.sum(dim, keepdim, dtype=torch.float32 if half else None)
    count = mask.expand(out.shape).sum(dim, keepdim).clamp(min=1)
    mean = total / count
    return mean.to(out.dtype) if half else mean


def _one(
    name: str, f: Callable[..., Tensor], mask: Tensor, given: Sequence[Any], safe: Any, kwargs: dict[str, Any]
) -> Tensor:
    """Return what :func:`masked` does, if that is one tensor."""
    out = _masked(name, ("dim", "keepdim", "safe"), f, mask, given, 0, safe, kwargs)
    if not isinstance(out, Tensor):
        raise ArgumentError(f"{name}: f returned {kind_of(out)}; expected one tensor; use masked, and sum each.")
    return out
