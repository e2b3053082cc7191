"""Functions of symmetric matrices: planted multiplicities and gaps, both derivatives, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, DomainError, GradwrightError, RuleError

stable = gw.stable


@dataclass(frozen=True)
class Function:
    """A function of matrices, and of numbers with two derivatives."""

    of_matrix: Callable[[Tensor], Tensor]
    of_number: Callable[[Any], Any]
    first: Callable[[Any], Any]
    second: Callable[[Any], Any]
    any_sign: bool = False


def power(p: float) -> Function:
    e = mpmath.mpf(p)
    return Function(
        lambda A: stable.powm(A, p),
        lambda x: x**e,
        lambda x: e * x ** (e - 1),
        lambda x: e * (e - 1) * x ** (e - 2),
        p >= 0 and p == int(p),
    )


def damped(x: Any) -> Any:
    return x / (1 + x * x)


def damped_by_formula(A: Tensor) -> Tensor:
    return stable.matrix_function(A, damped, lambda x, y: (1 - x * y) / ((1 + x * x) * (1 + y * y)))


DAMPED = (damped, lambda x: (1 - x * x) / (1 + x * x) ** 2, lambda x: 2 * x * (x * x - 3) / (1 + x * x) ** 3, True)
FUNCTIONS = {
    "sqrtm": Function(stable.sqrtm, mpmath.sqrt, lambda x: 0.5 / mpmath.sqrt(x), lambda x: -0.25 * x**-1.5),
    "invsqrtm": Function(
        stable.invsqrtm, lambda x: 1 / mpmath.sqrt(x), lambda x: -0.5 * x**-1.5, lambda x: 0.75 * x**-2.5
    ),
    "logm": Function(stable.logm, mpmath.log, lambda x: 1 / x, lambda x: -1 / x**2),
    "expm": Function(stable.expm, mpmath.exp, mpmath.exp, mpmath.exp, True),
    "powm_0.3": power(0.3),
    "powm_-1.5": power(-1.5),
    "powm_3": power(3),
    "powm_-2": power(-2),
    "damped": Function(lambda A: stable.matrix_function(A, damped), *DAMPED),
    "damped_by_formula": Function(damped_by_formula, *DAMPED),
}
EACH = pytest.mark.parametrize("name", FUNCTIONS)


# -------------------------------------------------------------------- matrices whose eigenvectors are known exactly


def orthogonal(n: int, source: random.Random, dtype: torch.dtype) -> Tensor:
    """Return eigenvectors whose entries are small fractions: Hadamard matrices in blocks, moved about."""
    blocks = []
    left = n
    while left:
        size = max(s for s in (1, 4, 16, 64) if s <= left)
        block = torch.ones(1, 1, dtype=torch.float64)
        while block.shape[0] < size:
            block = torch.kron(block, torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))
        blocks.append(block / size**0.5)
        left -= size
    V = torch.block_diag(*blocks)[source.sample(range(n), n)].to(dtype)
    units = [1, -1, 1j, -1j] if dtype.is_complex else [1, -1]
    return V * torch.tensor([source.choice(units) for _ in range(n)], dtype=dtype).unsqueeze(-1)


@dataclass(frozen=True)
class Case:
    """A matrix, where its eigenvalues are from, and directions."""

    A: Tensor
    V: Tensor
    values: list[float]
    which: Tensor
    """Which of the values each eigenvalue is."""
    g: Tensor
    v: Tensor


def cases(count: int, dtype: torch.dtype, any_sign: bool, largest: int) -> Iterator[Case]:
    """Give matrices with repeated eigenvalues and gaps of 0 to 1e-3, that the dtype holds exactly, away from zeros."""
    source = random.Random(count)
    generator = torch.Generator().manual_seed(count)
    single = dtype in (torch.float32, torch.complex64)
    for _ in range(count):
        n = source.choice([1, 2, 3, 4, 5, 8, 16, 20, largest])
        values = []
        for _ in range(source.randint(1, 4)):
            centre = source.randint(96, 256) / 64 * (source.choice([1, -1]) if any_sign else 1)
            values += [
                centre + k * 2.0 ** -source.randint(10, 12 if single else 36) for k in range(source.randint(1, 2))
            ]
        which = torch.tensor([source.randrange(len(values)) for _ in range(n)])
        wide = torch.complex128 if dtype.is_complex else torch.float64
        V = orthogonal(n, source, wide)
        A = (V * torch.tensor(values, dtype=torch.float64)[which]) @ V.mH
        g, v = (torch.randn(n, n, dtype=wide, generator=generator).to(dtype) for _ in range(2))
        yield Case(A.to(dtype), V, values, which, g, v)


def divided(f: Function, numbers: Sequence[Any]) -> Any:
    """Return a divided difference of 2 or 3 numbers, by the definition."""
    numbers = sorted(numbers)
    if numbers[0] == numbers[-1]:
        return f.first(numbers[0]) if len(numbers) == 2 else f.second(numbers[0]) / 2
    if len(numbers) == 2:
        low, high = map(f.of_number, numbers)
    else:
        low, high = divided(f, numbers[:2]), divided(f, numbers[1:])
    return (high - low) / (numbers[-1] - numbers[0])


def truths(f: Function, case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value, the gradient for ``g``, and the derivative of its product with ``v``."""
    with mpmath.workdps(80):
        numbers = [mpmath.mpf(x) for x in case.values]
        one = torch.tensor([float(f.of_number(x)) for x in numbers], dtype=torch.float64)
        two = torch.tensor([[float(divided(f, (x, y))) for x in numbers] for y in numbers], dtype=torch.float64)
        three = torch.tensor(
            [[[float(divided(f, (x, y, z))) for x in numbers] for y in numbers] for z in numbers], dtype=torch.float64
        )
    V, at = case.V, case.which
    g, v = ((V.mH @ (x + x.mH).to(V.dtype) @ V) / 2 for x in (case.g, case.v))
    three = three[at][:, at][:, :, at].to(V.dtype)
    second = torch.einsum("ikj,ik,kj->ij", three, g, v) + torch.einsum("ikj,ik,kj->ij", three, v, g)
    return (V * one[at]) @ V.mH, V @ (two[at][:, at] * g) @ V.mH, V @ second @ V.mH


