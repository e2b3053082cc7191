"""Singular vectors of singular values that coincide or are zero: a gradient for losses that have one, or an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError, UndefinedGradientError
from gradwright.stable.linear_algebra import planted
from tests.stable.test_eigenvectors import DTYPES, Loss, slope
from tests.stable.test_polar import normal


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (1, 1), (0, 3, 3), (3, 0), (0, 0)])
def test_values_and_vectors_are_what_they_should_be(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    k = min(shape[-2:])
    for a in (normal(*shape, dtype=dtype), torch.zeros(shape, dtype=dtype), torch.eye(*shape[-2:]).to(dtype)):
        u, s, vh = gw.stable.svd(a)
        torch.testing.assert_close(u * s[..., None, :] @ vh, a)
        for gram in (u.mH @ u, vh @ vh.mH):
            torch.testing.assert_close(gram, torch.eye(k, dtype=dtype).expand(gram.shape))
        torch.testing.assert_close(s, torch.linalg.svdvals(a))
    assert slope(lambda x: gw.stable.svd(x).S.square().sum(), normal(*shape, dtype=dtype)).shape == shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6), (64, 64)])
def test_losses_of_spaces_have_the_right_gradient(shape: tuple[int, int], dtype: torch.dtype) -> None:
    m, n = shape
    k = min(shape)
    a = planted([3.0 - (i // 2) / k for i in range(k)], max(shape), k, dtype)
    a, g = (a if m >= n else a.mT.contiguous()), normal(m, n, dtype=dtype)
    bar = 1e-12 if dtype in (torch.float64, torch.complex128) else 5e-4

    def close(loss: Loss, other: Loss) -> None:
        want = slope(other, a)
        assert float((slope(loss, a) - want).norm()) <= bar * float(want.norm())

    def product(x: Tensor) -> Tensor:
        u, _, vh = gw.stable.svd(x)
        return (g.conj() * (u @ vh)).real.sum()

    def left_space(x: Tensor) -> Tensor:
        u = gw.stable.truncated_svd(x, 2).U
        return ((g @ g.mH) * (u @ u.mH).conj()).real.sum()

    close(product, lambda x: (g.conj() * gw.stable.orthogonal_factor(x)).real.sum())
    close(left_space, lambda x: ((g @ g.mH) * gw.stable.projector(x @ x.mH, 2).conj()).real.sum())
    close(lambda x: gw.stable.svd(x).S.square().sum(), lambda x: x.abs().square().sum())


def joined(a: Tensor) -> Tensor:
    """The matrix itself, whose gradient one is: but it cannot be told from what S, U and V receive."""
    u, s, vh = gw.stable.svd(a)
    return (u * s[..., None, :].to(u.dtype) @ vh).real[..., 0, :].sum()


def one_vector(a: Tensor) -> Tensor:
    return gw.stable.svd(a).U[..., 0, 0].abs().square().sum()


def one_value(a: Tensor) -> Tensor:
    return gw.stable.truncated_svd(a, 1).S.sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            joined,
            r"svd: the loss depends on single ones of values that coincide \(number \d and \d, 1 and 1\), or on mo",
        ),
        (
            one_vector,
            r"svd: the loss depends on which vectors are taken of values that coincide \(number \d and \d, 1 a",
        ),
        (one_value, r"svd: the loss depends on single ones of values that coincide \(number \d and \d, 1 and 1\)"),
    ],
)
def test_losses_without_a_gradient_are_refused(loss: Loss, words: str, dtype: torch.dtype) -> None:
    a = torch.eye(3, dtype=dtype)
    with pytest.raises(UndefinedGradientError, match=words):
        slope(loss, a)
    both = torch.stack([torch.diag(torch.arange(1.0, 4)).to(dtype), a])
    with pytest.raises(UndefinedGradientError, match=words + r".* In the batch it is matrix \(1,\)\."):
        torch.func.vmap(torch.func.grad(loss))(both)
    with pytest.raises(UndefinedGradientError, match=r"gw\.stable\.low_rank or orthogonal_factor if the loss is of"):
        slope(loss, a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("a", [torch.zeros(2, 2), torch.diag(torch.tensor([1.0, 0.0])), torch.ones(3, 2)])
def test_a_singular_value_of_zero_has_no_derivative(a: Tensor, dtype: torch.dtype) -> None:
    a = a.to(dtype)
    words = r"svd: the loss depends on a singular value of zero or on its vectors \(number \d.*no derivative"
    g = normal(*a.shape, dtype=dtype)

    def linear(x: Tensor) -> Tensor:
        u, s, vh = gw.stable.svd(x)
        return (g * (u * s.to(u.dtype) @ vh)).real.sum()

    for loss in (linear, lambda x: gw.stable.svd(x).S.sum()):
        with pytest.raises(UndefinedGradientError, match=words):
            slope(loss, a)
    with pytest.raises(
        UndefinedGradientError, match="in forward mode the tangent of the matrix splits values that coinc"
    ):
        torch.func.jvp(gw.stable.svd, (a,), (normal(*a.shape, dtype=dtype),))
    torch.testing.assert_close(slope(lambda x: gw.stable.svd(x).S.square().sum(), a), 2 * a)


def test_what_a_singular_value_of_zero_leaves_undetermined() -> None:
    def first(x: Tensor) -> Tensor:
        return gw.stable.svd(x).U[..., -1].square()[..., 0].sum()

    flat = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert bool(slope(first, flat).isfinite().all())  # the second vector is what is left beside the first
    for a in (torch.zeros(2, 2), torch.ones(3, 2)):
        with pytest.raises(UndefinedGradientError, match="svd: the loss depends on a singular value of zero"):
            slope(first, a)
    # A skew cotangent has no diagonal in a basis that both sides share: it must be seen nevertheless.
    skew = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])

    def linear(x: Tensor) -> Tensor:
        u, s, vh = gw.stable.svd(x)
        return (skew * (u * s @ vh)).sum()

    with pytest.raises(UndefinedGradientError, match="svd: the loss depends on a singular value of zero"):
        slope(linear, torch.zeros(2, 2))


def test_forward_mode_agrees_where_the_tangent_keeps_values_together() -> None:
    a = torch.eye(3, dtype=torch.float64)
    turn = torch.linalg.matrix_exp(normal(3, 3) - normal(3, 3).mT)
    tangent = normal(3, 3) - normal(3, 3).mT + 2 * a

    def product(x: Tensor) -> Tensor:
        u, _, vh = gw.stable.svd(x)
        return u @ vh

    _, moved = torch.func.jvp(product, (turn,), (turn @ tangent,))
    _, want = torch.func.jvp(gw.stable.orthogonal_factor, (turn,), (turn @ tangent,))
    torch.testing.assert_close(moved, want)
    _, (_, s, _) = torch.func.jvp(gw.stable.svd, (turn,), (turn @ tangent,))
    torch.testing.assert_close(s, torch.full((3,), 2.0, dtype=torch.float64))


def test_other_rules_for_gaps_are_there_on_request() -> None:
    a = torch.diag(torch.tensor([1.0 + 1e-3, 1.0], dtype=torch.float64))

    def loss(**options: Any) -> Loss:
        def one(x: Tensor) -> Tensor:
            u, _, vh = gw.stable.svd(x, **options)
            return u[0, 1] * vh[1, 1]  # a term that neither signs nor phases change

        return one

    plain, damped = slope(loss(), a), slope(loss(gap="lorentzian", eta=1e-6), a)
    torch.testing.assert_close(damped, plain / 2, rtol=1e-3, atol=1e-3)
    for options in ({"gap": "zero"}, {"gap": "lorentzian", "eta": 1e-6}):
        assert bool(slope(loss(**options), torch.eye(2, dtype=torch.float64)).isfinite().all())
        torch.func.jvp(lambda x: gw.stable.svd(x, **options), (torch.zeros(2, 2),), (torch.ones(2, 2),))  # noqa: B023


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", [one_vector, one_value, joined])
def test_compiled_code_gives_nan_where_it_cannot_raise(loss: Loss) -> None:
    both = torch.stack([torch.diag(torch.tensor([1.0, 2.0])), torch.eye(2)]).double()
    torch.compiler.reset()
    found = slope(torch.compile(loss, fullgraph=True), both)
    torch.testing.assert_close(found[0], slope(loss, both[0]))
    assert bool(found[1].isnan().all())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: gw.stable.svd(torch.ones(3)),
            ArgumentError,
            r"svd: A has shape \(3,\); expected \(\.\.\., rows, columns",
        ),
        (lambda: gw.stable.svd(torch.eye(2).bfloat16()), ArgumentError, "svd: A has dtype torch.bfloat16; expected fl"),
        (
            lambda: gw.stable.svd(torch.eye(2), gap="none"),
            OptionError,
            "svd: gap: got 'none'; expected one of raise, ze",
        ),
        (
            lambda: gw.stable.truncated_svd(torch.eye(2), 3),
            OptionError,
            "truncated_svd: rank is 3; expected a whole num",
        ),
        (
            lambda: gw.stable.truncated_svd(torch.eye(2), 1, eta=1.0),
            OptionError,
            "truncated_svd: eta is 1.0, but gap is",
        ),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
