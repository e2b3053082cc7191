"""``gw.check`` on wrapped functions: nothing is found on right ones, and wrong rules are caught and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gradwright as gw
from tests.wrapping.examples import EXAMPLES, WAYS, W, real, wrapped

RIGHT = [
    ("scalar", "vjp"),
    ("vector", "vjp+jvp+hvp"),
    ("two", "differences"),
    ("two", "tensors"),
]


def cells() -> list[Any]:
    every = [(shape, way) for shape in EXAMPLES for way in WAYS if way != "none"]
    return [pytest.param(*cell, marks=() if cell in RIGHT else pytest.mark.slow) for cell in every]


def verdicts(report: Any) -> dict[str, str]:
    return {result.id: result.verdict for result in report.results}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("shape", "way"), cells())
def test_right_functions_pass(shape: str, way: str) -> None:
    example = EXAMPLES[shape]
    report = gw.check(wrapped(example, way), *example.inputs)
    assert report, str(report)
    found = verdicts(report)
    assert set(found.values()) <= {"pass", "skipped", "unsupported"}, str(report)
    for contract in ("matches-differences", "modes-agree", "vmap", "linear-in-cotangent", "compile"):
        assert found.get(contract, "pass") == "pass", str(report)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["vjp", "jacobian", "vjp+jvp+hvp", "tensors"])
@pytest.mark.parametrize("shape", EXAMPLES)
def test_right_functions_pass_in_full(shape: str, way: str) -> None:
    example = EXAMPLES[shape]
    report = gw.check(wrapped(example, way), *example.inputs, level="full")
    assert report, str(report)


@pytest.mark.filterwarnings("ignore")
def test_a_function_of_matrices_that_keeps_something_passes() -> None:
    @gw.external(out=gw.like("b"))
    def solve(a: Any, b: Any) -> Any:
        inverse = np.linalg.inv(a)
        return gw.save(inverse @ b, inverse)

    @solve.register_vjp
    def solve_vjp(g: Any, out: Any, residuals: Any) -> Any:
        w = residuals.T @ g
        return {"a": -np.outer(w, out), "b": w}

    @solve.register_jvp
    def solve_jvp(t: Any, out: Any, residuals: Any) -> Any:
        return residuals @ (t["b"] - t["a"] @ out)

    a = torch.tensor([[2.0, 0.3, -0.1], [0.5, 1.7, 0.2], [-0.4, 0.1, 2.2]], dtype=torch.float64)
    report = gw.check(solve, a, real(1, -2, 0.5))
    assert report, str(report)


# ---------------------------------------------------------------- wrong ones


def half(g: Any, x: Any, y: Any) -> Any:
    """Forget that the output depends on y."""
    return {"x": np.cos(x) * (W.T @ (g * y**2)), "y": None}


def untransposed(g: Any, x: Any) -> Any:
    return MIXER @ g * np.cos(x)


MIXER = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [0.3, 0.8, -0.2]])


def forgotten_transpose() -> Any:
    function = gw.external(lambda x: MIXER @ np.sin(x), out=gw.like(0))
    function.register_vjp(untransposed)
    return function, EXAMPLES["vector"].inputs


def half_a_gradient() -> Any:
    function = gw.external(EXAMPLES["two"].host, out=EXAMPLES["two"].out)
    function.register_vjp(half)
    return function, EXAMPLES["two"].inputs


def factor() -> Any:
    function = gw.external(EXAMPLES["scalar"].host, out=gw.like(0))
    function.register_vjp(lambda g, x: 0.5 * EXAMPLES["scalar"].rules["vjp"](g, x))
    return function, EXAMPLES["scalar"].inputs


def another_jvp() -> Any:
    example = EXAMPLES["vector"]
    function = wrapped(example, "vjp")
    function.register_jvp(lambda t, x: example.rules["jvp"](t, x) * 1.5)
    return function, example.inputs


def wrong_hvp() -> Any:
    example = EXAMPLES["vector"]
    function = wrapped(example, "vjp+jvp+hvp")
    function.register_hvp(lambda g, t, x: -example.rules["hvp"](g, t, x))
    return function, example.inputs


def wrong_batches() -> Any:
    example = EXAMPLES["vector"]
    function = wrapped(example, "vjp+jvp+hvp")
    function.register_vmap(lambda x: np.cos(x) @ W.T)
    return function, example.inputs


WRONG: dict[Callable[[], Any], set[str]] = {
    forgotten_transpose: {"matches-differences"},
    half_a_gradient: {"matches-differences"},
    factor: {"matches-differences"},
    another_jvp: {"modes-agree"},
    wrong_hvp: {"second-order", "gradient-penalty"},
    wrong_batches: {"vmap"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", WRONG)
def test_wrong_rules_are_caught(make: Callable[[], Any]) -> None:
    function, inputs = make()
    report = gw.check(function, *inputs)
    assert not report
    failed = {contract for contract, verdict in verdicts(report).items() if verdict == "fail"}
    assert failed & WRONG[make], f"failed {failed}: {report}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_forward_mode_of_differences_is_as_far_off_as_they_say(noise: float) -> None:
    """Along a direction they are others than along each axis."""
    made = gw.external(lambda x: np.sin(x) + noise * np.sin(1e9 * x), out=gw.like(0), derivative=gw.fd("2-point"))
    report = gw.check(made, real(1.5410, -0.2934, -2.1788, 0.5684), level="standard")
    assert report, str(report)
