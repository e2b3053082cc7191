"""Eigenvectors of eigenvalues that coincide: a gradient for the losses that have one, and an error for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, DomainError, OptionError, UndefinedGradientError
from gradwright.stable.gauges import clusters
from gradwright.stable.linear_algebra import planted_hermitian
from tests.stable.test_polar import normal

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
Loss = Callable[[Tensor], Tensor]


def slope(loss: Loss, a: Tensor) -> Tensor:
    a = a.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(a), a)
    return found


def paired(n: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Return a matrix with the eigenvalues 1, 1, 2, 2, ..."""
    return planted_hermitian([1.0 + k // 2 for k in range(n)], seed, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 5), (1, 1), (0, 3, 3), (0, 0)])
def test_values_and_vectors_are_what_they_should_be(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = normal(*shape, dtype=dtype)
    for a in (x + x.mH, torch.eye(shape[-1], dtype=dtype).expand(shape)):
        w, v = gw.stable.eigh(a)
        torch.testing.assert_close(v * w[..., None, :].to(v.dtype) @ v.mH, a)
        torch.testing.assert_close(v.mH @ v, torch.eye(shape[-1], dtype=dtype).expand(shape))
        torch.testing.assert_close(w, torch.linalg.eigvalsh(a))
        assert slope(lambda x: gw.stable.eigh(x).eigenvalues.sum(), a).shape == a.shape


@pytest.mark.parametrize("function", [gw.stable.eigh, lambda a: gw.stable.projector(a, 1)], ids=["eigh", "projector"])
def test_what_is_clearly_not_symmetric_is_refused_and_rounding_is_not(function: Any) -> None:
    a = torch.tensor([[2.0, 1.0], [1.0, -1.0]])
    function(a + torch.tensor([[0.0, 1e-3], [0.0, 0.0]]))
    with pytest.raises(
        DomainError, match=r"A is not symmetric: an entry differs from its mirror image by 0.5 of the larg"
    ):
        function(a + torch.tensor([[0.0, 1.0], [0.0, 0.0]]))


def test_where_eigenvalues_differ_vectors_are_those_of_pytorch() -> None:
    a = normal(4, 4)
    a = a + a.mT
    torch.testing.assert_close(gw.stable.eigh(a).eigenvectors, torch.linalg.eigh(a).eigenvectors, rtol=0, atol=0)


def through_vectors(g: Tensor, k: int) -> Loss:
    """A loss that depends on the space of the first eigenvectors only."""

    def loss(a: Tensor) -> Tensor:
        v = gw.stable.eigh(a).eigenvectors[..., :k]
        return (g.conj() * (v @ v.mH)).real.sum()

    return loss


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [4, 8, 32, 64])
def test_losses_of_spaces_and_means_have_the_right_gradient(n: int, dtype: torch.dtype) -> None:
    a, g = paired(n, n, dtype), normal(n, n, dtype=dtype)
    exact = dtype in (torch.float64, torch.complex128)
    found = slope(through_vectors(g, n // 2), a)
    want = slope(lambda x: (g.conj() * gw.stable.projector(x, n // 2, which="smallest")).real.sum(), a)
    assert float((found - want).norm()) <= (1e-12 if exact else 1e-4) * float(want.norm())
    found = slope(lambda x: gw.stable.eigh(x).eigenvalues.log().sum(), a)
    want = torch.linalg.inv(a).mH
    assert float((found - want).norm()) <= (1e-12 if exact else 1e-4) * float(want.norm())


def one_vector(a: Tensor) -> Tensor:
    return gw.stable.eigh(a).eigenvectors[..., 0, 0].abs().square().sum()


def one_value(a: Tensor) -> Tensor:
    return gw.stable.eigh(a).eigenvalues[..., 0].sum()


def part_of_a_cluster(a: Tensor) -> Tensor:
    v = gw.stable.eigh(a).eigenvectors[..., :1]
    return (v @ v.mH)[..., 0, 1].real.sum()


def function_of_the_matrix(a: Tensor) -> Tensor:
    """The sum of log(A) / 2 + A / 2: at the identity, with V the identity, nothing would tell that it needs more."""
    w, v = gw.stable.eigh(a)
    return (v * (w.log() + w - 1)[..., None, :].to(v.dtype) @ v.mH).real.sum() / 2


TURNING = r"eigh: the loss depends on which vectors are taken of values that coincide \(number \d and \d, 1 and 1\): tu"
SINGLE = r"eigh: the loss depends on single ones of values that coincide \(number \d and \d, 1 and 1\), or on more"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("loss", "words"),
    [(one_vector, TURNING), (part_of_a_cluster, TURNING), (one_value, SINGLE), (function_of_the_matrix, SINGLE)],
)
def test_losses_without_a_gradient_are_refused(loss: Loss, words: str, dtype: torch.dtype) -> None:
    for n in (2, 3, 4):
        a = torch.eye(n, dtype=dtype)
        with pytest.raises(UndefinedGradientError, match=words):
            slope(loss, a)
        with pytest.raises(UndefinedGradientError, match=words):
            torch.func.grad(loss)(a)
        both = torch.stack([torch.diag(torch.arange(1.0, n + 1)).to(dtype), a])
        with pytest.raises(UndefinedGradientError, match=words + r".* In the batch it is matrix \(1,\)\."):
            torch.func.vmap(torch.func.grad(loss))(both)
        slope(loss, torch.diag(torch.arange(1.0, n + 1)).to(dtype))  # it has one where there is a gap


def test_the_error_says_how_much_and_what_to_do() -> None:
    with pytest.raises(UndefinedGradientError) as caught:
        slope(one_vector, torch.eye(2, dtype=torch.float64))
    for words in (
        "(number 0 and 1, 1 and 1)",
        "turning them into each other changes it, by 0.5 of the largest change that turning vectors makes, so that it",
        "expected a loss that depends only on the space they span; use gw.stable.projector for spaces",
        "or choose gap='lorentzian' or gap='zero' for a derivative by convention.",
    ):
        assert words in str(caught.value)


def test_a_loss_of_phases_is_refused() -> None:
    a = planted_hermitian([1.0, 2.0], 0, torch.complex128)
    with pytest.raises(UndefinedGradientError, match=r"depends on the phase of a complex vector \(number 0, 1\)"):
        slope(lambda x: gw.stable.eigh(x).eigenvectors[0, 0].real, a)
    with pytest.raises(UndefinedGradientError, match="depends on the phase of a complex vector"):
        # That LAPACK makes an element real is no reason: its square has a derivative of zero along the phase.
        slope(lambda x: gw.stable.eigh(x).eigenvectors[-1, 0].real.square(), a)


def test_second_derivatives_are_right_or_refused() -> None:
    g, h = normal(4, 4), normal(4, 4, seed=1)
    apart = planted_hermitian([1.0, 2.0, 3.0, 4.0], 0, torch.float64)

    def along(loss: Loss, a: Tensor) -> Tensor:
        return slope(lambda x: (torch.autograd.grad(loss(x), x, create_graph=True)[0] * h).sum(), a)

    found = along(through_vectors(g, 2), apart)
    want = along(lambda x: (g * gw.stable.projector(x, 2, which="smallest")).sum(), apart)
    torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-11)
    for loss in (lambda x: gw.stable.eigh(x).eigenvalues.square().sum(), through_vectors(g, 2)):
        with pytest.raises(UndefinedGradientError, match="eigh: the loss depends on"):
            along(loss, paired(4, 0, torch.float64))


def test_forward_mode_is_refused_where_the_tangent_splits_eigenvalues() -> None:
    a = torch.eye(3, dtype=torch.float64)
    words = r"in forward mode the tangent of the matrix splits values that coincide \(number \d and \d, 1 and 1\), by"
    with pytest.raises(UndefinedGradientError, match=words):
        torch.func.jvp(gw.stable.eigh, (a,), (normal(3, 3),))
    with pytest.raises(UndefinedGradientError, match=words):
        torch.func.jacfwd(lambda x: gw.stable.eigh(x).eigenvalues.sum())(a)
    _, (w, v) = torch.func.jvp(gw.stable.eigh, (a,), (2 * a,))
    torch.testing.assert_close(w, torch.full((3,), 2.0, dtype=torch.float64))
    assert not v.any()
    mixed = torch.diag(torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64))
    tangent = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 3.0], [2.0, 3.0, 5.0]], dtype=torch.float64)
    space = lambda x: (lambda v: v @ v.mT)(gw.stable.eigh(x).eigenvectors[:, :2])  # noqa: E731
    _, moved = torch.func.jvp(space, (mixed,), (tangent,))
    _, want = torch.func.jvp(lambda x: gw.stable.projector(x, 2, which="smallest"), (mixed,), (tangent,))
    torch.testing.assert_close(moved, want)


def test_other_rules_for_gaps_are_there_on_request() -> None:
    near = torch.diag(torch.tensor([1.0, 1.0 + 1e-3], dtype=torch.float64))

    def loss(**options: Any) -> Loss:
        return lambda x: gw.stable.eigh(x, **options).eigenvectors[0, 1]

    plain, damped = slope(loss(), near), slope(loss(gap="lorentzian", eta=1e-6), near)
    torch.testing.assert_close(damped, plain / 2, rtol=1e-9, atol=1e-9)  # d / (d^2 + eta), and d^2 is eta
    at = torch.eye(2, dtype=torch.float64)
    for options in ({"gap": "zero"}, {"gap": "lorentzian", "eta": 1e-6}):
        assert not slope(loss(**options), at).any()
        _, (_, tangent) = torch.func.jvp(lambda x: gw.stable.eigh(x, **options), (at,), (normal(2, 2),))  # noqa: B023
        assert not tangent.any()


def test_what_counts_as_the_same() -> None:
    for dtype in (torch.float32, torch.float64):
        for n in (2, 3, 16, 64):
            for seed in range(5):
                w = torch.linalg.eigvalsh(paired(n, seed, dtype))
                place = torch.arange(n) // 2
                assert bool((clusters(w) == (place[:, None] == place)).all()), "rounding does not tell them apart"
        eps = torch.finfo(dtype).eps
        w = torch.tensor([1.0, 1.0 + 8 * eps, 1.0 + 32 * eps], dtype=dtype)
        assert clusters(w).tolist() == [[True, True, False], [True, True, False], [False, False, True]]


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", [one_vector, one_value, function_of_the_matrix])
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
            lambda: gw.stable.eigh(torch.ones(3, 2)),
            ArgumentError,
            r"eigh: A has shape \(3, 2\); expected \(\.\.\., n",
        ),
        (
            lambda: gw.stable.eigh(torch.eye(2).half()),
            ArgumentError,
            "eigh: A has dtype torch.float16; expected",
        ),
        (
            lambda: gw.stable.eigh(torch.eye(2), gap="none"),
            OptionError,
            "eigh: gap: got 'none'; expected one of rai",
        ),
        (
            lambda: gw.stable.eigh(torch.eye(2), gap="lorentzian"),
            OptionError,
            "eta is None; expected a positive",
        ),
        (
            lambda: gw.stable.eigh(torch.eye(2), gap="lorentzian", eta=0.0),
            OptionError,
            r"eta is 0\.0; expected a po",
        ),
        (
            lambda: gw.stable.eigh(torch.eye(2), eta=1e-9),
            OptionError,
            "eta is 1e-09, but gap is 'raise'; expected",
        ),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
