"""The logistic function: what is special about it."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError


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


def test_logit_is_zero_at_one_half_and_precise_beside_it() -> None:
    x = torch.tensor([0.5, 0.5 + 2.0**-40], dtype=torch.float64)
    assert torch.logit(x)[1] != 2.0**-38
    torch.testing.assert_close(gw.stable.logit(x), torch.tensor([0, 2.0**-38], dtype=torch.float64), rtol=1e-15, atol=0)


def test_logit_and_sigmoid_are_inverse() -> None:
    x = torch.linspace(-30, 5, 36, dtype=torch.float64)
    torch.testing.assert_close(gw.stable.logit(gw.stable.sigmoid(x)), x, rtol=1e-14, atol=1e-13)


def test_logit_holds_its_argument_where_it_is_asked_to() -> None:
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    out = gw.stable.logit(x, eps=1e-3)
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out, torch.logit(x, eps=1e-3))
    torch.testing.assert_close(slope, torch.tensor([0.0, 0, 4, 0], dtype=torch.float64))
    assert gw.stable.logit(x)[0].isnan()


def test_logit_refuses_an_eps_that_leaves_nothing() -> None:
    with pytest.raises(OptionError, match=r"^logit: eps is 0.7; expected a number from 0 to 0.5, or None; correct it."):
        gw.stable.logit(torch.ones(1), eps=0.7)
