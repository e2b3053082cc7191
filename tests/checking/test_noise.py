"""What each witness of the noise sees, and what it must leave alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradwright.checking.differences import differentiate, element_steps, one_hot
from gradwright.checking.noise import jumps_within

EPS = torch.full((1,), 2.0**-52, dtype=torch.float64)


def bar(f: Callable[[Tensor], Tensor], x: float) -> float:
    point = torch.tensor([x], dtype=torch.float64)
    return float(differentiate(f, point, one_hot(1, [0]), element_steps(point), EPS).bar)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.tanh(x).float().double(),
        lambda x: (x + 1e5) - 1e5,
        lambda x: torch.sin(x).bfloat16().double(),
    ],
    ids=["float32 result", "offset taken away", "bfloat16 result"],
)
def test_values_on_a_grid_have_its_width_for_noise(f: Callable[[Tensor], Tensor]) -> None:
    assert bar(f, 1.0) > 100 * bar(torch.tanh, 1.0)


@pytest.mark.parametrize(
    "f",
    [torch.relu, lambda x: 2 * x, lambda x: x - 1, lambda x: x * 0.0 + 3.0, torch.tanh],
    ids=["relu", "doubled", "shifted", "constant", "tanh"],
)
@pytest.mark.parametrize("x", [1.0, 1.5, -2.0, 0.75])
def test_round_numbers_are_no_grid(f: Callable[[Tensor], Tensor], x: float) -> None:
    assert bar(f, x) < 1e-11


def test_an_argument_is_rounded_too() -> None:
    assert bar(lambda x: torch.sin(1000 * x), 26.0) > 10 * 26 * 2.0**-52


def test_a_slope_within_one_stair_reaches_that_of_the_staircase() -> None:
    assert bar(lambda x: (torch.exp(x) - 1) / x, 1e-9) > 1e8  # c / x within each stair, whose slope is -1e9


def test_a_jump_on_one_side_leaves_the_slope_alone() -> None:
    assert bar(lambda x: torch.sin(x) + (x > 1.03).double(), 1.0) < 1e-9


@pytest.mark.parametrize(
    ("f", "jumps"),
    [
        (lambda t: math.floor(50 * t) / 50, True),
        (lambda t: float(t > 0.03), True),
        (math.exp, False),
        (lambda t: math.sin(1e4 * t), False),
        (lambda t: math.sqrt(abs(t - 0.01)), False),
    ],
    ids=["stairs", "step", "exp", "fast sine", "root"],
)
def test_jumps(f: Callable[[float], float], jumps: bool) -> None:
    assert jumps_within(f, 0.05, 0.0, 2.0**-52) is jumps
