"""Quantisation of activations that are clipped to a learned bound (PACT).

Values are ``a round(x (2^k - 1) / a) / (2^k - 1)``, so that the highest is the bound ``a`` itself. Rounding errors do
not move the bound, as they do a learned step: its gradient counts the clipped values only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, grid, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.ste.bounds import bound_codes, on_bound
from gradwright.ste.masks import passing, working_dtype
from gradwright.ste.parameters import arranged, by_element, summed
from gradwright.ste.uniform import codes


@custom_gradient
def _pact(x: Tensor, bound: Tensor | float, high: int) -> Tensor:
    return on_bound(x, bound, 0, high).to(x.dtype)


@_pact.vjp
def _pact_vjp(g: Tensor, x: Tensor, bound: Any, needs: Mapping[str, bool]) -> dict[str, Tensor]:
    g = g.to(working_dtype(x.dtype))
    with torch.no_grad():  # where the gradient passes is a constant
        wide = x.to(g.dtype)
        within = passing(wide - bound, -torch.inf, 0.0, "exclusive", overwrite=True)  # the sign is exact
        positive = passing(wide, 0.0, torch.inf, "inclusive")
    kept = within(g)
    grads = {"x": positive(kept)}
    if needs["bound"]:
        grads["bound"] = summed(g - kept, bound)
    return grads


def _pact_surrogate(
    x: Tensor, bound: Any, *, bits: int, axis: int | None = None, group_size: int | None = None
) -> Tensor:
    grouped, (most,) = arranged("pact", x, (bound,), axis, group_size)
    most = torch.as_tensor(most, dtype=x.dtype)
    return torch.where(grouped >= most, most, torch.where(grouped >= 0, grouped, 0.0)).reshape(x.shape)


def _pact_values(x: Tensor, bound: Any, *, bits: int, axis: Any = None, group_size: Any = None) -> Tensor:
    most, high = by_element(x, bound, axis, group_size), float(2**bits - 1)
    return torch.round(torch.minimum(x.clamp(min=0), most) * high / most) * most / high


def _pact_codes(x: Tensor, bound: Any, *, bits: int, axis: Any = None, group_size: Any = None) -> Tensor:
    return bound_codes(x, bound, 0, 2**bits - 1, axis, group_size)


def _bounds(dtype: torch.dtype) -> Sequence[Example]:
    # No number lies on a tie between codes of a third or a fifteenth of a power of two.
    bound = torch.tensor(2.0, dtype=dtype)
    x = joined([around(-2.0, 0.0, 1.0, 2.0, 4.0, dtype=dtype), grid(-3.0, 3.0, 17, dtype)])
    rows, bounds = grid(-2, 4, 24, dtype).reshape(3, 8), torch.tensor([0.5, 1.0, 2.0], dtype=dtype)
    groups = torch.tensor([[0.5, 1.0], [2.0, 4.0], [0.25, 1.0]], dtype=dtype)
    return [
        Example((x, bound), {"bits": 2}, "learned"),
        Example((x, 2.0), {"bits": 4}, "fixed"),
        Example((x, bound.reshape(1)), {"bits": 8}, "8 bits"),
        Example((x, bound), {"bits": 1}, "1 bit"),
        Example((rows, bounds), {"bits": 3, "axis": 0}, "per channel"),
        Example((rows, groups), {"bits": 2, "axis": 1, "group_size": 4}, "per group"),
    ]


@catalogued(
    forward="out = a round(clip(x, 0, a) (2^bits - 1) / a) / (2^bits - 1)",
    gradient={"x": "g where 0 <= x < a, else 0", "bound": "sum of g where x >= a"},
    surrogate=_pact_surrogate,
    examples=_bounds,
    values=_pact_values,
    codes=_pact_codes,
    paper="Choi et al. 2018, PACT, arXiv 1805.06085",
)
def pact(
    x: Tensor, bound: Tensor | float, *, bits: int, axis: int | None = None, group_size: int | None = None
) -> Tensor:
    """Clip to a learned bound and quantise (PACT), for activations.

    The paper starts from ``bound=10`` (6 is common) and adds an L2 penalty on it to the loss, without which it grows.

    Arguments:
        x: floating point, of any shape.
        bound: the bound ``a``, positive; one number or scalar tensor, or with ``axis`` one for each slice or group.
        bits: how many; codes are from 0 to ``2 ** bits - 1``.
        axis: the dimension along which ``bound`` changes.
        group_size: with ``axis``, how many neighbours along it share a bound.

    Returns:
        a tensor of the shape and dtype of ``x``.

    Raises:
        OptionError: an option has no value that is known.
        ArgumentError: the shape of ``bound`` does not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> x, a = torch.tensor([-1.0, 1.5, 8.0], requires_grad=True), torch.tensor(6.0, requires_grad=True)
        >>> out = gw.ste.pact(x, a, bits=2)
        >>> out.tolist()
        [0.0, 2.0, 6.0]
        >>> torch.autograd.grad(out.sum(), (x, a))
        (tensor([0., 1., 0.]), tensor(1.))
    """
    _, high = codes(bits, signed=False)
    grouped, (most,) = arranged("pact", x, (bound,), axis, group_size)
    assert most is not None
    return _pact(grouped, most, high).reshape(x.shape)
