"""Sums of exponentials: infinities, empty and several dimensions, and long running sums."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError

INF = math.inf


def leaf(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("dim", [0, -1, (0, 2), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_dimensions_are_those_of_torch(dim: Any, keepdim: bool) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    ours, theirs = gw.stable.logsumexp(x, dim, keepdim), torch.logsumexp(x, dim, keepdim)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(theirs.sum(), x))


def test_derivatives_of_two_orders() -> None:
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    for function in (lambda x: gw.stable.logsumexp(x, 1), lambda x: gw.stable.logcumsumexp(x, 1)):
        assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, x, check_batched_grad=True)


def test_infinities() -> None:
    x = leaf([INF, 1.0], [INF, INF], [-INF, -INF])
    out = gw.stable.logsumexp(x, 1)
    assert out.tolist() == [INF, INF, -INF]
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [[1, 0], [0.5, 0.5], [0, 0]]
    x = leaf(-INF, 1.0, INF, 2.0, INF)
    out = gw.stable.logcumsumexp(x, 0)
    assert out.tolist() == [-INF, 1, INF, INF, INF]
    # Each of the last three outputs shares its weight among the infinities so far.
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [0, 1, 2.5, 0, 0.5]


def test_what_flows_into_the_sum_of_nothing_is_ignored() -> None:
    x = leaf(-INF, -INF)
    g = torch.tensor(math.nan, dtype=torch.float64)
    assert torch.autograd.grad(gw.stable.logsumexp(x, 0), x, g)[0].tolist() == [0, 0]
    assert torch.autograd.grad(gw.stable.logcumsumexp(x, 0), x, g.expand(2))[0].tolist() == [0, 0]


def test_tensors_without_numbers() -> None:
    x = torch.zeros(2, 0, requires_grad=True)
    assert gw.stable.logsumexp(x, 1).tolist() == [-INF, -INF]
    assert torch.autograd.grad(gw.stable.logsumexp(x, 1).sum(), x)[0].shape == (2, 0)
    assert torch.autograd.grad(gw.stable.logcumsumexp(x, 1).sum(), x)[0].shape == (2, 0)
    x = torch.tensor(2.0, requires_grad=True)
    for function in (gw.stable.logsumexp, gw.stable.logcumsumexp):
        assert function(x, 0).item() == 2
        assert torch.autograd.grad(function(x, 0), x)[0].item() == 1


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
def test_a_long_running_sum(offset: float) -> None:
    """The gradient is a product with a triangle of weights, whatever all numbers have in common."""
    z = (4 * torch.randn(100, dtype=torch.float64)).round()
    g = torch.randn(100, dtype=torch.float64)
    weights = (z.unsqueeze(0) - z.logcumsumexp(0).unsqueeze(1)).exp().tril()
    x = (z + offset).requires_grad_()
    out = gw.stable.logcumsumexp(x, 0)
    torch.testing.assert_close(torch.autograd.grad(out, x, g)[0], g @ weights, rtol=1e-12, atol=1e-14)
    _, push = torch.func.jvp(lambda x: gw.stable.logcumsumexp(x, 0), (x.detach(),), (g,))
    torch.testing.assert_close(push, weights @ g, rtol=1e-12, atol=1e-14)


def test_errors() -> None:
    for name in ("logsumexp", "logcumsumexp"):
        with pytest.raises(ArgumentError, match=rf"{name}: x is torch\.int64; expected a floating-point tensor"):
            getattr(gw.stable, name)(torch.arange(3), 0)
    with pytest.raises(IndexError):
        gw.stable.logsumexp(torch.zeros(2), 1)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_logsumexp_is_compiled_for_any_size_and_dimension() -> None:
    compiled = torch.compile(gw.stable.logsumexp, fullgraph=True, dynamic=True)
    for dim in (-1, 0):
        for count in (3, 5):
            x = torch.randn(count, 4)
            torch.testing.assert_close(compiled(x, dim), torch.logsumexp(x, dim))
