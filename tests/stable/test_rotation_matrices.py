"""What is special about the ways to write a rotation; the suite of the catalogue proves the rest."""

from __future__ import annotations

import re

import pytest
import torch

from gradwright.errors import ArgumentError
from gradwright.stable import (
    matrix_to_quaternion,
    matrix_to_rotation_6d,
    quaternion_to_matrix,
    rotation_6d,
    so3_exp,
    so3_log,
)
from tests.stable.rotations import turns


def test_quaternions_and_matrices_are_each_other() -> None:
    q = torch.nn.functional.normalize(torch.randn(500, 4, dtype=torch.float64), dim=-1)
    back = matrix_to_quaternion(quaternion_to_matrix(q))
    torch.testing.assert_close(back, q * q[:, :1].sign(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("largest", range(4))
def test_every_component_may_be_the_largest(largest: int) -> None:
    q = torch.full((4,), 0.1, dtype=torch.float64)
    q[largest] = 1.0
    m = quaternion_to_matrix(q).requires_grad_()
    torch.testing.assert_close(matrix_to_quaternion(m), q / q.norm(), rtol=0, atol=1e-15)
    assert torch.autograd.gradcheck(matrix_to_quaternion, m)
    assert torch.autograd.gradgradcheck(matrix_to_quaternion, m)


def test_gradients_of_matrices_lie_in_the_tangent_space() -> None:
    m = quaternion_to_matrix(torch.randn(20, 4, dtype=torch.float64)).requires_grad_()
    (g,) = torch.autograd.grad(matrix_to_quaternion(m).sum(), m)
    assert bool((m.mT @ g + g.mT @ m).abs().max() < 1e-14)


def test_the_length_of_a_quaternion_has_no_effect() -> None:
    q = torch.randn(20, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(quaternion_to_matrix(5 * q), quaternion_to_matrix(q), rtol=0, atol=1e-14)
    (g,) = torch.autograd.grad(quaternion_to_matrix(q).sum(), q)
    assert bool((g * q).sum(-1).abs().max() < 1e-13)


def test_six_numbers_make_a_rotation_and_back() -> None:
    x = torch.randn(100, 6, dtype=torch.float64)
    m = rotation_6d(x)
    torch.testing.assert_close(m.mT @ m, torch.eye(3, dtype=m.dtype).expand_as(m), rtol=0, atol=1e-13)
    assert bool((torch.linalg.det(m) > 0).all())
    torch.testing.assert_close(m[..., 0], torch.nn.functional.normalize(x[:, :3], dim=-1))
    rotations = so3_exp(turns())
    torch.testing.assert_close(rotation_6d(matrix_to_rotation_6d(rotations)), rotations, rtol=0, atol=1e-14)


def test_six_numbers_reach_the_identity_and_leave_it() -> None:
    x = matrix_to_rotation_6d(torch.eye(3, dtype=torch.float64)).requires_grad_()
    (g,) = torch.autograd.grad(so3_log(rotation_6d(x))[2], x)
    assert g.tolist() == [0, 1, 0, 0, 0, 0]


def test_parallel_vectors_make_no_rotation() -> None:
    assert bool(rotation_6d(torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0, 0.0])).isnan().any())


def test_shapes_and_dtypes_are_kept() -> None:
    for shape in ((), (0,), (2, 1)):
        for dtype in (torch.float64, torch.float32, torch.float16):
            m = rotation_6d(torch.tensor([1, 0, 0, 0, 1, 0], dtype=dtype).expand(*shape, 6))
            assert m.shape == (*shape, 3, 3)
            assert matrix_to_rotation_6d(m).shape == (*shape, 6)
            assert matrix_to_quaternion(m).shape == (*shape, 4)
            assert {m.dtype, matrix_to_rotation_6d(m).dtype, matrix_to_quaternion(m).dtype} == {dtype}


def test_bad_arguments_are_named() -> None:
    expected = "rotation_6d: x has shape (3, 2); expected (..., 6), two vectors of three one after the other; "
    with pytest.raises(ArgumentError, match=re.escape(expected)):
        rotation_6d(torch.zeros(3, 2))
    for function in (matrix_to_quaternion, matrix_to_rotation_6d):
        with pytest.raises(
            ArgumentError, match=re.escape(f"{function.__name__}: m has shape (4, 4); expected (..., 3")
        ):
            function(torch.eye(4))
