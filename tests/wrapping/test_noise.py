"""Noise and curvature are told from values; steps and promises follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwright.wrapping.derivatives import fd
from gradwright.wrapping.noise import Learned, measured
from gradwright.wrapping.points import Neighbourhood
from tests.wrapping.foreign import Evaluate, off

X = np.random.default_rng(0).normal(size=20)


def learned(function: Any, x: Any, method: Any = "3-point") -> Learned:
    f = Evaluate(function)
    hood = Neighbourhood(f, [x], [0], f.outs(x))
    free = np.full(x.size, np.inf)
    return measured(method, hood, free, free)


def uneven(x: Any) -> Any:
    """Give numbers from -1 to 1 that look random."""
    return np.sin(1e5 * np.sin(1e9 * x) + 7e4 * np.cos(3e9 * x))


NOISY = {
    "tolerance 1e-8": (lambda x: np.sin(x) * (1 + 1e-8 * uneven(x)), 1e-8),
    "tolerance 1e-6": (lambda x: np.sin(x) * (1 + 1e-6 * uneven(x)), 1e-6),
    "tolerance 1e-4": (lambda x: np.sin(x) * (1 + 1e-4 * uneven(x)), 1e-4),
    "single precision inside": (lambda x: np.sin(x.astype(np.float32)).astype(np.float64), 5e-8),
    "four printed digits": (lambda x: np.round(np.sin(x), 4), 5e-5),
    "two printed digits": (lambda x: np.round(np.sin(x), 2), 5e-3),
}


@pytest.mark.parametrize("name", NOISY)
def test_noise_is_seen(name: str) -> None:
    function, size = NOISY[name]
    assert size / 8 < learned(function, X).noise < 4 * size


@pytest.mark.parametrize("name", NOISY)
def test_noise_in_a_single_output_is_seen(name: str) -> None:
    function, size = NOISY[name]
    seen = [learned(function, np.array([x])).noise for x in np.random.default_rng(3).uniform(0.3, 1.2, 30)]
    assert np.mean(np.array(seen) > size / 30) > 0.9


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("method", ["3-point", "2-point"])
def test_steps_fit_the_noise(method: Any, name: str) -> None:
    """The step that suits rounding is off by 1 % to 1000 % here."""
    function, size = NOISY[name]
    f, derivative = Evaluate(function), fd(method)
    limit = 12 * (size ** (2 / 3) if method == "3-point" else size ** (1 / 2))
    error = off(f.gradient(derivative, X), np.cos(X))
    assert error < limit
    assert error < derivative.accuracy
    naive = off(f.gradient(fd(method, noise=0), X), np.cos(X))
    assert naive > 30 * error or naive > 0.9
    # So does stating it.
    assert off(f.gradient(fd(method, noise=size), X), np.cos(X)) < limit


SMOOTH = {
    "sin": (np.sin, np.cos, X),
    "exp": (np.exp, np.exp, X),
    "linear": (lambda x: 3 * x, lambda x: np.full(x.shape, 3.0), X),
    "a large constant": (lambda x: 1e6 + np.sin(x), np.cos, X),
    "fast": (lambda x: np.sin(100 * x), lambda x: 100 * np.cos(100 * x), X),
    "slow": (lambda x: np.sin(x / 1e4), lambda x: np.cos(x / 1e4) / 1e4, 1e4 * X),
    "in small units": (lambda x: np.cos(1e12 * x), lambda x: -1e12 * np.sin(1e12 * x), 1e-12 * X),
    "nearly at zero": (np.exp, np.exp, 1e-12 * X),
    "near its root": (lambda x: np.exp(x) - np.e, np.exp, 1 + 1e-12 * X),
    "at a kink": (lambda x: np.abs(x) + np.sin(x), np.cos, 0 * X),
    "one side of a kink": (lambda x: np.maximum(x, 0.0), lambda x: np.where(x > 0, 1.0, 0.0), X),
    "in part undefined": (lambda x: np.log(np.abs(x) - 1e-5), lambda x: np.sign(x) / (np.abs(x) - 1e-5), X),
}


@pytest.mark.parametrize(
    ("method", "name"),
    [("3-point", name) for name in SMOOTH] + [("2-point", name) for name in SMOOTH if name != "at a kink"],
)
def test_smooth_functions_have_no_noise_and_keep_the_promise(method: Any, name: str) -> None:
    function, slope, x = SMOOTH[name]
    f, derivative = Evaluate(function), fd(method)
    error = off(f.gradient(derivative, x), slope(x))
    assert error < derivative.accuracy
    assert derivative.accuracy < 5e-2
    assert learned(function, x).noise < 2e-15


def test_the_measured_step_is_better_than_the_usual_one() -> None:
    for name, factor in (("a large constant", 20), ("fast", 100), ("nearly at zero", 1e3), ("linear", 5)):
        function, slope, x = SMOOTH[name]
        f = Evaluate(function)
        usual = off(f.gradient(fd(rel_step=6e-6), x), slope(x))
        assert off(f.gradient(fd(), x), slope(x)) < usual / factor


@pytest.mark.parametrize("noise", [1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("method", ["3-point", "2-point"])
def test_curvature_is_measured_where_noise_is_stated(method: Any, noise: float) -> None:
    """Far from 0 a function may vary on a length that is much shorter than its arguments."""
    f, derivative = Evaluate(lambda x: np.sin(x) + 2), fd(method, noise=noise)
    for scale in (1.0, 10.0, 100.0):  # and again at each magnitude
        error = off(f.gradient(derivative, scale * X), np.cos(scale * X))
        assert error < derivative.accuracy
        assert error < 3 * scale * (noise ** (2 / 3) if method == "3-point" else noise**0.5)


def test_a_direction_along_which_a_norm_is_straight() -> None:
    x = np.array([3.0, 4.0])
    f, derivative = Evaluate(np.linalg.norm), fd("2-point")
    assert off(f.gradient(derivative, x), x / 5) < 1e-6


def test_a_constant_costs_a_few_evaluations_more() -> None:
    f, x = Evaluate(lambda x: np.ones(3)), np.array([5.0, 2.0])
    np.testing.assert_array_equal(f.gradient(fd(), x, cotangent=np.ones(3)), np.zeros(2))
    assert f.calls <= 40


def test_the_arguments_move_by_one_percent_at_most() -> None:
    x = np.array([1e-6, 1.0, 300.0])
    f = Evaluate(lambda x: x**2)
    learned_by = fd()
    f.gradient(learned_by, x)
    for point in f.points:
        assert (np.abs(point[0] - x) <= 0.0101 * np.abs(x)).all()


def test_the_promise_without_measuring() -> None:
    eps = float(np.finfo(np.float64).eps)
    assert fd().accuracy == pytest.approx(10 * eps ** (2 / 3))
    assert fd("2-point", noise=1e-4).accuracy == pytest.approx(0.1)
    assert fd("cs").accuracy == pytest.approx(10 * eps)
    for step, order in ((1e-2, 2), (1e-3, 2)):
        derivative = fd(rel_step=step)
        Evaluate(np.exp).gradient(derivative, np.array([1.0]))
        assert derivative.accuracy == pytest.approx(10 * step**order, rel=1e-3)
