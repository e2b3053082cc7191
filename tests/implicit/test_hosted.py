"""``@linear_solve(matvec)`` above any solver."""

from __future__ import annotations

import functools
import inspect
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ConvergenceError, DefinitionError, RuleError
from tests.implicit.equations import SECOND, banded, from_bands, positive, product, real, regular, solution, some_bands

linear_solve = gw.implicit.linear_solve
func = torch.func
D = torch.float64


@linear_solve(banded, arrays=True)
def solver(b: np.ndarray, bands: np.ndarray) -> np.ndarray:
    """Solve by SciPy."""
    return scipy.linalg.solve_banded((1, 1), bands, b)


def reference(b: Tensor, bands: Tensor) -> Tensor:
    return solution(from_bands(bands), b)


def test_solve_banded_of_scipy() -> None:
    b, bands = torch.randn(5, dtype=D).requires_grad_(), some_bands().requires_grad_()
    torch.testing.assert_close(solver(b, bands), reference(b, bands))
    assert torch.autograd.gradcheck(solver, (b, bands), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(solver, (b, bands), check_fwd_over_rev=True)


@pytest.mark.parametrize("way", SECOND)
def test_hessians_by_every_way_also_under_vmap(way: str) -> None:
    b, bands = torch.randn(4, dtype=D), torch.stack([some_bands(4), some_bands(4)])
    truth = torch.stack([func.jacrev(func.jacrev(lambda x: real(reference(b, x))))(one) for one in bands])
    second = SECOND[way](lambda bands: real(solver(b, bands)))
    torch.testing.assert_close(second(bands[0]), truth[0])
    torch.testing.assert_close(func.vmap(second)(bands), truth)


def test_a_batch_is_solved_sample_by_sample() -> None:
    b, bands = torch.randn(3, 5, dtype=D), torch.stack([some_bands() for _ in range(3)])
    truth = torch.stack([reference(*each) for each in zip(b, bands)])
    torch.testing.assert_close(func.vmap(solver)(b, bands), truth)
    torch.testing.assert_close(
        func.vmap(solver, (1, None))(b.mT, bands[0]), torch.stack([reference(x, bands[0]) for x in b])
    )
    torch.testing.assert_close(
        func.vmap(solver, (None, 0))(b[0], bands), torch.stack([reference(b[0], x) for x in bands])
    )
    nested = func.vmap(lambda b: func.vmap(lambda x: solver(b, x))(bands))(b)
    torch.testing.assert_close(nested[1, 2], reference(b[1], bands[2]))


def test_it_keeps_name_docstring_signature_and_pickling() -> None:
    assert (solver.__name__, solver.__doc__) == ("solver", "Solve by SciPy.")
    assert list(inspect.signature(solver).parameters) == ["b", "bands"]
    assert "solver" in repr(solver)


def test_a_decorated_solver_is_pickled_by_its_name() -> None:
    import gradwright.errors as home  # a module that can be imported by its name

    @linear_solve(banded)
    def kept(b: Tensor, bands: Tensor) -> Tensor:
        return reference(b, bands)

    kept.__module__, kept.__qualname__ = home.__name__, "kept"
    home.kept = kept  # type: ignore[attr-defined]
    try:
        assert pickle.loads(pickle.dumps(kept)) is kept
    finally:
        del home.kept  # type: ignore[attr-defined]


def test_the_solver_gets_constants_that_it_may_write_to() -> None:
    seen: list[Any] = []

    @linear_solve(product, arrays=True)
    def writes(b: np.ndarray, A: np.ndarray) -> np.ndarray:
        seen.append((type(b), type(A)))
        x = np.linalg.solve(A, b)
        A[:] = np.nan
        b[:] = np.nan
        return x

    A, b = regular(3, 3).requires_grad_(), torch.randn(3, dtype=D).requires_grad_()
    x = writes(b, A)
    assert seen == [(np.ndarray, np.ndarray)]
    torch.testing.assert_close(torch.autograd.grad(real(x), (A, b)), torch.autograd.grad(real(solution(A, b)), (A, b)))

    @linear_solve(product)
    def tensors(b: Tensor, A: Tensor) -> Tensor:
        assert not b.requires_grad
        assert not A.requires_grad
        assert not torch.is_grad_enabled()
        return torch.linalg.solve(A, b)

    torch.testing.assert_close(tensors(b, A), solution(A, b))

    @linear_solve(product)
    def edits(b: Tensor, A: Tensor) -> Tensor:
        x = torch.linalg.solve(A, b)
        b.zero_()
        return x

    with pytest.raises(RuleError, match="edited one of its arguments in place"):
        edits(b, A)


def test_a_solver_may_use_its_memory_again() -> None:
    buffer = np.zeros(3)

    @linear_solve(lambda x, d: d * x, arrays=True)
    def reuses(b: np.ndarray, d: np.ndarray) -> np.ndarray:
        np.divide(b, d, out=buffer)
        return buffer

    d = torch.tensor([1.0, 2.0, 4.0], dtype=D)
    one, two = reuses(torch.ones(3, dtype=D), d), reuses(torch.full((3,), 10.0, dtype=D), d)
    torch.testing.assert_close(one, 1 / d)
    torch.testing.assert_close(two, 10 / d)


def test_the_transposed_solver_is_used() -> None:
    asked = []

    def transposed(g: np.ndarray, bands: np.ndarray) -> np.ndarray:
        asked.append(g)
        flipped = np.stack([np.r_[0.0, bands[2, :-1]], bands[1], np.r_[bands[0, 1:], 0.0]])
        return scipy.linalg.solve_banded((1, 1), flipped, g)

    @linear_solve(banded, arrays=True, transpose_solver=transposed)
    def both(b: np.ndarray, bands: np.ndarray) -> np.ndarray:
        return scipy.linalg.solve_banded((1, 1), bands, b)

    b, bands = torch.randn(4, dtype=D).requires_grad_(), some_bands(4).requires_grad_()
    found = torch.autograd.grad(real(both(b, bands)), (b, bands))
    torch.testing.assert_close(found, torch.autograd.grad(real(reference(b, bands)), (b, bands)))
    assert len(asked) == 1
    assert torch.autograd.gradgradcheck(both, (b, bands))


def test_a_transposed_solver_that_is_none_is_found_out() -> None:
    """Forgetting to transpose is wrong by some percent, and invisible on symmetric problems."""

    def forgot(g: np.ndarray, bands: np.ndarray) -> np.ndarray:
        return scipy.linalg.solve_banded((1, 1), bands, g)

    wrong = linear_solve(banded, arrays=True, transpose_solver=forgot)(forgot)
    x = wrong(torch.randn(5, dtype=D).requires_grad_(), some_bands())
    with pytest.raises(ConvergenceError, match=r"forgot: .* the conjugate transpose of the operator 'banded'"):
        x.sum().backward()
    with pytest.raises(DefinitionError, match="transpose_solver is an int"):
        linear_solve(banded, transpose_solver=3)  # type: ignore[call-overload]


def test_a_positive_definite_operator_has_one_solver_for_both() -> None:
    calls = []

    @linear_solve(product, assume_a="pos", arrays=True)
    def cholesky(b: np.ndarray, A: np.ndarray) -> np.ndarray:
        calls.append(b)
        return scipy.linalg.cho_solve(scipy.linalg.cho_factor(A), b)

    A, b = positive(3, 3), torch.randn(3, dtype=D).requires_grad_()
    (g,) = torch.autograd.grad(real(cholesky(b, A)), b)
    torch.testing.assert_close(g, torch.autograd.grad(real(solution(A, b)), b)[0])
    assert len(calls) == 2


def test_an_iterative_solver_of_scipy_in_the_place_of_the_matrix() -> None:
    @linear_solve(banded, arrays=True, tol=1e-9)
    def sparse(b: np.ndarray, bands: np.ndarray) -> np.ndarray:
        # Of SciPy's layouts this one has the entries above the diagonal first, as the bands have.
        matrix = scipy.sparse.dia_matrix((bands, [1, 0, -1]), shape=(len(b), len(b)))
        x, status = scipy.sparse.linalg.gmres(matrix.tocsr(), b, rtol=1e-12)
        assert status == 0
        return x

    b, bands = torch.randn(6, dtype=D).requires_grad_(), some_bands(6).requires_grad_()
    torch.testing.assert_close(sparse(b, bands), reference(b, bands))
    found = torch.autograd.grad(real(sparse(b, bands)), (b, bands))
    torch.testing.assert_close(found, torch.autograd.grad(real(reference(b, bands)), (b, bands)))


def test_complex_systems() -> None:
    @linear_solve(product, arrays=True)
    def by_numpy(b: np.ndarray, A: np.ndarray) -> np.ndarray:
        return np.linalg.solve(A, b)

    A = regular(3, 3, dtype=torch.complex128).requires_grad_()
    b = torch.randn(3, dtype=torch.complex128).requires_grad_()
    assert torch.autograd.gradcheck(by_numpy, (b, A), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(by_numpy, (b, A))
    torch.testing.assert_close(by_numpy(b.conj(), A.mH), solution(A.mH, b.conj()))


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (lambda b, d: b, ConvergenceError, "what it returned is no solution"),
        (lambda b, d: b * np.nan, ConvergenceError, "what it returned is no solution"),
        (lambda b, d: b[:2], RuleError, r"returned the shape \(2,\) for a b of the shape \(3,\)"),
        (lambda b, d: (b / d)[:, None], RuleError, r"returned the shape \(3, 1\)"),
        (lambda b, d: (b / d).astype(complex), RuleError, "returned torch.complex128 for a b of torch.float64"),
        (lambda b, d: None, RuleError, "returned None"),
        (lambda b, d: "x", RuleError, "returned a str"),
    ],
)
def test_a_solver_that_returns_something_else_is_told(returned: Any, error: type[Exception], text: str) -> None:
    @linear_solve(lambda x, d: d * x, arrays=True)
    @functools.wraps(returned)
    def mine(b: np.ndarray, d: np.ndarray) -> Any:
        return returned(b, d)

    with pytest.raises(error, match=text):
        mine(torch.ones(3, dtype=D), torch.tensor([1.0, 2.0, 3.0], dtype=D))


