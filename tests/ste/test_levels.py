"""What is special about levels that are not evenly spaced; the suite of the catalogue proves the rest."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError
from gradwright.ste.levels import HALF_NORMAL_LEVELS, between


def density(t: float) -> float:
    return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def above(t: float) -> float:
    return math.erfc(t / math.sqrt(2)) / 2


def lloyd(levels: list[float]) -> list[float]:
    """Return the mean of the half-normal density in the cell of each level."""
    edges = [0.0, *between(levels), math.inf]
    return [(density(a) - density(b)) / (above(a) - above(b)) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("bits", HALF_NORMAL_LEVELS)
def test_half_normal_levels_are_those_lloyds_method_finds(bits: int) -> None:
    levels = [3.0 * (k + 1) / 2**bits for k in range(2**bits - 1)]
    for _ in range(4000):
        levels = lloyd(levels)
    assert HALF_NORMAL_LEVELS[bits] == pytest.approx(levels, rel=1e-12)
    assert HALF_NORMAL_LEVELS[bits] == pytest.approx(lloyd(list(HALF_NORMAL_LEVELS[bits])), rel=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_highest_level_itself_is_inside(dtype: torch.dtype) -> None:
    for bits, levels in HALF_NORMAL_LEVELS.items():
        top = torch.tensor(levels[-1], dtype=torch.float32 if dtype == torch.bfloat16 else dtype)
        x = torch.stack([top, torch.nextafter(top, torch.full_like(top, 9))]).requires_grad_()
        (grad,) = torch.autograd.grad(gw.ste.hwgq(x, bits=bits).sum(), x)
        assert grad.tolist() == [1.0, 0.0]


def test_nan_stays() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf])
    for out in (gw.ste.hwgq(x, bits=2), gw.ste.apot(x, 1.0, bits=3)):
        assert out[0].isnan()
        assert bool(out[1:].isfinite().all())


def test_levels_of_the_paper() -> None:
    # Unsigned, 4 bits: {0, 1, 1/4, 1/16} + {0, 1/2, 1/8, 1/32} up to their scale (section 2.2 of the paper).
    sums = sorted(a + b for a in (0, 1, 1 / 4, 1 / 16) for b in (0, 1 / 2, 1 / 8, 1 / 32))
    assert gw.ste.apot_levels(4, signed=False) == tuple(value / 1.5 for value in sums)
    assert gw.ste.apot_levels(3) == (0.0, 0.25, 0.5, 1.0)  # with two bits beside the sign: plain powers of two
    assert gw.ste.apot_levels(4) == pytest.approx([k / 10 for k in (0, 1, 2, 3, 4, 6, 8, 10)])


@pytest.mark.parametrize("bits", range(1, 9))
def test_all_sums_differ_and_one_is_the_highest(bits: int) -> None:
    levels = gw.ste.apot_levels(bits, signed=False)
    assert len(set(levels)) == 2**bits
    assert levels == gw.ste.apot_levels(bits + 1)
    assert levels[0] == 0.0
    assert levels[-1] == 1.0


def test_clipped_values_move_the_bound_by_their_sign() -> None:
    x, a = torch.tensor([5.0, -5.0, -5.0]), torch.tensor(2.0, requires_grad=True)
    assert torch.autograd.grad(gw.ste.apot(x, a, bits=4).sum(), a)[0].item() == -1.0
    assert torch.autograd.grad(gw.ste.apot(x, a, bits=4, signed=False).sum(), a)[0].item() == 1.0


def test_errors() -> None:
    with pytest.raises(OptionError, match="hwgq: bits is 5; expected one of 1, 2, 3, 4"):
        gw.ste.hwgq(torch.zeros(2), bits=5)
    with pytest.raises(OptionError, match="apot_levels: bits is 1; expected a whole number from 2 with signed=True"):
        gw.ste.apot(torch.zeros(2), 1.0, bits=1)
