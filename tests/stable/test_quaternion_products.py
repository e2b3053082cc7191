"""What is special about products of quaternions: the convention."""

from __future__ import annotations

import re

import pytest
import torch

from gradwright.errors import ArgumentError
from gradwright.stable import quaternion_conjugate, quaternion_multiply, quaternion_rotate, quaternion_to_matrix

UNITS = torch.eye(4, dtype=torch.float64)


def test_the_product_is_hamilton_s() -> None:
    one, i, j, k = UNITS
    for a, b, c in ((i, j, k), (j, k, i), (k, i, j)):
        assert torch.equal(quaternion_multiply(a, b), c)
        assert torch.equal(quaternion_multiply(b, a), -c)
        assert torch.equal(quaternion_multiply(a, a), -one)


def test_a_product_turns_by_the_second_first() -> None:
    p, q, v = (torch.randn(5, n, dtype=torch.float64) for n in (4, 4, 3))
    both = quaternion_rotate(quaternion_multiply(p, q), v)
    torch.testing.assert_close(both, quaternion_rotate(p, quaternion_rotate(q, v)))
    matrices = quaternion_to_matrix(p) @ quaternion_to_matrix(q)
    torch.testing.assert_close(both, (matrices @ v[..., None])[..., 0])


def test_turning_is_what_the_product_says() -> None:
    q, v = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    pure = torch.cat([torch.zeros_like(v[..., :1]), v], -1)
    inverse = quaternion_conjugate(q) / (q * q).sum(-1, keepdim=True)
    product = quaternion_multiply(quaternion_multiply(q, pure), inverse)
    torch.testing.assert_close(quaternion_rotate(q, v), product[..., 1:])


def test_shapes_broadcast_and_dtypes_promote() -> None:
    p, q = torch.randn(2, 1, 4), torch.randn(3, 4, dtype=torch.float64)
    assert quaternion_multiply(p, q).shape == (2, 3, 4)
    assert quaternion_multiply(p, q).dtype == torch.float64
    assert quaternion_rotate(p, q[:, 1:]).shape == (2, 3, 3)
    assert quaternion_rotate(p.half(), q[:, 1:].half()).dtype == torch.float16
    assert quaternion_multiply(p[:, :0], q[:0]).shape == (2, 0, 4)


def test_bad_arguments_are_named() -> None:
    for function in (quaternion_conjugate, quaternion_to_matrix):
        with pytest.raises(ArgumentError, match=re.escape(f"{function.__name__}: q has shape (3,); expected (..., 4)")):
            function(torch.zeros(3))
    with pytest.raises(ArgumentError, match=re.escape("quaternion_multiply: q has shape (3,)")):
        quaternion_multiply(UNITS, torch.zeros(3))
    with pytest.raises(ArgumentError, match=re.escape("quaternion_rotate: v has shape (4,); expected (..., 3), vect")):
        quaternion_rotate(UNITS[0], UNITS[0])


def test_pytorch_agrees_that_the_rules_are_right() -> None:
    q, v = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (4, 3))
    assert torch.autograd.gradcheck(quaternion_rotate, (q, v))
    assert torch.autograd.gradgradcheck(quaternion_rotate, (q, v))
