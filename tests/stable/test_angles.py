"""What is special about the angle between vectors; the suite of the catalogue proves the rest."""

from __future__ import annotations

import math
import re

import mpmath
import pytest
import torch

from gradwright.errors import ArgumentError
from gradwright.stable import angle_between


@pytest.mark.parametrize("exponent", range(-14, 1))
def test_small_angles_and_their_gradients_have_all_their_digits(exponent: int) -> None:
    torch.manual_seed(exponent)
    u = torch.randn(3, dtype=torch.float64)
    v = ((u + 10.0**exponent * torch.randn(3, dtype=torch.float64)) * 1.7).requires_grad_()
    angle = angle_between(u, v)
    (g,) = torch.autograd.grad(angle, v)
    with mpmath.workdps(60):
        a, b = ([mpmath.mpf(x) for x in w.tolist()] for w in (u, v))
        aa, bb, ab = mpmath.fdot(a, a), mpmath.fdot(b, b), mpmath.fdot(a, b)
        true = mpmath.atan2(mpmath.sqrt(aa * bb - ab**2), ab)
        rest = [ab / bb * y - x for x, y in zip(a, b)]
        size = mpmath.sqrt(mpmath.fdot(rest, rest) * bb)
        slope = torch.tensor([float(x / size) for x in rest], dtype=torch.float64)
    assert abs(float(angle.detach()) - float(true)) < 4e-15 * float(true)
    torch.testing.assert_close(g, slope, rtol=0, atol=4e-15 * float(slope.norm()))


def test_what_people_write_loses_them() -> None:
    u, v = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([1.0, 1e-9, 0.0], dtype=torch.float64)
    assert float(torch.acos((u * v).sum() / u.norm() / v.norm())) == 0.0
    assert float(angle_between(u, v)) == 1e-9


def test_parallel_vectors_have_the_gradient_of_minimum_norm() -> None:
    for factor in (1.0, 3.0, -0.3, -2.0):
        for row in ([1.0, 2.0, 2.0], [0.3, -0.7, 0.1]):
            u = torch.tensor(row, dtype=torch.float64, requires_grad=True)
            v = u.detach() * factor
            angle = angle_between(u, v)
            assert abs(float(angle.detach()) - (0.0 if factor > 0 else math.pi)) < 2e-16
            (g,) = torch.autograd.grad(angle, u)
            assert float(g.norm() * u.detach().norm()) <= 1 + 1e-15
            if factor in (1.0, -2.0):  # exactly parallel
                assert g.tolist() == [0, 0, 0]


def test_a_vector_of_no_length_has_no_angle() -> None:
    u, zero = torch.tensor([1.0, 2.0]), torch.zeros(2)
    for pair in ((u, zero), (zero, u), (zero, zero)):
        assert bool(angle_between(*pair).isnan())


def test_dim_broadcasting_and_dtypes() -> None:
    u, v = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(3, 1, dtype=torch.float64)
    found = angle_between(u, v, dim=-2)
    assert found.shape == (2, 4)
    torch.testing.assert_close(found, torch.acos(torch.cosine_similarity(u, v, dim=-2)))
    assert angle_between(u.half(), v.half(), dim=-2).dtype == torch.float16
    assert angle_between(u.float(), v, dim=-2).dtype == torch.float64
    assert angle_between(u[:0], u[:0]).shape == (0, 3)


def test_bad_arguments_are_named() -> None:
    expected = "angle_between: u has shape (3,) and v (2,); expected as many components in both along dim=-1; say with"
    with pytest.raises(ArgumentError, match=re.escape(expected)):
        angle_between(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ArgumentError, match=re.escape("angle_between: v is torch.int64")):
        angle_between(torch.zeros(3), torch.zeros(3, dtype=torch.int64))


def test_pytorch_agrees_that_the_rules_are_right() -> None:
    torch.manual_seed(0)
    u, v = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(angle_between, (u, v))
    assert torch.autograd.gradgradcheck(angle_between, (u, v))


def test_the_direction_of_the_gradient_at_angles_below_the_rounding() -> None:
    u = torch.tensor([0.0, 2.0, 0.0])
    v = torch.tensor([-0.024, -4.7e7, -1.2e-7], requires_grad=True)
    (g,) = torch.autograd.grad(angle_between(u, v), v)
    exact = v.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(angle_between(u.double(), exact), exact)
    torch.testing.assert_close(g.double(), want, rtol=0, atol=1e-6 * float(want.abs().max()))