def off(found: Tensor, true: Tensor) -> float:
    return float((found.detach().to(true.dtype) - true).abs().max() / true.abs().max())


def check_cases(name: str, count: int, dtype: torch.dtype, largest: int) -> None:
    f = FUNCTIONS[name]
    bar = 1e-12 if dtype in (torch.float64, torch.complex128) else 1e-5
    for case in cases(count, dtype, f.any_sign, largest):
        value, first, second = truths(f, case)
        A = case.A.clone().requires_grad_()
        out = f.of_matrix(A)
        (grad,) = torch.autograd.grad(out, A, case.g, create_graph=True)
        product = (grad * case.v.conj()).real.sum() if grad.is_complex() else (grad * case.v).sum()
        (bent,) = torch.autograd.grad(product, A)
        about = f"eigenvalues {case.values} {case.which.tolist()}"
        assert off(out, value) <= bar, about
        assert off(grad, first) <= bar, about
        assert second.abs().max() == 0 or off(bent, second) <= 100 * bar, about


DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32, torch.complex64])


@EACH
@DTYPES
def test_some_planted_multiplicities_and_gaps(name: str, dtype: torch.dtype) -> None:
    check_cases(name, 12, dtype, 24)


@EACH
@DTYPES
@pytest.mark.slow
def test_a_thousand_planted_multiplicities_and_gaps(name: str, dtype: torch.dtype) -> None:
    check_cases(name, 250, dtype, 64)  # in each of four dtypes


# -------------------------------------------------------------------- modes


