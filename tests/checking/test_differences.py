"""The bars must cover the true error, and the behaviour near the point must be recognised."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

from gradwright.checking.differences import (
    Behaviour,
    Estimate,
    differentiate,
    differentiate_sum,
    element_steps,
    one_hot,
)

mpmath.mp.dps = 50
EPS = torch.full((1,), 2.0**-52, dtype=torch.float64)

SMOOTH: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[mpmath.mpf], mpmath.mpf]]] = {
    "exp": (torch.exp, mpmath.exp),
    "sin": (torch.sin, mpmath.cos),
    "tanh": (torch.tanh, lambda x: 1 - mpmath.tanh(x) ** 2),
    "log": (torch.log, lambda x: 1 / x),
    "sqrt": (torch.sqrt, lambda x: 1 / (2 * mpmath.sqrt(x))),
    "reciprocal": (torch.reciprocal, lambda x: -1 / x**2),
    "square": (torch.square, lambda x: 2 * x),
    "cube": (lambda x: x**3, lambda x: 3 * x**2),
    "erf": (torch.erf, lambda x: 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-x * x)),
    "log1p": (torch.log1p, lambda x: 1 / (1 + x)),
    "expm1": (torch.expm1, mpmath.exp),
    "lgamma": (torch.lgamma, mpmath.digamma),
    "softplus": (torch.nn.functional.softplus, lambda x: 1 / (1 + mpmath.exp(-x))),
    "sigmoid": (torch.sigmoid, lambda x: mpmath.exp(-x) / (1 + mpmath.exp(-x)) ** 2),
    "offset": (lambda x: torch.sin(x) + 1e8, mpmath.cos),
    "float32 inside": (lambda x: torch.sin(x.float()).double(), mpmath.cos),
}
POINTS = (1e-12, 1e-7, 1e-5, 1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, -1e-5, -0.3, -2.3, -30.7)


def at(f: Callable[[Tensor], Tensor], x: float) -> Estimate:
    point = torch.tensor([x], dtype=torch.float64)
    return differentiate(lambda t: f(t).to(torch.float64), point, one_hot(1, [0]), element_steps(point), EPS)


@pytest.mark.parametrize("name", SMOOTH)
def test_bars_cover_the_error(name: str) -> None:
    f, derivative = SMOOTH[name]
    tried = 0
    for x in POINTS:
        truth = derivative(mpmath.mpf(x))
        if not mpmath.isfinite(truth) or mpmath.im(truth) or not bool(f(torch.tensor([x])).isfinite().all()):
            continue
        estimate = at(f, x)
        error = abs(mpmath.mpf(float(estimate.value)) - truth)
        assert error <= float(estimate.bar), f"{name} at {x}: error {error}, bar {float(estimate.bar)}"
        assert int(estimate.behaviour) == Behaviour.SMOOTH
        tried += 1
    assert tried >= 9


def test_bars_are_narrow_on_an_easy_function() -> None:
    estimate = at(torch.exp, 0.5)
    assert float(estimate.bar) < 1e-10


@pytest.mark.parametrize(
    ("f", "x", "behaviour"),
    [
        (torch.relu, 0.0, Behaviour.KINK),
        (torch.abs, 0.0, Behaviour.KINK),
        (lambda x: x.clamp(0, 1), 1.0, Behaviour.KINK),
        (torch.sign, 0.0, Behaviour.JUMP),
        (torch.sqrt, 0.0, Behaviour.ROOT),
        (lambda x: x.abs().sqrt(), 0.0, Behaviour.ROOT),
        (lambda x: x.sign() * x.abs() ** (1 / 3), 0.0, Behaviour.ROOT),
        (lambda x: x * x.abs(), 0.0, Behaviour.SMOOTH),
        (torch.relu, 3e-7, Behaviour.SMOOTH),
        (lambda x: torch.relu(x - 1), 1 + 1e-7, Behaviour.SMOOTH),
        (torch.round, 0.3, Behaviour.SMOOTH),
    ],
)
def test_behaviour(f: Callable[[Tensor], Tensor], x: float, behaviour: Behaviour) -> None:
    assert Behaviour(int(at(f, x).behaviour)) is behaviour


def test_interval_at_a_kink_is_that_of_the_slopes() -> None:
    estimate = at(lambda x: torch.nn.functional.leaky_relu(x, 0.1), 0.0)
    assert float(estimate.lower) == pytest.approx(0.1, abs=1e-9)
    assert float(estimate.upper) == pytest.approx(1.0, abs=1e-9)


def test_a_kink_that_is_only_near_does_not_blur_the_slope() -> None:
    estimate = at(lambda x: torch.relu(x - 1), 1 + 1e-7)
    assert abs(float(estimate.value) - 1.0) <= float(estimate.bar) < 1e-3


@pytest.mark.parametrize("size", [1e-8, 1e-7, 1e-6, 1e-3, 1.0])
def test_a_kink_that_drowns_in_finer_steps_is_not_taken_for_a_near_one(size: float) -> None:
    estimate = at(lambda a: a + size * torch.relu(a - 1), 1.0)
    assert int(estimate.behaviour) == Behaviour.KINK
    assert float(estimate.lower) <= 1 + 1e-9
    assert float(estimate.upper) >= 1 + size - 1e-9


@pytest.mark.parametrize("x", [0.3, 1.0, 2.7])
@pytest.mark.parametrize("f", [torch.exp, torch.sin, torch.tanh, lambda a: a**5])
def test_the_slopes_of_a_smooth_function_are_not_apart(f: Callable[[Tensor], Tensor], x: float) -> None:
    assert float(at(f, x).apart) < 1e-8 * max(1.0, abs(float(at(f, x).value)))


@pytest.mark.parametrize("size", [1e-10, 1e-7, 1e-3, 1.0])
def test_the_slopes_at_a_kink_are_apart_however_small_it_is(size: float) -> None:
    assert float(at(lambda a: a + size * torch.relu(a - 1), 1.0).apart) >= 0.99 * size


@pytest.mark.parametrize("distance", [10 ** (-k / 8) for k in range(16, 64)])
def test_a_near_kink_counts_until_the_steps_no_longer_reach_it(distance: float) -> None:
    """Else the slope is right, and the narrow ladder is believed."""
    estimate = at(lambda a: a + torch.relu(a - 1 - distance), 1.0)
    assert float(estimate.apart) > 0.2 or abs(float(estimate.value) - 1) <= float(estimate.bar)


def test_domain_edge_costs_nothing() -> None:
    estimate = at(torch.sqrt, 1e-7)
    assert float(estimate.value) == pytest.approx(0.5 / math.sqrt(1e-7), rel=1e-9)


def test_one_sided_at_the_end_of_the_domain() -> None:
    # x^1.5 is defined for x >= 0 only, with slope 0 at 0.
    point = torch.tensor([0.0, 1.0], dtype=torch.float64)
    eps = torch.full((2,), 2.0**-52, dtype=torch.float64)
    estimate = differentiate(lambda t: t**1.5 + 2 * t, point, one_hot(2, [0]), element_steps(point)[:1], eps)
    assert abs(float(estimate.value[0, 0]) - 2.0) <= float(estimate.bar[0, 0]) < 0.1


def test_staircase_gets_a_wide_bar() -> None:
    # Without the quantum, most steps move nothing and the difference would be a certain zero.
    estimate = at(lambda x: torch.round(x * 64) / 64, 0.5)
    assert float(estimate.bar) > 0.1


def test_functions_without_a_value_have_an_infinite_bar() -> None:
    estimate = at(lambda x: x / 0 * 0, 1.0)
    assert float(estimate.bar) == math.inf


def test_every_output_picks_its_own_step() -> None:
    point = torch.tensor([1.0], dtype=torch.float64)
    eps = torch.full((2,), 2.0**-52, dtype=torch.float64)
    f = lambda t: torch.cat([torch.sin(1e4 * t), t * 1e-3])  # noqa: E731
    estimate = differentiate(f, point, one_hot(1, [0]), element_steps(point), eps)
    truth = torch.tensor([[1e4 * math.cos(1e4), 1e-3]], dtype=torch.float64)
    assert bool(((estimate.value - truth).abs() <= estimate.bar).all())
    assert float(estimate.bar[0, 1]) < 1e-13


def test_steps_follow_the_size_of_each_element() -> None:
    steps = element_steps(torch.tensor([1e8, 1.0, 0.0], dtype=torch.float64))
    assert float(steps[0]) == pytest.approx(5e6)
    assert float(steps[1]) == float(steps[2]) > 0
    assert float(element_steps(torch.zeros(2, dtype=torch.float64))[0]) > 0


def test_sum_with_cancellation_has_a_bar_that_covers() -> None:
    point = torch.randn(2000, dtype=torch.float64)
    weights = torch.randn(2000, dtype=torch.float64) * 1e6
    u = torch.randn(2000, dtype=torch.float64)
    estimate = differentiate_sum(lambda t: weights * torch.tanh(t), point, u, 2.0**-52)
    truth = float((weights * (1 - torch.tanh(point) ** 2) * u).sum())
    assert abs(float(estimate.value) - truth) <= float(estimate.bar)
    assert float(estimate.bar) < 1e-6 * float((weights * u).abs().sum())
