"""Determinants at every rank: the modes agree with each other and with cofactors, to second order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, RuleError
from gradwright.stable.left_out_products import bent_adjugate, moved_adjugate, without_one, without_two

stable = gw.stable


def of_rank(n: int, rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a matrix of small integers (halves, if complex), for which cofactors are exact."""
    generator = torch.Generator().manual_seed(10 * n + rank)

    def integers(*shape: int) -> Tensor:
        found = torch.randint(-2, 3, shape, generator=generator).to(dtype)
        return found + 1j * torch.randint(-1, 2, shape, generator=generator).to(dtype) if dtype.is_complex else found

    while True:
        A = integers(n, rank) @ integers(rank, n)
        if torch.linalg.matrix_rank(A) == rank:
            return A / 2


def by_cofactors(A: Tensor) -> Tensor:
    """Return a determinant as a polynomial, which PyTorch differentiates rightly."""
    n = A.shape[-1]
    if n == 0:
        return torch.ones((), dtype=A.dtype)
    terms = []
    for order in itertools.permutations(range(n)):
        swaps = sum(order[i] > order[j] for i in range(n) for j in range(i + 1, n))
        term = A[0, order[0]]
        for i in range(1, n):
            term = term * A[i, order[i]]
        terms.append(-term if swaps % 2 else term)
    return torch.stack(terms).sum()


def adjugate_by_cofactors(A: Tensor) -> Tensor:
    """Return the gradient of a determinant, transposed."""
    found: Tensor = torch.func.vjp(by_cofactors, A)[1](torch.ones((), dtype=A.dtype))[0].mH
    return found


RANKS = pytest.mark.parametrize(("n", "rank"), [(n, n - k) for n in (1, 2, 3, 4) for k in range(n + 1)])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@RANKS
@DTYPES
def test_all_modes_give_the_adjugate_and_its_derivative(n: int, rank: int, dtype: torch.dtype) -> None:
    A = of_rank(n, rank, dtype)
    E = torch.randn(n, n, dtype=dtype, generator=torch.Generator().manual_seed(0))
    adjugate, moved = torch.func.jvp(adjugate_by_cofactors, (A,), (E,))
    torch.testing.assert_close(stable.adjugate(A), adjugate, **CLOSE)
    # Reverse without a graph, with one, and twice.
    A.requires_grad_()
    for graph in (False, True):
        (grad,) = torch.autograd.grad(stable.det(A), A, torch.ones((), dtype=dtype), create_graph=graph)
        torch.testing.assert_close(grad, adjugate.mH, **CLOSE)
    (bent,) = torch.autograd.grad(grad, A, E)
    torch.testing.assert_close(bent, moved.mH if not dtype.is_complex else moved_back(A.detach(), E), **CLOSE)
    # Forward, forward over reverse, and forward twice.
    A = A.detach()
    rate = (adjugate.mT * E).sum()
    torch.testing.assert_close(torch.func.jvp(stable.det, (A,), (E,))[1], rate, **CLOSE)
    torch.testing.assert_close(torch.func.jvp(stable.adjugate, (A,), (E,))[1], moved, **CLOSE)

    def forward(A: Tensor) -> Tensor:
        return torch.func.jvp(stable.det, (A,), (E,))[1]

    torch.testing.assert_close(torch.func.jvp(forward, (A,), (E,))[1], (moved.mT * E).sum(), **CLOSE)


def moved_back(A: Tensor, E: Tensor) -> Tensor:
    """Return the derivative of the conjugate of the gradient, paired with ``E``."""
    A = A.clone().requires_grad_()
    (grad,) = torch.autograd.grad(by_cofactors(A), A, torch.ones((), dtype=A.dtype), create_graph=True)
    (bent,) = torch.autograd.grad(grad + 0 * A, A, E)
    return bent


@pytest.mark.parametrize(("n", "rank"), [(4, 4), (4, 3), (4, 2), (4, 1), (4, 0), (3, 1)])
@DTYPES
def test_the_second_derivative_of_the_adjugate(n: int, rank: int, dtype: torch.dtype) -> None:
    A = of_rank(n, rank, dtype)
    generator = torch.Generator().manual_seed(1)
    E, H = (torch.randn(n, n, dtype=dtype, generator=generator) for _ in range(2))

    def twice(function: Callable[[Tensor], Tensor]) -> Tensor:
        def along(A: Tensor) -> Tensor:
            return torch.func.jvp(function, (A,), (E,))[1]

        return torch.func.jvp(along, (A,), (H,))[1]

    torch.testing.assert_close(twice(stable.adjugate), twice(adjugate_by_cofactors), **CLOSE)


