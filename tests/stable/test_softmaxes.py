"""Softmax and its logarithm: masks, infinities, rows that one number leads, and that every way there gives the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError

INF = math.inf
BOTH = pytest.mark.parametrize("name", ["softmax", "log_softmax"])


def leaf(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@BOTH
def test_ordinary_rows_are_those_of_torch(name: str) -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    g = torch.randn(3, 4, 5, dtype=torch.float64)
    for dim in (0, 1, -1):
        ours, theirs = getattr(gw.stable, name)(x, dim), getattr(torch, name)(x, dim)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(torch.autograd.grad(ours, x, g), torch.autograd.grad(theirs, x, g))


@BOTH
def test_derivatives_of_two_orders(name: str) -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def kept(x: Tensor) -> Tensor:
        return getattr(gw.stable, name)(x, -1, mask)[mask]  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(kept, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(kept, x, check_batched_grad=True)


def test_masked_rows() -> None:
    x = leaf([1.0, 2.0], [3.0, 4.0])
    mask = torch.tensor([[True, False], [False, False]])
    assert gw.stable.softmax(x, 1, mask).tolist() == [[1, 0], [0, 0]]
    assert gw.stable.log_softmax(x, 1, mask).tolist() == [[0, -INF], [-INF, -INF]]
    assert gw.stable.softmax(x, 1, mask[:, :1]).tolist()[1] == [0, 0]


@BOTH
def test_what_flows_into_masked_elements_is_ignored(name: str) -> None:
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    poison = torch.tensor([[1.0, 2.0, math.nan], [INF, -INF, math.nan]], dtype=torch.float64)
    (found,) = torch.autograd.grad(getattr(gw.stable, name)(x, 1, mask), x, poison)
    (want,) = torch.autograd.grad(getattr(torch, name)(x[:1, :2], 1), x, poison[:1, :2])
    torch.testing.assert_close(found, want)
    assert found[~mask].eq(0).all()


def test_infinite_logits_take_their_row() -> None:
    x = leaf(INF, 1.0, INF)
    assert gw.stable.softmax(x, 0).tolist() == [0.5, 0, 0.5]
    assert gw.stable.log_softmax(x, 0).tolist() == [-math.log(2), -INF, -math.log(2)]
    for function in (gw.stable.softmax, gw.stable.log_softmax):
        (grad,) = torch.autograd.grad(function(x, 0), x, torch.ones(3, dtype=torch.float64))
        assert grad.tolist() == [0, 0, 0]


@BOTH
def test_nan_stays_in_its_row(name: str) -> None:
    out = getattr(gw.stable, name)(torch.tensor([[math.nan, 1.0], [0.0, 0.0]]), 1)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_one_number_leads() -> None:
    x = leaf([0.0, 40.0], [-30.0, 0.0])
    tails = torch.tensor([40.0, 30.0], dtype=torch.float64).neg().exp()
    torch.testing.assert_close(gw.stable.log_softmax(x, 1)[:, 1], -tails.log1p(), rtol=4e-15, atol=0)
    (grad,) = torch.autograd.grad(gw.stable.log_softmax(x, 1)[:, 1].sum(), x)
    share = tails / (1 + tails)
    torch.testing.assert_close(grad, torch.stack([-share, share], 1), rtol=4e-15, atol=0)
    (grad,) = torch.autograd.grad(gw.stable.softmax(x, 1)[:, 1].sum(), x)
    slope = share / (1 + tails)
    torch.testing.assert_close(grad, torch.stack([-slope, slope], 1), rtol=4e-15, atol=0)


@BOTH
def test_the_short_ways_give_the_same(name: str) -> None:
    """Rows of every kind alone, together, and under vmap, where values cannot be looked at."""
    function = getattr(gw.stable, name)
    rows = torch.randn(64, 6, dtype=torch.float64) * torch.tensor([0.1, 1.0, 10.0, 100.0]).repeat(16).unsqueeze(1)
    rows[::7, 2] = -INF
    g = torch.randn(64, 6, dtype=torch.float64)

    def pulled(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        out, pull = torch.func.vjp(lambda x: function(x, -1), x)
        return out, pull(g)[0]

    x = rows.clone().requires_grad_()
    out = function(x, -1)
    together = out.detach(), torch.autograd.grad(out, x, g)[0]
    for kind in (torch.func.vmap(pulled)(rows, g), pulled(rows, g)):
        for found, want in zip(kind, together):
            torch.testing.assert_close(found, want, rtol=1e-13, atol=1e-300)


@BOTH
def test_tensors_without_a_row(name: str) -> None:
    function = getattr(gw.stable, name)
    for shape in ((3, 0), (0, 3)):
        x = torch.zeros(shape, requires_grad=True)
        out = function(x, 1)
        assert out.shape == shape
        assert torch.autograd.grad(out.sum(), x)[0].shape == shape
    x = torch.tensor(2.0, requires_grad=True)
    assert torch.autograd.grad(function(x, 0), x)[0].item() == 0


def test_errors() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ArgumentError, match=r"softmax: x is torch\.int64; expected a floating-point tensor"):
        gw.stable.softmax(x.long(), 0)
    with pytest.raises(ArgumentError, match=r"log_softmax: mask is of torch\.int64; expected a boolean tensor"):
        gw.stable.log_softmax(x, 0, x.long())
    with pytest.raises(ArgumentError, match=r"softmax: mask has the shape \(2,\); .* that of x, \(2, 3\)"):
        gw.stable.softmax(x, 0, torch.ones(2, dtype=torch.bool))
    with pytest.raises(IndexError):
        gw.stable.softmax(x, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("lead", [0.25, 1.5])
def test_numbers_that_lead_together_with_one_cotangent(dtype: torch.dtype, lead: float) -> None:
    """``sum(p g)`` is nearly their cotangent: what is left of the difference is the probability of the others."""
    gap = {torch.float64: 30.0, torch.float32: 14.0, torch.float16: 6.0}[dtype]
    x = torch.tensor([lead, 0.0, -gap], dtype=dtype, requires_grad=True)
    g = torch.tensor([1 / 3, 1 / 3, 0.0], dtype=dtype)
    (grad,) = torch.autograd.grad(gw.stable.softmax(x, 0), x, g)
    p = torch.softmax(x.detach().double(), 0)
    want = g[0].double() * p[2] * torch.stack([p[0], p[1], p[2] - 1])
    torch.testing.assert_close(
        grad.double(), want, rtol=4 * torch.finfo(dtype).eps, atol=6e-8 if dtype == torch.float16 else 0
    )
