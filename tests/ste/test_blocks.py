"""What is special about blocks with a shared power of two; the suite of the catalogue proves the rest."""

from __future__ import annotations

import math

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError
from gradwright.ste.blocks import ELEMENTS, SCALE_MODES, Element, ScaleMode, from_blocks, in_blocks


def scale_of(largest: float, element: Element, mode: ScaleMode) -> float:
    """Return the scale that a block is given, from an element in it that is rounded to one step of its format."""
    form = ELEMENTS[element]
    for power in range(-140, 140):
        x = torch.tensor([largest, 0.75 * form.smallest * 2.0**power], dtype=torch.float64)
        if gw.ste.mx(x, element=element, scale_mode=mode)[1] > 0:
            return 2.0**power if gw.ste.mx(x, element=element, scale_mode=mode)[1] == form.smallest * 2.0**power else -1
    raise AssertionError


@pytest.mark.parametrize(
    ("largest", "mode", "want"),
    [  # E2M1: the largest element is 6, its power of two 4
        (4.0, "floor", 1.0),
        (7.9, "floor", 1.0),
        (8.0, "floor", 2.0),
        (4.0, "ceil", 1.0),
        (4.1, "ceil", 2.0),
        (6.9, "even", 1.0),
        (7.0, "even", 2.0),  # a tie of 1.75 between 1.5 and 2
        (6.0, "rceil", 1.0),
        (6.1, "rceil", 2.0),
    ],
)
def test_scales_of_fp4(largest: float, mode: ScaleMode, want: float) -> None:
    assert scale_of(largest, "e2m1", mode) == want


@pytest.mark.parametrize("element", list(ELEMENTS))
@pytest.mark.parametrize("mode", SCALE_MODES)
def test_how_much_is_clipped(element: Element, mode: ScaleMode) -> None:
    form = ELEMENTS[element]
    x = torch.logspace(0, 1, 4001, base=2.0, dtype=torch.float64).unsqueeze(1).requires_grad_()
    (passes,) = torch.autograd.grad(gw.ste.mx(x, element=element, scale_mode=mode, mask="range").sum(), x)
    share = {
        "floor": 1 - math.log2(form.largest / form.top_binade),
        "even": math.log2((2 - 2.0 ** -(form.mantissa_bits + 1)) / (form.largest / form.top_binade)),
    }.get(mode, 0.0)
    assert float((passes == 0).double().mean()) == pytest.approx(share, abs=2e-3)


def test_a_block_takes_no_notice_of_the_others() -> None:
    x = torch.full((64,), 0.3)
    x[40] = 1e4
    out = gw.ste.mx(x, element="e2m1")
    assert out[:32].unique().tolist() == [0.25]
    assert out[33] == 0.0


def test_the_axis_is_the_one_that_is_named() -> None:
    x = torch.randn(6, 40, 5, generator=torch.Generator().manual_seed(0))
    out = gw.ste.mx(x, element="e2m1", axis=1, block=8)
    assert torch.equal(out.movedim(1, -1), gw.ste.mx(x.movedim(1, -1), element="e2m1", block=8))
    assert not torch.equal(out, gw.ste.mx(x, element="e2m1", block=8))


def test_blocks_and_back() -> None:
    x = torch.randn(3, 7, 2)
    blocks = in_blocks(x, 1, 3)
    assert blocks.shape == (3, 2, 3, 3)
    assert blocks[0, 0, 2].tolist() == [x[0, 6, 0], 0, 0]
    assert torch.equal(from_blocks(blocks, 1, 7), x)


def test_special_values() -> None:
    x = torch.zeros(4, 32)
    x[1, 3], x[2, 3], x[3, :] = torch.inf, torch.nan, 1e-42
    out = gw.ste.mx(x)
    assert torch.equal(out[0], x[0])
    assert bool(out[1:3].isnan().all())
    assert float(out[3, 0]) == pytest.approx(1e-42, rel=0.2)
    largest = torch.full((32,), torch.finfo(torch.float32).max)
    for mode in SCALE_MODES:
        assert bool(gw.ste.mx(largest, element="int8", scale_mode=mode).isfinite().all())


@pytest.mark.parametrize("mode", SCALE_MODES)
def test_sizes_that_are_subnormal_in_float32(mode: ScaleMode) -> None:
    x = torch.tensor([1.75 * 2.0**-127, 1.3 * 2.0**-127, -(2.0**-130)])
    wide = gw.ste.mx(x.double(), element="int8", scale_mode=mode)
    assert torch.equal(gw.ste.mx(x, element="int8", scale_mode=mode), wide.float())


def test_nothing_in_it() -> None:
    assert gw.ste.mx(torch.zeros(3, 0)).shape == (3, 0)
    assert gw.ste.mx(torch.zeros(0, 5)).shape == (0, 5)


def test_errors() -> None:
    x = torch.ones(4)
    with pytest.raises(OptionError, match="mx: element: got 'fp4'; expected one of e4m3, e5m2"):
        gw.ste.mx(x, element="fp4")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="mx: scale_mode: got 'round'; expected one of floor, ceil, even, rceil"):
        gw.ste.mx(x, scale_mode="round")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="mx: mask: got 'trust'; expected one of range, none"):
        gw.ste.mx(x, mask="trust")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="mx: axis=1 for a tensor of 1 dimensions"):
        gw.ste.mx(x, axis=1)
    with pytest.raises(OptionError, match="mx: block is 0; expected a whole number from 1"):
        gw.ste.mx(x, block=0)
