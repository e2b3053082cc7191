"""Hyperbolic functions: what is special about them."""

from __future__ import annotations

import math

import torch

import gradwright as gw

X = torch.logspace(-8, 2.5, 22, dtype=torch.float64)
grad = torch.func.grad


def test_the_gradient_of_tanh_does_not_vanish() -> None:
    x = torch.tensor([20.0, -20.0], dtype=torch.float64)
    slope = torch.func.vmap(grad(gw.stable.tanh))(x)
    assert (torch.func.vmap(grad(torch.tanh))(x) == 0).all()
    torch.testing.assert_close(slope, 4 * torch.exp(-2 * x.abs()), rtol=1e-15, atol=0)


def test_logcosh_is_even_small_and_never_overflows() -> None:
    assert torch.equal(gw.stable.logcosh(X), gw.stable.logcosh(-X))
    tiny = torch.tensor(1e-150, dtype=torch.float64)
    torch.testing.assert_close(gw.stable.logcosh(tiny), tiny**2 / 2, rtol=1e-15, atol=0)
    assert gw.stable.logcosh(torch.tensor(1e38)) == 1e38


def test_both_logarithms_and_tanh() -> None:
    torch.testing.assert_close(
        gw.stable.logsinh(X) - gw.stable.logcosh(X), torch.log(torch.tanh(X)), rtol=1e-13, atol=1e-13
    )


def test_logsinh_beside_zero() -> None:
    assert gw.stable.logsinh(torch.tensor(0.0)) == -math.inf
    assert gw.stable.logsinh(torch.tensor(-1.0)).isnan()
