"""Squares of arc functions: the end of the domain that is smooth, and the other."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from tests.stable.test_ratios import derivative


@pytest.mark.parametrize(
    ("name", "outside"), [("acos_squared", [1 + 1e-9, 1.001, -1.001]), ("acosh_squared", [0.999, 1 - 1e-9, -3.0])]
)
def test_outside_the_domain_value_and_gradients_are_nan(name: str, outside: list[float]) -> None:
    function = getattr(gw.stable, name)
    for order in range(3):
        assert derivative(function, torch.tensor(outside, dtype=torch.float64), order).isnan().all()


def test_the_end_that_is_smooth_and_the_other() -> None:
    slope = torch.func.grad(gw.stable.acos_squared)
    assert slope(torch.tensor(1.0)) == -2
    assert slope(torch.tensor(-1.0)) == -torch.inf  # the true one
    assert torch.func.grad(gw.stable.acosh_squared)(torch.tensor(1.0)) == 2


def test_the_identity_of_the_two() -> None:
    """Both are one analytic function of ``x``, up to the sign: their derivatives at 1 are opposite."""
    one = torch.tensor([1.0], dtype=torch.float64)
    for order in range(4):
        ours, other = derivative(gw.stable.acos_squared, one, order), derivative(gw.stable.acosh_squared, one, order)
        torch.testing.assert_close(ours, -other, rtol=1e-14, atol=0)
