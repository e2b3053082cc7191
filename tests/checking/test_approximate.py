"""A gradient that is an approximation and says so is allowed its error, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradwright as gw

X = torch.tensor([1.0, 2.0, -1.5], dtype=torch.float64)
ONLY = "matches-differences"


def cubes(derivative: Any) -> Any:
    def cubes(x: np.ndarray) -> Any:
        return np.sum(x**3)

    return gw.external(cubes, out=gw.spec(()), derivative=derivative)


def verdict(subject: Any) -> tuple[str, str]:
    report = gw.check(subject, X, only=ONLY)
    (result,) = report.results
    return result.verdict, f"{result.message} {' '.join(report.notes)}"


class Off:
    """A derivative that is off by one per cent, whatever it says."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def vjp(self, evaluate: Any, values: Sequence[Any], places: Any, outs: Any, cotangents: Sequence[Any]) -> list[Any]:
        return [1.01 * cotangents[0] * 3 * values[0] ** 2]

    def jvp(self, evaluate: Any, values: Sequence[Any], places: Any, outs: Any, tangents: Sequence[Any]) -> list[Any]:
        return [np.array(1.01 * (tangents[0] * 3 * values[0] ** 2).sum())]


@pytest.mark.parametrize("method", ["3-point", "2-point", "cs"])
def test_differences_are_not_accused_of_their_error(method: Any) -> None:
    found, said = verdict(cubes(gw.fd(method)))
    assert found == "pass"
    assert "errors up to that are not seen" in said


def test_nor_is_what_calls_them() -> None:
    slopes = cubes(gw.fd("2-point"))

    def outer(x: Tensor) -> Tensor:
        return 2.0 * slopes(x.sin())  # type: ignore[no-any-return]

    assert verdict(outer)[0] == "pass"


def test_what_is_wrong_by_more_is_found() -> None:
    assert verdict(cubes(Off(1e-9)))[0] == "fail"
    assert verdict(cubes(Off(0.02)))[0] == "pass"


def test_a_rough_one_is_not_compared() -> None:
    found, said = verdict(cubes(gw.fd(abs_step=0.3)))
    assert found == "unresolved"
    assert "give it a better step" in said


def test_random_directions_are_never_accused() -> None:
    assert verdict(cubes(gw.spsa()))[0] in ("unresolved", "skipped")


def test_what_was_learned_elsewhere_allows_nothing_here() -> None:
    function = cubes(gw.fd())
    coarse = X.float().requires_grad_()
    function(coarse).backward()  # float32, where differences have few digits
    said = verdict(function)[1]
    assert "relative error up to 5e-10" in said
