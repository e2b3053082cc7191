"""What is special about PACT; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError


def test_the_bound_itself_counts_as_clipped_and_zero_does_not() -> None:
    x, a = torch.tensor([0.0, 6.0], requires_grad=True), torch.tensor(6.0, requires_grad=True)
    dx, da = torch.autograd.grad(gw.ste.pact(x, a, bits=4).sum(), (x, a))
    assert dx.tolist() == [1.0, 0.0]
    assert da.item() == 1.0


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_highest_value_is_the_bound_to_the_last_bit(bits: int) -> None:
    bounds = torch.rand(500) * 10 + 0.1
    assert torch.equal(gw.ste.pact(bounds * 3, bounds, bits=bits, axis=0), bounds)
    assert torch.equal(gw.ste.pact(bounds, bounds, bits=bits, axis=0), bounds)


def test_nan_stays_and_infinities_are_clipped() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf], requires_grad=True)
    a = torch.tensor(2.0, requires_grad=True)
    out = gw.ste.pact(x, a, bits=2)
    assert out[0].isnan()
    assert out[1:].tolist() == [2.0, 0.0]
    dx, da = torch.autograd.grad(out.sum(), (x, a))
    assert dx.tolist() == [1.0, 0.0, 0.0]
    assert da.item() == 1.0


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"pact: a parameter has the shape \(3,\); expected one number or \(2,\)"):
        gw.ste.pact(torch.zeros(2, 6), torch.ones(3), bits=4, axis=0)
