"""What the pictures of a wrong gradient show: the ladder of steps, the Jacobians apart, and the curves.

Pictures explain a verdict and take no part in it: none is made that would take long, and nothing that goes wrong here
is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwright.checking.accuse import place_of, worst_entry
from gradwright.checking.case import Case
from gradwright.checking.differences import FIRST_STEP, Rungs, climb, element_steps, one_hot
from gradwright.checking.jacobian import Comparison
from gradwright.checking.judge import State
from gradwright.checking.limits import TimeLimitError, time_limit
from gradwright.checking.overlay import EVALUATIONS as CURVE_EVALUATIONS
from gradwright.checking.overlay import curves
from gradwright.checking.projection import Projection
from gradwright.checking.report import Outcome
from gradwright.checking.settings import preserved_settings
from gradwright.checking.shown import HeatMap, Ladder, Picture
from gradwright.checking.variants import quietly
from gradwright.typing import Level

SECONDS: dict[Level, float] = {"quick": 0.05, "standard": 0.3, "full": 5.0}
"""Longest that all pictures of a contract may take, as a forward takes it."""
SCALES = (1.0, 1e-3, 1e-6)
LADDER_EVALUATIONS = 30 * len(SCALES)
MAX_CELLS = 48
"""Rows and columns of a heat map; of a larger Jacobian each cell stands for several entries, with the worst of them."""
MAX_BLOCKS = 2
BEYOND = 2.0
"""The least that an accused entry is shown to be beyond what is allowed, for one that is accused by other evidence."""


def drawn(outcome: Outcome, seconds: float) -> Outcome:
    """Return an outcome with all its pictures; without those that fail, or are not ready after some seconds."""
    if outcome.illustrate is None:
        return outcome
    pictures: tuple[Picture, ...] = ()
    try:
        with time_limit(seconds), preserved_settings(), quietly():
            pictures = tuple(outcome.illustrate())
    except (Exception, TimeLimitError):
        pass  # the verdict stands, and is told without them
    return replace(outcome, pictures=(*outcome.pictures, *pictures), illustrate=None)


def of_wrong_gradient(
    case: Case, comparisons: Sequence[Comparison], projections: Sequence[Projection]
) -> Iterable[Picture]:
    """Return the pictures for a gradient that is accused."""
    affordable = _affordable(case, LADDER_EVALUATIONS * MAX_BLOCKS + CURVE_EVALUATIONS)
    return _pictures(case, comparisons, projections) if affordable else ()


def of_surrogate(case: Case) -> Iterable[Picture]:
    """Return the pictures for a rule that uses the derivative of another function."""
    return curves(case) if _affordable(case, CURVE_EVALUATIONS) else ()


def _affordable(case: Case, evaluations: int) -> bool:
    return evaluations * case.forward_seconds <= SECONDS[case.level]


def _pictures(case: Case, comparisons: Sequence[Comparison], projections: Sequence[Projection]) -> Iterator[Picture]:
    yield from curves(case)
    accused = [c for c in comparisons if bool((c.state == State.WRONG).any())][:MAX_BLOCKS]
    for comparison in accused:
        c, j = worst_entry(comparison)
        i, row = int(comparison.pattern.elements()[c, j]), case.output_slice(comparison.output).start + j
        known = (comparison.analytic, comparison.estimate.value, comparison.estimate.bar)
        drawn = ladder(case, comparison.input, i, row, *(float(t[c, j]) for t in known))
        yield from [drawn] if drawn is not None else []
    yield from filter(None, map(heat_map, [case] * len(accused), accused))
    for projection in [p for p in projections if p.wrong and p.element is not None][:1]:
        e = projection.element
        assert e is not None
        drawn = ladder(case, projection.input, e.input_element, e.output_element, e.analytic, e.numeric, e.bar)
        yield from [drawn] if drawn is not None else []


def ladder(case: Case, k: int, i: int, row: int, analytic: float, value: float, bar: float) -> Ladder | None:
    """Climb the ladders of one entry again; None where it has no finite value.

    Arguments:
        case: the case.
        k: number of the input.
        i: element of that input.
        row: element of the joint output.
        analytic: what backward gives.
        value: what the differences settled on.
        bar: its error bar.
    """
    if not all(map(math.isfinite, (analytic, value, bar))):
        return None

    def f(flat: Tensor) -> Tensor:
        return case.value({k: flat})[row : row + 1]

    x = case.base[k]
    size = float(element_steps(x)[i]) / FIRST_STEP
    direction, epsilon, centre = size * one_hot(case.n[k], [i]), case.output_epsilon()[row : row + 1], f(x)
    rungs = [
        climb(f, x, direction, torch.tensor([FIRST_STEP * scale], dtype=torch.float64), epsilon, centre)
        for scale in SCALES
    ]
    best = min(rungs, key=_bar)
    steps = [float(h) * size for r in rungs for h in r.h[:, 0, 0]]
    slopes = [float(slope) / size for r in rungs for slope in r.slopes[:, 0, 0]]
    chosen = float(best.h[_finest_used(best), 0, 0]) * size
    return Ladder(str(place_of(case, k, i, row)), tuple(steps), tuple(slopes), value, bar, analytic, chosen)


def _finest_used(rungs: Rungs) -> int:
    """Return the rung after which the extrapolation became no better."""
    bars = [_bar(replace(rungs, h=rungs.h[: k + 1], slopes=rungs.slopes[: k + 1])) for k in range(len(rungs.slopes))]
    return bars.index(bars[-1])


def _bar(rungs: Rungs) -> float:
    bar = float(rungs.settled()[1][0, 0])
    return math.inf if math.isnan(bar) else bar


def heat_map(case: Case, comparison: Comparison) -> HeatMap | None:
    """Return how far the entries of a block are beyond what is allowed; None for a Jacobian of one entry."""
    state = comparison.state
    allowed = comparison.estimate.bar + comparison.allowed
    apart = ((comparison.analytic - comparison.estimate.value).abs() / allowed).nan_to_num(math.inf, math.inf)
    excess = torch.where(state == State.WRONG, apart.clamp(min=BEYOND), apart.clamp(max=1.0))
    judged = (state != State.UNRESOLVED) & (state != State.UNDEFINED)
    rows, columns = case.output_size(comparison.output), case.n[comparison.input]
    if rows * columns < 2:
        return None
    elements = comparison.pattern.elements()
    j = torch.arange(rows).expand_as(elements)[judged] * min(rows, MAX_CELLS) // rows
    i = elements[judged] * min(columns, MAX_CELLS) // columns
    cells = torch.full((min(rows, MAX_CELLS), min(columns, MAX_CELLS)), -1.0, dtype=torch.float64)
    cells.view(-1).scatter_reduce_(0, j * cells.shape[1] + i, excess[judged], "amax")
    name = f"{case.output_name(comparison.output)} with respect to `{case.inputs[comparison.input].name}`"
    shown = tuple(tuple(None if cell < 0 else cell for cell in line) for line in cells.tolist())
    return HeatMap(name, (rows, columns), shown)
