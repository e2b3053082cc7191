"""What is special about gradients that are weighed by the distance to a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError
from gradwright.ste.weighed import CODES


def test_a_step_towards_the_code_is_smaller_than_one_away() -> None:
    x = torch.tensor([0.625, 0.625, 0.375, 0.375], requires_grad=True)  # codes 1, 1, 0, 0
    g = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    (grad,) = torch.autograd.grad(gw.ste.ewgs_round(x, bits=1, delta=0.5), x, g)
    up, down, up_too, down_too = (float(value) for value in grad.abs())
    # As the paper has it: 1 + delta sign(g) (x - code); g < 0 moves x up.
    assert (up, down) == (1 + 0.5 * 0.375, 1 - 0.5 * 0.375)
    assert (up_too, down_too) == (1 - 0.5 * 0.375, 1 + 0.5 * 0.375)


def test_every_code_of_e2m1_is_kept_and_every_tie_goes_to_the_even_one() -> None:
    codes = torch.tensor([*CODES, *(-code for code in CODES)])
    assert torch.equal(gw.ste.fp4_dge(codes), codes)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert gw.ste.fp4_dge(ties).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert gw.ste.fp4_dge(-ties).tolist() == [-0.0, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0]


def test_the_slope_of_the_power_estimator() -> None:
    x = torch.tensor([0.0, 0.125, 0.25, 3.0, 3.25, 3.5, 5.0, 5.5, 6.0, 6.5, -0.125, torch.inf], dtype=torch.float64)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(gw.ste.fp4_dge(x).sum(), x)
    half = 0.5**-0.8 / 5  # a quarter into a step
    want = [0.2, half, 3.0, 0.2, half, 3.0, 3.0, half, 0.2, 0.0, half, 0.0]
    assert grad.tolist() == pytest.approx(want, rel=1e-14)


def test_the_second_derivative_is_finite_and_right_beside_a_tie() -> None:
    x = torch.tensor([0.25, 0.2500001, 0.1], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(gw.ste.fp4_dge(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    z = 2 * 0.1 / 0.5 - 1
    assert second.tolist() == pytest.approx([0.0, 0.0, -0.8 / 5 * abs(z) ** -1.8 * -4], rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gw.ste.ewgs_round(x, bits=0), "ewgs_round: bits is 0; expected a whole number from 1"),
        (
            lambda x: gw.ste.ewgs_round(x, bits=1, delta=-1.0),
            "ewgs_round: delta is -1.0; expected a number of at least",
        ),
        (lambda x: gw.ste.fp4_dge(x, k=1.0), "fp4_dge: k is 1.0; expected a number larger than 1"),
        (lambda x: gw.ste.fp4_dge(x, cap=0.0), "fp4_dge: cap is 0.0; expected a positive number"),
    ],
)
def test_options_are_checked(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(torch.ones(2))
