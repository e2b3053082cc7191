"""What is special about smooth staircases: their limits, what they meet, and that no sharpness overflows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError
from gradwright.ste.soft import slope


def test_the_staircase_meets_integers_and_halves() -> None:
    x = torch.arange(-6, 7, dtype=torch.float64) / 2
    for sharpness in (0.01, 1.0, 10.0, 1000.0):
        torch.testing.assert_close(gw.ste.soft_round(x, sharpness), x, rtol=0, atol=1e-15)


def test_its_limits_are_the_identity_and_rounding() -> None:
    x = torch.linspace(-2.2, 2.3, 50, dtype=torch.float64)
    torch.testing.assert_close(gw.ste.soft_round(x, 1e-6), x)
    torch.testing.assert_close(slope(x, 1e-300), torch.ones_like(x))
    torch.testing.assert_close(gw.ste.soft_round(x, 1e6), x.round())


@pytest.mark.parametrize("sharpness", [1e-3, 1.0, 30.0, 200.0, 1e4])
def test_the_slope_has_its_relative_precision_everywhere(sharpness: float) -> None:
    x = torch.tensor([0.0, 0.125, 0.375, 0.5, 0.625, 1.0], dtype=torch.float64)
    for value, got in zip(x.tolist(), slope(x, sharpness).tolist()):
        r = mpmath.mpf(value) - math.floor(value) - 0.5
        want = float(sharpness * mpmath.sech(sharpness * r) ** 2 / (2 * mpmath.tanh(mpmath.mpf(sharpness) / 2)))
        assert got == pytest.approx(want, rel=1e-13 * max(sharpness, 1), abs=1e-300)


def test_the_mean_slope_is_one() -> None:
    x = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    for sharpness in (0.5, 4.0, 64.0):
        assert float(slope(x, sharpness).mean()) == pytest.approx(1.0, abs=1e-6)


def test_dsq_is_soft_rounding_on_its_grid() -> None:
    x = torch.linspace(-0.74, 0.74, 40, dtype=torch.float64, requires_grad=True)
    alpha = 0.2
    (got,) = torch.autograd.grad(gw.ste.dsq(x, -0.75, 0.75, bits=2, alpha=alpha).sum(), x)
    torch.testing.assert_close(got, slope((x.detach() + 0.75) / 0.5, math.log(2 / alpha - 1)))


def test_dsq_of_infinite_values() -> None:
    x = torch.tensor([torch.inf, -torch.inf, 1e30], requires_grad=True)
    out = gw.ste.dsq(x, -0.75, 0.75, bits=2)
    assert out.tolist() == [0.75, -0.75, 0.75]
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gw.ste.soft_round(x, 0.0), "soft_round: sharpness is 0.0; expected a positive number"),
        (lambda x: gw.ste.round_through_soft(x, math.inf), "round_through_soft: sharpness is inf; expected a positive"),
        (lambda x: gw.ste.dsq(x, 1.0, 1.0, bits=2), "dsq: low is 1.0 and high 1.0; expected low < high"),
        (lambda x: gw.ste.dsq(x, 0.0, 1.0, bits=0), "dsq: bits is 0; expected a whole number from 1"),
        (lambda x: gw.ste.dsq(x, 0.0, 1.0, bits=2, alpha=1.0), "dsq: alpha is 1.0; expected a number between 0 and 1"),
    ],
)
def test_options_are_checked(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(torch.ones(2))
