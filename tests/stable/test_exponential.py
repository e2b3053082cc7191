"""Exponentials and their logarithms: what is special about them."""

from __future__ import annotations

import math

import pytest
import torch

import gradwright as gw

X = torch.logspace(-8, 2.5, 22, dtype=torch.float64)
grad = torch.func.grad


def test_the_gradient_of_expm1_is_the_exponential() -> None:
    x = torch.tensor(-40.0, dtype=torch.float64)
    assert grad(torch.expm1)(x) == 0
    assert grad(gw.stable.expm1)(x) == torch.exp(x)


def test_exp2_has_a_slope_where_its_value_overflows() -> None:
    x = torch.tensor(1024.0, dtype=torch.float64)
    assert gw.stable.exp2(x) == math.inf
    assert grad(torch.exp2)(x) == math.inf
    assert grad(gw.stable.exp2)(x).item() == pytest.approx(math.log(2) * 2.0**1023 * 2, rel=1e-15)


def test_both_logarithms_differ_by_their_argument() -> None:
    torch.testing.assert_close(gw.stable.log_expm1(X) - X, gw.stable.log1mexp(X), rtol=0, atol=1e-13)
    back = -gw.stable.log1mexp(-gw.stable.log1mexp(X[:16]))
    torch.testing.assert_close(back, X[:16], rtol=1e-7, atol=0)  # its own inverse, but for what x = 40 rounds away


@pytest.mark.parametrize("name", ["log1mexp", "log_expm1"])
def test_below_zero_they_are_nan(name: str) -> None:
    x = torch.tensor([-1e-30, -1.0, -1e3], dtype=torch.float64)
    assert getattr(gw.stable, name)(x).isnan().all()
    assert getattr(gw.stable, name)(torch.tensor(0.0)) == -math.inf
