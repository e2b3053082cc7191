"""Length and angle in the plane: what is special about them."""

from __future__ import annotations

import math

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError

a = torch.tensor([[1.5], [-2.0]], dtype=torch.float64, requires_grad=True)
b = torch.tensor([0.5, -3.0, 2.0], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", ["hypot", "atan2"])
def test_broadcasting_and_second_derivatives(name: str) -> None:
    ours = getattr(gw.stable, name)
    torch.testing.assert_close(ours(a, b), getattr(torch, name)(a, b))
    assert torch.autograd.gradcheck(ours, (a, b))
    assert torch.autograd.gradgradcheck(ours, (a, b))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_angle_of_a_complex_number(dtype: torch.dtype) -> None:
    z = torch.complex(torch.tensor([1.0, -2.0, 0.0], dtype=dtype), torch.tensor([2.0, -0.5, 1.0], dtype=dtype))
    torch.testing.assert_close(gw.stable.angle(z), torch.angle(z))
    torch.testing.assert_close(gw.stable.angle(z.conj()), -torch.angle(z))
    torch.testing.assert_close(gw.stable.angle(z.real), torch.angle(z.real))


def test_infinity_and_nan() -> None:
    x = torch.tensor([math.inf, math.nan], requires_grad=True)
    out = gw.stable.hypot(x, torch.ones(2))
    assert out[0] == math.inf
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad[0] == 0
    assert grad[1].isnan()


def test_dtypes() -> None:
    half = torch.ones(2, dtype=torch.float16)
    assert gw.stable.hypot(half, half).dtype == torch.float16
    assert gw.stable.atan2(half, torch.ones(2)).dtype == torch.float32
    with pytest.raises(ArgumentError, match=r"hypot: y is torch.int64"):
        gw.stable.hypot(half, torch.arange(2))
    with pytest.raises(ArgumentError, match=r"atan2: input is torch.complex64"):
        gw.stable.atan2(torch.ones(2) * 1j, half)


def test_a_number_decides_no_dtype() -> None:
    number, row = torch.tensor(2.0, dtype=torch.float64), torch.ones(2)
    for ours, theirs in ((gw.stable.hypot, torch.hypot), (gw.stable.atan2, torch.atan2)):
        assert ours(row, number).dtype == theirs(row, number).dtype == torch.float32
