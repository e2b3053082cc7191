"""The inverse of the logarithm of the normal distribution function."""

from __future__ import annotations

import math

import torch

import gradwright as gw


def test_there_and_back_over_the_whole_range() -> None:
    x = torch.cat([-torch.logspace(8, -2, 60, dtype=torch.float64), torch.logspace(-2, 1, 30, dtype=torch.float64)])
    back = gw.stable.ndtri_exp(gw.stable.log_ndtr(x))
    torch.testing.assert_close(back, x, rtol=1e-14, atol=1e-14)


def test_around_one_half() -> None:
    x = torch.linspace(-0.02, 0.02, 81, dtype=torch.float64)
    y = gw.stable.log_ndtr(x)
    torch.testing.assert_close(gw.stable.ndtri_exp(y), x, rtol=0, atol=1e-15)
    for dtype, atol in ((torch.float64, 1e-15), (torch.float32, 1e-6)):
        slope = torch.func.vmap(torch.func.grad(gw.stable.ndtri_exp))(y.to(dtype)).double()
        want = y.exp() * math.sqrt(2 * math.pi) * torch.exp(x * x / 2)
        torch.testing.assert_close(slope, want, rtol=2 * atol, atol=0)


def test_gradients_of_inverse_functions_are_inverse() -> None:
    x = torch.linspace(-30, 6, 40, dtype=torch.float64)
    there = torch.func.vmap(torch.func.grad(gw.stable.log_ndtr))(x)
    back = torch.func.vmap(torch.func.grad(gw.stable.ndtri_exp))(gw.stable.log_ndtr(x))
    torch.testing.assert_close(there * back, torch.ones_like(x), rtol=1e-13, atol=0)


def test_the_ends_and_beyond() -> None:
    y = torch.tensor([0.0, -torch.inf, 0.5, torch.nan])
    out = gw.stable.ndtri_exp(y)
    assert out[:2].tolist() == [torch.inf, -torch.inf]
    assert out[2:].isnan().all()
