"""Random estimates: right on average, with the error that is promised, the same for the same seed and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwright.errors import DomainError, OptionError
from gradwright.wrapping import points
from gradwright.wrapping.derivatives import spsa
from tests.wrapping.foreign import Evaluate, off

X = np.linspace(0.5, 1.5, 20)


def energy(x: Any) -> Any:
    return (np.exp(x) * x).sum()


SLOPE = np.exp(X) * (1 + X)


@pytest.mark.parametrize("samples", [1, 10, 100])
def test_the_error_is_as_promised(samples: int) -> None:
    errors = []
    for seed in range(30):
        derivative = spsa(samples, step=1e-3, seed=seed)
        errors.append(off(Evaluate(energy).gradient(derivative, X), SLOPE))
        assert derivative.accuracy == pytest.approx(np.sqrt(19 / samples))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.sqrt(19 / samples), rel=0.2)


def test_right_on_average() -> None:
    found = [Evaluate(energy).gradient(spsa(50, step=1e-3, seed=seed), X) for seed in range(100)]
    assert off(np.mean(found, axis=0), SLOPE) < 0.1


def test_one_variable_is_a_central_difference() -> None:
    derivative = spsa(1, step=1e-4, seed=0)
    assert Evaluate(np.exp).gradient(derivative, np.array(1.0)) == pytest.approx(np.e, rel=1e-7)
    assert derivative.accuracy == 0.0


def test_the_same_seed_and_arguments_have_the_same_gradient() -> None:
    gradient = Evaluate(energy).gradient(spsa(4, step=1e-3, seed=3), X)
    np.testing.assert_array_equal(Evaluate(energy).gradient(spsa(4, step=1e-3, seed=3), X.copy()), gradient)
    assert not np.allclose(Evaluate(energy).gradient(spsa(4, step=1e-3, seed=4), X), gradient)
    # Another point has other signs: with the same ones, steps of an optimiser would never leave their span.
    other = Evaluate(energy).gradient(spsa(1, step=1e-3, seed=3), X + 1e-9)
    assert (np.sign(other) != np.sign(Evaluate(energy).gradient(spsa(1, step=1e-3, seed=3), X))).any()


def test_linear_in_the_cotangent_and_one_matrix_in_both_modes() -> None:
    rng, derivative = np.random.default_rng(1), spsa(5, step=1e-2, seed=0)
    f = Evaluate(lambda x: np.sin(np.outer([1.0, 2.0, 3.0], x)).sum(axis=1))
    v, w, t = rng.normal(size=3), rng.normal(size=3), rng.normal(size=20)
    one, other = f.gradient(derivative, X, cotangent=v), f.gradient(derivative, X, cotangent=w)
    np.testing.assert_allclose(f.gradient(derivative, X, cotangent=v + w), one + other, rtol=1e-12)
    np.testing.assert_array_equal(f.gradient(derivative, X, cotangent=-2 * v), -2 * one)
    assert f.along(derivative, X, tangents=[t]) @ v == pytest.approx(one @ t, rel=1e-12)


def test_cost_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    f = Evaluate(energy)
    whole = f.gradient(spsa(7, step=1e-3, seed=0), X)
    assert f.batches == [14]
    monkeypatch.setattr(points, "MEMORY", 2 * (X.nbytes + 8) * 3)
    f.batches.clear()
    np.testing.assert_array_equal(f.gradient(spsa(7, step=1e-3, seed=0), X), whole)
    assert f.batches == [6, 6, 2]
    f.batches.clear()
    assert f.gradient(spsa(7, step=1e-3, seed=0), np.zeros(0)).shape == (0,)
    np.testing.assert_array_equal(f.along(spsa(7, step=1e-3, seed=0), X, tangents=[None]), 0.0)
    assert f.calls == 0


def test_steps_by_argument() -> None:
    f = Evaluate(lambda x, y: (x * y).sum())
    derivative = spsa(1, step={"x": 0.25, 1: 0.5}, seed=0).of("f", ["x", "y"])
    f.gradient(derivative, np.ones(3), np.ones(3))
    assert {abs(float(each) - 1) for each in f.points[0][0]} == {0.25}
    assert {abs(float(each) - 1) for each in f.points[0][1]} == {0.5}
    with pytest.raises(OptionError, match=r"f: the step of spsa has no entry for the argument of `y`\[0\]"):
        f.gradient(spsa(1, step={"x": 0.1}, seed=0).of("f", ["x", "y"]), np.ones(3), np.ones(3))


def test_points_that_are_not_finite() -> None:
    f = Evaluate(lambda x: np.where(x == 1.0, x, np.nan))
    with pytest.raises(DomainError, match=r"f: output\[0\] is nan at a point beside this one"):
        f.gradient(spsa(2, step=0.1, seed=0).of("f", ["x"]), np.ones(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples is 0"),
        ({"num_samples": True}, "num_samples is True"),
        ({"step": 0.0}, "step is 0.0; expected a finite number above 0"),
        ({"step": {"x": [1.0]}}, r"step is \[1.0\]"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_options_are_checked(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        spsa(**{"num_samples": 2, "step": 0.1, "seed": 0, **options})


def test_before_any_use_the_error_is_not_known() -> None:
    assert spsa(2, step=0.1, seed=0).accuracy == np.inf
