"""The pictures of the HTML report: two numbers on a line, and many pairs of numbers against each other.

Colours come from the classes in ``page.css``, so that a picture follows the colour scheme of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from gradwright.checking.report import Evidence
from gradwright.reporting.markup import Markup, element
from gradwright.reporting.summary import small_text, value_text

Axis: TypeAlias = Callable[[float], float]
"""From a value to its place in the picture."""

Pair: TypeAlias = tuple[str, float, float, float]
"""Label, analytic value, numeric value, error bar."""

LARGEST = 1e290
"""Numbers beyond this would overflow in the arithmetic of a picture."""

MAX_POINTS = 150
"""Points of one scatter plot; those outside their error bar are always drawn."""


def interval(analytic: float, numeric: float, error_bar: float | None) -> Markup:
    """Draw the analytic value as a point, and the numeric value with its error bar, on one line.

    All numbers must be finite. Zero is on the line when that leaves the distance between the two visible.
    """
    bar = error_bar or 0.0
    low, high = min(analytic, numeric - bar), max(analytic, numeric + bar)
    span = high - low or abs(analytic) or 1.0
    if max(high, 0.0) - min(low, 0.0) <= 4 * span:
        low, high = min(low, 0.0), max(high, 0.0)
    width, height, margin, y = 380.0, 74.0, 46.0, 37.0
    low, high = widened(low, high, 0.0)

    def x(value: float) -> float:
        return margin + (value - low) / (high - low) * (width - 2 * margin)

    parts = [element("line", x1=12.0, x2=width - 12, y1=y, y2=y, cls="axis")]
    if low <= 0 <= high:
        parts.append(element("line", x1=x(0), x2=x(0), y1=y - 5, y2=y + 5, cls="axis"))
        if min(abs(x(0) - x(numeric)), abs(x(0) - x(analytic))) > 12:
            parts.append(element("text", "0", x=x(0), y=y + 18, cls="tick"))
    left, right = x(numeric - bar), x(numeric + bar)
    parts += [
        element("rect", x=left, y=y - 8, width=max(right - left, 1.0), height=16.0, cls="bar"),
        element("line", x1=x(numeric), x2=x(numeric), y1=y - 9, y2=y + 9, cls="numeric"),
        element("text", "numeric", x=x(numeric), y=y + 26, cls="label numeric"),
        element("path", d=_diamond(x(analytic), y, 6), cls="analytic"),
        element("text", "analytic", x=x(analytic), y=y - 16, cls="label analytic"),
    ]
    described = f"analytic {value_text(analytic, error_bar)}, numeric {value_text(numeric, error_bar)}"
    if error_bar is not None:
        described += f" plus or minus {small_text(error_bar)}"
    return picture(width, height, described, "interval", parts)


def scatter(evidence: Evidence) -> Markup:
    """Draw analytic against numeric values with the line on which they agree; wrong points are crosses."""
    points = list(_finite(evidence))
    if not points:
        return Markup("")
    low = min(min(a, n) for _, a, n, _ in points)
    high = max(max(a, n) for _, a, n, _ in points)
    low, high = widened(low, high, 0.06)
    side, left, top, right, bottom = 264.0, 62.0, 12.0, 14.0, 46.0

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * side

    def y(value: float) -> float:
        return top + (high - value) / (high - low) * side

    parts = [element("rect", x=left, y=top, width=side, height=side, cls="frame")]
    for tick in ticks(low, high):
        parts += [
            element("line", x1=x(tick), x2=x(tick), y1=top, y2=top + side, cls="gridline"),
            element("line", x1=left, x2=left + side, y1=y(tick), y2=y(tick), cls="gridline"),
            element("text", f"{tick:.4g}", x=x(tick), y=top + side + 16, cls="tick"),
            element("text", f"{tick:.4g}", x=left - 6, y=y(tick) + 4, cls="tick end"),
        ]
    parts.append(element("line", x1=x(low), y1=y(low), x2=x(high), y2=y(high), cls="identity"))
    parts += [_point(x, y, *point) for point in _thinned(points)]
    middle = top + side / 2
    parts += [
        element("text", "numeric", x=left + side / 2, y=top + side + 38, cls="label numeric"),
        element("text", "analytic", x=14.0, y=middle, transform=f"rotate(-90 14 {middle:g})", cls="label analytic"),
    ]
    described = f"{sum(map(_outside, points))} of {len(points)} points lie outside their error bar"
    return picture(left + side + right, top + side + bottom, described, "scatter", parts)


def outside(evidence: Evidence) -> list[Pair]:
    """Return the (label, analytic, numeric, error bar) of the pairs that differ by more than the error bar."""
    pairs = zip(evidence.labels, evidence.analytic, evidence.numeric, evidence.error_bar)
    return [pair for pair in pairs if _outside(pair)]


def _outside(pair: Pair) -> bool:
    _, analytic, numeric, bar = pair
    return analytic != numeric and not abs(analytic - numeric) <= bar  # written so that NaN is outside


def _finite(evidence: Evidence) -> Iterator[Pair]:
    for pair in zip(evidence.labels, evidence.analytic, evidence.numeric, evidence.error_bar):
        if max(abs(pair[1]), abs(pair[2])) < LARGEST and not math.isnan(pair[1] + pair[2]):
            yield pair


def _thinned(points: list[Pair]) -> list[Pair]:
    """Keep every wrong point and so many of the others, evenly, that the page stays small; wrong ones on top."""
    wrong, right = [p for p in points if _outside(p)], [p for p in points if not _outside(p)]
    step = max(1, math.ceil(len(right) / MAX_POINTS))
    return right[::step] + wrong


def _point(x: Axis, y: Axis, label: str, analytic: float, numeric: float, bar: float) -> Markup:
    across, up = x(numeric), y(analytic)
    words = f"{label}: analytic {value_text(analytic, bar)}, numeric {value_text(numeric, bar)} ± {small_text(bar)}"
    parts = [element("title", words)]
    reach = x(numeric + bar) - across if math.isfinite(bar) else 0.0
    if reach > 4:
        parts.append(element("line", x1=across - reach, x2=across + reach, y1=up, y2=up, cls="whisker"))
    if _outside((label, analytic, numeric, bar)):
        cross = f"M{across - 5:.1f} {up - 5:.1f}l10 10m0 -10l-10 10"
        parts += [element("circle", cx=across, cy=up, r=8.0, cls="target"), element("path", d=cross, cls="wrong")]
    else:
        parts.append(element("circle", cx=across, cy=up, r=3.5, cls="right"))
    return element("g", *parts)


def picture(width: float, height: float, description: str, kind: str, parts: Iterable[str]) -> Markup:
    """Return a picture with what it says in words, for those who cannot see it."""
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=description,
        cls=kind,
    )


def _diamond(x: float, y: float, r: float) -> str:
    return f"M{x:.1f} {y - r:.1f}l{r} {r}l{-r} {r}l{-r} {-r}z"


def widened(low: float, high: float, share: float) -> tuple[float, float]:
    """Widen a range by a share on each side; an empty one is made wide enough to draw in."""
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-290):
        half = 0.5 * abs(high) if abs(high) > 1e-290 else 1.0
        return low - half, high + half
    return low - share * (high - low), high + share * (high - low)


def ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers between ``low`` and ``high``."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(factor for factor in (5, 2, 1) if factor * step <= (high - low) / 3)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
