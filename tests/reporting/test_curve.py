"""Curves of characters."""

from __future__ import annotations

import math

import pytest

from gradwright.reporting.curve import ASCII, MARGIN, curve


def test_a_step_and_a_slope() -> None:
    assert curve([0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 2, 2, 1, 1, 0, 0], height=3) == [
        "         2 ┤  ╭─╮",
        "           ┤  │ ╰─╮",
        "         0 ┼──╯   ╰─",
        "            0   4  7",
    ]


def test_zero_is_marked_on_the_axis() -> None:
    lines = curve([0, 1, 2], [-1, 0, 1], height=3)
    assert [line[MARGIN - 3 : MARGIN] for line in lines[:3]] == ["1 ┤", "0 ┼", "1 ┤"]


def test_it_can_be_drawn_in_ascii() -> None:
    lines = curve([0, 1, 2], [0, 1, 0], height=3, strokes=ASCII)
    assert lines[0] == "         1 | ++"
    assert "\n".join(lines).isascii()


def test_what_is_not_finite_leaves_a_gap() -> None:
    lines = curve([0, 1, 2, 3, 4], [0, math.nan, 1, math.inf, 1], height=2)
    assert lines[:2] == ["         1 ┤  ─ ─", "         0 ┼─"]
    assert len(curve([0, 1], [math.nan, math.nan], height=2)) == 3


def test_a_constant_is_in_the_middle() -> None:
    assert curve([0, 1], [5, 5], height=3)[:3] == ["         6 ┤", "           ┤──", "         4 ┤"]


@pytest.mark.parametrize("count", [2, 5, 20, 80])
def test_no_line_is_longer_than_its_columns(count: int) -> None:
    x = [-1.23456 + k for k in range(count)]
    lines = curve(x, [math.sin(v) for v in x])
    if count >= 20:
        assert max(map(len, lines)) <= MARGIN + count
    assert lines[-1].startswith(" " * MARGIN + "-1.235")
