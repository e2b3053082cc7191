"""What is special about rounding; the suite of the catalogue proves the rest."""

from __future__ import annotations

import torch

import gradwright as gw


def test_half_away_just_below_a_half() -> None:
    below = torch.nextafter(torch.tensor(0.5), torch.tensor(0.0))
    assert gw.ste.round_half_away(torch.stack([below, -below])).tolist() == [0.0, 0.0]
    assert gw.ste.round_half_away(torch.tensor([0.5, -0.5, 1.5, 2.5, -2.5])).tolist() == [1, -1, 2, 3, -3]


def test_large_and_special_values_stay() -> None:
    values = torch.tensor([2.0**60, -(2.0**60), torch.inf, -torch.inf])
    for function in (gw.ste.round, gw.ste.floor, gw.ste.ceil, gw.ste.trunc, gw.ste.round_half_away):
        assert torch.equal(function(values), values)
        assert bool(function(torch.tensor([torch.nan])).isnan())
