"""Poisson and Bernoulli: what is certain, what is nearly equal, the domain."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError

INF = math.inf


def test_derivatives_of_two_orders() -> None:
    p = torch.rand(3, 4, dtype=torch.float64).mul(0.8).add(0.1).requires_grad_()
    q = torch.rand(4, dtype=torch.float64).mul(0.8).add(0.1).requires_grad_()
    for function in (gw.stable.bernoulli_kl, gw.stable.poisson_nll):
        assert torch.autograd.gradcheck(function, (p, q), check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, (p, q), check_batched_grad=True)


def test_poisson_is_that_of_torch_without_eps() -> None:
    rate, target = torch.rand(20, dtype=torch.float64) + 0.1, torch.arange(20, dtype=torch.float64)
    want = torch.nn.functional.poisson_nll_loss(rate, target, log_input=False, eps=0.0, reduction="none")
    torch.testing.assert_close(gw.stable.poisson_nll(rate, target), want)


def test_a_rate_of_zero() -> None:
    rate = torch.zeros(2, requires_grad=True)
    out = gw.stable.poisson_nll(rate, torch.tensor([0.0, 3.0]))
    assert out.tolist() == [0, INF]
    assert torch.autograd.grad(out.sum(), rate)[0].tolist() == [1, -INF]


def test_bernoulli_over_many_sizes() -> None:
    """From 1e-300 to nearly equal, against as many digits as it takes."""
    sizes = [0.0, 1e-300, 1e-12, 1e-3, 0.1, 0.3, 0.3 + 1e-9, 0.45, 0.9, 1 - 1e-9, 1.0]
    p, q = (t.reshape(-1) for t in torch.meshgrid(*2 * [torch.tensor(sizes, dtype=torch.float64)], indexing="ij"))
    with mpmath.workdps(700):
        wants = []
        for a, b in zip(map(mpmath.mpf, p.tolist()), map(mpmath.mpf, q.tolist())):
            parts = ((a, b), (1 - a, 1 - b))
            wants.append(float(sum(c * (mpmath.log(c) - mpmath.log(d)) for c, d in parts if c)))
    found = gw.stable.bernoulli_kl(p, q)
    torch.testing.assert_close(found, torch.tensor(wants, dtype=torch.float64), rtol=1e-14, atol=0)
    assert (found >= 0).all()


def test_certain_events() -> None:
    p = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5], requires_grad=True)
    q = torch.tensor([0.0, 1.0, 0.5, 0.5, 0.0], requires_grad=True)
    out = gw.stable.bernoulli_kl(p, q)
    assert out.tolist() == pytest.approx([0, 0, math.log(2), math.log(2), INF])
    of_p, of_q = torch.autograd.grad(out.sum(), (p, q))
    assert of_p.tolist() == [0, 0, -INF, INF, INF]
    assert of_q.tolist() == [1, -1, 2, -2, -INF]


def test_outside_the_domain() -> None:
    p = torch.tensor([-0.1, 1.1, 0.5, 0.5, math.nan])
    q = torch.tensor([0.5, 0.5, -0.1, 1.1, 0.5])
    assert gw.stable.bernoulli_kl(p, q).isnan().all()
    assert gw.stable.poisson_nll(-torch.ones(1), torch.ones(1)).isnan().all()


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"bernoulli_kl: q is torch\.bool; expected a floating-point tensor"):
        gw.stable.bernoulli_kl(torch.ones(1), torch.ones(1, dtype=torch.bool))
    with pytest.raises(ArgumentError, match=r"poisson_nll: target is torch\.int64; expected a floating-point tensor"):
        gw.stable.poisson_nll(torch.ones(1), torch.arange(1))


@pytest.mark.parametrize("low", [torch.float16, torch.float32])
@pytest.mark.parametrize("function", [gw.stable.poisson_nll, gw.stable.bernoulli_kl], ids=["poisson", "bernoulli"])
def test_of_two_dtypes_the_wider_one_is_computed_with(function: Callable[..., Tensor], low: torch.dtype) -> None:
    torch.manual_seed(0)
    narrow, wide = (0.1 + 0.8 * torch.rand(5)).to(low), 0.1 + 0.8 * torch.rand(5, dtype=torch.float64)
    for pair in ((narrow, wide), (wide, narrow)):
        ours, plain = (
            [z.to(dtype).requires_grad_() for z, dtype in zip(pair, to)]
            for to in ([z.dtype for z in pair], 2 * [torch.float64])
        )
        out, want = function(*ours), function(*plain)
        assert out.equal(want)
        first, true = (torch.autograd.grad(y.sum(), x, create_graph=True) for y, x in ((out, ours), (want, plain)))
        second, bend = (
            torch.autograd.grad(sum(g.double().sum() for g in gs), x) for gs, x in ((first, ours), (true, plain))
        )
        for found, expected in zip(first + second, true + bend):
            torch.testing.assert_close(found, expected.to(found.dtype), rtol=3 * torch.finfo(found.dtype).eps, atol=0)
