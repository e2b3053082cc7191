"""``linear_solve`` of a matrix, the forms of the function, and what it refuses."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.errors import (
    ArgumentError,
    DefinitionError,
    DomainError,
    IllConditionedWarning,
    OptionError,
    RuleError,
    SingularMatrixError,
)
from tests.implicit.equations import SECOND, banded, from_bands, positive, product, real, regular, solution, some_bands

linear_solve = gw.implicit.linear_solve
func = torch.func
D = torch.float64
C = torch.complex128

SHAPES = [
    ((4, 4), (4,)),
    ((4, 4), (4, 2)),
    ((3, 4, 4), (3, 4)),
    ((3, 4, 4), (4,)),
    ((3, 4, 4), (3, 4, 2)),
    ((4, 4), (3, 4, 2)),
    ((3, 1, 4, 4), (2, 4, 1)),
    ((1, 1), (1,)),
    ((0, 0), (0,)),
    ((2, 0, 0), (2, 0, 3)),
]


def by_inverse(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    vector = b.ndim == 1 or b.shape == A.shape[:-1]
    found = torch.linalg.inv(A) @ (b[..., None] if vector else b)
    return found[..., 0] if vector else found


@pytest.mark.parametrize(("of_matrix", "of_right"), SHAPES)
@pytest.mark.parametrize("dtype", [D, C, torch.float32])
def test_values_have_the_shapes_of_torch(
    of_matrix: tuple[int, ...], of_right: tuple[int, ...], dtype: torch.dtype
) -> None:
    A, b = regular(*of_matrix, dtype=dtype), torch.randn(*of_right, dtype=dtype)
    torch.testing.assert_close(linear_solve(A, b), torch.linalg.solve(A, b))


@pytest.mark.parametrize(("of_matrix", "of_right"), SHAPES[:7])
@pytest.mark.parametrize("dtype", [D, C])
def test_derivatives_of_every_shape(of_matrix: tuple[int, ...], of_right: tuple[int, ...], dtype: torch.dtype) -> None:
    A = regular(*of_matrix, dtype=dtype).requires_grad_()
    b = torch.randn(*of_right, dtype=dtype).requires_grad_()
    assert torch.autograd.gradcheck(linear_solve, (A, b), check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("assume_a", ["gen", "pos"])
def test_second_derivatives(dtype: torch.dtype, assume_a: str) -> None:
    A = (positive if assume_a == "pos" else regular)(3, 3, dtype=dtype).requires_grad_()
    b = torch.randn(3, dtype=dtype).requires_grad_()

    def solve(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear_solve(A, b, assume_a=assume_a)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(solve, (A, b), check_forward_ad=True, check_batched_forward_grad=True)
    assert torch.autograd.gradgradcheck(solve, (A, b), check_fwd_over_rev=True, check_batched_grad=True)


@pytest.mark.parametrize("way", SECOND)
def test_hessians_by_every_way_also_under_vmap(way: str) -> None:
    A, b = regular(2, 3, 3), torch.randn(3, dtype=D)
    truth = torch.stack([func.jacrev(func.jacrev(lambda A: real(solution(A, b))))(one) for one in A])
    second = SECOND[way](lambda A: real(linear_solve(A, b)))
    torch.testing.assert_close(second(A[0]), truth[0])
    torch.testing.assert_close(func.vmap(second)(A), truth)


def test_a_third_derivative() -> None:
    A, b, t = regular(3, 3), torch.randn(3, dtype=D), torch.randn(3, 3, dtype=D)

    def third(solve: object) -> torch.Tensor:
        def along(s: torch.Tensor) -> torch.Tensor:
            return real(solve(A + s * t, b))  # type: ignore[operator]

        return func.grad(func.grad(func.grad(along)))(torch.zeros((), dtype=D))  # type: ignore[no-any-return]

    torch.testing.assert_close(third(linear_solve), third(solution))


def test_one_factorisation_serves_all_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    factorise = torch.linalg.lu_factor_ex
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", lambda A: calls.append(1) or factorise(A))  # type: ignore[func-returns-value]
    A, b = regular(4, 4).requires_grad_(), torch.randn(4, dtype=D).requires_grad_()
    (g,) = torch.autograd.grad(real(linear_solve(A, b)), A, create_graph=True)
    torch.autograd.grad(real(g), (A, b))
    assert len(calls) == 1


def test_under_vmap_over_each_argument_alone() -> None:
    A, b = regular(3, 4, 4), torch.randn(3, 4, dtype=D)
    torch.testing.assert_close(func.vmap(linear_solve)(A, b), by_inverse(A, b))
    torch.testing.assert_close(func.vmap(linear_solve, (0, None))(A, b[0]), by_inverse(A, b[0].expand(3, 4)))
    torch.testing.assert_close(func.vmap(linear_solve, (None, 0))(A[0], b), by_inverse(A[0].expand(3, 4, 4), b))
    # Both at once, one inside of the other: here torch.linalg.lu_solve returns other numbers.
    every = func.vmap(lambda A: func.vmap(lambda b: linear_solve(A, b))(b))(A)
    torch.testing.assert_close(every, torch.einsum("aij,bj->abi", torch.linalg.inv(A), b))


def test_positive_definite_matrices_have_symmetric_gradients() -> None:
    A, b = positive(4, 4).requires_grad_(), torch.randn(4, dtype=D)
    x = linear_solve(A, b, assume_a="pos")
    torch.testing.assert_close(x, solution(A, b))
    (g,) = torch.autograd.grad(real(x), A)
    (whole,) = torch.autograd.grad(real(solution(A, b)), A)
    torch.testing.assert_close(g, (whole + whole.mT) / 2)


@pytest.mark.parametrize("method", ["gmres", "cg"])
def test_iterative_methods_take_a_matrix_too(method: str) -> None:
    A, b = positive(6, 6).requires_grad_(), torch.randn(6, dtype=D).requires_grad_()
    x = linear_solve(A, b, method=method, assume_a="pos" if method == "cg" else "gen", tol=1e-12)  # type: ignore[arg-type]
    torch.testing.assert_close(x, solution(A, b))
    found = torch.autograd.grad(real(x), (A, b))
    used = (A + A.mH) / 2 if method == "cg" else A
    torch.testing.assert_close(found, torch.autograd.grad(real(solution(used, b)), (A, b)))
    batch = torch.randn(2, 6, dtype=D)
    torch.testing.assert_close(
        linear_solve(A.expand(2, 6, 6), batch, method="gmres"), by_inverse(A.expand(2, 6, 6), batch)
    )


# -------------------------------------------------------------------- compile and export


@pytest.mark.compile
def test_compiled_without_a_break_and_checked() -> None:
    def loss(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return real(linear_solve(A, b))

    A, b = regular(4, 4).requires_grad_(), torch.randn(4, dtype=D).requires_grad_()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(A, b), (A, b))
    torch.testing.assert_close(found, torch.autograd.grad(real(solution(A, b)), (A, b)))
    with pytest.raises(SingularMatrixError, match="is singular"):
        compiled(torch.ones(4, 4, dtype=D), b)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("assume_a", ["gen", "pos"])
@pytest.mark.parametrize("shape", [(4,), (4, 2), (3, 4, 2)])
def test_compiled_by_inductor(assume_a: str, shape: tuple[int, ...]) -> None:
    def solve(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear_solve(A, b, assume_a=assume_a)  # type: ignore[arg-type]

    A = (positive if assume_a == "pos" else regular)(4, 4).requires_grad_()
    b = torch.randn(*shape, dtype=D).requires_grad_()
    compiled = torch.compile(solve, fullgraph=True)
    torch.testing.assert_close(compiled(A, b), solve(A, b))
    found = torch.autograd.grad(real(compiled(A, b)), (A, b))
    torch.testing.assert_close(found, torch.autograd.grad(real(solve(A, b)), (A, b)))


def test_an_exported_program_trains_with_the_rule() -> None:
    class Layer(torch.nn.Module):
        def forward(self, A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return linear_solve(A, b)

    A, b = regular(4, 4).requires_grad_(), torch.randn(4, dtype=D)
    program = torch.export.export(Layer(), (A, b)).module()
    torch.testing.assert_close(
        torch.autograd.grad(real(program(A, b)), A), torch.autograd.grad(real(solution(A, b)), A)
    )


# -------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("A", "b", "text"),
    [
        (torch.ones(3, 4), torch.ones(3), r"A has the shape \(3, 4\); expected square"),
        (torch.ones(3), torch.ones(3), r"A has the shape \(3,\); expected square"),
        (torch.eye(3), torch.ones(4), r"A has the shape \(3, 3\) and b \(4,\)"),
        (torch.eye(3), torch.ones(()), r"and b \(\)"),
        (torch.eye(3).expand(2, 3, 3), torch.ones(5, 3), r"and b \(5, 3\)"),
        (torch.eye(3).expand(2, 3, 3), torch.ones(5, 3, 1), r"and b \(5, 3, 1\)"),
        (torch.eye(3), torch.ones(3, dtype=D), "A is of torch.float32, b of torch.float64"),
        (torch.eye(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64), "A is of torch.int64"),
        (torch.eye(3).half(), torch.ones(3).half(), "b is of torch.float16, in which no linear system is solved"),
        (torch.eye(3), [1.0, 1.0, 1.0], "b is a list"),
        (torch.eye(3), None, "b is None"),
        (torch.eye(3).to_sparse(), torch.ones(3), "A is a sparse tensor"),
        (3.0, torch.ones(3), "got a float; expected a matrix"),
    ],
)
def test_arguments_that_do_not_fit(A: object, b: object, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        linear_solve(A, b)  # type: ignore[call-overload]


def test_a_singular_matrix_is_an_error() -> None:
    with pytest.raises(SingularMatrixError, match="a pivot is exactly zero"):
        linear_solve(torch.ones(3, 3, dtype=D), torch.ones(3, dtype=D))
    with pytest.raises(SingularMatrixError, match="is singular"):
        func.vmap(linear_solve)(torch.stack([torch.eye(3), torch.zeros(3, 3)]), torch.ones(2, 3))
    places = torch.arange(16, dtype=D)
    almost = 1 / (1 + places + places[:, None])
    with pytest.raises(SingularMatrixError, match="singular to working precision"):
        linear_solve(almost, torch.ones(16, dtype=D))
    assert linear_solve(almost, torch.ones(16, dtype=D), on_ill_conditioned="ignore").isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_matrix_with_nan_or_infinity_is_an_error(value: float) -> None:
    A = torch.eye(3)
    A[0, 1] = value
    with pytest.raises(DomainError, match="nan or infinite"):
        linear_solve(A, torch.ones(3))


def test_a_matrix_of_huge_numbers_is_none() -> None:
    """Their sum is infinite, they are not."""
    A = torch.full((3, 3), 2e38) * torch.tensor([[1.0, 0.1, 0.1], [0.9, -1.0, 0.0], [0.8, 0.0, -1.0]]).abs()
    A[1, 1] = A[2, 2] = 3e38
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IllConditionedWarning)
        assert not A.sum().isfinite()
        linear_solve(A, torch.full((3,), 1e38))


def test_an_ill_conditioned_matrix_is_warned_of_with_the_number() -> None:
    A = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 1e-12]], dtype=D)
    with pytest.warns(IllConditionedWarning, match=r"linear_solve: .* number is about 4\.0e\+12") as record:
        linear_solve(A, torch.ones(2, dtype=D))
    assert record[0].filename == __file__
    with pytest.raises(SingularMatrixError, match="ill-conditioned"):
        linear_solve(A, torch.ones(2, dtype=D), on_ill_conditioned="raise")
    linear_solve(A, torch.ones(2, dtype=D), on_ill_conditioned="ignore")
    linear_solve(A, torch.ones(2, dtype=D), ill_conditioned=1e13)


def test_units_are_no_condition() -> None:
    """Rows and columns of very different sizes cost no digits, and are not warned of."""
    A, rows, columns = regular(4, 4), torch.logspace(-30, 30, 4, dtype=D), torch.logspace(20, -20, 4, dtype=D)
    x = linear_solve(rows[:, None] * A * columns, rows * A.sum(1))
    torch.testing.assert_close(x * columns, torch.ones(4, dtype=D))


def test_a_matrix_that_is_not_what_is_assumed() -> None:
    with pytest.raises(SingularMatrixError, match="not Hermitian"):
        linear_solve(regular(3, 3), torch.ones(3, dtype=D), assume_a="pos")
    with pytest.raises(SingularMatrixError, match="not positive definite"):
        linear_solve(-torch.eye(3), torch.ones(3), assume_a="pos")


def test_options_that_are_not_known() -> None:
    A, b = torch.eye(2), torch.ones(2)
    with pytest.raises(OptionError, match="linear_solve: method: got 'lu'"):
        linear_solve(A, b, method="lu")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="method='cg' is right only for Hermitian"):
        linear_solve(A, b, method="cg")
    with pytest.raises(OptionError, match="restart is 0; expected a whole number from 1 on"):
        linear_solve(A, b, restart=0)
    with pytest.raises(OptionError, match=r"tol is -1\.0; expected a number above 0"):
        linear_solve(A, b, tol=-1.0)
    with pytest.raises(DefinitionError, match="no option 'rtol'"):
        linear_solve(A, b, rtol=1e-3)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="arrays is for a solver"):
        linear_solve(A, b, arrays=True)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="a function and b at once"):
        linear_solve(product, b)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="product: assume_a: got 'sym'"):
        linear_solve(product, assume_a="sym")  # type: ignore[call-overload]


# -------------------------------------------------------------------- a function in the place of the matrix


def test_a_function_in_the_place_of_the_matrix() -> None:
    solve = linear_solve(banded)
    bands, b = some_bands().requires_grad_(), torch.randn(5, dtype=D).requires_grad_()
    torch.testing.assert_close(solve(b, bands), solution(from_bands(bands), b))
    assert torch.autograd.gradcheck(solve, (b, bands), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(solve, (b, bands))
    again = pickle.loads(pickle.dumps(solve))
    torch.testing.assert_close(again(b, bands), solve(b, bands))


def test_a_function_that_is_not_linear_is_told() -> None:
    with pytest.raises(RuleError, match="affine: it is not linear"):

        def affine(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return 2 * x + c

        linear_solve(affine)(torch.ones(3), torch.ones(3))
    with pytest.raises(RuleError, match="is not linear"):
        linear_solve(lambda x: x**3)(torch.ones(3))
    with pytest.raises(RuleError, match="is not linear"):
        func.vmap(linear_solve(lambda x: x.abs()))(torch.ones(2, 3))


def test_a_function_that_autograd_cannot_follow_is_told() -> None:
    with pytest.raises(RuleError, match="autograd cannot follow it"):
        linear_solve(lambda x, d: x.detach() * d)(torch.ones(3), torch.ones(3))


def test_a_function_that_uses_a_parameter_without_receiving_it_is_told() -> None:
    A, b = regular(3, 3).requires_grad_(), torch.ones(3, dtype=D)

    def around(A: torch.Tensor) -> torch.Tensor:
        def inside(x: torch.Tensor) -> torch.Tensor:
            return A @ x

        return linear_solve(inside)(b).sum()  # type: ignore[no-any-return]

    with pytest.raises(RuleError, match="inside: it uses a tensor that requires grad"):
        around(A)
    A = A.detach()
    for transform in (func.grad, func.jacfwd, func.vmap):
        with pytest.raises(RuleError, match="inside: it uses a tensor that requires grad, or that a transform is at"):
            transform(around)(A.expand(2, 3, 3) if transform is func.vmap else A)
    torch.testing.assert_close(around(A), solution(A, b).sum())


@pytest.mark.parametrize("method", ["direct", "gmres"])
def test_a_module_in_the_place_of_the_matrix_is_trained(method: str) -> None:
    layer = torch.nn.Linear(3, 3, bias=False, dtype=D)
    b = torch.ones(3, dtype=D)
    truth = torch.autograd.grad(real(solution(layer.weight, b)), layer.weight)
    for operator in (layer, layer.forward):
        solve = linear_solve(operator, method=method, tol=1e-12)
        torch.testing.assert_close(torch.autograd.grad(real(solve(b)), layer.weight), truth)

        @solve
        def solver(b: torch.Tensor) -> torch.Tensor:
            return solution(layer.weight.detach(), b)

        torch.testing.assert_close(torch.autograd.grad(real(solver(b)), layer.weight), truth)


@pytest.mark.parametrize(
    ("matvec", "text"),
    [
        (lambda x: x[:2], r"returned a tensor of the shape \(2,\) for an x of the shape \(3,\)"),
        (lambda x: x.double(), "returned torch.float64 for an x of torch.float32"),
        (lambda x: 3.0, "returned a float"),
        (lambda x: None, "returned None"),
    ],
)
def test_a_function_that_returns_something_else_is_told(matvec: object, text: str) -> None:
    with pytest.raises(RuleError, match=text):
        linear_solve(matvec)(torch.ones(3))  # type: ignore[call-overload]


@pytest.mark.parametrize("b", [None, 2.0, torch.ones(3, dtype=torch.int64)])
def test_a_right_side_that_is_none(b: object) -> None:
    with pytest.raises(ArgumentError, match="product: b is"):
        linear_solve(product)(b, torch.eye(3))
    with pytest.raises(ArgumentError, match="product: b is None"):
        linear_solve(product)()
    with pytest.raises(ArgumentError, match=r"product: b is of torch\.bfloat16"):
        linear_solve(product)(torch.ones(3).bfloat16(), torch.eye(3).bfloat16())


@pytest.mark.parametrize("form", ["matrix", "direct", "gmres", "hosted"])
def test_autocast_costs_no_digits(form: str) -> None:
    A, b = regular(3, 3, dtype=torch.float32).requires_grad_(), torch.randn(3).requires_grad_()

    def solve() -> torch.Tensor:
        if form == "matrix":
            return linear_solve(A, b)
        if form == "hosted":
            return linear_solve(product)(lambda b, A: solution(A, b))(b, A)  # type: ignore[no-any-return]
        return linear_solve(product, method=form)(b, A)  # type: ignore[no-any-return, call-overload]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = solve()
    torch.testing.assert_close(x, solution(A, b), rtol=1e-3, atol=1e-4)
    found, truth = (torch.autograd.grad(real(y), (A, b)) for y in (x, solution(A, b)))
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-4)


def test_a_singular_operator_is_named() -> None:
    with pytest.raises(SingularMatrixError, match="product: the matrix of the linear system is singular"):
        linear_solve(product)(torch.ones(3), torch.zeros(3, 3))
    with pytest.raises(DomainError, match="product: the matrix of the linear system has nan"):
        linear_solve(product)(torch.ones(3), torch.full((3, 3), float("nan")))


def test_compiling_an_operator_breaks_the_graph_or_refuses() -> None:
    solve = linear_solve(banded)
    bands, b = some_bands().requires_grad_(), torch.randn(5, dtype=D)

    def loss(bands: torch.Tensor) -> torch.Tensor:
        return real(solve(b, 1.0 * bands))

    with warnings.catch_warnings():
        # What PyTorch says to itself where it begins anew with a tensor that is no leaf.
        warnings.filterwarnings("ignore", ".*The .grad attribute of a Tensor that is not a leaf")
        with pytest.raises(Exception, match="cannot record a linear solve"):
            torch.compile(loss, fullgraph=True, backend="aot_eager")(bands)
        found = torch.autograd.grad(torch.compile(loss, backend="aot_eager")(bands), bands)
    torch.testing.assert_close(found, torch.autograd.grad(loss(bands), bands))
    with pytest.raises(RuleError, match=r"torch\.export cannot record"):
        torch.export.export(Exported(), (bands, b))


class Exported(torch.nn.Module):
    def forward(self, bands: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear_solve(banded)(b, bands)  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["direct", "gmres"])
def test_a_batch_of_matrices_is_broadcast_by_every_method(method: Any) -> None:
    A, b = torch.randn(2, 1, 3, 3, dtype=D) + 4 * torch.eye(3, dtype=D), torch.randn(4, 3, 2, dtype=D)

    def square(solve: Any) -> Any:
        return torch.func.grad(lambda A, b: solve(A, b).square().sum(), (0, 1))(A, b)

    found = square(lambda A, b: linear_solve(A, b, method=method))
    torch.testing.assert_close(found, square(torch.linalg.solve))


@pytest.mark.parametrize("method", ["direct", "cg"])
def test_the_gradient_of_a_positive_matrix_is_that_of_its_hermitian_part(method: Any) -> None:
    root, b = torch.randn(3, 3, dtype=D), torch.randn(3, dtype=D)
    A = root @ root.T + torch.eye(3, dtype=D)
    found = torch.func.grad(lambda A: linear_solve(A, b, assume_a="pos", method=method).square().sum())(A)
    expected = torch.func.grad(lambda A: torch.linalg.solve((A + A.T) / 2, b).square().sum())(A)
    torch.testing.assert_close(found, expected)
    with pytest.raises(SingularMatrixError, match="not Hermitian"):
        linear_solve(A + root, b, assume_a="pos", method=method)


def test_two_vmaps_around_a_matrix_that_follows_from_both() -> None:
    """torch.lu_unpack fails there when it is to leave the factors away."""
    A, d = torch.randn(2, 3, 3, dtype=D) + 4 * torch.eye(3, dtype=D), torch.rand(4, 3, dtype=D)
    b = torch.ones(3, dtype=D)

    def solved(solve: Any) -> torch.Tensor:
        one = torch.func.vmap(lambda A, d: solve(A + torch.diag(d), b), (None, 0))
        return torch.func.vmap(one, (0, None))(A, d)  # type: ignore[no-any-return]

    torch.testing.assert_close(solved(linear_solve), solved(torch.linalg.solve))


@pytest.mark.parametrize("hosted", [False, True])
def test_an_operator_that_has_changed_since_is_not_differentiated(hosted: bool) -> None:
    scale = [1.0]
    solve = linear_solve(lambda x, d: (scale[0] * d + 1) * x)
    solve = solve(lambda b, d: b / (scale[0] * d + 1)) if hosted else solve
    d = torch.rand(3, dtype=D).requires_grad_()
    for expected in (1.0, 2.0):
        scale[0] = expected
        (found,) = torch.autograd.grad(solve(torch.ones(3, dtype=D), d).sum(), d)
        torch.testing.assert_close(found, (-expected / (expected * d + 1) ** 2).detach())
    x = solve(torch.ones(3, dtype=D), d)
    scale[0] = 5.0
    with pytest.raises(RuleError, match="another value now than when the system was solved"):
        x.sum().backward()
