"""Products with a logarithm: conventions at zero, the root of the slope, the domain."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError

INF = math.inf


def test_derivatives_of_two_orders() -> None:
    x = torch.rand(3, 4, dtype=torch.float64) + 0.1
    y = torch.rand(4, dtype=torch.float64) + 0.1
    assert torch.autograd.gradgradcheck(gw.stable.xlogx, x.requires_grad_(), check_batched_grad=True)
    assert torch.autograd.gradcheck(gw.stable.xlogy, (x, y.requires_grad_()), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(gw.stable.xlogy, (x, y), check_batched_grad=True)


def test_the_slope_has_all_digits_at_its_root() -> None:
    for dtype in (torch.float64, torch.float32):
        x = torch.tensor(1 / math.e, dtype=dtype, requires_grad=True)
        with mpmath.workdps(40):
            want = float(mpmath.log(x.item()) + 1)
        (slope,) = torch.autograd.grad(gw.stable.xlogx(x), x)
        assert abs(slope.item() - want) <= 4 * torch.finfo(dtype).eps * abs(want)


def test_a_constant_zero_hides_a_zero() -> None:
    y = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    out = gw.stable.xlogy(torch.zeros(2, dtype=torch.float64), y)
    for _ in range(3):
        assert out.tolist() == [0, 0]
        (out,) = torch.autograd.grad(out.sum(), y, create_graph=True)


def test_the_same_zero_twice() -> None:
    x = torch.tensor(0.0, requires_grad=True)
    assert torch.autograd.grad(gw.stable.xlogy(x, x), x)[0].item() == -INF


def test_outside_the_domain() -> None:
    x = torch.tensor([-1.0, 0.0, math.nan])
    assert gw.stable.xlogx(x).isnan().tolist() == [True, False, True]
    assert gw.stable.xlogy(torch.ones(3), x).isnan().tolist() == [True, False, True]


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"xlogx: x is torch\.int64; expected a floating-point tensor"):
        gw.stable.xlogx(torch.arange(3))
    with pytest.raises(ArgumentError, match=r"xlogy: x is torch\.int64; expected a floating-point tensor"):
        gw.stable.xlogy(torch.arange(3), torch.ones(3))
