"""Quotients of exponentials and logarithms: where they end."""

from __future__ import annotations

import mpmath
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


@pytest.mark.parametrize(
    ("dtype", "places"),
    [(torch.float64, [79.0, 81.0, 700.0, 709.9, 716.0]), (torch.float32, [79.0, 81.0, 88.5, 88.9, 93.0])],
)
@pytest.mark.parametrize("name", ["expm1_over_x", "sinh_over_x"])
def test_what_is_finite_though_the_exponential_is_not(name: str, dtype: torch.dtype, places: list[float]) -> None:
    function = getattr(gw.stable, name)
    x = torch.tensor([*places, *(-place for place in places)], dtype=dtype)
    for order in range(4):
        found = derivative(function, x, order)
        with mpmath.workdps(50):
            truth = {"expm1_over_x": lambda a: mpmath.expm1(a) / a, "sinh_over_x": lambda a: mpmath.sinh(a) / a}[name]
            wants = [float(mpmath.diff(truth, mpmath.mpf(a), order)) for a in x.double().tolist()]
        torch.testing.assert_close(
            found, torch.tensor(wants, dtype=torch.float64).to(dtype), rtol=8 * torch.finfo(dtype).eps, atol=0
        )
