"""The inverse of the logarithm of the normal distribution function."""

from __future__ import annotations

import torch

import gradwright as gw


def test_there_and_back_over_the_whole_range() -> None:
    x = torch.cat([-torch.logspace(8, -2, 60, dtype=torch.float64), torch.logspace(-2, 1, 30, dtype=torch.float64)])
    back = gw.stable.ndtri_exp(gw.stable.log_ndtr(x))
    torch.testing.assert_close(back, x, rtol=1e-14, atol=1e-14)


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