def test_the_adjugate_passes_the_checks_of_pytorch() -> None:
    for dtype in (torch.float64, torch.complex128):
        A = of_rank(4, 2, dtype).requires_grad_()
        assert torch.autograd.gradcheck(stable.adjugate, A, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(stable.adjugate, A, fast_mode=True, check_fwd_over_rev=True)


def test_a_derivative_too_many_is_refused() -> None:
    A = of_rank(4, 3).requires_grad_()
    found = stable.det(A)
    for _ in range(3):
        (grad,) = torch.autograd.grad(found, A, create_graph=True)
        found = grad[0, 0] * 1.0 + grad[1, 1]
    with pytest.raises(RuleError, match="its gradient was differentiated again"):
        torch.autograd.grad(found, A)


def test_products_without_some() -> None:
    s = torch.tensor([3.0, 2.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    for i in range(5):
        assert without_one(s)[i] == torch.cat([s[:i], s[i + 1 :]]).prod()
        for j in range(5):
            left = [x for k, x in enumerate(s.tolist()) if k not in (i, j)]
            assert without_two(s)[i, j] == (torch.tensor(left).prod() if i != j else 0)


def test_the_derivatives_of_a_diagonal_adjugate() -> None:
    s = torch.tensor([2.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    X, Y = (torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in (1, 2))

    def along(A: Tensor) -> Tensor:
        return torch.func.jvp(adjugate_by_cofactors, (A,), (X,))[1]

    torch.testing.assert_close(moved_adjugate(X, s), along(s.diag()), **CLOSE)
    torch.testing.assert_close(bent_adjugate(X, Y, s), torch.func.jvp(along, (s.diag(),), (Y,))[1], **CLOSE)


def test_larger_matrices() -> None:
    A = torch.randn(3, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 6
    A[1, 0] = A[1, 1]
    found = stable.adjugate(A)
    size = found.abs().amax((-2, -1), keepdim=True)
    whole = stable.det(A)[:, None, None] * torch.eye(40, dtype=torch.float64)
    torch.testing.assert_close(found @ A / size, whole / size, rtol=1e-12, atol=1e-12)


# -------------------------------------------------------------------- slogdet


@pytest.mark.parametrize("A", [torch.ones(2, 2), torch.diag(torch.tensor([2.0, 1.0, 0.0])), torch.zeros(2, 2)])
@DTYPES
def test_a_logarithm_of_zero_has_no_derivative_in_any_mode(A: Tensor, dtype: torch.dtype) -> None:
    A = A.to(dtype).requires_grad_()
    sign, logabsdet = stable.slogdet(A)
    assert sign == 0
    assert logabsdet == -torch.inf
    for graph in (False, True):
        (grad,) = torch.autograd.grad(logabsdet, A, create_graph=graph, retain_graph=True)
        assert grad.isnan().all()
    assert torch.autograd.grad(grad.real.sum(), A)[0].isnan().all()
    assert torch.func.jvp(lambda A: stable.slogdet(A).logabsdet, (A.detach(),), (A.detach(),))[1].isnan()


def test_a_singular_matrix_that_is_not_used_leaves_the_others_alone() -> None:
    A = torch.stack([torch.eye(2), torch.ones(2, 2)]).double().requires_grad_()

    def loss(A: Tensor) -> Tensor:
        sign, logabsdet = stable.slogdet(A)
        return torch.where(sign == 0, 0.0, logabsdet).sum()

    (grad,) = torch.autograd.grad(loss(A), A, create_graph=True)
    torch.testing.assert_close(grad.detach(), torch.stack([torch.eye(2), torch.zeros(2, 2)]).double())
    (bent,) = torch.autograd.grad(grad.pow(2).sum(), A)
    torch.testing.assert_close(bent[0], -2 * torch.eye(2).double())
    assert not bent[1].any()


@DTYPES
def test_logarithms_in_all_modes(dtype: torch.dtype) -> None:
    A = (of_rank(3, 3, dtype) * (1 + 0.5j if dtype.is_complex else 1)).requires_grad_()
    for function in (lambda A: stable.slogdet(A).logabsdet, lambda A: stable.slogdet(A).sign * 1.0):
        assert torch.autograd.gradcheck(function, A, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, A, check_fwd_over_rev=True)


# -------------------------------------------------------------------- what is refused, and shapes


@pytest.mark.parametrize("function", [stable.det, stable.slogdet, stable.adjugate])
def test_bad_arguments_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    name = function.__name__
    with pytest.raises(ArgumentError, match=rf"{name}: A has shape \(2, 3\); expected \(..., n, n\)"):
        function(torch.ones(2, 3))
    with pytest.raises(ArgumentError, match=f"{name}: A has dtype torch.int64"):
        function(torch.ones(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4), (0, 2, 2)])
def test_no_numbers(shape: tuple[int, ...]) -> None:
    A = torch.zeros(shape, requires_grad=True)
    assert stable.det(A).shape == shape[:-2]
    assert torch.equal(stable.det(A), torch.ones(shape[:-2]))
    (grad,) = torch.autograd.grad(stable.det(A).sum(), A)
    assert grad.shape == shape
    assert stable.adjugate(A).shape == shape
