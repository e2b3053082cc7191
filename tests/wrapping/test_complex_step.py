"""The complex step is exact where a function is analytic in code, and refused where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwright.errors import RuleError
from gradwright.wrapping.derivatives import fd
from tests.wrapping.foreign import Evaluate, off

X = np.array([0.3, -1.2, 2.0, 1e-3])


def with_real_work_array(x: Any) -> Any:
    work = np.empty(x.shape)
    with np.errstate(all="ignore"):
        work[:] = np.real(x)
    return work * x


DROPPED = {
    "abs": lambda x: np.abs(x) * x,
    "norm": lambda x: np.linalg.norm(x) * x,
    "conj": lambda x: (x @ x.conj()) * np.ones(2) + 0 * x[0],
    "real work array": with_real_work_array,
    "part of it": lambda x: x**3 + 1e-3 * np.abs(x),
}
REAL = {
    "abs alone": np.abs,
    "norm alone": np.linalg.norm,
    "real": lambda x: np.real(x) ** 2,
    "float32 inside": lambda x: np.real(x).astype(np.float32).astype(np.float64),
}
REFUSED = {
    "arctan2": lambda x: np.arctan2(x, 1.0),
    "interp": lambda x: np.interp(x, [0.0, 1.0], [0.0, 1.0]),
    "float": lambda x: np.array([float(each) if each.imag == 0 else float(complex(each)) for each in x]),
}


@pytest.mark.parametrize("name", DROPPED)
def test_a_dropped_imaginary_part_is_found_in_both_modes(name: str) -> None:
    f, derivative = Evaluate(DROPPED[name]), fd("cs").of("simulate", ["x"])
    message = r"simulate: along a random direction the complex step gives .* differences give .*; use method='3-point'"
    with pytest.raises(RuleError, match=message):
        f.gradient(derivative, X)
    with pytest.raises(RuleError, match=message):
        f.along(derivative, X, tangents=[np.ones(4)])


@pytest.mark.parametrize("name", REAL)
def test_real_results_are_refused(name: str) -> None:
    with pytest.raises(RuleError, match=r"function: it returned real values for the complex ones of gw.fd"):
        Evaluate(REAL[name]).gradient(fd("cs"), X)


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_no_complex_values_is_named(name: str) -> None:
    with pytest.raises(
        RuleError, match=r"function: it failed when .* complex values \(TypeError: .*use method='3-p"
    ) as info:
        Evaluate(REFUSED[name]).gradient(fd("cs"), X)
    assert isinstance(info.value.__cause__, TypeError)


ANALYTIC = {
    "exp": (np.exp, np.exp),
    "a large constant": (lambda x: 1e8 + np.sin(x), np.cos),
    "fast": (lambda x: np.sin(300 * x), lambda x: 300 * np.cos(300 * x)),
    "kinks elsewhere": (lambda x: np.where(np.real(x) > 0, x**2, -x), lambda x: np.where(x > 0, 2 * x, -1.0)),
    "flat": (lambda x: 0 * x + 1, lambda x: 0 * x),
}


@pytest.mark.parametrize("name", ANALYTIC)
def test_what_is_analytic_passes_and_is_exact(name: str) -> None:
    function, slope = ANALYTIC[name]
    gradient = Evaluate(function).gradient(fd("cs"), X)
    np.testing.assert_allclose(gradient, slope(X), rtol=1e-14)


@pytest.mark.parametrize("tolerance", [1e-8, 1e-6, 1e-4])
def test_a_solver_with_a_tolerance_is_not_accused(tolerance: float) -> None:
    """Newton stops at a tolerance, after a number of steps that differs; the complex step is right all the same."""

    def root(x: Any) -> Any:
        z = 1.0 + 0 * x
        while np.abs(z**3 + z - x).max() > tolerance:
            z = z - 0.7 * (z**3 + z - x) / (3 * z**2 + 1)
        return z

    x = np.linspace(3.0, 5.0, 8)
    derivative = fd("cs")
    exact = 1 / (3 * root(x) ** 2 + 1)
    assert off(Evaluate(root).gradient(derivative, x), exact) < 20 * tolerance**0.5


@pytest.mark.parametrize("noise", [1e-7, 1e-6, 1e-4])
def test_noise_is_measured_before_anything_is_said(noise: float) -> None:
    def f(x: Any) -> Any:
        return np.exp(x) * (1 + noise * np.sin(1e5 * np.sin(1e9 * np.real(x)) + 7e4 * np.cos(3e9 * np.real(x))))

    x = np.linspace(0.5, 1.0, 8)
    assert off(Evaluate(f).gradient(fd("cs"), x), np.exp(x)) < 2 * noise
    assert off(Evaluate(f).gradient(fd("cs", noise=noise), x), np.exp(x)) < 2 * noise


def test_it_is_compared_once_for_each_function() -> None:
    f, derivative = Evaluate(np.exp), fd("cs")
    f.gradient(derivative, X)
    f.batches.clear()
    f.gradient(derivative, X)
    f.along(derivative, X, tangents=[np.ones(4)])
    assert f.calls == 5
    assert all(np.iscomplexobj(point[0]) for point in f.points[-5:])


def test_float32_values_become_complex64() -> None:
    f, x = Evaluate(np.exp), X.astype(np.float32)
    assert off(f.gradient(fd("cs"), x), np.exp(X)) < 1e-6
    assert f.points[-1][0].dtype == np.complex64
