"""The pictures of a finding beside its pairs of values: steps, Jacobians, curves and bars, each with its caption.

Colours come from the classes in ``page.css``, so that a picture follows the colour scheme of the page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradwright.checking.shown import Bars, Curves, HeatMap, Ladder, Picture
from gradwright.reporting.markup import Markup, element, prose
from gradwright.reporting.summary import small_text, value_text
from gradwright.reporting.svg import LARGEST, picture, ticks, widened

WIDTH, HEIGHT = 380.0, 236.0
LEFT, TOP, RIGHT, BOTTOM = 58.0, 12.0, 20.0, 44.0
SMALLEST = 1e-290
STYLES = ("one", "two", "three", "four")
"""Classes of the lines of a plot, in their order."""


def figure(drawn: Picture) -> Markup:
    """Return a picture with its caption; nothing where there is nothing to draw."""
    key: tuple[tuple[str, str], ...]
    if isinstance(drawn, Ladder):
        shape, words, key = _ladder(drawn), _ladder_words(drawn), _LADDER_KEY
    elif isinstance(drawn, HeatMap):
        shape, words, key = _heat(drawn), _heat_words(drawn), _HEAT_KEY
    elif isinstance(drawn, Curves):
        shape, words = _curves(drawn), drawn.title
        key = tuple((line.name, f"swatch {style}") for line, style in zip(drawn.lines, STYLES))
    else:
        shape, words = _bars(drawn), drawn.title
        key = (("measured", "swatch one"), ("allowed", "swatch limit"))
    if not shape:
        return Markup("")
    entries = [element("span", element("i", cls=swatch), name) for name, swatch in key]
    caption = element("figcaption", element("p", prose(words)), element("p", *entries, cls="key"))
    return element("figure", shape, caption, cls="picture")


@dataclass(frozen=True)
class _Axis:
    """From values to places; a logarithmic axis takes positive values only."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        if self.logarithmic:
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(max(value, SMALLEST))
        else:
            low, high = self.low, self.high
        return self.start + (min(max(value, low), high) - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values: powers of ten on a logarithmic axis."""
        if not self.logarithmic:
            return ticks(self.low, self.high)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first) / 5))
        return [10.0**k for k in range(first, last + 1, step)]


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Return whole powers of ten around positive values, at least two decades apart."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    low, high = max(low, -290), min(high, 290)
    return (10.0**low, 10.0**high) if high - low >= 2 else (10.0 ** (low - 1), 10.0 ** (high + 1))


def _frame(x: _Axis, y: _Axis, x_name: str, y_name: str) -> list[Markup]:
    """Return grid, numbers and names of two axes."""
    left, right, bottom, top = x.start, x.end, y.start, y.end
    lines = [f"M{x(tick):.1f} {top:g}V{bottom:g}" for tick in x.ticks()]
    lines += [f"M{left:g} {y(tick):.1f}H{right:g}" for tick in y.ticks()]
    parts = [
        element("rect", x=left, y=top, width=right - left, height=bottom - top, cls="frame"),
        element("path", d="".join(lines), cls="gridline"),
    ]
    for tick in x.ticks():
        parts.append(element("text", _number(tick, x.logarithmic), x=x(tick), y=bottom + 15, cls="tick"))
    for tick in y.ticks():
        parts.append(element("text", _number(tick, y.logarithmic), x=left - 6, y=y(tick) + 4, cls="tick end"))
    middle = (top + bottom) / 2
    return [
        *parts,
        element("text", x_name, x=(left + right) / 2, y=bottom + 36, cls="label"),
        element("text", y_name, x=13.0, y=middle, transform=f"rotate(-90 13 {middle:g})", cls="label"),
    ]


def _number(value: float, logarithmic: bool) -> str:
    if logarithmic and not 1e-3 < value < 1e4:
        return f"1e{round(math.log10(value))}"
    return f"{value:.4g}"


def _usable(*values: float) -> bool:
    return all(math.isfinite(value) and abs(value) < LARGEST for value in values)


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Return a path through points; None leaves a gap."""
    commands, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        commands.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
        pen = "L"
    return "".join(commands)


# -------------------------------------------------------------------- steps


_LADDER_KEY = (
    ("plain difference quotient", "swatch one dot"),
    ("error bar after extrapolation", "swatch limit"),
    ("what backward gives", "swatch wrong"),
)


def _ladder_words(drawn: Ladder) -> str:
    apart = abs(drawn.analytic - drawn.value)
    return (
        f"Differences for {drawn.title} at ever smaller steps. They settle on "
        f"{value_text(drawn.value, drawn.error_bar)} ± {small_text(drawn.error_bar)}, with steps down to "
        f"{drawn.chosen:.1e} (upright line); what backward gives is {small_text(apart)} away."
    )


def _ladder(drawn: Ladder) -> Markup:
    """Draw the error of each difference quotient against its step, with the bar and what backward gives."""
    if not _usable(drawn.value, drawn.analytic, drawn.error_bar):
        return Markup("")
    pairs = [(h, abs(d - drawn.value)) for h, d in zip(drawn.steps, drawn.slopes) if _usable(h, d) and h > 0]
    apart, bar = abs(drawn.analytic - drawn.value), drawn.error_bar
    positive = [size for size in (apart, bar, *(error for _, error in pairs)) if size > SMALLEST]
    if len(pairs) < 2 or not positive:
        return Markup("")
    least = min(positive)
    x = _Axis(*_decades([h for h, _ in pairs]), LEFT, WIDTH - RIGHT, True)
    y = _Axis(*_decades(positive), HEIGHT - BOTTOM, TOP, True)
    parts = _frame(x, y, "step size", "error")
    if bar > SMALLEST:
        parts.append(element("rect", x=LEFT, y=y(bar), width=WIDTH - RIGHT - LEFT, height=y.start - y(bar), cls="bar"))
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(bar), y2=y(bar), cls="limit"))
    if apart > SMALLEST:
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(apart), y2=y(apart), cls="apart"))
    parts.append(element("line", x1=x(drawn.chosen), x2=x(drawn.chosen), y1=TOP, y2=y.start, cls="chosen"))
    ordered = sorted(pairs)
    parts.append(element("path", d=_path([(x(h), y(max(e, least))) for h, e in ordered]), cls="curve one thin"))
    for h, error in ordered:
        words = element("title", f"step {h:.2e}: off by {small_text(error)}")
        parts.append(element("circle", words, cx=x(h), cy=y(max(error, least)), r=3.2, cls="dot one"))
    described = f"error of {len(pairs)} difference quotients against step size; backward is {small_text(apart)} away"
    return picture(WIDTH, HEIGHT, described, "plot", parts)


