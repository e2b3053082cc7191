"""Gates: what is special about them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import gradwright as gw

X = torch.linspace(-9, 9, 37, dtype=torch.float64)
BOTH = pytest.mark.parametrize("name", ["silu", "mish"])
grad = torch.func.grad


@BOTH
def test_values_are_those_of_pytorch(name: str) -> None:
    torch.testing.assert_close(getattr(gw.stable, name)(X), getattr(functional, name)(X), rtol=1e-15, atol=0)


@BOTH
def test_second_derivatives_where_those_of_pytorch_are_zero(name: str) -> None:
    x = torch.tensor(50.0, dtype=torch.float64)
    tail = {"silu": -48 * torch.exp(-x), "mish": -8 * 49 * torch.exp(-2 * x)}
    assert grad(grad(getattr(functional, name)))(x) == 0
    torch.testing.assert_close(grad(grad(getattr(gw.stable, name)))(x), tail[name], rtol=1e-14, atol=0)


@BOTH
def test_the_limits_at_infinity(name: str) -> None:
    x = torch.tensor([-torch.inf, torch.inf], requires_grad=True)
    out = getattr(gw.stable, name)(x)
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert getattr(functional, name)(x)[0].isnan()
    assert out.tolist() == [0, torch.inf]
    assert slope.tolist() == [0, 1]


@pytest.mark.parametrize(("name", "root"), [("silu", -1.2784645), ("mish", -1.1924311)])
def test_next_to_the_zero_of_the_slope_the_error_is_that_of_its_terms(name: str, root: float) -> None:
    x = root + torch.linspace(-0.3, 0.3, 2001)
    slope = torch.func.vmap(grad(getattr(gw.stable, name)))
    off = (slope(x).double() - slope(x.double())).abs().max()
    assert off < 4 * torch.finfo(torch.float32).eps


def test_the_third_derivative_of_mish_where_the_powers_change() -> None:
    x = torch.zeros((), dtype=torch.float64)
    assert grad(grad(grad(gw.stable.mish)))(x).item() == pytest.approx(-0.096, rel=1e-14)
