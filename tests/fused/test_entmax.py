"""Sparse softmaxes: worked numbers, the support and its border, rows of every kind, learned alpha, and memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from gradwright.fused import simplex_rows
from gradwright.fused.simplex_rows import LONG, over_rows, shares
from tests.footprint import peak_bytes

INF = math.inf
ALPHAS = pytest.mark.parametrize("alpha", [1.0, 1.0625, 1.25, 1.5, 1.75, 2.0, 2.5])


def entmax(x: Tensor, alpha: float, dim: int = -1) -> Tensor:
    return gw.fused.entmax(x, alpha, dim)


def in_general(x: Tensor, alpha: float) -> Tensor:
    """Return the rows by the way that does not know of 1.5 and 2."""
    each = torch.full((*x.shape[:-1], 1), alpha, dtype=x.dtype)
    return over_rows(shares, -1, x, each)


def halved(x: Tensor, alpha: float) -> Tensor:
    """Return the same by halving an interval for the threshold."""
    z = (x - x.amax(-1, keepdim=True)) * (alpha - 1)
    low, high = torch.full_like(z[..., :1], -1.0), torch.zeros_like(z[..., :1])
    for _ in range(100):
        middle = (low + high) / 2
        more = (z - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return (z - low).clamp(min=0).pow(1 / (alpha - 1))


def leaf(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


# -------------------------------------------------------------------- values


def test_worked_numbers() -> None:
    x = leaf(1.0, 0.5, -1.0)
    assert gw.fused.sparsemax(x).tolist() == [0.75, 0.25, 0.0]
    # (1/2 - tau)^2 + (1/4 - tau)^2 = 1
    tau = 3 / 8 - math.sqrt(1 / 2 - 1 / 64)
    want = torch.tensor([(0.5 - tau) ** 2, (0.25 - tau) ** 2, 0.0], dtype=torch.float64)
    torch.testing.assert_close(gw.fused.entmax15(x).detach(), want, rtol=1e-15, atol=0.0)


@ALPHAS
@pytest.mark.parametrize("columns", [3, 300, LONG + 17])
def test_rows_sum_to_one_and_are_those_of_halving(alpha: float, columns: int) -> None:
    x = torch.randn(7, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    out = entmax(x, alpha)
    torch.testing.assert_close(out.sum(-1), torch.ones(7, dtype=torch.float64), rtol=0.0, atol=1e-15)
    want = torch.softmax(x, -1) if alpha == 1 else halved(x, alpha)
    torch.testing.assert_close(out, want, rtol=0.0, atol=1e-13 if alpha <= 2 else 1e-10)
    torch.testing.assert_close(in_general(x, alpha), want, rtol=0.0, atol=1e-13 if alpha <= 2 else 1e-10)
    small = entmax(x.float(), alpha)
    if alpha <= 2:  # beyond, the slope where a share begins is infinite
        torch.testing.assert_close(small.double(), want, rtol=0.0, atol=1e-6)


def test_named_ones_are_entmax_of_their_alpha() -> None:
    x = torch.randn(3, 9)
    assert torch.equal(gw.fused.entmax(x, 2), gw.fused.sparsemax(x))
    assert torch.equal(gw.fused.entmax(x, 1.5), gw.fused.entmax15(x))


def test_alpha_near_one_is_the_softmax() -> None:
    x = torch.randn(4, 50, dtype=torch.float64) * 5
    for gap in (2.0**-52, 1e-12, 1e-9):
        out = gw.fused.entmax(x, 1 + gap)
        torch.testing.assert_close(out, torch.softmax(x, -1), rtol=0.0, atol=1e3 * gap)


@pytest.mark.parametrize("kind", ["geometric", "even", "in powers of ten", "two heights", "all the same"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("alpha", [1.5, 1.75, 2.0])
def test_the_number_of_steps_is_enough(kind: str, dtype: torch.dtype, alpha: float) -> None:
    """Where values cannot be looked at, too."""
    n = 400
    places = torch.arange(n, dtype=torch.float64)
    x = {
        "geometric": -(2.0**-places),
        "even": -places / n,
        "in powers of ten": -torch.logspace(-9, 1, n, dtype=torch.float64),
        "two heights": (places > 9) * (1e-9 - 0.1),
        "all the same": 0.0 * places,
    }[kind].to(dtype)
    want = halved(x.double(), alpha)
    bar = 1e-13 if dtype == torch.float64 else 1e-6
    for out in (entmax(x, alpha), torch.func.vmap(lambda x: entmax(x, alpha))(x.unsqueeze(0))[0]):
        torch.testing.assert_close(out.double(), want, rtol=0.0, atol=bar * float(want.max()))
        assert abs(float(out.double().sum()) - 1) < 4 * torch.finfo(dtype).eps


@ALPHAS
def test_rows_of_every_kind(alpha: float) -> None:
    x = torch.tensor([[-INF, 2.0, -INF], [-INF] * 3, [INF, 1.0, INF], [1e30, -1e30, 1e30], [3.4e38, -3.4e38, 0.0]])
    want = [[0.0, 1, 0], [0, 0, 0], [0.5, 0, 0.5], [0.5, 0, 0.5], [1, 0, 0]]
    assert entmax(x, alpha).tolist() == want
    out = entmax(torch.tensor([[math.nan, 1.0], [0.0, 0.0]]), alpha)
    assert out[0].isnan().all()
    assert out[1].tolist() == [0.5, 0.5]


@ALPHAS
def test_tensors_without_a_row(alpha: float) -> None:
    for shape in ((3, 0), (0, 3), ()):
        x = torch.zeros(shape, requires_grad=True)
        out = entmax(x, alpha)
        assert out.shape == shape
        assert torch.autograd.grad(out.sum(), x)[0].shape == shape
    assert entmax(torch.tensor(3.0), alpha).item() == 1


# -------------------------------------------------------------------- derivatives


@ALPHAS
def test_derivatives_of_two_orders(alpha: float) -> None:
    x = torch.tensor([[0.5, 0.3, 0.45, -1.0], [0.0, 2.0, 1.9, 1.85]], dtype=torch.float64, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        return entmax(x, alpha)

    assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, x, check_batched_grad=True)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.75, 2.0])
def test_the_second_derivative_is_finite_at_the_border_of_the_support(alpha: float) -> None:
    """A share that is exactly 0, one just so, and one that is tiny."""
    edge = 1.0 / (alpha - 1)  # with one number this far below the other, its share is exactly 0
    for gap in (edge, edge * (1 - 1e-15), edge * (1 - 1e-9), 2 * edge):
        x = leaf(0.0, -gap, -9 * edge)
        g = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)
        (first,) = torch.autograd.grad(entmax(x, alpha), x, g, create_graph=True)
        (second,) = torch.autograd.grad(first, x, g)
        assert first.isfinite().all()
        assert second.isfinite().all()
        assert second[2] == 0


@ALPHAS
def test_what_flows_into_shares_of_zero_is_ignored(alpha: float) -> None:
    x = leaf(0.5, 0.25, -INF)
    poison = torch.tensor([1.0, 2.0, math.nan], dtype=torch.float64)
    (found,) = torch.autograd.grad(entmax(x, alpha), x, poison)
    y = leaf(0.5, 0.25)
    (want,) = torch.autograd.grad(entmax(y, alpha), y, poison[:2])
    torch.testing.assert_close(found[:2], want)
    assert found[2] == 0


def test_half_types_are_computed_in_float32() -> None:
    x = torch.randn(5, 40) * 2
    g = torch.randn(5, 40)
    for dtype in (torch.bfloat16, torch.float16):
        for alpha in (1.25, 1.5, 2.0):
            half = x.to(dtype).requires_grad_()
            out = entmax(half, alpha)
            assert out.dtype == dtype
            assert torch.equal(out, entmax(half.detach().float(), alpha).to(dtype))
            assert torch.autograd.grad(out, half, g.to(dtype))[0].dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert gw.fused.sparsemax(x).dtype == torch.float32


# -------------------------------------------------------------------- learned alpha


def test_learned_alpha_is_right_to_two_orders() -> None:
    x = torch.tensor([[0.5, 0.3, 0.45, -0.25], [0.0, 2.0, 1.9, 1.5]], dtype=torch.float64, requires_grad=True)
    for alpha in (torch.tensor(1.375), torch.tensor([[1.25], [1.875]]), torch.tensor([[2.25]])):
        alpha = alpha.double().requires_grad_()
        assert torch.autograd.gradcheck(gw.fused.entmax, (x, alpha), check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(gw.fused.entmax, (x, alpha))


def test_the_gradient_of_alpha_keeps_its_digits_down_to_the_softmax() -> None:
    """At 1 it is that of ``-p log(p)^2 / 2``: where the usual formula is a difference over ``(alpha - 1)^2``."""
    x, g = leaf(0.5, -1.25, 0.875, 0.125), torch.tensor([0.5, -1.0, 0.25, 2.0], dtype=torch.float64)
    p = torch.softmax(x.detach(), -1)
    k = -p.log().square() / 2
    want = float((g * p * (k - (p * k).sum())).sum())
    for gap in (0.0, 2.0**-50, 2.0**-30):
        alpha = torch.tensor(1 + gap, dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(gw.fused.entmax(x, alpha), alpha, g)
        assert found.item() == pytest.approx(want, rel=1e-13 + 10 * gap)


@pytest.mark.parametrize("alpha", [1.0625, 1.5, 2.0, 2.5])
def test_learned_is_the_same_as_given(alpha: float) -> None:
    x = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    g = torch.randn(3, 5, 4, dtype=torch.float64)
    each = torch.full((1, 4), alpha, dtype=torch.float64)
    ours, theirs = gw.fused.entmax(x, each, 1), gw.fused.entmax(x, alpha, 1)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-13)
    torch.testing.assert_close(torch.autograd.grad(ours, x, g), torch.autograd.grad(theirs, x, g), rtol=0, atol=1e-11)


def test_the_gradient_of_alpha_has_its_dtype() -> None:
    x, alpha = torch.randn(2, 6).bfloat16().requires_grad_(), torch.tensor(1.25, requires_grad=True)
    out = gw.fused.entmax(x, alpha)
    assert out.dtype == torch.bfloat16
    by_x, by_alpha = torch.autograd.grad(out, (x, alpha), torch.randn(2, 6).bfloat16())
    assert (by_x.dtype, by_alpha.dtype) == (torch.bfloat16, torch.float32)


def test_a_large_alpha_has_no_nan() -> None:
    """The slope of a tie has no bound then; what does not take part still has gradient 0."""
    x = leaf([3.0, 3.0, -0.75], [1.0, 0.0, 0.5])
    for alpha in (1e6, torch.tensor(1e6, dtype=torch.float64, requires_grad=True)):
        (grad,) = torch.autograd.grad(gw.fused.entmax(x, alpha).square().sum(), x)
        assert not grad.isnan().any()
        assert grad[0, 2] == 0
        assert grad[1].tolist() == [0, 0, 0]


# -------------------------------------------------------------------- blocks, memory, errors


@pytest.mark.parametrize("function", [gw.fused.sparsemax, gw.fused.entmax15, lambda x: gw.fused.entmax(x, 1.25)])
def test_no_more_memory_than_output_and_gradient(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2048, 512, requires_grad=True)
    g = torch.randn(2048, 512)
    whole = x.numel() * x.itemsize

    def run() -> Tensor:
        return torch.autograd.grad(function(x), x, g)[0]

    run()
    assert peak_bytes(run) < 2 * whole + 2**21


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last block may be smaller; two runs are the same to the bit."""
    x = torch.randn(37, 64, requires_grad=True)
    g = torch.randn(37, 64)

    def run() -> tuple[Tensor, Tensor]:
        out = gw.fused.entmax15(x)
        return out.detach(), torch.autograd.grad(out, x, g)[0]

    whole, again = run(), run()
    assert all(map(torch.equal, whole, again))
    monkeypatch.setattr(simplex_rows, "block_rows", lambda *_: 5)
    for small, large in zip(run(), whole):
        torch.testing.assert_close(small, large, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.25, 1.5, torch.tensor(1.5)])
