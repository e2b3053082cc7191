"""Polar decomposition: identities, and what happens where the factors are not unique."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError, UndefinedGradientError


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def gradient(function: Any, x: Tensor, g: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(function(x), x, g)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (1, 1), (0, 3, 3), (3, 0), (0, 0)])
def test_the_factors_are_what_they_should_be(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = normal(*shape, dtype=dtype)
    for side in ("right", "left"):
        q, p = gw.stable.polar(a, side=side)
        torch.testing.assert_close(q @ p if side == "right" else p @ q, a)
        torch.testing.assert_close(p, p.mH, rtol=0, atol=0)
        assert q.dtype == p.dtype == dtype
        assert bool((torch.linalg.eigvalsh(p) > -1e-5).all())
    small = min(shape[-2:])
    unit = torch.eye(small, dtype=dtype).expand(*shape[:-2], small, small)
    torch.testing.assert_close(q.mH @ q if shape[-2] >= shape[-1] else q @ q.mH, unit)


def test_the_gradient_at_the_identity_is_the_skew_part() -> None:
    g = normal(4, 4)
    found = gradient(gw.stable.orthogonal_factor, torch.eye(4, dtype=torch.float64), g)
    torch.testing.assert_close(found, (g - g.mT) / 2, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)])
def test_differences_agree_in_every_mode(shape: tuple[int, int], dtype: torch.dtype) -> None:
    a = torch.linalg.qr(normal(*shape, dtype=dtype))[0] if shape[0] >= shape[1] else normal(*shape, dtype=dtype)
    a = (2 * a).requires_grad_()  # all singular values the same, where it can be so
    for function in (gw.stable.orthogonal_factor, gw.stable.polar):
        assert torch.autograd.gradcheck(function, a, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, a, check_fwd_over_rev=True)


def test_third_derivatives() -> None:
    a = torch.eye(2, dtype=torch.float64) + 0.1 * normal(2, 2)

    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: (gw.stable.orthogonal_factor(y) * normal(2, 2, seed=1)).sum())(x)

    assert torch.autograd.gradgradcheck(slope, a.requires_grad_())


def test_single_precision_is_as_good_at_repeated_singular_values() -> None:
    worst = 0.0
    for seed in range(50):
        n = (3, 8, 32, 64)[seed % 4]
        u, v = (torch.linalg.qr(normal(n, n, seed=2 * seed + k))[0] for k in range(2))
        s = (1 + torch.arange(n, dtype=torch.float64) // 3 / n) * (1 + 10.0 ** -(seed % 9) * torch.rand(n))
        a, g = (u * s) @ v.mT, normal(n, n, seed=seed)
        want = gradient(gw.stable.orthogonal_factor, a, g)
        found = gradient(gw.stable.orthogonal_factor, a.float(), g.float())
        worst = max(worst, float((found - want).norm() / want.norm()))
    assert worst < 1e-5


def test_a_proper_factor_is_a_rotation_and_the_nearest_one() -> None:
    a = normal(50, 3, 3)
    r = gw.stable.orthogonal_factor(a, proper=True)
    torch.testing.assert_close(torch.linalg.det(r), torch.ones(50, dtype=torch.float64))
    others = gw.stable.orthogonal_factor(r[:, None] + 0.1 * normal(50, 20, 3, 3), proper=True)
    assert bool(((r * a).sum((-2, -1))[:, None] >= (others * a[:, None]).sum((-2, -1)) - 1e-12).all())
    mirrored = torch.diag(torch.tensor([3.0, 2.0, -1.0], dtype=torch.float64)).requires_grad_()
    proper = lambda x: gw.stable.orthogonal_factor(x, proper=True)  # noqa: E731
    assert torch.autograd.gradcheck(proper, mirrored)
    assert torch.autograd.gradgradcheck(proper, mirrored)
    one = torch.tensor([[-2.0]], requires_grad=True)
    assert torch.autograd.grad(proper(one), one)[0].item() == 0


FLAT = torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64))


def test_without_full_rank_there_is_no_gradient() -> None:
    words = r"without full rank \(singular values from 2 down to 0\), whose orthogonal factor is not unique"
    g = normal(3, 3)
    with pytest.raises(UndefinedGradientError, match=words):
        gradient(gw.stable.orthogonal_factor, FLAT, g)
    with pytest.raises(UndefinedGradientError, match=words):
        gradient(lambda x: gw.stable.polar(x).positive, FLAT, g)
    with pytest.raises(UndefinedGradientError, match=words):
        torch.func.jvp(gw.stable.orthogonal_factor, (FLAT,), (g,))
    both = torch.stack([torch.eye(3, dtype=torch.float64), FLAT])
    with pytest.raises(UndefinedGradientError, match=words + r"(.|\n)*In the batch it is matrix \(1,\)\."):
        gradient(gw.stable.orthogonal_factor, both, torch.stack([g, g]))
    with pytest.raises(UndefinedGradientError, match=words + r"(.|\n)*In the batch it is matrix \(1,\)\."):
        torch.func.vmap(torch.func.grad(lambda x: (gw.stable.orthogonal_factor(x) * g).sum()))(both)
    # The value is one of the factors, and a cotangent of zero asks for nothing.
    q = gw.stable.orthogonal_factor(FLAT)
    torch.testing.assert_close(q.mT @ q, torch.eye(3, dtype=torch.float64))
    assert not gradient(gw.stable.orthogonal_factor, FLAT, 0 * g).any()
    assert issubclass(UndefinedGradientError, ArithmeticError)


def test_rotations_take_one_rank_less_but_no_two() -> None:
    proper = lambda x: gw.stable.orthogonal_factor(x, proper=True)  # noqa: E731
    assert torch.autograd.gradcheck(proper, FLAT.clone().requires_grad_())
    line = torch.diag(torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))
    with pytest.raises(UndefinedGradientError, match=r"where two rotations are equally near .* add up to 0, and"):
        gradient(proper, line, normal(3, 3))
    with pytest.raises(UndefinedGradientError, match="where two rotations are equally near"):
        gradient(proper, -torch.eye(3, dtype=torch.float64), normal(3, 3))


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_gives_nan_where_it_cannot_raise() -> None:
    both = torch.stack([torch.eye(3, dtype=torch.float64), FLAT]).requires_grad_()
    fast = torch.compile(gw.stable.orthogonal_factor, fullgraph=True)
    (found,) = torch.autograd.grad(fast(both), both, normal(2, 3, 3))
    assert bool(found[0].isfinite().all())
    assert bool(found[1].isnan().all())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: gw.stable.polar([[1.0]]), ArgumentError, "polar: A is a list; expected a tensor"),
        (
            lambda: gw.stable.polar(torch.eye(2).int()),
            ArgumentError,
            "polar: A has dtype torch.int32; expected",
        ),
        (lambda: gw.stable.polar(torch.eye(2).half()), ArgumentError, r"cast it, for example A\.float\(\)\."),
        (
            lambda: gw.stable.orthogonal_factor(torch.ones(2)),
            ArgumentError,
            r"A has shape \(2,\); expected \(\.\.\., ",
        ),
        (lambda: gw.stable.polar(torch.eye(2), side="up"), OptionError, "polar: side: got 'up'; expected one of right"),
        (
            lambda: gw.stable.orthogonal_factor(torch.ones(3, 2), proper=True),
            ArgumentError,
            r"A has shape \(3, 2\); expected \(\.\.\., n, n\); give it as many rows as columns",
        ),
        (
            lambda: gw.stable.orthogonal_factor(torch.eye(2) + 0j, proper=True),
            OptionError,
            "orthogonal_factor: proper, for a complex matrix: got True; expected one of False",
        ),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
