"""What is special about quaternions as rotations: the suite of the catalogue proves the rest."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor

from gradwright.errors import ArgumentError
from gradwright.stable import quaternion_exp, quaternion_log, quaternion_multiply, slerp, so3_exp, so3_log
from gradwright.stable.rotation_matrices import matrix_to_quaternion, quaternion_to_matrix
from tests.stable.rotations import turns

ONE = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)


def random(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(count, 4, generator=generator, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_the_logarithm_undoes_the_exponential(dtype: torch.dtype, bar: float) -> None:
    w = turns(dtype)[: None if dtype == torch.float64 else -1]
    torch.testing.assert_close(quaternion_log(quaternion_exp(w)), w, rtol=bar, atol=0)


def test_vectors_quaternions_and_matrices_are_the_same_rotations() -> None:
    w = turns()
    torch.testing.assert_close(quaternion_to_matrix(quaternion_exp(w)), so3_exp(w), rtol=0, atol=1e-15)
    torch.testing.assert_close(quaternion_log(matrix_to_quaternion(so3_exp(w))), so3_log(so3_exp(w)))


def test_both_signs_are_the_same_rotation() -> None:
    q = random(20)
    torch.testing.assert_close(quaternion_log(-q), quaternion_log(q), rtol=0, atol=1e-15)
    assert bool((quaternion_log(q).norm(dim=-1) <= math.pi * (1 + 1e-15)).all())


def test_the_length_has_no_effect() -> None:
    q = random(20).requires_grad_()
    torch.testing.assert_close(quaternion_log(3 * q), quaternion_log(q), rtol=1e-14, atol=0)
    (g,) = torch.autograd.grad(quaternion_log(q).sum(), q)
    assert bool((g * q).sum(-1).abs().max() < 1e-14)


def test_the_gradient_at_the_identity_is_two() -> None:
    jacobian = torch.func.jacrev(quaternion_log)(ONE)
    assert jacobian.tolist() == [[0, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 2]]


def test_at_half_a_turn_the_axis_is_that_of_the_imaginary_part() -> None:
    for zero in (0.0, -0.0):
        q = torch.tensor([zero, 0.0, -1.0, 0.0], dtype=torch.float64, requires_grad=True)
        assert quaternion_log(q).tolist() == [0, -math.pi, 0]
        assert bool(torch.autograd.grad(quaternion_log(q).sum(), q)[0].isfinite().all())


def test_no_rotation_has_no_logarithm() -> None:
    assert bool(quaternion_log(torch.zeros(4)).isnan().all())


def test_slerp_ends_where_it_must() -> None:
    p, q = random(20), random(40)[20:]
    sign = (p * q).sum(-1, keepdim=True).sign()
    torch.testing.assert_close(slerp(p, q, 0.0), p, rtol=0, atol=1e-15)
    torch.testing.assert_close(slerp(p, q, 1.0), sign * q, rtol=0, atol=1e-15)


def test_slerp_has_constant_speed() -> None:
    w = torch.tensor([0.2, -0.9, 1.4], dtype=torch.float64)
    t = torch.linspace(-0.5, 1.5, 9, dtype=torch.float64)
    p = random(1)
    q = quaternion_multiply(quaternion_exp(w), p)
    there = quaternion_multiply(quaternion_exp(t[:, None] * w), p)
    torch.testing.assert_close(slerp(p, q, t), there, rtol=0, atol=1e-14)


def test_slerp_takes_the_shorter_way() -> None:
    q = quaternion_exp(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(slerp(ONE, -q, 0.5), slerp(ONE, q, 0.5))
    right = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert slerp(ONE, right, 1.0).tolist() == right.tolist(), "half a turn apart: the way to q as it is"


def test_slerp_between_equals_is_no_nan_where_the_written_formula_is() -> None:
    p = ONE.clone().requires_grad_()
    angle = torch.acos((p * p).sum())
    assert bool((torch.sin(0.5 * angle) / torch.sin(angle)).isnan())
    t = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    out = slerp(p, p.detach(), t)
    assert out.tolist() == ONE.tolist()
    g = torch.autograd.grad(out[1], (p, t))
    assert g[0].tolist() == [0, 0.5, 0, 0]
    assert g[1].item() == 0


def test_slerp_broadcasts_and_promotes() -> None:
    p, q = random(6).reshape(2, 3, 4), random(3).float()
    assert slerp(p, q, 0.5).shape == (2, 3, 4)
    assert slerp(p, q, 0.5).dtype == torch.float64
    assert slerp(ONE.half(), ONE.half(), torch.rand(5).half()).shape == (5, 4)
    assert slerp(ONE.half(), ONE.half(), 0.5).dtype == torch.float16
    assert slerp(p[:, :0], p[:, :0], 0.5).shape == (2, 0, 4)


def test_bad_arguments_are_named() -> None:
    expected = "slerp: q has shape (3,); expected (..., 4), quaternions, real part first; put the components last"
    with pytest.raises(ArgumentError, match=re.escape(expected)):
        slerp(ONE, torch.zeros(3), 0.5)
    with pytest.raises(ArgumentError, match=re.escape("slerp: t is torch.int64; expected a floating-point tensor")):
        slerp(ONE, ONE, torch.tensor(1))
    with pytest.raises(ArgumentError, match=re.escape("quaternion_log: q is torch.complex64")):
        quaternion_log(torch.zeros(4, dtype=torch.complex64))
    with pytest.raises(ArgumentError, match=re.escape("quaternion_exp: w has shape (4,); expected (..., 3)")):
        quaternion_exp(ONE)


def test_pytorch_agrees_that_the_rules_are_right() -> None:
    q = torch.stack([ONE, 1.5 * random(1)[0]]).requires_grad_()
    assert torch.autograd.gradcheck(quaternion_log, q)
    assert torch.autograd.gradgradcheck(quaternion_log, q)
    p, t = random(2).requires_grad_(), torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(slerp, (p, q, t))
    assert torch.autograd.gradgradcheck(slerp, (p, q, t))
