"""The iterative methods by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwright.errors import ConvergenceError, SingularMatrixError
from gradwright.implicit import SolveOptions, krylov
from tests.implicit.equations import positive, regular, solution

D = torch.float64
C = torch.complex128


def solve(A: Tensor, b: Tensor, count: list[int] | None = None, **options: object) -> Tensor:
    def apply(x: Tensor) -> Tensor:
        if count is not None:
            count.append(1)
        return A @ x

    return krylov.solved("apply", apply, lambda x: A.mH @ x, b, SolveOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [D, C, torch.float32])
@pytest.mark.parametrize("n", [1, 2, 30, 120])
@pytest.mark.parametrize("method", ["gmres", "cg"])
def test_the_residual_is_as_small_as_was_said(method: str, n: int, dtype: torch.dtype) -> None:
    pos = method == "cg"
    A = (positive if pos else lambda *shape, dtype: regular(*shape, dtype=dtype) + n**0.5 * torch.eye(n))(
        n, n, dtype=dtype
    )
    A, b = A.to(dtype), torch.randn(n, dtype=dtype)
    x = solve(A, b, method=method, assume_a="pos" if pos else "gen")
    assert torch.linalg.vector_norm(A @ x - b) <= 2 * torch.finfo(dtype).eps ** (2 / 3) * torch.linalg.vector_norm(b)
    closer = solve(A, b, method=method, assume_a="pos" if pos else "gen", tol=1e-3)
    assert torch.linalg.vector_norm(A @ closer - b) <= 2e-3 * torch.linalg.vector_norm(b)


def test_gmres_begins_anew() -> None:
    A, b = regular(60, 60) + 10 * torch.eye(60, dtype=D), torch.randn(60, dtype=D)
    torch.testing.assert_close(solve(A, b, method="gmres", restart=8), solution(A, b))


def test_the_basis_of_gmres_stays_orthogonal() -> None:
    """Orthogonalised once, it loses digits that an ill-conditioned system needs, and more steps than unknowns."""
    u, v = (torch.linalg.qr(torch.randn(80, 80, dtype=D))[0] for _ in range(2))
    A, truth = (u * torch.logspace(0, -7, 80, dtype=D)) @ v, torch.randn(80, dtype=D)
    count: list[int] = []
    x = solve(A, A @ truth, count, method="gmres", restart=80, tol=1e-13)
    assert torch.linalg.vector_norm(x - truth) <= 1e-5 * torch.linalg.vector_norm(truth)
    assert len(count) <= 80 + 2


def test_gmres_needs_as_many_steps_as_there_are_eigenvalues() -> None:
    count: list[int] = []
    solve(
        torch.diag(torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0, 3.0], dtype=D)), torch.ones(6, dtype=D), count, method="gmres"
    )
    assert len(count) <= 3 + 2  # and two looks at the true residual


def test_cg_needs_as_many_steps_as_there_are_eigenvalues() -> None:
    count: list[int] = []
    A = torch.diag(torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0, 3.0], dtype=D))
    solve(A, torch.ones(6, dtype=D), count, method="cg", assume_a="pos")
    assert len(count) <= 3 + 1


def test_a_rotation_has_no_short_recurrence_and_is_solved() -> None:
    """GMRES makes no progress on a cyclic shift before the last step."""
    A = torch.roll(torch.eye(20, dtype=D), 1, 0)
    b = torch.zeros(20, dtype=D)
    b[0] = 1
    torch.testing.assert_close(solve(A, b, method="gmres"), A.mT @ b)
    with pytest.raises(ConvergenceError, match=r"the residual is 1\.0e\+00 of b"):
        solve(A, b, method="gmres", restart=10)


def test_the_right_side_zero_has_the_solution_zero() -> None:
    for method in ("gmres", "cg"):
        x = solve(positive(4, 4), torch.zeros(4, dtype=D), method=method, assume_a="pos")
        assert (x == 0).all()


def test_each_sample_of_a_batch_converges() -> None:
    A = positive(3, 10, 10) * torch.tensor([1.0, 1e-6, 1e6], dtype=D)[:, None, None]
    b = torch.randn(3, 10, dtype=D)
    b[2] = 0
    for method in ("gmres", "cg"):
        found = torch.func.vmap(lambda A, b, method=method: solve(A, b, method=method, assume_a="pos"))(A, b)
        torch.testing.assert_close(found, (torch.linalg.inv(A) @ b[..., None])[..., 0])
        with pytest.raises(ConvergenceError):
            torch.func.vmap(lambda A, b, method=method: solve(A, b, method=method, assume_a="pos", max_steps=1))(A, b)


def test_cg_sees_directions_of_negative_curvature() -> None:
    A = torch.diag(torch.tensor([1.0, -1.0, 2.0], dtype=D))
    with pytest.raises(SingularMatrixError, match="not positive definite"):
        solve(A, torch.tensor([1.0, 2.0, 0.0], dtype=D), method="cg", assume_a="pos")
