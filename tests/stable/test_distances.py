"""Distances of points: what is special about them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from gradwright.stable import distances

F64 = torch.float64
POWERS = pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 30.0, math.inf])


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def gradients(function: Any, *leaves: Tensor) -> list[Tensor]:
    leaves = tuple(x.detach().clone().requires_grad_() for x in leaves)
    out = function(*leaves)
    weight = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight)]


@POWERS
def test_values_and_gradients_are_those_of_pytorch_where_it_is_right(p: float) -> None:
    a, b = points(5, 3), points(4, 3, seed=1)
    for ours, theirs in zip(
        gradients(lambda x, y: gw.stable.cdist(x, y, p), a, b), gradients(lambda x, y: torch.cdist(x, y, p), a, b)
    ):
        torch.testing.assert_close(ours, theirs)
    for ours, theirs in zip(gradients(lambda x: gw.stable.pdist(x, p), a), gradients(lambda x: torch.pdist(x, p), a)):
        torch.testing.assert_close(ours, theirs)


@POWERS
def test_gradcheck(p: float) -> None:
    a, b = points(3, 2).requires_grad_(), points(2, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: gw.stable.cdist(x, y, p), (a, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x, y: gw.stable.cdist(x, y, p), (a, b))
    assert torch.autograd.gradgradcheck(lambda x: gw.stable.pdist(x, p), (a,))


def test_the_third_derivative_is_right() -> None:
    a, b = points(2, 2), points(1, 2, seed=1)

    def third(function: Callable[[Tensor], Tensor]) -> Any:
        def slope(x: Tensor) -> Any:
            return torch.func.grad(lambda y: function(y).pow(2).sin().sum())(x)

        def total(x: Tensor) -> Any:
            return slope(x).square().sum()

        return torch.func.jacrev(torch.func.grad(total))(a)

    plain = third(lambda x: (x[:, None] - b).square().sum(-1).sqrt())
    torch.testing.assert_close(third(lambda x: gw.stable.cdist(x, b)), plain)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_a_jacobian_is_right_where_that_of_pytorch_is_not(p: float) -> None:
    """The batch of the cotangent is lost in PyTorch 2.13; once this fails, the detour in the rule can go."""
    a, b = points(3, 2), points(4, 2, seed=1)
    theirs = torch.func.jacrev(lambda x: torch.cdist(x, b, p))(a)
    ours = torch.func.jacrev(lambda x: gw.stable.cdist(x, b, p))(a)
    true = torch.func.jacrev(lambda x: torch.linalg.vector_norm(x[:, None] - b, p, -1))(a)
    torch.testing.assert_close(ours, true)
    assert not torch.allclose(theirs, true)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, math.inf])
def test_a_pair_of_equal_points_adds_nothing(p: float) -> None:
    a, b = points(3, 2), points(3, 2, seed=1)
    b[1] = a[1]

    def bend(x: Tensor, keep: Tensor) -> Any:
        slope = torch.func.grad(lambda y: (gw.stable.cdist(y, b, p) * keep).sum())
        return torch.func.grad(lambda y: (slope(y) * b).sum())(x)

    ones = torch.ones(3, 3, dtype=F64)
    others = ones.clone()
    others[1, 1] = 0
    torch.testing.assert_close(bend(a, ones), bend(a, others))
    assert bend(a, ones).isfinite().all()


def test_ties_of_the_largest_difference_share_the_gradient() -> None:
    a, b = torch.tensor([[1.0, -1.0, 0.5]]), torch.zeros(1, 3)
    grad = torch.func.grad(lambda x: gw.stable.cdist(x, b, math.inf).sum())(a)
    assert grad.tolist() == [[0.5, -0.5, 0.0]]


def test_close_points_far_from_the_origin() -> None:
    a = torch.full((30, 3), 1e4).double()
    b = (a + 0.25 * points(30, 3).float()).float()
    a = a.float()
    true = (a.double()[:, None] - b.double()).norm(dim=-1)
    assert (torch.cdist(a, b) - true).abs().max() > 0.5, "the product of matrices has no digits left"
    torch.testing.assert_close(gw.stable.cdist(a, b).double(), true, rtol=3e-7, atol=0)


def test_squares_that_would_overflow_or_vanish() -> None:
    for size in (1e-30, 1e30):
        a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[3 * size, 4 * size]])
        out, grad, _ = gradients(gw.stable.cdist, a, b)
        assert out.item() == pytest.approx(5 * size, rel=1e-6)
        assert grad.tolist()[0] == pytest.approx([0.6, 0.8], rel=1e-6)


def test_batches_broadcast_and_gradients_are_summed() -> None:
    a, b = points(2, 1, 4, 3), points(3, 5, 3, seed=1)
    out, first, second = gradients(gw.stable.cdist, a, b)
    assert out.shape == (2, 3, 4, 5)
    expected = gradients(lambda x, y: (x[..., :, None, :] - y[..., None, :, :]).norm(dim=-1), a, b)
    torch.testing.assert_close([out, first, second], expected)
    assert gw.stable.pdist(b).shape == (3, 10)
    torch.testing.assert_close(gw.stable.pdist(b)[1], torch.pdist(b[1]))


@pytest.mark.parametrize("p", [2.0, 3.0])
def test_blocks_are_joined(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = points(7, 3), points(4, 3, seed=1)

    def derivatives() -> list[Tensor]:
        found = gradients(lambda x, y: gw.stable.cdist(x, y, p), a, b)
        slope = torch.func.grad(lambda x: gw.stable.cdist(x, b, p).square().sum())
        return [*found, torch.func.jvp(slope, (a,), (a.flip(0),))[1]]

    whole = derivatives()
    monkeypatch.setattr(distances, "BLOCK", 24)  # two rows
    torch.testing.assert_close(derivatives(), whole)


@POWERS
def test_no_points_and_no_coordinates(p: float) -> None:
    for n, m, d in ((0, 3, 2), (3, 0, 2), (2, 3, 0)):
        out, first, second = gradients(lambda x, y: gw.stable.cdist(x, y, p), points(n, d), points(m, d))
        assert out.tolist() == torch.zeros(n, m).tolist()
        assert first.tolist() == torch.zeros(n, d).tolist()
        assert second.tolist() == torch.zeros(m, d).tolist()
    for n in (0, 1):
        assert gw.stable.pdist(points(n, 3), p).shape == (0,)


def test_no_tensor_of_all_differences_is_kept() -> None:
    sizes: list[int] = []

    def pack(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    a, b = points(20, 50).requires_grad_(), points(30, 50, seed=1).requires_grad_()
    for p in (2.0, 3.0):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            gw.stable.cdist(a, b, p)
    assert max(sizes) <= 30 * 50


def test_arguments_that_do_not_fit() -> None:
    x = points(4, 3)
    cases: list[tuple[type[Exception], str, Any]] = [
        (
            ArgumentError,
            "cdist: x2 is torch.int64; expected a floating",
            lambda: gw.stable.cdist(x, torch.ones(4, 3).long()),
        ),
        (ArgumentError, "cdist: x1 is torch.float64 and x2 torch.float32; exp", lambda: gw.stable.cdist(x, x.float())),
        (ArgumentError, "cdist: x1 has points of 3 numbers and x2 of 2", lambda: gw.stable.cdist(x, x[:, :2])),
        (
            ArgumentError,
            "cdist: the batches of x1 .* do not fit",
            lambda: gw.stable.cdist(x.expand(2, 4, 3), x.expand(3, 4, 3)),
        ),
        (ArgumentError, r"pdist: x has shape \(3,\); expected points as the rows", lambda: gw.stable.pdist(x[0])),
        (OptionError, "pdist: p is -1; expected a number from 0 on", lambda: gw.stable.pdist(x, -1)),
        (OptionError, "cdist: p is nan; expected a number from 0 on", lambda: gw.stable.cdist(x, x, math.nan)),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind, match=text):
            call()
