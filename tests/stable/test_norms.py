"""Norms: what is special about them."""

from __future__ import annotations

import math

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError

x = torch.arange(1.0, 25.0, dtype=torch.float64).reshape(2, 3, 4).sub(7.3).requires_grad_()


@pytest.mark.parametrize("power", [1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("dim", [None, -1, (0, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_values_and_shapes_are_those_of_pytorch(power: float, dim: int | tuple[int, ...] | None, keepdim: bool) -> None:
    theirs = torch.linalg.vector_norm(x, power, dim, keepdim)
    torch.testing.assert_close(gw.stable.norm(x, power, dim, keepdim), theirs)


@pytest.mark.parametrize("power", [2, 3])
def test_derivatives_of_several_dimensions(power: float) -> None:
    assert torch.autograd.gradcheck(lambda x: gw.stable.norm(x, power, (0, 2)), x)
    assert torch.autograd.gradgradcheck(lambda x: gw.stable.norm(x, power, (0, 2)), x)


def test_the_third_derivative_is_right() -> None:
    v = torch.tensor([3.0, 4.0], dtype=torch.float64)

    def penalty(v: torch.Tensor, norm: object) -> torch.Tensor:
        return torch.func.grad(lambda w: torch.func.grad(norm)(w)[0] * w[1])(v).square().sum()  # type: ignore[arg-type]

    ours, theirs = (torch.func.grad(penalty)(v, f) for f in (gw.stable.norm, torch.linalg.vector_norm))
    torch.testing.assert_close(ours, theirs)


def test_an_infinite_element_makes_the_norm_infinite() -> None:
    for power in (1, 2, 3, math.inf):
        assert gw.stable.norm(torch.tensor([math.inf, 1.0]), power) == math.inf
        assert gw.stable.norm(torch.tensor([math.nan, 1.0]), power).isnan()


def test_nothing_has_the_norm_zero() -> None:
    assert gw.stable.norm(torch.zeros(2, 0), 2, -1).tolist() == [0, 0]
    assert gw.stable.norm(torch.tensor(-3.0)) == 3


def test_a_large_sum_of_small_squares() -> None:
    """A million numbers near the end of the range: neither the scale nor the sum leaves it."""
    for size in (1e-38, 1e-44, 1e34):
        v = torch.full((1_000_000,), size)
        torch.testing.assert_close(gw.stable.norm(v).double(), v[0].double() * 1000, rtol=1e-3, atol=0)


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"norm: x is torch.int64; expected a floating-point tensor"):
        gw.stable.norm(torch.arange(3))
    with pytest.raises(ArgumentError, match=r"this one is complex"):
        gw.stable.norm(torch.ones(2) * 1j)
    for power in (0.5, -1, 600, math.nan):
        with pytest.raises(OptionError, match=r"norm: ord is .*; expected a number from 1 to 500, or infinity"):
            gw.stable.norm(x, power)


@pytest.mark.parametrize("power", [1, 2, 3, math.inf])
@pytest.mark.parametrize("keepdim", [False, True])
def test_no_dimensions_are_all(power: float, keepdim: bool) -> None:
    theirs = torch.linalg.vector_norm(x, power, (), keepdim)
    torch.testing.assert_close(gw.stable.norm(x, power, (), keepdim), theirs)
