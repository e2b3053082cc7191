"""Entropy and divergences: bounds, nearly equal and disjoint distributions, masked rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError

INF = math.inf
PAIRS = pytest.mark.parametrize("function", [gw.stable.kl_divergence, gw.stable.js_divergence], ids=["kl", "js"])


def leaf(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_entropy_is_that_of_torch() -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    g = torch.randn(3, 5, dtype=torch.float64)
    want = torch.distributions.Categorical(logits=x.movedim(1, -1)).entropy()
    found = gw.stable.entropy(x, 1)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.autograd.grad(found, x, g), torch.autograd.grad(want, x, g))


def test_derivatives_of_two_orders() -> None:
    x, y = (torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(gw.stable.entropy, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(gw.stable.entropy, x, check_batched_grad=True)
    for function in (gw.stable.kl_divergence, gw.stable.js_divergence):
        assert torch.autograd.gradcheck(function, (x, y), check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, (x, y), check_batched_grad=True)


def test_equal_probabilities_have_no_slope() -> None:
    x = torch.full((2, 7), 0.3, dtype=torch.float64, requires_grad=True)
    out = gw.stable.entropy(x)
    torch.testing.assert_close(out, torch.full_like(out, math.log(7)))
    assert torch.autograd.grad(out.sum(), x)[0].eq(0).all()


def test_rows_where_nothing_or_one_thing_is_possible() -> None:
    x = leaf([-INF, -INF, -INF], [-INF, 3.0, -INF], [INF, 1.0, 0.0])
    out = gw.stable.entropy(x)
    assert out.tolist() == [0, 0, 0]
    assert torch.autograd.grad(out.sum(), x)[0].eq(0).all()


@PAIRS
def test_a_distribution_does_not_differ_from_itself(function: Callable[..., Tensor]) -> None:
    x = (10 * torch.randn(20, 6, dtype=torch.float64)).requires_grad_()
    y = (x.detach() + 0.0).requires_grad_()
    out = function(x, y)
    assert out.eq(0).all()
    assert all(grad.eq(0).all() for grad in torch.autograd.grad(out.sum(), (x, y)))


@PAIRS
def test_nearly_equal_distributions(function: Callable[..., Tensor]) -> None:
    """PyTorch's own are off by 1e-4 and negative in places; a difference of the logits has as many digits as it has."""
    x = torch.randn(50, 6, dtype=torch.float64)
    y = x + 1e-6 * torch.randn(50, 6, dtype=torch.float64)
    wants = []
    with mpmath.workdps(50):
        for rows in zip(x.tolist(), y.tolist()):
            sides = []
            for row in rows:
                parts = [mpmath.exp(a) for a in row]
                sides.append([part / mpmath.fsum(parts) for part in parts])
            p, q = sides
            m = q if function is gw.stable.kl_divergence else [(a + b) / 2 for a, b in zip(p, q)]
            kl = [mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(r, m)) for r in (p, q)]
            wants.append(float(kl[0] if function is gw.stable.kl_divergence else (kl[0] + kl[1]) / 2))
    torch.testing.assert_close(function(x, y), torch.tensor(wants, dtype=torch.float64), rtol=1e-8, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([0.0, 0.0, -20.0], [-20.0, -21.0, 0.0]),
        ([0.0, 0.0, -60.0], [-10.0, -15.0, 0.0]),
        ([0.0, 0.0, 1.0], [2.0**-20, 0.0, 1.0]),
        ([0.0, 2.0, -70.0], [-35.0, -30.0, 20.0]),
    ],
)
def test_the_slope_of_jensen_and_shannon_keeps_its_digits(x: list[float], y: list[float], dtype: torch.dtype) -> None:
    """Where p agrees on what q excludes, and where the two are nearly equal, the slope is a small difference."""
    pair = [torch.tensor(row, dtype=dtype, requires_grad=True) for row in (x, y)]
    found = torch.autograd.grad(gw.stable.js_divergence(*pair), pair)
    with mpmath.workdps(200):
        shares = []
        for row in (x, y):
            parts = [mpmath.exp(a) for a in row]
            shares.append([part / mpmath.fsum(parts) for part in parts])
        for grad, p, q in zip(found, shares, shares[::-1]):
            logs = [mpmath.log(2 * a / (a + b)) for a, b in zip(p, q)]
            mean = mpmath.fsum(a * c for a, c in zip(p, logs))
            want = torch.tensor([float(a * (c - mean) / 2) for a, c in zip(p, logs)], dtype=torch.float64)
            bar = 1e-14 if dtype == torch.float64 else 1e-5  # logarithms of 50 have lost five bits
            assert float((grad.double() - want).abs().max()) <= bar * float(want.abs().max())