def test_recorded_rows_are_the_same(alpha: float | Tensor) -> None:
    """Nothing that was seen of the numbers at hand is in what is recorded."""
    recorded = make_fx(lambda x: gw.fused.entmax(x, alpha))(torch.zeros(3, 7))
    x = torch.randn(3, 7) * 3
    x[0, :3] = INF
    torch.testing.assert_close(recorded(x), gw.fused.entmax(x, alpha), rtol=0.0, atol=1e-6)


def test_errors() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ArgumentError, match=r"sparsemax: x is torch\.int64; expected a floating-point tensor"):
        gw.fused.sparsemax(x.long())
    with pytest.raises(ArgumentError, match=r"entmax15: dim is .*; expected an int"):
        gw.fused.entmax15(x, 1.5)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        gw.fused.entmax15(x, 2)
    for alpha in (0.5, INF, math.nan):
        with pytest.raises(OptionError, match=r"entmax: alpha is .*; expected a number from 1 on"):
            gw.fused.entmax(x, alpha)
    with pytest.raises(ArgumentError, match=r"entmax: alpha is a str; expected a number"):
        gw.fused.entmax(x, "sparse")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"entmax: alpha is 0\.5 at least; expected numbers from 1 on; clamp them"):
        gw.fused.entmax(x, torch.tensor([[0.5], [2.0]]))
    with pytest.raises(
        ArgumentError, match=r"entmax: alpha has the shape \(3,\); expected .* \(2, 1\), one number for"
    ):
        gw.fused.entmax(x, torch.ones(3))
    with pytest.raises(ArgumentError, match=r"entmax: alpha is torch\.int64; expected a floating-point tensor"):
        gw.fused.entmax(x, torch.tensor(2))
