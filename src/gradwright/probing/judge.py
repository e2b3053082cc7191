"""What a call returned against what is true, in one word and a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from mpmath import mp

Kind: TypeAlias = Literal["wrong", "zero", "detached", "nan", "inf", "not implemented", "missing", "raises", "right"]

KINDS: tuple[Kind, ...] = (
    "wrong",
    "zero",
    "detached",
    "nan",
    "inf",
    "not implemented",
    "missing",
    "raises",
    "right",
)
"""The worst first: what is silently wrong trains without an error; NaN is noticed; an exception cannot be missed."""


@dataclass(frozen=True)
class Outcome:
    """What became of one call."""

    kind: Kind
    got: tuple[float, ...] | None = None
    """What was returned, flat; None where nothing was."""
    error: float | None = None
    """The largest error as a part of the largest number that is wanted (itself where all of these are zero)."""
    message: str = ""
    """The first line of the exception."""

    def __str__(self) -> str:
        return f"wrong {self.error:.1e}" if self.kind == "wrong" else self.kind


def judge(got: Sequence[float], wanted: Sequence[Any], tolerance: float, tiny: float = 0.0) -> Outcome:
    """Return the verdict on numbers of which the truth is finite or infinite, never NaN.

    Arguments:
        got: what was returned.
        wanted: what is true, as numbers of mpmath.
        tolerance: the largest relative error that is right.
        tiny: an error that is right whatever is wanted: the smallest number of the dtype.
    """
    values = tuple(got)
    if len(values) != len(wanted):
        return Outcome("raises", values, message=f"{len(values)} numbers were returned; {len(wanted)} are true")
    if any(math.isnan(value) for value in values):
        return Outcome("nan", values)
    pairs = list(zip(values, wanted))
    if any(math.isinf(value) and value != truth for value, truth in pairs):
        return Outcome("inf", values)
    error = max((_error(value, truth) for value, truth in pairs), default=mp.mpf(0))
    scale = max((abs(truth) for truth in wanted if mp.isfinite(truth)), default=mp.mpf(0))
    relative = float(error / scale) if scale and mp.isfinite(error) else float(error)
    if relative <= tolerance or error <= tiny:
        return Outcome("right", values, relative)
    return Outcome("wrong" if any(values) else "zero", values, relative)


def _error(value: float, truth: Any) -> Any:
    return mp.mpf(0) if value == truth else abs(mp.mpf(value) - truth)