def test_disjoint_distributions() -> None:
    x, y = leaf(0.0, -INF), leaf(-INF, 0.0)
    out = gw.stable.js_divergence(x, y)
    assert out.item() == pytest.approx(math.log(2), rel=1e-15)
    assert all(grad.eq(0).all() for grad in torch.autograd.grad(out, (x, y)))
    out = gw.stable.kl_divergence(x, y)
    assert out.item() == INF
    assert all(grad.eq(0).all() for grad in torch.autograd.grad(out, (x, y)))


def test_logarithms_of_probabilities_are_logits() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.75, 0.0])
    want = torch.nn.functional.kl_div(q[:2].log(), p[:2].log(), reduction="sum", log_target=True)
    torch.testing.assert_close(gw.stable.kl_divergence(p.log(), q.log()), want)


def test_one_side_alone() -> None:
    x, y = torch.randn(2, 3, 4, dtype=torch.float64)
    both = [t.clone().requires_grad_() for t in (x, y)]
    want = torch.autograd.grad(gw.stable.kl_divergence(*both).sum(), both)
    for place in (0, 1):
        given = [x, y]
        given[place] = both[place]
        (found,) = torch.autograd.grad(gw.stable.kl_divergence(*given).sum(), both[place])
        assert torch.equal(found, want[place])


def test_tensors_without_a_row() -> None:
    x = torch.zeros(2, 0, requires_grad=True)
    for out in (gw.stable.entropy(x), gw.stable.kl_divergence(x, x), gw.stable.js_divergence(x, x)):
        assert out.tolist() == [0, 0]
        assert torch.autograd.grad(out.sum(), x)[0].shape == (2, 0)


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"entropy: x is torch\.int64; expected a floating-point tensor"):
        gw.stable.entropy(torch.arange(3))
    with pytest.raises(ArgumentError, match=r"kl_divergence: x has the shape \(3,\) and y \(1,\); expected the same"):
        gw.stable.kl_divergence(torch.zeros(3), torch.zeros(1))
    with pytest.raises(ArgumentError, match=r"js_divergence: y is torch\.int64"):
        gw.stable.js_divergence(torch.zeros(3), torch.arange(3))


@PAIRS
@pytest.mark.parametrize("low", [torch.float16, torch.float32])
def test_of_two_dtypes_the_wider_one_is_computed_with(function: Callable[..., Tensor], low: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 5).to(low).requires_grad_(), torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    for pair in ((x, y), (y, x)):
        wide = tuple(z.detach().double().requires_grad_() for z in pair)
        out, want = function(*pair), function(*wide)
        assert out.equal(want)
        for ours, true in zip(torch.autograd.grad(out.sum(), pair), torch.autograd.grad(want.sum(), wide)):
            torch.testing.assert_close(ours, true.to(ours.dtype))


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@PAIRS
def test_compiled_code_takes_batches_of_any_size(function: Callable[..., Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True)
    for count in (3, 5, 7):  # from the second on, the size is a symbol
        x, y = (torch.randn(count, 4, requires_grad=True) for _ in range(2))
        out, want = compiled(x, y), function(x, y)
        torch.testing.assert_close(out, want)
        for ours, true in zip(torch.autograd.grad(out.sum(), (x, y)), torch.autograd.grad(want.sum(), (x, y))):
            torch.testing.assert_close(ours, true)


@PAIRS
def test_half_types_are_compared_in_float32(function: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    x = torch.randn(500).half()
    y = (x + torch.randn(500) / 16).half()
    pair, wide = ([z.to(dtype).requires_grad_() for z in (x, y)] for dtype in (torch.float16, torch.float32))
    out, want = function(*pair), function(*wide)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, want.half(), rtol=2e-3, atol=0)
    for ours, true in zip(torch.autograd.grad(out, pair), torch.autograd.grad(want, wide)):
        torch.testing.assert_close(ours.float(), true, rtol=0, atol=2e-3 * float(true.abs().max()))