# -------------------------------------------------------------------- Jacobians


_HEAT_KEY = (
    ("within the error bar", "swatch cell-0"),
    ("beyond it", "swatch cell-2"),
    ("1,000 times and more", "swatch cell-4"),
    ("zero by structure, or not judged", "swatch cell-none"),
)
HEAT = 230.0


def _heat_words(drawn: HeatMap) -> str:
    rows, columns = drawn.shape
    wrong = sum(cell is not None and not cell <= 1 for row in drawn.cells for cell in row)
    shown = sum(cell is not None for row in drawn.cells for cell in row)
    thinned = (len(drawn.cells), len(drawn.cells[0])) != drawn.shape
    each = "; each cell stands for several and shows the worst" if thinned else ""
    return f"Jacobian of {drawn.title}, {rows} x {columns}: {wrong} of {shown} cells are beyond their error bar{each}."


def _heat(drawn: HeatMap) -> Markup:
    """Draw a cell for each entry, darker the farther backward and differences are apart."""
    rows, columns = len(drawn.cells), len(drawn.cells[0])
    size = min(HEAT / max(rows, columns), 26.0)
    left, top = 34.0, 26.0
    groups: dict[str, list[str]] = {}
    for j, row in enumerate(drawn.cells):
        i = 0
        for shade, alike in itertools.groupby(map(_shade, row)):
            run = len(list(alike))
            place = f"M{left + i * size:.1f} {top + j * size:.1f}h{run * size:.2f}v{size:.2f}h-{run * size:.2f}z"
            groups.setdefault(shade, []).append(place)
            i += run
    width, height = left + columns * size + 12, top + rows * size + 12
    parts = [element("path", d="".join(places), cls=shade) for shade, places in groups.items()]
    parts.append(element("rect", x=left, y=top, width=columns * size, height=rows * size, cls="frame"))
    middle = top + rows * size / 2
    parts += [
        element("text", "input element", x=max(left + columns * size / 2, 76.0), y=16.0, cls="label"),
        element("text", "output element", x=20.0, y=middle, transform=f"rotate(-90 20 {middle:g})", cls="label"),
    ]
    return picture(max(width, 150.0), max(height, 130.0), _heat_words(drawn).replace("`", ""), "heat", parts)


