"""What the listings and pictures of a report are made of. Plain data: they are drawn in :mod:`gradwright.reporting`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["forward", "setup_context", "backward", "jvp", "vmap"]
"""What a piece of a subject's source is for; ``backward`` is the rule, whatever its name."""


@dataclass(frozen=True)
class Part:
    """One function within a listing."""

    role: Role
    name: str
    first: int
    """Line of its ``def``, in the file."""
    last: int


@dataclass(frozen=True)
class Source:
    """Some lines of one file, as they were when the subject was checked."""

    file: str
    lines: tuple[tuple[int, str], ...]
    """Number and text of each; numbers are left out where the listing was cut."""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Ladder:
    """Difference quotients of one entry of the Jacobian at ever smaller steps."""

    title: str
    """Which entry, for example ``output 0[3] with respect to x[3]``."""
    steps: tuple[float, ...]
    slopes: tuple[float, ...]
    """The central difference at each step."""
    value: float
    """What the steps were extrapolated to."""
    error_bar: float
    analytic: float
    chosen: float
    """The smallest step that the extrapolation made use of."""


@dataclass(frozen=True)
class HeatMap:
    """How far the two Jacobians of one block are apart: a row for each output element, a column for each input one."""

    title: str
    shape: tuple[int, int]
    """Of the whole Jacobian; ``cells`` may be fewer, each the worst of those that it stands for."""
    cells: tuple[tuple[float | None, ...], ...]
    """The difference in units of what is allowed (1 is the limit); None where nothing was compared."""


@dataclass(frozen=True)
class Line:
    """One line of :class:`Curves`; NaN leaves a gap."""

    name: str
    y: tuple[float, ...]


@dataclass(frozen=True)
class Curves:
    """Lines over a common axis."""

    title: str
    x_name: str
    y_name: str
    x: tuple[float, ...]
    lines: tuple[Line, ...]
    logarithmic: bool = False
    """True when both axes are."""


@dataclass(frozen=True)
class Bar:
    """One bar of :class:`Bars`: a size, and how large it may be."""

    name: str
    value: float
    limit: float


@dataclass(frozen=True)
class Bars:
    """Sizes beside each other on a logarithmic axis."""

    title: str
    axis: str
    bars: tuple[Bar, ...]


Picture: TypeAlias = Ladder | HeatMap | Curves | Bars
