"""What is special about the absolute value and the step; the suite of the catalogue proves the rest."""

from __future__ import annotations

import torch

import gradwright as gw


def test_both_zeros_have_the_slope_one_and_nan_passes() -> None:
    x = torch.tensor([0.0, -0.0, torch.nan, -1.0], requires_grad=True)
    g = torch.full_like(x, torch.finfo(torch.float32).max)
    (grad,) = torch.autograd.grad(gw.ste.abs(x), x, g)
    assert torch.equal(grad, g * torch.tensor([1.0, 1.0, 1.0, -1.0]))


def test_the_threshold_is_compared_exactly() -> None:
    x = torch.tensor([0.1], dtype=torch.bfloat16)  # 0.10009765625
    assert gw.ste.threshold(x, 0.1).tolist() == [1.0]
    assert gw.ste.threshold(torch.tensor([torch.nan, torch.inf, 0.5])).tolist() == [0.0, 1.0, 0.0]
