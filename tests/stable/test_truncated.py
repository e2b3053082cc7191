"""The normal distribution between two bounds: what is special about it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError

F64 = torch.float64
BOTH = pytest.mark.parametrize("function", [gw.stable.log_ndtr_between, gw.stable.truncated_normal_mean])
SIZES = [0.0, 1e-300, 1e-8, 0.5, 1.0, 1.5, 3.0, 10.0, 11.5, 40.0, 1e3, 1e8, 1e30, 1e150, math.inf]


def gradients(function: Any, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = low.detach().clone().requires_grad_(), high.detach().clone().requires_grad_()
    out = function(low, high)
    first, second = torch.autograd.grad(out.sum(), (low, high))
    return out.detach(), first, second


def test_one_infinite_bound_is_log_ndtr() -> None:
    x = torch.tensor([-40.0, -3.0, 0.0, 2.0, 9.0], dtype=F64)
    out, _, slope = gradients(gw.stable.log_ndtr_between, torch.full_like(x, -math.inf), x)
    torch.testing.assert_close(out, gw.stable.log_ndtr(x), rtol=4e-15, atol=0)
    hazard = torch.func.vmap(torch.func.grad(gw.stable.log_ndtr))(x)
    torch.testing.assert_close(slope, hazard, rtol=4e-15, atol=0)
    mean = gw.stable.truncated_normal_mean(torch.full_like(x, -math.inf), x)
    torch.testing.assert_close(mean, -hazard, rtol=4e-15, atol=0)


def test_a_bound_that_has_no_part_in_it_has_no_gradient() -> None:
    everything = torch.tensor(-math.inf, dtype=F64), torch.tensor(math.inf, dtype=F64)
    assert [float(x) for x in gradients(gw.stable.log_ndtr_between, *everything)] == [0, 0, 0]
    assert [float(x) for x in gradients(gw.stable.truncated_normal_mean, *everything)] == [0, 0, 0]


@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_is_nan_between_any_two_bounds(function: Any, dtype: torch.dtype) -> None:
    numbers = torch.tensor([*SIZES, *(-x for x in SIZES if x > 0)], dtype=dtype).unique()
    low, high = torch.tensor(list(itertools.combinations(numbers.tolist(), 2)), dtype=dtype).unbind(-1)
    x, y = low.clone().requires_grad_(), high.clone().requires_grad_()
    out = function(x, y)
    first = torch.autograd.grad(out.sum(), (x, y), create_graph=True)
    second = torch.autograd.grad(first[0].sum() + first[1].sum(), (x, y))
    for found in (out, *first, *second):
        assert not found.isnan().any()
    if function is gw.stable.truncated_normal_mean:
        assert ((out >= low) & (out <= high)).all()
        assert all((share >= 0).all() and (share <= 1 + 4 * torch.finfo(dtype).eps).all() for share in first)
    else:
        assert (out <= 0).all()
        assert (first[0] <= 0).all()
        assert (first[1] >= 0).all()


def test_equal_bounds_and_bounds_in_the_wrong_order() -> None:
    same = torch.tensor([-3.0, 0.0, 1e5], dtype=F64)
    out, first, second = gradients(gw.stable.log_ndtr_between, same, same)
    assert out.tolist() == [-math.inf] * 3
    assert first.tolist() == [-math.inf] * 3
    assert second.tolist() == [math.inf] * 3
    mean, first, second = gradients(gw.stable.truncated_normal_mean, same, same)
    torch.testing.assert_close(mean, same)
    for share in (first, second):
        torch.testing.assert_close(share, torch.full_like(same, 0.5), rtol=4e-16, atol=0)
    for function in (gw.stable.log_ndtr_between, gw.stable.truncated_normal_mean):
        for found in gradients(function, torch.tensor([1.0, 5.0]), torch.tensor([0.0, 4.0])):
            assert found.isnan().all()


def test_the_mean_is_what_moving_both_bounds_changes() -> None:
    """The derivative of ``log Z`` along a shift is minus the mean, and the next one the variance minus one."""
    low = torch.tensor([-1.0, 2.0, -8.0, 0.0, 30.0], dtype=F64)
    high = low + torch.tensor([0.5, 1e-3, 5.0, 2.0, 1.0], dtype=F64)

    def shifted(function: Any, t: Tensor) -> Tensor:
        result: Tensor = function(low + t, high + t)
        return result

    zero = torch.zeros_like(low)
    mean = gw.stable.truncated_normal_mean(low, high)
    slope = torch.func.grad(lambda t: shifted(gw.stable.log_ndtr_between, t).sum())
    torch.testing.assert_close(slope(zero), -mean, rtol=1e-11, atol=0)
    bend = torch.func.grad(lambda t: slope(t).sum())(zero)
    of_mean = torch.func.grad(lambda t: shifted(gw.stable.truncated_normal_mean, t).sum())(zero)
    torch.testing.assert_close(bend, -of_mean, rtol=1e-11, atol=0)


def test_where_pytorch_has_minus_infinity_and_nan() -> None:
    low, high = torch.tensor([12.0], dtype=F64), torch.tensor([13.0], dtype=F64)
    assert torch.log(torch.special.ndtr(high) - torch.special.ndtr(low)).item() == -math.inf
    out, first, second = gradients(gw.stable.log_ndtr_between, low, high)
    for found, digits in ((out, -75.41067644498931), (first, -12.08225577946995), (second, 4.502637682642755e-05)):
        torch.testing.assert_close(found, torch.tensor([digits], dtype=F64), rtol=4e-15, atol=0)


@BOTH
def test_gradcheck_and_broadcasting(function: Any) -> None:
    low = torch.tensor([[-1.0], [0.5]], dtype=F64, requires_grad=True)
    high = torch.tensor([1.0, 2.0, 4.0], dtype=F64, requires_grad=True)
    assert function(low, high).shape == (2, 3)
    assert torch.autograd.gradcheck(function, (low, high), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (low, high))


@BOTH
def test_zero_dimensions_no_elements_and_bad_arguments(function: Any) -> None:
    name = function.__name__
    assert function(torch.tensor(0.5), torch.tensor(1.0)).shape == ()
    assert function(torch.empty(0, 3), torch.empty(3)).shape == (0, 3)
    with pytest.raises(ArgumentError, match=f"{name}: high is torch.int64; expected a floating-point tensor"):
        function(torch.tensor(0.5), torch.tensor(1))
    with pytest.raises(ArgumentError, match=f"{name}: low is torch.float32 and high torch.float64; expected one dtype"):
        function(torch.tensor(0.5), torch.tensor(1.0, dtype=F64))
