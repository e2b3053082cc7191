"""What is special about learned ranges and thresholds; the suite of the catalogue proves the rest."""

from __future__ import annotations

import math

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError


def test_clipped_values_move_their_own_bound() -> None:
    low, high = (torch.tensor(b, dtype=torch.float64, requires_grad=True) for b in (-1.25, 2.5))
    for x, want in ((9.0, [0.0, 1.0]), (-9.0, [1.0, 0.0])):  # the zero point is whole here, so that nothing is lost
        out = gw.ste.learned_range(torch.tensor(x, dtype=torch.float64), low, high, bits=4)
        assert [g.item() for g in torch.autograd.grad(out, (low, high))] == pytest.approx(want)


def test_zero_is_a_value_whatever_the_range() -> None:
    zero = torch.zeros(1)
    for low, high in ((-1.0, 2.3), (-0.37, 0.11), (-3.0, 0.01)):
        assert gw.ste.learned_range(zero, torch.tensor(low), torch.tensor(high), bits=4).item() == 0.0


def test_range_errors() -> None:
    with pytest.raises(ArgumentError, match=r"learned_range: a parameter has the shape \(3,\)"):
        gw.ste.learned_range(torch.zeros(2, 6), torch.zeros(3), torch.ones(3), bits=4, axis=0)
    with pytest.raises(ArgumentError, match=r"tqt: a parameter has the shape \(3,\)"):
        gw.ste.tqt(torch.zeros(2, 6), torch.zeros(3), bits=4, axis=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_exact_powers_of_two(dtype: torch.dtype) -> None:
    thresholds = torch.linspace(-60, 60, 241, dtype=dtype)
    x = torch.full((241,), torch.inf, dtype=dtype)
    out = gw.ste.tqt(x, thresholds, bits=2, axis=0)  # the highest code, 1 step
    assert out.tolist() == [2.0 ** (math.ceil(t) - 1) for t in thresholds.tolist()]


def test_the_gradient_of_the_threshold_is_that_of_the_paper() -> None:
    x, t = torch.tensor([0.3, 9.0, -9.0], dtype=torch.float64), torch.tensor(-0.5, dtype=torch.float64)
    g = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    t.requires_grad_()
    (got,) = torch.autograd.grad(gw.ste.tqt(x, t, bits=3), t, g)  # t is rounded to 2^0, so that the step is 1/4
    assert got.item() == pytest.approx(0.25 * math.log(2) * (1.0 * (1 - 1.2) + 2.0 * 3 + 4.0 * -4))
