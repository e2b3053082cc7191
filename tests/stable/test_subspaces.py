"""Projectors and approximations of low rank: multiplicities on either side of the gap, and no gap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError, UndefinedGradientError
from gradwright.stable.linear_algebra import planted, planted_hermitian
from tests.stable.test_polar import gradient, normal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 5), (1, 1), (0, 3, 3)])
def test_projectors_project(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = normal(*shape, dtype=dtype)
    a = x + x.mH
    for which in ("largest", "smallest"):
        p = gw.stable.projector(a, 1, which=which)
        torch.testing.assert_close(p @ p, p)
        torch.testing.assert_close(p, p.mH)
        torch.testing.assert_close(
            p.diagonal(dim1=-2, dim2=-1).sum(-1).real, torch.ones(shape[:-2], dtype=p.real.dtype)
        )
        w = torch.linalg.eigvalsh(a)
        mean = (p @ a).diagonal(dim1=-2, dim2=-1).sum(-1).real
        torch.testing.assert_close(mean, w[..., -1 if which == "largest" else 0])


def test_the_two_projectors_add_up() -> None:
    a = planted_hermitian([1.0, 1.0, 1.0, 0.5, 0.5], 0, torch.float64)
    g = normal(5, 5)
    upper = gradient(lambda x: gw.stable.projector(x, 3), a, g)
    lower = gradient(lambda x: gw.stable.projector(x, 2, which="smallest"), a, g)
    torch.testing.assert_close(upper, -lower, rtol=1e-13, atol=1e-13)
    assert float(upper.norm()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_differences_agree_in_every_mode(dtype: torch.dtype) -> None:
    a = planted_hermitian([2.0, 2.0, 1.0, 1.0], 1, dtype).requires_grad_()
    b = planted([2.0, 2.0, 0.7], 4, 2, dtype).requires_grad_()
    for function, x in ((lambda x: gw.stable.projector(x, 2), a), (lambda x: gw.stable.low_rank(x, 2), b)):
        assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, x, check_fwd_over_rev=True)


def test_third_derivatives() -> None:
    a = planted_hermitian([2.0, 2.0, 1.0], 3, torch.float64)

    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: (gw.stable.projector(y, 2) * normal(3, 3, seed=1)).sum())(x)

    assert torch.autograd.gradgradcheck(slope, a.requires_grad_())


def test_single_precision_is_as_good_whatever_the_multiplicities() -> None:
    worst = 0.0
    for seed in range(50):
        n = (3, 8, 32, 64)[seed % 4]
        inside = n // 3
        w = torch.rand(n, generator=torch.Generator().manual_seed(seed)).mul(10).floor() / 10
        w += 10.0 ** -(seed % 9) * torch.rand(n) * 1e-3
        w[:inside] += 2
        a, g = planted_hermitian(w.tolist(), seed, torch.float64), normal(n, n, seed=seed)
        want = gradient(lambda x: gw.stable.projector(x, inside), a, g)  # noqa: B023
        found = gradient(lambda x: gw.stable.projector(x, inside), a.float(), g.float())  # noqa: B023
        worst = max(worst, float((found - want).norm() / want.norm()))
    assert worst < 1e-5


def test_all_that_there_is_is_the_matrix_itself() -> None:
    a = normal(3, 2)
    torch.testing.assert_close(gw.stable.low_rank(a, 2), a)
    g = normal(3, 2, seed=1)
    torch.testing.assert_close(gradient(lambda x: gw.stable.low_rank(x, 2), torch.zeros_like(a), g), g)
    assert not gradient(lambda x: gw.stable.projector(x, 2), torch.eye(2, dtype=torch.float64), normal(2, 2)).any()


def test_without_a_gap_there_is_no_gradient() -> None:
    a, g = planted_hermitian([2.0, 1.0, 1.0], 4, torch.float64), normal(3, 3)
    words = "projector: .* no gap: the eigenvalues on both sides of the edge are 1 and 1; expected different ones;"
    with pytest.raises(UndefinedGradientError, match=words):
        gradient(lambda x: gw.stable.projector(x, 2), a, g)
    with pytest.raises(UndefinedGradientError, match=words):
        gradient(lambda x: gw.stable.projector(x, 1, which="smallest"), a, g)
    with pytest.raises(UndefinedGradientError, match=words):
        torch.func.jvp(lambda x: gw.stable.projector(x, 2), (a,), (g,))
    with pytest.raises(UndefinedGradientError, match=r"In the batch it is matrix \(1,\)"):
        both = torch.stack([torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)), a])
        torch.func.vmap(torch.func.grad(lambda x: (gw.stable.projector(x, 2) * g).sum()))(both)
    with pytest.raises(UndefinedGradientError, match=r"low_rank: .* the singular values on both sides .* are 1 and 1;"):
        gradient(lambda x: gw.stable.low_rank(x, 2), a, g)
    assert float(gw.stable.projector(a, 2).trace()) == pytest.approx(2)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_gives_nan_where_it_cannot_raise() -> None:
    both = torch.stack([torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.eye(3)]).double().requires_grad_()
    fast = torch.compile(lambda x: gw.stable.projector(x, 2), fullgraph=True)
    (found,) = torch.autograd.grad(fast(both), both, normal(2, 3, 3))
    assert bool(found[0].isfinite().all())
    assert bool(found[1].isnan().all())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: gw.stable.projector(torch.eye(2), 3),
            OptionError,
            "projector: rank is 3; expected a whole number",
        ),
        (lambda: gw.stable.projector(torch.eye(2), 0), OptionError, "from 1 to 2, the smaller side of the matrix"),
        (lambda: gw.stable.projector(torch.eye(2), True), OptionError, "projector: rank is True"),
        (lambda: gw.stable.low_rank(torch.ones(3, 2), 3), OptionError, "low_rank: rank is 3; expected .* from 1 to 2"),
        (lambda: gw.stable.projector(torch.ones(3, 2), 1), ArgumentError, r"projector: A has shape \(3, 2\); expected"),
        (lambda: gw.stable.projector(torch.eye(2).int(), 1), ArgumentError, "projector: A has dtype torch.int32"),
        (
            lambda: gw.stable.projector(torch.eye(2), 1, which="first"),
            OptionError,
            "projector: which: got 'first'; expected one of largest, smallest",
        ),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