def rotated(values: Sequence[float], dtype: torch.dtype = torch.float64) -> Tensor:
    V, _ = torch.linalg.qr(
        torch.randn(len(values), len(values), dtype=dtype, generator=torch.Generator().manual_seed(1))
    )
    A: Tensor = (V * torch.tensor(values, dtype=torch.float64)) @ V.mH
    return (A + A.mH) / 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("values", [[1.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
def test_all_modes_agree_with_differences(values: list[float], dtype: torch.dtype) -> None:
    A = rotated(values, dtype).requires_grad_()
    for function in (stable.logm, lambda A: stable.powm(A, 2.5)):
        assert torch.autograd.gradcheck(
            function, A, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
        )
        assert torch.autograd.gradgradcheck(function, A, check_fwd_over_rev=True, check_batched_grad=True)


def test_every_order_of_two_modes_gives_the_same_hessian() -> None:
    A = rotated([1.0, 1.0, 2.0])
    modes = (torch.func.jacfwd, torch.func.jacrev)
    hessians = [one(two(lambda A: stable.sqrtm(A).pow(3).sum()))(A) for one in modes for two in modes]
    for hessian in hessians[1:]:
        torch.testing.assert_close(hessian, hessians[0], rtol=1e-12, atol=1e-12)


def test_a_third_derivative_is_refused() -> None:
    A = rotated([1.0, 1.0, 2.0]).requires_grad_()
    (first,) = torch.autograd.grad(stable.expm(A)[0, 1], A, create_graph=True)
    (second,) = torch.autograd.grad(first[0, 1], A, create_graph=True)
    with pytest.raises(RuleError, match="its gradient was differentiated again"):
        torch.autograd.grad(second[0, 0], A)
    with pytest.raises(RuleError, match="its gradient was differentiated again"):
        torch.func.jacfwd(torch.func.jacfwd(torch.func.jacfwd(stable.expm)))(A.detach())


def test_batches_and_broadcast_shapes() -> None:
    A = torch.stack([rotated([1.0, 1.0, 2.0]), rotated([0.5, 1.0, 3.0])]).unsqueeze(1).requires_grad_()
    out = stable.sqrtm(A)
    assert out.shape == (2, 1, 3, 3)
    (grad,) = torch.autograd.grad(out.sum(), A)
    for i in range(2):
        alone = A[i, 0].detach().requires_grad_()
        (own,) = torch.autograd.grad(stable.sqrtm(alone).sum(), alone)
        torch.testing.assert_close(grad[i, 0], own, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0)])
def test_no_numbers(shape: tuple[int, ...]) -> None:
    A = torch.zeros(shape, requires_grad=True)
    (grad,) = torch.autograd.grad(stable.logm(A).sum(), A)
    assert grad.shape == shape


def test_the_gradient_is_symmetric_and_that_of_the_symmetric_part() -> None:
    A = rotated([1.0, 2.0, 4.0]).requires_grad_()
    (grad,) = torch.autograd.grad(stable.logm(A)[0, 1], A)
    assert torch.equal(grad, grad.T)
    tilted = A.detach() + torch.tensor([[0.0, 0.01, 0.0], [-0.01, 0.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(stable.logm(tilted), stable.logm(A.detach()))


def test_identities() -> None:
    A = rotated([0.5, 1.0, 1.0, 3.0], torch.complex128)
    close = {"rtol": 1e-13, "atol": 1e-13}
    torch.testing.assert_close(stable.sqrtm(A) @ stable.sqrtm(A), A, **close)
    torch.testing.assert_close(stable.invsqrtm(A) @ stable.sqrtm(A), torch.eye(4, dtype=A.dtype), **close)
    torch.testing.assert_close(stable.expm(stable.logm(A)), A, **close)
    torch.testing.assert_close(stable.expm(A), torch.linalg.matrix_exp(A), **close)
    torch.testing.assert_close(stable.powm(A, 3), A @ A @ A, **close)
    torch.testing.assert_close(stable.powm(A, -1), torch.linalg.inv(A), **close)
    torch.testing.assert_close(stable.powm(-A, 0), torch.eye(4, dtype=A.dtype), **close)


def test_autocast_does_not_lower_the_precision() -> None:
    A = rotated([1.0, 1.0, 2.0]).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = stable.sqrtm(A)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out @ out, A, rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------- singular matrices


def test_a_root_of_low_rank_has_the_gradient_among_matrices_of_its_rank() -> None:
    """``tr sqrtm(B B^T)`` is the sum of the singular values of ``B``; its gradient is the orthogonal factor."""
    B = torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    v = torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def factor(B: Tensor) -> Tensor:
        U, _, Wh = torch.linalg.svd(B, full_matrices=False)
        return U @ Wh

    for function in (stable.sqrtm, lambda A: stable.powm(A, 0.5)):
        (grad,) = torch.autograd.grad(function(B @ B.mT).trace(), B, create_graph=True)
        torch.testing.assert_close(grad, factor(B).detach(), rtol=1e-12, atol=1e-12)
        (bent,) = torch.autograd.grad((grad * v).sum(), B)
        _, want = torch.func.jvp(factor, (B.detach(),), (v,))
        torch.testing.assert_close(bent, want, rtol=1e-10, atol=1e-10)


def test_at_zero_the_gradient_of_a_root_is_that_of_least_norm() -> None:
    A = torch.zeros(2, 2, requires_grad=True)
    assert not torch.autograd.grad(stable.sqrtm(A).sum(), A)[0].any()
    A = torch.diag(torch.tensor([4.0, 0.0])).requires_grad_()
    (grad,) = torch.autograd.grad(stable.sqrtm(A).sum(), A)
    torch.testing.assert_close(grad, torch.tensor([[0.25, 0.5], [0.5, 0.0]]))


def test_a_small_eigenvalue_is_no_zero_where_the_matrix_says_so() -> None:
    A = torch.diag(torch.tensor([1.0, 1e-20], dtype=torch.float64)).requires_grad_()
    (grad,) = torch.autograd.grad(stable.sqrtm(A)[1, 1], A)
    torch.testing.assert_close(grad[1, 1], torch.tensor(5e9, dtype=torch.float64))
    assert stable.logm(A.detach())[1, 1].item() == pytest.approx(-46.05170185988092)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_rounding_makes_of_zero_is_zero(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    for n in (2, 5, 16, 64):
        for rank in {1, n // 2, n - 1}:
            B = torch.randn(8, n, rank, generator=generator, dtype=dtype)
            A = B @ B.mT
            assert (torch.linalg.matrix_rank(stable.powm(A, 1e-3)) == rank).all()
            with pytest.raises(DomainError, match="zero to working precision"):
                stable.logm(A)


# -------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("A", "error", "text"),
    [
        (
            torch.ones(2, 2, dtype=torch.int64),
            ArgumentError,
            "sqrtm: A has dtype torch.int64; expected float32",
        ),
        ([[1.0]], ArgumentError, "sqrtm: A is a list; expected a tensor"),
        (torch.ones(3), ArgumentError, r"sqrtm: A has shape \(3,\); expected \(..., n, n\)"),
        (torch.ones(2, 3), ArgumentError, r"sqrtm: A has shape \(2, 3\)"),
        (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), DomainError, "sqrtm: A is not symmetric: an entry differs from its"),
        (torch.tensor([[1.0, 1j], [1j, 2.0]]), DomainError, "sqrtm: A is not Hermitian"),
        (
            torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]]),
            DomainError,
            "sqrtm: A has entries that are infinite or nan",
        ),
        (torch.tensor([[1.0, 0.0], [0.0, torch.inf]]), DomainError, "sqrtm: A has entries that are infinite or nan"),
        (torch.diag(torch.tensor([1.0, -2.0])), DomainError, "sqrtm: an eigenvalue of A is -2; expected positive semi"),
    ],
)
def test_bad_matrices_are_refused(A: Any, error: type[GradwrightError], text: str) -> None:
    with pytest.raises(error, match=text):
        stable.sqrtm(A)


def test_the_other_functions_refuse_what_they_must() -> None:
    for function in (stable.logm, stable.invsqrtm, lambda A: stable.powm(A, -0.5), lambda A: stable.powm(A, -2)):
        with pytest.raises(DomainError, match="zero to working precision; expected positive definite matrices"):
            function(torch.ones(2, 2))
    with pytest.raises(DomainError, match="powm: an eigenvalue of A is -1; expected positive semidefinite"):
        stable.powm(-torch.eye(2), 0.5)
    with pytest.raises(ArgumentError, match=r"powm: exponent is a Tensor; expected a number; .* expm\(exponent"):
        stable.powm(torch.eye(2), torch.tensor(2.0))  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentError, match=r"matrix_function: f returned a tensor of torch.complex64, shape \(2,\); expected real"
    ):
        stable.matrix_function(torch.eye(2), lambda x: torch.exp(1j * x), lambda x, y: x)
    with pytest.raises(ArgumentError, match="matrix_function: divided_difference returned 1; expected real numbers"):
        stable.matrix_function(torch.eye(2), torch.exp, lambda x, y: 1)  # type: ignore[arg-type, return-value]


