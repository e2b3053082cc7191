"""The logistic function: what is special about it."""

from __future__ import annotations

import torch

import gradwright as gw


def test_the_gradient_does_not_vanish_where_pytorch_s_does() -> None:
    x = torch.tensor([40.0, -40.0], dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(gw.stable.sigmoid(x).sum(), x)
    (theirs,) = torch.autograd.grad(torch.sigmoid(x).sum(), x)
    assert theirs[0] == 0
    torch.testing.assert_close(ours, torch.exp(torch.tensor([-40.0, -40.0], dtype=torch.float64)), rtol=1e-15, atol=0)


def test_the_third_derivative_is_right() -> None:
    x = torch.tensor(0.3, dtype=torch.float64)
    third = torch.func.grad(torch.func.grad(torch.func.grad(gw.stable.sigmoid)))
    torch.testing.assert_close(third(x), torch.func.grad(torch.func.grad(torch.func.grad(torch.sigmoid)))(x))