@pytest.mark.parametrize("returned", [lambda b, d: (b / d).tolist(), lambda b, d: torch.from_numpy(b / d)])
def test_lists_and_tensors_are_solutions_too(returned: Any) -> None:
    x = linear_solve(lambda x, d: d * x, arrays=True)(returned)(
        torch.ones(2, dtype=D), torch.tensor([1.0, 4.0], dtype=D)
    )
    torch.testing.assert_close(x, torch.tensor([1.0, 0.25], dtype=D))


def test_a_number_is_a_solution_too() -> None:
    @linear_solve(lambda x, d: d * x, arrays=True)
    def divide(b: np.ndarray, d: np.ndarray) -> float:
        return float(b) / float(d)

    d = torch.tensor(4.0, dtype=D, requires_grad=True)
    torch.testing.assert_close(
        func.grad(lambda d: divide(torch.tensor(2.0, dtype=D), d))(d), torch.tensor(-0.125, dtype=D)
    )


def test_what_the_solver_raises_is_not_hidden() -> None:
    @linear_solve(lambda x: x)
    def fails(b: Tensor) -> Tensor:
        raise FloatingPointError("of mine")

    with pytest.raises(FloatingPointError, match="of mine"):
        fails(torch.ones(2))
    with pytest.raises(DefinitionError, match="fails: it has a solver already"):
        fails(lambda b: b)


