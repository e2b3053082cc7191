"""What is special about learned rounding; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError


def test_the_edges_of_the_gate_belong_to_it() -> None:
    logits = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    low = gw.ste.rectified_sigmoid(logits, low=-1.0, high=1.0)  # 0 at the logit 0
    assert torch.autograd.grad(low.sum(), logits)[0].tolist() == pytest.approx([0.0, 0.5, 2 * 0.1966119])
    high = gw.ste.rectified_sigmoid(logits, low=0.0, high=2.0)  # 1 at the logit 0
    assert torch.autograd.grad(high.sum(), logits)[0].tolist() == pytest.approx([2 * 0.1966119, 0.5, 0.0])


def test_the_gate_keeps_its_gradient_for_large_logits() -> None:
    logits = torch.tensor([40.0, -40.0], requires_grad=True)  # where sigmoid (1 - sigmoid) is zero in float32
    (grad,) = torch.autograd.grad(gw.ste.rectified_sigmoid(logits, low=0.0, high=1.0).sum(), logits)
    assert grad.tolist() == pytest.approx([4.248e-18, 4.248e-18], rel=1e-3, abs=0)


def test_learned_choices_find_the_rounding_that_keeps_a_sum() -> None:
    x = torch.full((8,), 0.25, dtype=torch.float64)  # nearest rounding gives 0, the sum is 2
    logits = torch.linspace(-0.1, 0.1, 8, dtype=torch.float64).requires_grad_()
    step = torch.optim.Adam([logits], lr=0.1)
    for i in range(300):
        step.zero_grad()
        out = gw.ste.adaround(x, logits)
        penalty = (1 - (2 * gw.ste.rectified_sigmoid(logits) - 1).abs() ** 2).sum()
        (8 * (out.sum() - x.sum()) ** 2 + (i > 100) * penalty).backward()
        step.step()
    codes = gw.ste.adaround(x, logits.detach())
    assert set(codes.tolist()) == {0.0, 1.0}
    assert float(codes.sum()) == 2.0


def test_signed_steps_of_an_offset_choose_the_neighbour() -> None:
    x, offset = torch.tensor([0.3]), torch.zeros(1, requires_grad=True)
    for _ in range(10):
        (grad,) = torch.autograd.grad((gw.ste.round_with_offset(x, offset) - 1).square().sum(), offset)
        with torch.no_grad():
            offset.sub_(0.05 * grad.sign()).clamp_(-0.5, 0.5)
    assert gw.ste.round_with_offset(x, offset).tolist() == [1.0]


def test_the_sum_with_an_offset_is_not_rounded_to_half_precision() -> None:
    x, offset = (torch.tensor([value], dtype=torch.bfloat16) for value in (3.484375, 2.0**-7))
    assert float(x + offset) == 3.5  # a tie that is none
    assert gw.ste.round_with_offset(x, offset).tolist() == [3.0]


def test_arguments_are_checked() -> None:
    with pytest.raises(OptionError, match=r"rectified_sigmoid: low is 1\.0 and high 1\.1; expected low < high"):
        gw.ste.rectified_sigmoid(torch.ones(2), low=1.0)
    with pytest.raises(ArgumentError, match=r"adaround: logits has the shape \(3,\); expected that of x, \(2,\)"):
        gw.ste.adaround(torch.ones(2), torch.ones(3))
    with pytest.raises(ArgumentError, match=r"round_with_offset: offset has the shape \(1,\)"):
        gw.ste.round_with_offset(torch.ones(2), torch.ones(1))
