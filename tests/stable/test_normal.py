"""The normal distribution: its ends, its symmetry, and what PyTorch loses."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, GradwrightError
from gradwright.stable.normal import hazard_value

grad = torch.func.grad


def test_the_ends() -> None:
    x = torch.tensor([-torch.inf, torch.inf, torch.nan], dtype=torch.float64, requires_grad=True)
    assert gw.stable.ndtr(x)[:2].tolist() == [0, 1]
    assert gw.stable.log_ndtr(x)[:2].tolist() == [-torch.inf, 0]
    for function, slopes in ((gw.stable.ndtr, [0, 0]), (gw.stable.log_ndtr, [torch.inf, 0])):
        (first,) = torch.autograd.grad(function(x).sum(), x)
        assert first[:2].tolist() == slopes
        assert first[2].isnan()
        assert function(x)[2].isnan()


def test_the_two_sides_add_up_to_one() -> None:
    x = torch.linspace(-8, 8, 101, dtype=torch.float64)
    torch.testing.assert_close(gw.stable.ndtr(x) + gw.stable.ndtr(-x), torch.ones_like(x), rtol=0, atol=3e-16)


def test_a_probit_loss_keeps_its_gradient() -> None:
    x = torch.tensor(-40.0, dtype=torch.float64)
    assert grad(lambda x: torch.log(torch.distributions.Normal(0.0, 1.0).cdf(x)))(x).isfinite() == 0
    assert grad(gw.stable.log_ndtr)(x).item() == pytest.approx(40.0249688, rel=1e-8)


def test_the_hazard_grows_like_its_argument_to_the_end_of_the_range() -> None:
    x = torch.tensor([-1e300, -1e12], dtype=torch.float64)
    assert hazard_value(x).tolist() == pytest.approx([1e300, 1e12], rel=1e-15)
    second = torch.func.vmap(grad(grad(gw.stable.log_ndtr)))
    assert second(x).tolist() == [-1, -1]
    assert second(x.float()[1:]).tolist() == [-1]


def test_three_derivatives_and_no_fourth() -> None:
    x = torch.tensor([-7.0, -0.5, 0.75, 3.0], dtype=torch.float64)
    third = torch.func.vmap(grad(grad(grad(gw.stable.log_ndtr))))(x)
    h, s = hazard_value(x), torch.func.vmap(grad(grad(gw.stable.log_ndtr)))(x)
    torch.testing.assert_close(third, -s * (2 * h + x) - h, rtol=1e-12, atol=1e-14)
    with pytest.raises(GradwrightError, match="hazard_slope"):
        grad(grad(grad(grad(gw.stable.log_ndtr))))(x[0])


def test_zero_dimensions_no_elements_and_no_integers() -> None:
    for function in (gw.stable.ndtr, gw.stable.log_ndtr):
        assert function(torch.tensor(0.5)).shape == ()
        assert function(torch.empty(0, 3)).shape == (0, 3)
        with pytest.raises(ArgumentError, match=r"x is torch.int64; expected a floating-point tensor"):
            function(torch.arange(3))