def test_where_values_cannot_be_looked_at_a_bad_matrix_is_nan_and_leaves_the_others_alone() -> None:
    A = torch.stack([torch.eye(2), -torch.eye(2), torch.ones(2, 2)])
    for function in (stable.logm, stable.invsqrtm, lambda A: stable.powm(A, -2)):
        out = torch.func.vmap(function)(A)
        assert out[0].isfinite().all()
        assert out[2].isnan().all()
    assert torch.func.vmap(stable.sqrtm)(A).isnan().flatten(1).all(1).tolist() == [False, True, False]


# -------------------------------------------------------------------- a function that is given


def test_what_a_function_depends_on_gets_its_gradient() -> None:
    A = rotated([1.0, 1.0, 2.0]).requires_grad_()
    rate = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def ours(A: Tensor, rate: Tensor) -> Tensor:
        return stable.matrix_function(A, lambda x: torch.exp(rate * x))

    assert torch.autograd.gradcheck(ours, (A, rate), check_forward_ad=True)
    (by_rate,) = torch.func.grad(lambda r: ours(A.detach(), r).sum(), argnums=(0,))(rate.detach())
    want = (A @ torch.linalg.matrix_exp(rate * A)).sum()
    torch.testing.assert_close(by_rate, want.detach())
    # First in the matrix and then in the rate.
    (grad,) = torch.autograd.grad(ours(A, rate)[0, 0], A, create_graph=True)
    (mixed,) = torch.autograd.grad(grad[0, 1], rate)
    (grad,) = torch.autograd.grad(torch.linalg.matrix_exp(rate * (A + A.T) / 2)[0, 0], A, create_graph=True)
    torch.testing.assert_close(mixed, torch.autograd.grad(grad[0, 1], rate)[0])
    # First in the rate and then in the matrix.
    (grad,) = torch.autograd.grad(ours(A, rate)[0, 0], rate, create_graph=True)
    with pytest.raises(RuleError, match="matrix_function: the gradient of what f depends on was differentiated again"):
        torch.autograd.grad(grad, A)


