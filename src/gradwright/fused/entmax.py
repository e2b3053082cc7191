"""Sparse softmaxes, whose gradient needs their output alone: sparsemax, 1.5-entmax and alpha-entmax.

They solve ``max <p, x> + H(p)`` over the probabilities ``p``, with the Tsallis entropy of order ``alpha``: small shares
are exactly 0. Their derivative is ``s (g - sum(s g) / sum(s))`` with ``s = p^(2 - alpha)`` on the support: a symmetric
map of ``g``. What is written with PyTorch keeps sorted numbers, their places and sums; and beside a share of 0 a second
derivative is nan as soon as a root or a power of the share is differentiated. How rows are found is told in
:mod:`gradwright.fused.simplex_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError, OptionError
from gradwright.fused.entmax_composites import entmax15_by_sorting, entmax_by_halving, sparsemax_by_sorting
from gradwright.fused.simplex_rows import alpha_slope, over_rows, shares, slope
from gradwright.stable.arguments import require_dim, require_floating, require_number
from gradwright.stable.seen import visible
from gradwright.stable.softmaxes import softmax

INF = math.inf
DOMAIN = "every number; -inf takes no part, and a row of -inf is 0; +inf takes its row, in equal shares"
BARS = relative(1e-12, 1e-6, *HALF)
PAPER = "Martins and Astudillo 2016; Peters, Niculae and Martins 2019 (arXiv 1905.05702)"


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    def rows(*values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    ordinary = rows([0.5, -1.25, 0.875, 0.125, -0.25], [3.0, 3.0, -0.75, 2.5, 2.625])
    return [
        Point((ordinary,), note="ordinary, ties"),
        Point((ordinary.t().reshape(5, 2, 1), 0), note="along the first dimension"),
        Point((rows([-INF, 1.0, 0.25], [-INF, 0.5, -INF]), 1), note="-inf", extreme=True),
        Point((rows([1e4, -1e4, 1e4, 9.0], [-2e4, 7.0, 0.0, 6.5]),), note="large", extreme=True),
        Point((rows([2.5]),), note="one number"),
    ]


def _entmax_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _examples(dtype)[0].args[0]
    one = torch.tensor(1.375, dtype=dtype)
    terms = 0.25 if dtype in HALF else 0.0  # what is left of the sum over a row is smaller than its rounded terms
    each = torch.tensor([[1.25], [1.75]], dtype=dtype)
    found = [Point((x, alpha), note=f"alpha {alpha}") for alpha in (1.25, 1.75, 1.0078125)]
    close = torch.tensor([0.5, 0.4375, 0.53125, 0.375, -1.0], dtype=dtype)
    masked = torch.tensor([[-INF, 1.0, 0.25], [-INF, 0.5, -INF]], dtype=dtype)
    return [
        *found,
        Point((close, 3.0), note="alpha 3"),
        Point((x.t(), 1.25, 0), note="along the first dimension"),
        Point((masked, 1.25), note="-inf", extreme=True),
        Point((x, one), note="learned", scale=terms),
        Point((x, each), note="learned, one for each row", scale=terms),
    ]


@cheaper(
    forward="out = [x - tau]_+ with tau such that sum(out) = 1",
    gradient={"x": "g - mean of g over the support, on the support, else 0"},
    replaces=sparsemax_by_sorting,
    goal=Goal(time=0.35, peak=0.35, kept=0.25),
    domain=DOMAIN,
    bars=BARS,
    examples=_examples,
    ordinary=lambda: (torch.randn(4096, 512),),
    paper=PAPER,
)
def sparsemax(x: Tensor, dim: int = -1) -> Tensor:
    """Return the point of the simplex that is nearest to ``x``: probabilities, of which many are exactly 0.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension whose elements sum to 1.

    Returns:
        a tensor like ``x``; a row of ``-inf`` is 0.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    return _checked("sparsemax", x, 2.0, dim)


@cheaper(
    forward="out = [x / 2 - tau]_+^2 with tau such that sum(out) = 1",
    gradient={"x": "s (g - sum(s g) / sum(s)) with s = sqrt(out)"},
    replaces=entmax15_by_sorting,
    goal=Goal(time=0.35, peak=0.35, kept=0.31),
    domain=DOMAIN,
    bars=BARS,
    examples=_examples,
    ordinary=lambda: (torch.randn(4096, 512),),
    paper=PAPER,
)
def entmax15(x: Tensor, dim: int = -1) -> Tensor:
    """Return the 1.5-entmax, between softmax and sparsemax: probabilities, of which some are exactly 0.

    Arguments:
        x: floating point, of any shape.
        dim: the dimension whose elements sum to 1.

    Returns:
        a tensor like ``x``; a row of ``-inf`` is 0.

    Raises:
        ArgumentError: ``x`` is not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.entmax15(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.6740, 0.3260, 0.0000])
    """
    return _checked("entmax15", x, 1.5, dim)


