"""Exponentials and their logarithms: what is special about them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.stable import exponential
from gradwright.stable.seen import seen_within

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


def test_exp2_takes_its_derivative_from_normal_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []

    def seen(*args: Any) -> bool:
        answers.append(seen_within(*args))
        return answers[-1]

    monkeypatch.setattr(exponential, "seen_within", seen)
    x = torch.linspace(-30.0, 30.0, 50, requires_grad=True)
    wide = torch.cat([x.detach(), torch.tensor([-140.0, 128.0])]).requires_grad_()
    for leaf in (x, wide):
        (slope,) = torch.autograd.grad(gw.stable.exp2(leaf).sum(), leaf)
        torch.testing.assert_close(slope, (math.log(2) * 2.0 ** leaf.detach().double()).float(), rtol=4e-7, atol=2e-45)
    assert answers == [True, False]


def test_both_logarithms_differ_by_their_argument() -> None:
    torch.testing.assert_close(gw.stable.log_expm1(X) - X, gw.stable.log1mexp(X), rtol=0, atol=1e-13)
    back = -gw.stable.log1mexp(-gw.stable.log1mexp(X[:16]))
    torch.testing.assert_close(back, X[:16], rtol=1e-7, atol=0)  # its own inverse, but for what x = 40 rounds away


@pytest.mark.parametrize("name", ["log1mexp", "log_expm1"])
def test_below_zero_they_are_nan(name: str) -> None:
    x = torch.tensor([-1e-30, -1.0, -1e3], dtype=torch.float64)
    assert getattr(gw.stable, name)(x).isnan().all()
    assert getattr(gw.stable, name)(torch.tensor(0.0)) == -math.inf


def test_exp2_has_second_derivatives_in_reverse_over_forward() -> None:
    """Forward mode hands on zeros that have no memory."""
    weights = torch.arange(1.0, 4.0)
    hessian = torch.func.jacrev(torch.func.jacfwd(lambda x: (weights * gw.stable.exp2(x)).sum()))(torch.zeros(3))
    torch.testing.assert_close(hessian, torch.diag(weights * math.log(2) ** 2))


def test_exp2_has_batched_gradients() -> None:
    x = torch.tensor([0.5, -1.0])
    jacobian = torch.autograd.functional.jacobian(gw.stable.exp2, x, vectorize=True)
    torch.testing.assert_close(jacobian, torch.diag(x.exp2() * math.log(2)))
