"""Results as words: the cells of the table, the lines of a list, the order of rows, and the counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gradwright.probing.judge import KINDS, Outcome
from gradwright.probing.row import Probe
from gradwright.probing.run import Result

HEADS = ("row", "case", "dtype", "torch says", "right is", "verdict", "forward", "gw.stable")
DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
MARKS = {"value": " [value]", "gradient": "", "second derivative": " [2nd]"}
NOTHING = {"detached": "no grad_fn", "not implemented": "raises", "missing": "raises", "raises": "raises"}
LEGEND = (
    "[value]: the value is looked at; [2nd]: the second derivative; else the gradient; "
    "forward: the gradient in forward mode; gw.stable.NAME: what that function returns there"
)
SHOWN = 3
"""Elements of a vector that are shown, around the one that is farthest from the truth."""


def cells(result: Result) -> tuple[str, ...]:
    """Return a row of the table, a text for each of ``HEADS``."""
    probe = result.probe
    got, wanted = numbers(result.torch, result.wanted)
    forward = "" if result.forward is None else str(result.forward)
    remedy = f"{probe.remedy}: {result.remedy}" if probe.remedy else ""
    return probe.id, case(probe), DTYPES[probe.dtype], got, wanted, str(result.torch), forward, remedy


def verdict(result: Result) -> str:
    """Return the verdict on torch; where only forward mode is not right, it says so."""
    if result.torch.kind != "right" or result.ok:
        return str(result.torch)
    lacking = result.forward is not None and result.forward.kind in NOTHING
    return "right; no forward mode" if lacking else f"right; forward {result.forward}"


def details(result: Result) -> list[str]:
    """Return what is told of a row beside its case and verdict, in pieces that are not to be broken."""
    _, _, dtype, got, wanted, _, forward, _ = cells(result)
    pieces = [f"torch {got if got == 'raises' else f'says {got}'} ({dtype})", f"right is {wanted}"]
    if forward and (result.torch.kind != "right" or result.ok):
        pieces.append(f"forward {forward}")
    if result.probe.remedy:
        pieces.append(f"gw.stable.{result.probe.remedy}: {result.remedy}")
    return pieces


def not_right(results: Sequence[Result]) -> str:
    """Return how many are not right, those apart where only forward mode is not."""
    wrong = sum(result.torch.kind != "right" for result in results)
    only = sum(result.torch.kind == "right" and not result.ok for result in results)
    return f"{wrong} of {len(results)} not right" + (f", {only} more only in forward mode" if only else "")


def case(probe: Probe) -> str:
    """Return what is called, and what is looked at where that is not the gradient."""
    return probe.case + MARKS[probe.of]


def numbers(outcome: Outcome, wanted: Sequence[float]) -> tuple[str, str]:
    """Return what was returned and what is right, with enough digits to see the difference."""
    got = outcome.got
    if got is None:
        return NOTHING[outcome.kind], _vector(wanted, 0, 4)
    digits = 4
    if outcome.kind == "wrong" and outcome.error is not None and 0 < outcome.error < 1e-2:
        digits = min(2 - math.floor(math.log10(outcome.error)), 17)
    at = max(range(len(got)), key=lambda i: _distance(got[i], wanted[i])) if len(got) == len(wanted) else 0
    return _vector(got, at, digits), _vector(wanted, at, digits)


def worst_first(results: Iterable[Result]) -> list[Result]:
    """Sort the gravest first, and otherwise keep the order; among what is right, forward mode decides."""

    def gravity(result: Result) -> tuple[int, int]:
        return KINDS.index(result.torch.kind), KINDS.index(result.forward.kind if result.forward else "right")

    return sorted(results, key=gravity)


def counts(results: Iterable[Result]) -> str:
    """Return how many there are of each verdict."""
    count = Counter(result.torch.kind for result in results)
    return ", ".join(f"{count[kind]} {kind}" for kind in KINDS if count[kind])


def summary(results: Sequence[Result]) -> list[str]:
    """Return the lines of counts, without torch's version and the time."""
    forward = [result for result in results if result.forward is not None]
    only = sum(result.torch.kind == "right" and not result.ok for result in forward)
    oracle = sum(
        result.torch.kind != "right" and result.forward.kind == "right" for result in forward if result.forward
    )
    named = [result for result in results if result.probe.remedy]
    built = [result for result in named if result.stable is not None]
    right = sum(result.stable is not None and result.stable.kind == "right" for result in built)
    return [
        f"{counted(len(results), 'probe')}: {counts(results) or 'nothing'}",
        f"forward mode alone is right in {oracle}, and alone is not right in {only}, of {len(forward)}",
        f"gw.stable has a function for {len(named)}: {right} right, {len(built) - right} not right, "
        f"{len(named) - len(built)} not built yet",
    ]


def document(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return results for JSON; NaN and the infinities become the texts ``nan``, ``inf`` and ``-inf``."""
    return [
        {
            "id": result.probe.id,
            "section": result.section,
            "case": result.probe.case,
            "of": result.probe.of,
            "dtype": str(result.probe.dtype).removeprefix("torch."),
            "tolerance": result.probe.allowed,
            "wanted": [_finite(number) for number in result.wanted],
            "torch": _outcome(result.torch),
            "forward": _outcome(result.forward),
            "remedy": result.probe.remedy,
            "stable": _outcome(result.stable),
        }
        for result in results
    ]


def _outcome(outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    return {
        "verdict": outcome.kind,
        "error": _finite(outcome.error),
        "got": None if outcome.got is None else [_finite(number) for number in outcome.got],
        "message": outcome.message or None,
    }


def _finite(number: float | None) -> float | str | None:
    if number is None or math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


def _distance(got: float, wanted: float) -> float:
    if got == wanted:
        return 0.0
    away = abs(got - wanted)
    return math.inf if math.isnan(away) else away


def _vector(numbers: Sequence[float], at: int, digits: int) -> str:
    texts = [f"{number + 0.0:.{digits}g}" for number in numbers]  # -0.0 is 0 here
    if len(texts) == 1:
        return texts[0]
    if len(texts) <= SHOWN + 1:
        return f"[{', '.join(texts)}]"
    start = min(max(at - SHOWN // 2, 0), len(texts) - SHOWN)
    shown = texts[start : start + SHOWN]
    before = ["..."] if start else []
    after = ["..."] if start + SHOWN < len(texts) else []
    return f"[{', '.join([*before, *shown, *after])}]"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
