"""How much larger a forward would become, told before it is run."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.growth import Growth, watch
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, x


def case(function: Any, size: int) -> Case:
    return Case(as_subject(function), Sample((x(size),)))


def growth(function: Any, *sizes: int) -> Growth:
    """What is known after forward was run at some sizes."""
    known = Growth("standard", sizes[0], watch(case(function, sizes[0])))
    for size in sizes[1:]:
        known.add(case(function, size), size)
    return known


def cube(t: Tensor) -> Tensor:
    return (t[:, None, None] * t[:, None] * t).sum()


def test_elementwise_functions_may_grow() -> None:
    for function in (torch.exp, Exp):
        assert growth(function, 5).refusal(100_000) is None


def test_a_cube_within_forward_is_foreseen_from_its_dimensions() -> None:
    known = growth(cube, 5)
    assert known.refusal(100) is None
    assert known.refusal(1025) == "a result of about 1e+09 elements"


def test_a_cube_that_is_flattened_is_foreseen_from_how_it_grew() -> None:
    def flattened(t: Tensor) -> Tensor:
        return t.repeat(t.shape[0] * t.shape[0]).sum()

    assert growth(flattened, 5, 33).refusal(1025) == "a result of about 1e+09 elements"
    assert growth(flattened, 5, 33).refusal(65) is None


def test_a_forward_that_slows_down_is_foreseen() -> None:
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            time.sleep(2e-6 * t.numel() ** 2)
            return t.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    reason = growth(Slow, 5, 33, 129).refusal(1025)
    assert reason is not None
    assert "s for each forward" in reason
    assert growth(Slow, 5, 33, 129).refusal(140) is None


def test_nothing_is_said_of_what_cannot_be_watched() -> None:
    assert Growth("standard", 5, None).refusal(10**9) is None
    assert growth(torch.exp, 5).refusal(3) is None
