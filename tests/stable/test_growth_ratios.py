"""Quotients of exponentials and logarithms: where they end."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from tests.stable.test_ratios import derivative


@pytest.mark.parametrize(("name", "outside"), [("log1p_over_x", -1.5), ("log_over_x_minus_1", -0.1)])
def test_outside_the_domain_value_and_gradients_are_nan(name: str, outside: float) -> None:
    function = getattr(gw.stable, name)
    for order in range(3):
        assert derivative(function, torch.tensor([outside]), order).isnan().all()


def test_at_the_end_of_the_domain() -> None:
    assert gw.stable.log1p_over_x(torch.tensor(-1.0)) == torch.inf
    assert gw.stable.log_over_x_minus_1(torch.tensor(0.0)) == torch.inf


def test_far_out() -> None:
    x = torch.tensor([-1e30, 1e30], dtype=torch.float64)
    assert gw.stable.expm1_over_x(x).tolist() == [pytest.approx(1e-30), torch.inf]
    assert gw.stable.tanh_over_x(x).tolist() == [pytest.approx(1e-30)] * 2
