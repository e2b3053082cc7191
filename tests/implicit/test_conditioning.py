"""Condition numbers from factors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwright.implicit import dense
from gradwright.implicit.conditioning import condition_number, norm_of_inverse
from tests.implicit.equations import regular

D = torch.float64


def estimate(A: Tensor) -> Tensor:
    factors, _ = dense.unchecked_factors(A, "gen")
    return condition_number(A, lambda x, adjoint: dense.solved(factors, x, adjoint=adjoint))


def scaled(A: Tensor) -> Tensor:
    """Return a matrix whose largest entry in each row, and then in each column, is 1."""
    A = A / A.abs().amax(-1, keepdim=True)
    return A / A.abs().amax(-2, keepdim=True)


@pytest.mark.parametrize("dtype", [D, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 7, 100, 101, 150])
def test_it_is_the_condition_number_up_to_a_factor_of_three(n: int, dtype: torch.dtype) -> None:
    for _ in range(5):
        A = torch.randn(n, n, dtype=dtype)
        truth = torch.linalg.cond(scaled(A), 1)
        assert truth / 3 <= estimate(A) <= 1.0001 * truth


def test_up_to_order_100_it_is_exact() -> None:
    A = torch.randn(100, 100, dtype=D)
    torch.testing.assert_close(estimate(A), torch.linalg.cond(scaled(A), 1))


def test_an_ill_conditioned_large_matrix_is_seen() -> None:
    u, v = (torch.linalg.qr(torch.randn(120, 120, dtype=D))[0] for _ in range(2))
    A = (u * torch.logspace(0, -11, 120, dtype=D)) @ v
    truth = torch.linalg.cond(scaled(A), 1)
    assert truth / 3 <= estimate(A) <= 1.01 * truth


def test_an_inverse_that_hides_from_the_first_vectors_is_seen() -> None:
    """What sums to exactly zero over rows and columns and leaves some unknowns alone; Higham's vector sees it."""
    n = 128
    part = torch.randint(-3, 4, (60, 60)).to(D)
    hidden = torch.zeros(n, n, dtype=D)
    hidden[8:, 8:] = torch.cat([torch.cat([part, -part]), torch.cat([-part, part])], 1)
    inverse = torch.eye(n, dtype=D) + 2**26 * hidden
    found = norm_of_inverse(inverse, lambda x: inverse @ x, lambda x: inverse.mT @ x)
    truth = torch.linalg.matrix_norm(inverse, 1)
    assert truth / 200 <= found <= truth


def test_each_matrix_of_a_batch_has_its_own() -> None:
    for n in (5, 110):
        A = regular(3, n, n)
        one_by_one = torch.stack([estimate(each) for each in A])
        torch.testing.assert_close(estimate(A), one_by_one)
        torch.testing.assert_close(torch.func.vmap(estimate)(A), one_by_one)