def test_a_formula_may_branch_where_the_numbers_are_equal() -> None:
    def cubes(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x == y, 3 * x * x, x * x + x * y + y * y)

    A = rotated([1.0, 1.0, 2.0]).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda A: stable.matrix_function(A, lambda x: x**3, cubes), A)
    eye = torch.eye(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda A: stable.matrix_function(A, lambda x: x**3, cubes), eye)


def test_a_derivative_may_be_given_for_a_function_that_has_none() -> None:
    def rounded(x: Tensor) -> Tensor:
        return x.detach().exp()

    A = rotated([1.0, 1.0, 2.0]).requires_grad_()
    out = stable.matrix_function(A, rounded, derivative=torch.exp)
    (grad,) = torch.autograd.grad(out[0, 1], A)
    (want,) = torch.autograd.grad(stable.expm(A)[0, 1], A)
    torch.testing.assert_close(grad, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 30.0])
def test_the_better_of_quotient_and_mean_is_taken(gap: float) -> None:
    """At 1000 the quotient has lost five digits where the gap is a thousandth; at a gap of 30 the mean has."""
    A = torch.diag(torch.tensor([100.0, 100.0 + gap], dtype=torch.float64)).requires_grad_()
    (grad,) = torch.autograd.grad(stable.matrix_function(A, lambda x: torch.sin(x))[0, 1], A)
    x, y = A.detach().diagonal().tolist()
    with mpmath.workdps(40):
        want = float((mpmath.sin(y) - mpmath.sin(x)) / (mpmath.mpf(y) - x)) if gap else float(mpmath.cos(x))
    assert float(grad[0, 1]) * 2 == pytest.approx(want, abs=1e-14)
