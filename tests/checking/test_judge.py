"""Verdicts on entries: fine, wrong, and the shades between, and what acquits an accused one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradwright.checking.differences import Behaviour, Estimate
from gradwright.checking.judge import State, Tolerance, acquitted, judge, largest_entry, one_unit_away


def estimate(
    value: float,
    bar: float,
    behaviour: Behaviour = Behaviour.SMOOTH,
    low: float | None = None,
    high: float | None = None,
) -> Estimate:
    def one(number: float) -> Tensor:
        return torch.tensor([[number]], dtype=torch.float64)

    return Estimate(
        one(value),
        one(bar),
        one(value - bar if low is None else low),
        one(value + bar if high is None else high),
        torch.tensor([[int(behaviour)]], dtype=torch.int8),
        torch.tensor([[True]]),
        one(0.0),
    )


def state(analytic: float, e: Estimate, largest: float = 1.0) -> State:
    return State(int(judge(torch.tensor([[analytic]], dtype=torch.float64), e, largest, Tolerance())))


@pytest.mark.parametrize(
    ("analytic", "expected"),
    [
        (1.0, State.FINE),
        (1.0 + 5e-9, State.FINE),
        (1.0 + 1e-6, State.WRONG),
        (math.nan, State.WRONG),
        (math.inf, State.WRONG),
    ],
)
def test_smooth(analytic: float, expected: State) -> None:
    assert state(analytic, estimate(1.0, 1e-8)) is expected


def test_wide_bar_is_unresolved_not_fine() -> None:
    assert state(1.0, estimate(1.0, 0.1)) is State.UNRESOLVED
    assert state(5.0, estimate(1.0, 0.1)) is State.WRONG
    assert state(1.0, estimate(math.nan, math.inf)) is State.UNRESOLVED


def test_kink_accepts_the_interval_only() -> None:
    kink = estimate(0.5, 1e-3, Behaviour.KINK, 0.0, 1.0)
    assert [state(a, kink) for a in (0.0, 0.3, 1.0)] == [State.SUBGRADIENT] * 3
    assert state(1.1, kink) is State.WRONG
    assert state(math.nan, kink) is State.WRONG


def test_nothing_finite_is_wrong_at_a_jump_but_nan_is() -> None:
    jump = estimate(1e5, 1e5, Behaviour.JUMP)
    assert state(1.0, jump) is State.UNDEFINED
    assert state(math.nan, jump) is State.WRONG


def test_infinite_gradient_is_accepted_where_the_slope_is_infinite() -> None:
    assert state(math.inf, estimate(300.0, 300.0, Behaviour.ROOT)) is State.UNDEFINED


def test_infinite_gradient_is_not_refuted_by_a_slope_that_never_settles() -> None:
    assert state(math.inf, estimate(11.0, 11.0)) is State.UNRESOLVED
    assert state(math.nan, estimate(11.0, 11.0)) is State.WRONG


def test_unmoved_output_has_derivative_zero_whatever_the_bar() -> None:
    still = estimate(0.0, 1.0)
    still.moved = torch.tensor([[False]])
    assert state(0.0, still) is State.FINE
    assert state(2.0, still) is State.WRONG


def test_acquittal_needs_an_informative_ladder() -> None:
    right, wide = estimate(2.0, 1e-3), estimate(2.0, 10.0)
    assert acquitted(2.0, 1.0, 1e-6, 0.0, lambda scale: right)
    assert not acquitted(2.0, 1.0, 1e-6, 0.0, lambda scale: wide)
    assert acquitted(2.0, 1.0, 1e-6, 0.2, lambda scale: wide), "an analytic side that scatters as much is no evidence"


def test_acquittal_where_the_slopes_of_the_two_sides_are_apart() -> None:
    sharp = estimate(1.0, 1e-12)
    assert not acquitted(2.0, 1.0, 1e-6, 0.0, lambda scale: sharp)
    sharp.apart = torch.tensor([[2.0]], dtype=torch.float64)
    assert acquitted(2.0, 1.0, 1e-6, 0.0, lambda scale: sharp)
    finer = estimate(1.0, 1e-12)
    assert not acquitted(2.0, 1.0, 1e-6, 0.0, lambda scale: sharp if scale == 1 else finer), "the kink is only near"


def test_tolerance_grows_with_the_rounding_unit() -> None:
    assert Tolerance.for_epsilon(2.0**-52) == Tolerance()
    assert Tolerance.for_epsilon(2.0**-23).relative > 1e-5


def test_helpers() -> None:
    x = torch.tensor([1.0, -3.0], dtype=torch.float64)
    moved = one_unit_away(x, torch.Generator().manual_seed(0))
    assert bool((moved != x).all())
    assert torch.allclose(moved, x, rtol=1e-15)
    assert largest_entry(torch.tensor([1.0, math.inf, math.nan]), torch.tensor([-3.0])) == 3.0
    assert largest_entry(torch.empty(0)) == 0.0
