"""A curve in a terminal, drawn with the characters that it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Strokes:
    """The characters of a curve: level, upright, and the four bends named by the sides they join."""

    level: str
    upright: str
    left_down: str
    left_up: str
    right_down: str
    right_up: str
    axis: str
    zero: str


MARGIN = 12
"""Columns for the labels of ``y``, the same for all plots, so that those below one another can be compared."""

UNICODE = Strokes("─", "│", "╮", "╯", "╭", "╰", "┤", "┼")
ASCII = Strokes("-", "|", "+", "+", "+", "+", "|", "+")


def curve(x: Sequence[float], y: Sequence[float], *, height: int = 11, strokes: Strokes = UNICODE) -> list[str]:
    """Return the lines of a plot of ``y`` over ``x``, one column for each point after ``MARGIN`` with the labels.

    Arguments:
        x: evenly spaced, ascending.
        y: as many; what is not finite leaves a gap.
        height: lines of the plot, at least 2, without the labels of ``x``.
        strokes: what to draw with.
    """
    finite = [value for value in y if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    if low == high:
        low, high = low - 1.0, high + 1.0
    rows = [_row(value, low, high, height) for value in y]
    cells = [[" "] * len(y) for _ in range(height)]
    before: int | None = None
    for column, row in enumerate(rows):
        if row is not None:
            for place, stroke in _strokes(row if before is None else before, row, strokes):
                cells[place][column] = stroke
        before = row
    labels = [""] * height
    if low < 0 < high:
        labels[_row(0.0, low, high, height) or 0] = "0"
    labels[0], labels[-1] = f"{high:.4g}", f"{low:.4g}"
    lines = [
        f"{label:>{MARGIN - 2}} {strokes.zero if label == '0' else strokes.axis}{''.join(line)}".rstrip()
        for label, line in zip(labels, cells)
    ]
    return [*lines, _ruler(x)]


def _row(value: float, low: float, high: float, height: int) -> int | None:
    """Return the line of a value, counted from the top; None where it is not finite."""
    return round((high - value) / (high - low) * (height - 1)) if math.isfinite(value) else None


def _strokes(start: int, end: int, strokes: Strokes) -> list[tuple[int, str]]:
    """Return what to draw in one column, for a curve that comes at one line and leaves at another."""
    if start == end:
        return [(end, strokes.level)]
    down = end > start
    between = range(min(start, end) + 1, max(start, end))
    return [
        (start, strokes.left_down if down else strokes.left_up),
        (end, strokes.right_up if down else strokes.right_down),
        *((row, strokes.upright) for row in between),
    ]


def _ruler(x: Sequence[float]) -> str:
    """Return the line below: the first, the middle and the last ``x``."""
    first, middle, last = (f"{x[place]:.4g}" for place in (0, len(x) // 2, -1))
    half, rest = len(x) // 2 - len(middle) // 2, len(x) - len(last)
    line = first.ljust(half) + middle
    return " " * MARGIN + (line.ljust(rest) + last if len(line) < rest else first.ljust(rest) + last)
