"""``operator_solve``, on which the other implicit functions stand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gradwright.errors import ConvergenceError, RuleError, SingularMatrixError
from gradwright.implicit import SolveOptions, systems
from gradwright.implicit.systems import operator_solve
from tests.implicit.equations import SECOND, positive, product, real, regular, solution

func = torch.func
D = torch.float64
C = torch.complex128
WAYS = {
    "direct": SolveOptions(),
    "gmres": SolveOptions(method="gmres", tol=1e-13),
    "direct, positive": SolveOptions(assume_a="pos"),
    "cg": SolveOptions(method="cg", assume_a="pos", tol=1e-13),
}


def matrix_for(options: SolveOptions, *shape: int, dtype: torch.dtype = D) -> Tensor:
    return (positive if options.assume_a == "pos" else regular)(*shape, dtype=dtype)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("way", WAYS)
def test_values_and_two_derivatives(way: str, dtype: torch.dtype, transposed: bool) -> None:
    options = WAYS[way]
    direct = options.method == "auto"
    # Of a positive definite operator the parameter moves only such matrices.
    root, b = matrix_for(options, 3, 3, dtype=dtype).requires_grad_(), torch.randn(3, dtype=dtype).requires_grad_()

    def matrix(root: Tensor) -> Tensor:
        return root @ root.mH + torch.eye(3, dtype=dtype) if options.assume_a == "pos" else root

    def solve(root: Tensor, b: Tensor) -> Tensor:
        return operator_solve(product, b, (matrix(root),), transposed=transposed, options=options)

    A = matrix(root)
    torch.testing.assert_close(solve(root, b), solution(A.mH if transposed else A, b))
    # PyTorch's old vmap cannot follow `root @ root.mH` of complex numbers in forward mode.
    assert torch.autograd.gradcheck(
        solve, (root, b), check_forward_ad=True, check_batched_grad=direct, check_batched_forward_grad=way == "direct"
    )
    assert torch.autograd.gradgradcheck(solve, (root, b), check_fwd_over_rev=True, check_batched_grad=direct)


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("way", ["direct", "gmres"])
def test_hessians_by_every_way_also_under_vmap(way: str, second: str) -> None:
    A, b = regular(2, 3, 3), torch.randn(3, dtype=D)
    truth = torch.stack([func.jacrev(func.jacrev(lambda A: real(solution(A, b))))(one) for one in A])
    hessian = SECOND[second](lambda A: real(operator_solve(product, b, (A,), options=WAYS[way])))
    torch.testing.assert_close(hessian(A[0]), truth[0])
    torch.testing.assert_close(func.vmap(hessian)(A), truth)


def test_every_container_of_parameters_gets_gradients() -> None:
    def apply(x: Tensor, p: dict[str, Tensor], power: int, others: list[Tensor], index: Tensor) -> Tensor:
        return (p["A"] @ x) ** power + others[0] * x[index]

    A, d = regular(3, 3).requires_grad_(), torch.randn(3, dtype=D).requires_grad_()
    b, index = torch.randn(3, dtype=D), torch.tensor([1, 2, 0])
    x = operator_solve(apply, b, ({"A": A}, 1, [d], index))
    truth = solution(A + d[:, None] * torch.eye(3, dtype=D)[index], b)
    torch.testing.assert_close(x, truth)
    torch.testing.assert_close(torch.autograd.grad(real(x), (A, d)), torch.autograd.grad(real(truth), (A, d)))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 2)])
def test_unknowns_of_any_shape(shape: tuple[int, ...]) -> None:
    n = max(1, torch.Size(shape).numel())
    A, b = regular(n, n).requires_grad_(), torch.randn(shape, dtype=D).requires_grad_()

    def apply(x: Tensor, A: Tensor) -> Tensor:
        return (A @ x.reshape(-1)).reshape(x.shape)

    x = operator_solve(apply, b, (A,))
    truth = solution(A, b.reshape(-1)).reshape(shape)
    torch.testing.assert_close(x, truth)
    torch.testing.assert_close(torch.autograd.grad(real(x), (A, b)), torch.autograd.grad(real(truth), (A, b)))


def test_nothing_to_solve() -> None:
    b = torch.empty(0, dtype=D, requires_grad=True)
    x = operator_solve(product, b, (torch.empty(0, 0, dtype=D),))
    assert torch.autograd.grad(x.sum(), b)[0].shape == (0,)


def test_without_parameters() -> None:
    b = torch.randn(3, dtype=D).requires_grad_()
    x = operator_solve(lambda x: 2 * x, b)
    torch.testing.assert_close(torch.autograd.grad(x.sum(), b)[0], torch.full((3,), 0.5, dtype=D))


def test_a_parameter_that_does_not_matter_has_the_gradient_zero() -> None:
    A, other = regular(3, 3), torch.ones(2, dtype=D, requires_grad=True)
    x = operator_solve(lambda x, A, other: A @ x, torch.ones(3, dtype=D), (A, other))
    torch.testing.assert_close(torch.autograd.grad(x.sum(), other)[0], torch.zeros(2, dtype=D))


def test_the_matrix_is_formed_once_for_all_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    form = systems.System.matrix
    monkeypatch.setattr(systems.System, "matrix", lambda *args: made.append(1) or form(*args))  # type: ignore[func-returns-value]
    A, b = regular(3, 3).requires_grad_(), torch.randn(3, dtype=D)
    (g,) = torch.autograd.grad(real(operator_solve(product, b, (A,))), A, create_graph=True)
    torch.autograd.grad(real(g), A)
    assert len(made) == 1


def test_a_function_whose_course_depends_on_values_is_applied_column_by_column() -> None:
    def apply(x: Tensor, A: Tensor) -> Tensor:
        return A @ x if float(x.sum()) else 0 * x

    A, b = regular(3, 3), torch.randn(3, dtype=D)
    torch.testing.assert_close(operator_solve(apply, b, (A,)), solution(A, b))


def test_float32_is_solved_in_float32() -> None:
    A, b = regular(5, 5, dtype=torch.float32), torch.randn(5)
    for options in (SolveOptions(), SolveOptions(method="gmres")):
        x = operator_solve(product, b, (A,), options=options)
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, solution(A, b), rtol=1e-3, atol=1e-4)


def test_recorded_operations_give_the_same() -> None:
    A, b = regular(3, 3), torch.randn(3, dtype=D)

    def gradient(A: Tensor, b: Tensor) -> Tensor:
        return func.grad(lambda A: real(operator_solve(product, b, (A,))))(A)  # type: ignore[no-any-return]

    recorded = make_fx(gradient)(A, b)
    other = regular(3, 3)
    torch.testing.assert_close(recorded(other, b), gradient(other, b))


def test_an_iterative_method_is_not_recorded_and_refuses_the_old_vmap() -> None:
    A, b = regular(3, 3), torch.randn(3, dtype=D)
    with pytest.raises(RuleError, match="product: an iterative method must look at values"):
        make_fx(lambda A, b: operator_solve(product, b, (A,), options=WAYS["gmres"]))(A, b)
    x = operator_solve(product, b.requires_grad_(), (A,), options=WAYS["gmres"])
    with pytest.raises(RuleError, match="product: an iterative method must look at values"):
        torch.autograd.grad(x, b, torch.eye(3, dtype=D), is_grads_batched=True)


def test_auto_takes_the_method_by_size_and_is_direct_after_all() -> None:
    A, b = regular(8, 8), torch.randn(8, dtype=D)
    small = SolveOptions(direct_up_to=4, max_steps=2)
    torch.testing.assert_close(operator_solve(product, b, (A,), options=small), solution(A, b))
    with pytest.raises(ConvergenceError, match="product: the linear solve did not converge"):
        operator_solve(product, b, (A,), options=SolveOptions(method="gmres", max_steps=2))
    assert SolveOptions().resolved(1000) == "direct"
    assert SolveOptions().resolved(1001) == "gmres"
    assert SolveOptions(assume_a="pos").resolved(1001) == "cg"


def test_a_method_of_the_users() -> None:
    asked = []

    def solve(matvec: object, rmatvec: object, b: Tensor) -> Tensor:
        matrix = torch.stack([matvec(unit) for unit in torch.eye(3, dtype=D)], 1)  # type: ignore[operator]
        adjoint = torch.stack([rmatvec(unit) for unit in torch.eye(3, dtype=D)], 1)  # type: ignore[operator]
        torch.testing.assert_close(matrix.mH, adjoint)
        asked.append(b)
        return torch.linalg.solve(matrix, b)

    A, b = regular(3, 3).requires_grad_(), torch.randn(3, dtype=D).requires_grad_()
    x = operator_solve(product, b, (A,), options=SolveOptions(method=solve))
    found = torch.autograd.grad(real(x), (A, b))
    torch.testing.assert_close(found, torch.autograd.grad(real(solution(A, b)), (A, b)))
    assert len(asked) == 2
    wrong = SolveOptions(method=lambda matvec, rmatvec, b: b)
    with pytest.raises(ConvergenceError, match="did not converge"):
        operator_solve(product, b, (A,), options=wrong)


def test_a_singular_operator_is_an_error_by_every_method() -> None:
    A, b = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=D)), torch.ones(3, dtype=D)
    for way in ("direct", "direct, positive", "cg"):
        with pytest.raises(SingularMatrixError, match="product"):
            operator_solve(product, b, (A,), options=WAYS[way])
    with pytest.raises(ConvergenceError, match="a singular operator has no solution"):
        operator_solve(product, b, (A,), options=WAYS["gmres"])


def test_a_right_side_with_nan_has_no_solution_and_holds_nothing_up() -> None:
    A, b = regular(3, 3), torch.tensor([[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]], dtype=D)
    for way in ("direct", "gmres"):
        x = func.vmap(lambda b, way=way: operator_solve(product, b, (A,), options=WAYS[way]))(b)
        torch.testing.assert_close(x[0], solution(A, b[0]))
        assert x[1].isnan().any()