def _shade(cell: float | None) -> str:
    if cell is None:
        return "cell-none"
    if cell <= 1:
        return "cell-0"
    return "cell-4" if not cell < 1e3 else "cell-3" if cell > 30 else "cell-2"


# -------------------------------------------------------------------- curves


def _curves(drawn: Curves) -> Markup:
    """Draw lines over a common axis, with their gaps."""
    values = [v for line in drawn.lines for v in line.y if _drawable(v, drawn.logarithmic)]
    places = [v for v in drawn.x if _drawable(v, drawn.logarithmic)]
    if not values or len(set(places)) < 2:
        return Markup("")
    if drawn.logarithmic:
        x = _Axis(*_decades(places), LEFT, WIDTH - RIGHT, True)
        y = _Axis(*_decades(values), HEIGHT - BOTTOM, TOP, True)
    else:
        x = _Axis(min(places), max(places), LEFT, WIDTH - RIGHT)
        y = _Axis(*widened(min(values), max(values), 0.08), HEIGHT - BOTTOM, TOP)
    parts = _frame(x, y, drawn.x_name, drawn.y_name)
    for line, style in zip(drawn.lines, STYLES):
        points = list(_points(drawn, line.y, x, y))
        parts.append(element("path", element("title", line.name), d=_path(points), cls=f"curve {style}"))
        if len(points) <= 12:
            parts += [element("circle", cx=p[0], cy=p[1], r=3.2, cls=f"dot {style}") for p in points if p is not None]
    return picture(WIDTH, HEIGHT, drawn.title.replace("`", ""), "plot", parts)


def _points(
    drawn: Curves, heights: Sequence[float], x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[tuple[float, float] | None]:
    for place, height in zip(drawn.x, heights):
        fits = _drawable(place, drawn.logarithmic) and _drawable(height, drawn.logarithmic)
        yield (x(place), y(height)) if fits else None


def _drawable(value: float, logarithmic: bool) -> bool:
    return _usable(value) and (value > SMALLEST or not logarithmic)


# -------------------------------------------------------------------- bars


def _bars(drawn: Bars) -> Markup:
    """Draw bars to the right on a logarithmic axis, each with a mark at its limit."""
    bars = [bar for bar in drawn.bars if _usable(bar.value, bar.limit) and bar.limit > SMALLEST]
    sizes = [size for bar in bars for size in (bar.value, bar.limit) if size > SMALLEST]
    if not sizes:
        return Markup("")
    row, left = 26.0, 132.0
    bottom = TOP + row * len(bars)
    x = _Axis(*_decades([min(sizes) / 2, *sizes]), left, WIDTH - RIGHT, True)
    parts = [element("rect", x=left, y=TOP, width=x.end - left, height=bottom - TOP, cls="frame")]
    for tick in x.ticks():
        parts += [
            element("line", x1=x(tick), x2=x(tick), y1=TOP, y2=bottom, cls="gridline"),
            element("text", _number(tick, True), x=x(tick), y=bottom + 15, cls="tick"),
        ]
    for number, bar in enumerate(bars):
        y = TOP + row * number + 5
        words = element("title", f"{bar.name}: {small_text(bar.value)}, allowed {small_text(bar.limit)}")
        cls = "bar-wrong" if bar.value > bar.limit else "bar-right"
        parts += [
            element("text", bar.name, x=left - 8, y=y + 12, cls="tick end"),
            element("rect", words, x=left, y=y, width=max(x(bar.value) - left, 1.0), height=row - 10, cls=cls),
            element("line", x1=x(bar.limit), x2=x(bar.limit), y1=y - 3, y2=y + row - 7, cls="limit"),
        ]
    parts.append(element("text", drawn.axis, x=(left + x.end) / 2, y=bottom + 36, cls="label"))
    return picture(WIDTH, bottom + BOTTOM, drawn.title.replace("`", ""), "plot", parts)