@cheaper(
    forward="out = [(alpha - 1) x - tau]_+^(1 / (alpha - 1)) with tau such that sum(out) = 1",
    gradient={
        "x": "s (g - sum(s g) / sum(s)) with s = out^(2 - alpha) on the support, else 0",
        "alpha": "sum(gradient by x * k), k = (exp(y) (1 - y) - 1) / (alpha - 1)^2, y = (alpha - 1) log(out)",
    },
    replaces=entmax_by_halving,
    goal=Goal(time=0.5, peak=0.35, kept=0.31),
    domain=DOMAIN + "; alpha from 1 on, from 2 on with a slope without bound where a share begins",
    bars=BARS,
    examples=_entmax_examples,
    ordinary=lambda: (torch.randn(4096, 512), 1.25),
    paper=PAPER + "; Correia, Niculae and Martins 2019 (arXiv 1909.00015)",
)
def entmax(x: Tensor, alpha: float | Tensor, dim: int = -1) -> Tensor:
    """Return the alpha-entmax: the softmax for 1, sparsemax for 2, sparser the larger ``alpha`` is.

    ``alpha`` may be learned: then it is a tensor, and has a gradient, also at 1.

    From 2 on the slope of a share has no bound where it begins, so that rounding ``x`` by one part in ``1 / eps`` moves
    such a share by ``eps^(1 / (alpha - 1))``: for ``alpha = 5``, 0.02 in float32 and 1e-4 in float64. Keep it below 3.

    Arguments:
        x: floating point, of any shape.
        alpha: a number from 1 on; or a floating-point tensor of such, which broadcasts to the shape of ``x`` and has
            one number for a row: its size along ``dim`` is 1.
        dim: the dimension whose elements sum to 1.

    Returns:
        a tensor like ``x``; a row of ``-inf`` is 0.

    Raises:
        ArgumentError: ``x`` or ``alpha`` is not floating point, or ``alpha`` has another shape.
        OptionError: ``alpha`` is below 1, or infinite.

    Example:
        >>> import torch, gradwright as gw
        >>> x, alpha = torch.tensor([1.0, 0.5, -1.0]), torch.tensor(1.25, requires_grad=True)
        >>> out = gw.fused.entmax(x, alpha)
        >>> out.detach()
        tensor([0.6315, 0.3451, 0.0235])
        >>> torch.autograd.grad(out[0], alpha)
        (tensor(0.2300),)
    """
    if not isinstance(alpha, Tensor):
        require_number("entmax", alpha=alpha)
        if not 1 <= float(alpha) < INF:
            raise OptionError(f"entmax: alpha is {alpha}; expected a number from 1 on; 1 is the softmax, 2 sparsemax.")
        return _checked("entmax", x, float(alpha), dim)
    require_floating("entmax", x=x, alpha=alpha)
    require_dim("entmax", dim)
    return _learned(x, _one_for_each_row(alpha, x, dim), dim)


def _checked(name: str, x: Tensor, alpha: float, dim: int) -> Tensor:
    require_floating(name, x=x)
    require_dim(name, dim)
    if alpha == 1:
        return softmax(x, dim)
    return shares_of(x, alpha, dim)


def _one_for_each_row(alpha: Tensor, x: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    if shape:
        shape[dim] = 1
    rest = zip(reversed(alpha.shape), reversed(shape))
    if alpha.dim() > x.dim() or any(size not in (1, whole) for size, whole in rest):
        raise ArgumentError(
            f"entmax: alpha has the shape {tuple(alpha.shape)}; expected one that broadcasts to {tuple(shape)}, one "
            "number for each row of x; insert dimensions of size 1."
        )
    if alpha.numel() and visible(alpha) and not 1 <= (least := alpha.detach().amin().item()) < INF:
        raise OptionError(f"entmax: alpha is {least:g} at least; expected numbers from 1 on; clamp them.")
    return alpha.expand(shape)


@custom_gradient
def shares_of(x: Tensor, alpha: float, dim: int) -> Tensor:
    """Return the alpha-entmax for a number, which has no gradient."""
    if not x.numel():
        return x.clone()
    return over_rows(lambda rows: shares(rows, alpha), dim, x)


@shares_of.vjp
def _shares_of_vjp(g: Tensor, out: Tensor, alpha: float, dim: int) -> dict[str, Tensor]:
    if not out.numel():
        return {"x": g * 0}
    return {"x": over_rows(lambda g, p: slope(g, p, alpha), dim, g, out)}


@custom_gradient
def _learned(x: Tensor, alpha: Tensor, dim: int) -> Tensor:
    """Return the alpha-entmax for one number for each row."""
    if not x.numel():
        return x.clone()
    return over_rows(shares, dim, x, alpha)


@_learned.vjp
def _learned_vjp(g: Tensor, out: Tensor, alpha: Tensor, dim: int, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    if not out.numel():
        return {"x": g * 0, "alpha": alpha * 0}
    pulled = over_rows(slope, dim, g, out, alpha)
    if not needs["alpha"]:
        return {"x": pulled, "alpha": None}
    by_alpha = over_rows(alpha_slope, dim, pulled, out, alpha)
    return {"x": pulled if needs["x"] else None, "alpha": by_alpha.to(alpha.dtype)}