def test_an_ill_conditioned_system_is_solved_as_well_as_it_can_be() -> None:
    """The residual is small for the size of the matrix, not for that of the right side: no reason to refuse."""
    u, v = (torch.linalg.qr(torch.randn(20, 20, dtype=D))[0] for _ in range(2))
    A = (u * torch.logspace(0, -11, 20, dtype=D)) @ v

    @linear_solve(product, arrays=True)
    def by_numpy(b: np.ndarray, A: np.ndarray) -> np.ndarray:
        return np.linalg.solve(A, b)

    b = torch.randn(20, dtype=D)
    x = by_numpy(b, A)
    assert torch.linalg.vector_norm(A @ x - b) > 1e-8 * torch.linalg.vector_norm(b)


def test_an_old_batch_and_a_recorder_are_refused() -> None:
    b, bands = torch.randn(4, dtype=D).requires_grad_(), some_bands(4)
    mine = linear_solve(banded, arrays=True, transpose_solver=lambda g, bands: g)(solver.solver)
    with pytest.raises(RuleError, match="must be given values"):
        torch.autograd.grad(mine(b, bands), b, torch.eye(4, dtype=D), is_grads_batched=True)


def test_compiling_breaks_the_graph_or_refuses() -> None:
    b, bands = torch.randn(5, dtype=D), some_bands().requires_grad_()

    def loss(bands: Tensor) -> Tensor:
        return real(solver(b, 1.0 * bands))

    with warnings.catch_warnings():
        # What PyTorch says to itself where it begins anew with a tensor that is no leaf.
        warnings.filterwarnings("ignore", ".*The .grad attribute of a Tensor that is not a leaf")
        with pytest.raises(Exception, match=r"solver: torch\.compile cannot record"):
            torch.compile(loss, fullgraph=True, backend="aot_eager")(bands)
        found = torch.autograd.grad(torch.compile(loss, backend="aot_eager")(bands), bands)
    torch.testing.assert_close(found, torch.autograd.grad(loss(bands), bands))


@pytest.mark.slow
def test_the_checker_agrees() -> None:
    b, bands = torch.randn(5, dtype=D), some_bands()
    assert gw.check(solver, b, bands, level="full")
    assert gw.check(linear_solve(banded), b, bands, level="full")
    assert gw.check(lambda A, b: linear_solve(A, b), regular(3, 3), b[:3], level="full", require=("export", "compile"))
