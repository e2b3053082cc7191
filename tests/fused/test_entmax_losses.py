"""Fenchel-Young losses of sparse softmaxes: worked numbers, margins, what is ignored, excluded classes, memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from tests.footprint import peak_bytes

BOTH = pytest.mark.parametrize(
    ("loss", "shares", "margin"),
    [(gw.fused.sparsemax_loss, gw.fused.sparsemax, 1.0), (gw.fused.entmax15_loss, gw.fused.entmax15, 2.0)],
    ids=["sparsemax", "entmax15"],
)
Loss = Callable[..., Tensor]


def leaf(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_worked_numbers() -> None:
    x = leaf(1.0, 0.5, -1.0)  # p is 3/4, 1/4, 0; its entropy (1 - 10/16) / 2
    assert gw.fused.sparsemax_loss(x, torch.tensor(1)).item() == 0.875 - 0.5 + 3 / 16
    p = gw.fused.entmax15(x)
    want = (p * x).sum() - 0.5 + (1 - p.pow(1.5).sum()) / 0.75
    assert gw.fused.entmax15_loss(x, torch.tensor(1)).item() == pytest.approx(want.item(), rel=1e-14)


@BOTH
def test_the_gradient_is_the_shares_less_the_target(loss: Loss, shares: Loss, margin: float) -> None:
    x = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 8, 3, 3])
    g = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    (found,) = torch.autograd.grad(loss(x, target, reduction="none"), x, g)
    want = g.unsqueeze(1) * (shares(x) - torch.nn.functional.one_hot(target, 9))
    torch.testing.assert_close(found, want.detach(), rtol=0.0, atol=1e-15)


@BOTH
def test_derivatives_of_two_orders(loss: Loss, shares: Loss, margin: float) -> None:
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([[0, 1], [3, -100], [2, 2]])
    for reduction in ("none", "mean", "sum"):

        def function(x: Tensor, reduction: str = reduction) -> Tensor:
            return loss(x, target, reduction=reduction)

        assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, x, check_batched_grad=True)


@BOTH
def test_a_margin_is_enough(loss: Loss, shares: Loss, margin: float) -> None:
    x = leaf([margin + 3.0, 3.0, 2.5])
    found = loss(x, torch.tensor([0]))
    assert found.item() == 0
    assert torch.autograd.grad(found, x)[0].tolist() == [[0, 0, 0]]
    assert loss(x, torch.tensor([1])).item() == margin


@BOTH
def test_excluded_and_ignored(loss: Loss, shares: Loss, margin: float) -> None:
    x = leaf([0.5, -math.inf, 0.25], [1.0, 0.0, 2.0])
    found = loss(x, torch.tensor([0, 7]), ignore_index=7)
    (grad,) = torch.autograd.grad(found, x)
    y = leaf([0.5, 0.25])
    (want,) = torch.autograd.grad(loss(y, torch.tensor([0])), y)
    torch.testing.assert_close(grad[0, [0, 2]], want[0])
    assert grad[0, 1] == 0
    assert grad[1].tolist() == [0, 0, 0]
    assert loss(x[:1], torch.tensor([1])).item() == math.inf
    every = torch.tensor([7, 7])
    assert loss(x, every, ignore_index=7, reduction="sum").item() == 0
    assert loss(x, every, ignore_index=7).isnan()  # as that of PyTorch


@BOTH
def test_no_rows_and_half_types(loss: Loss, shares: Loss, margin: float) -> None:
    x = torch.zeros(0, 3, requires_grad=True)
    out = loss(x, torch.zeros(0, dtype=torch.int64), reduction="sum")
    assert out.item() == 0
    assert torch.autograd.grad(out, x)[0].shape == (0, 3)
    x, target = torch.randn(70_000, 3), torch.zeros(70_000, dtype=torch.int64)
    for dtype in (torch.bfloat16, torch.float16):  # whose sum of the losses would not be a number of the dtype
        half = x.to(dtype)
        torch.testing.assert_close(loss(half, target).float(), loss(half.float(), target), rtol=8e-3, atol=0.0)


@BOTH
def test_no_more_memory_than_the_gradient(loss: Loss, shares: Loss, margin: float) -> None:
    x, target = torch.randn(2048, 512, requires_grad=True), torch.randint(0, 512, (2048,))

    def run() -> Tensor:
        return torch.autograd.grad(loss(x, target), x)[0]

    run()
    assert peak_bytes(run) < x.numel() * x.itemsize + 2**21


def test_errors() -> None:
    x, target = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"sparsemax_loss: x is torch\.int64; expected a floating-point tensor"):
        gw.fused.sparsemax_loss(x.long(), target)
    with pytest.raises(ArgumentError, match=r"entmax15_loss: x has no dimension; expected \(C\)"):
        gw.fused.entmax15_loss(x.sum(), target)
    with pytest.raises(ArgumentError, match=r"entmax15_loss: target is an? int; expected a tensor of class indices"):
        gw.fused.entmax15_loss(x, 1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"sparsemax_loss: target is torch\.float32; expected int64"):
        gw.fused.sparsemax_loss(x, x[:, 0])
    with pytest.raises(ArgumentError, match=r"sparsemax_loss: target has the shape \(2,\); expected \(3,\) for x of"):
        gw.fused.sparsemax_loss(x.t(), target)
    with pytest.raises(OptionError, match=r"entmax15_loss: reduction: got 'average'; expected one of none, mean, sum"):
        gw.fused.entmax15_loss(x, target, reduction="average")  # type: ignore[arg-type]
