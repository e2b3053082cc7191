from __future__ import annotations

import re

import pytest

from gradwright.checking.shown import Bar, Bars, Curves, HeatMap, Ladder, Line
from gradwright.reporting.plots import figure

NAN, INF = float("nan"), float("inf")


def ladder(**fields):
    given = {
        "title": "x[0]",
        "steps": (0.1, 0.01, 0.001),
        "slopes": (1.1, 1.001, 1.00001),
        "value": 1.0,
        "error_bar": 1e-9,
        "analytic": -1.0,
        "chosen": 0.01,
    }
    return Ladder(**{**given, **fields})


def curves(*lines, x=(0.0, 1.0, 2.0), logarithmic=False):
    return Curves(
        "Values over `x`.", "x", "value", x, tuple(Line(f"line {i}", y) for i, y in enumerate(lines)), logarithmic
    )


def test_a_ladder_shows_steps_bar_and_what_backward_gives():
    drawn = figure(ladder())
    assert drawn.count('class="dot one"') == 3
    assert drawn.count('class="limit"') == 1
    assert drawn.count('class="apart"') == 1
    assert drawn.count('class="chosen"') == 1
    assert "step 1.00e-02: off by 0.001" in drawn
    assert "They settle on 1 ± 1e-09, with steps down to 1.0e-02" in drawn
    assert "what backward gives is 2 away" in drawn
    assert ">step size<" in drawn


@pytest.mark.parametrize("fields", [{"analytic": NAN}, {"value": INF}, {"slopes": (NAN, NAN, 1.0)}, {"error_bar": INF}])
def test_a_ladder_without_numbers_is_not_drawn(fields):
    assert figure(ladder(**fields)) == ""


def test_a_ladder_that_is_exact_everywhere_still_has_two_axes():
    drawn = figure(ladder(slopes=(1.0, 1.0, 1.0), error_bar=0.0))
    assert drawn.count('class="apart"') == 1
    assert not re.search(r'="(nan|-?inf)', drawn)


def test_a_heat_map_counts_what_is_beyond_its_bar_and_says_when_cells_stand_for_several():
    drawn = figure(HeatMap("the output with respect to `x`", (2, 3), ((0.5, 3.0, None), (100.0, INF, 1.0))))
    assert "2 x 3: 3 of 5 cells are beyond their error bar." in drawn
    assert "stands for several" not in drawn
    for shade, cells in (("cell-0", 2), ("cell-2", 1), ("cell-3", 1), ("cell-4", 1), ("cell-none", 1)):
        (path,) = re.findall(rf'<path d="([^"]*)" class="{shade}"', drawn)
        assert path.count("M") == cells
    assert "stands for several" in figure(HeatMap("x", (400, 3), ((0.5, 3.0, None),)))


def test_cells_of_one_shade_that_follow_each_other_are_drawn_as_one():
    drawn = figure(HeatMap("x", (2, 48), ((1.0,) * 48, (1.0,) * 20 + (5.0,) * 28)))
    (right,) = re.findall(r'<path d="([^"]*)" class="cell-0"', drawn)
    assert right.count("M") == 2


def test_curves_have_a_key_units_and_gaps():
    drawn = figure(curves((0.0, NAN, 2.0), (1.0, 1.5, 2.0)))
    (gap, whole) = re.findall(r' d="([^"]*)" class="curve', drawn)
    assert (gap.count("M"), whole.count("M")) == (2, 1)
    assert "line 0" in drawn
    assert ">value<" in drawn


@pytest.mark.parametrize(
    "drawn",
    [
        curves((NAN, NAN, INF)),
        curves((1.0, 1.0, 1.0), x=(2.0, 2.0, 2.0)),
        curves((0.0, 0.0, 0.0), logarithmic=True),
        Bars("none", "error", ()),
        Bars("none", "error", (Bar("a", NAN, 1.0), Bar("b", 1.0, 0.0))),
    ],
)
def test_what_cannot_be_drawn_is_left_out(drawn):
    assert figure(drawn) == ""


@pytest.mark.parametrize(
    "drawn",
    [
        curves((1e280, -1e280, 0.0)),
        curves((5.0, 5.0, 5.0)),
        curves((1e-300, 1.0, 1e289), x=(1.0, 10.0, 1e250), logarithmic=True),
        curves((1.0, 1.0, 1.0), x=(1.0, 2.0, 3.0), logarithmic=True),
        ladder(value=1e280, analytic=-1e280, slopes=(1e280, 1e279, 1e278)),
        ladder(steps=(1e-300, 1e-305, 1e-310)),
        Bars("b", "error", (Bar("a", 0.0, 1e-300), Bar("c", 1e280, 1.0))),
    ],
)
def test_awkward_numbers_can_be_drawn(drawn):
    assert not re.search(r'="(nan|-?inf)|NaN|nan ', figure(drawn))


def test_bars_beyond_their_limit_stand_out():
    drawn = figure(
        Bars("Error.", "relative error", (Bar("float32 value", 1e-8, 1e-6), Bar("float16 value", 1.0, 1e-3)))
    )
    assert drawn.count('class="bar-right"') == drawn.count('class="bar-wrong"') == 1
    assert drawn.count('class="limit"') == 2
    assert "float16 value: 1, allowed 0.001" in drawn
