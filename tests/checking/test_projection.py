"""Large inputs: one wrong element is found and named, correct functions are not accused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.differences import signed
from gradwright.checking.projection import Projection, project
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, variant


def case(target: Any, *inputs: Any, seed: int = 0) -> Case:
    return Case(as_subject(target), Sample(inputs), seed=seed)


def projected(c: Case) -> list[Projection]:
    return [p for k in range(len(c.inputs)) for o in range(len(c.outputs)) for p in project(c, k, o)]


@pytest.mark.parametrize(
    "f", [torch.exp, torch.relu, lambda x: x.mean(), lambda x: x.reshape(50, -1).softmax(-1), lambda x: x.amax()]
)
@pytest.mark.parametrize("seed", range(3))
def test_correct_functions_are_not_accused(f: Any, seed: int) -> None:
    x = torch.randn(3000, dtype=torch.float64)
    assert not any(p.wrong for p in projected(case(f, x, seed=seed)))


@pytest.mark.parametrize("seed", range(3))
def test_one_wrong_element_is_named(seed: int) -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        grad = g * ctx.saved_tensors[0]
        grad[1234] *= 1 + 1e-4
        return grad

    x = torch.randn(3000, dtype=torch.float64)
    (found,) = [p for p in projected(case(variant(Exp, "Off", backward=backward), x, seed=seed)) if p.wrong]
    assert found.element is not None
    assert (found.element.input_element, found.element.output_element) == (1234, 1234)
    assert abs(found.element.analytic - found.element.numeric) > found.element.bar


def test_all_zero_gradient_of_a_mean_is_seen() -> None:
    class Mean(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.n = x.numel()
            return x.mean()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.new_zeros(ctx.n)

    assert any(p.wrong for p in projected(case(Mean, torch.randn(10_000, dtype=torch.float64))))


def test_blocks_are_compared_one_by_one() -> None:
    def f(a: Tensor, b: Tensor) -> Any:
        return a * b, a.detach() * b

    a, b = torch.randn(2, 500, dtype=torch.float64)
    wrong = {(p.input, p.output) for p in projected(case(f, a, b)) if p.wrong}
    assert wrong == {(0, 1)}


def test_weights_are_bounded_away_from_zero_and_signed() -> None:
    weights = signed(1000, torch.Generator().manual_seed(0))
    assert float(weights.abs().min()) >= 0.5
    assert bool((weights < 0).any())
    assert bool((weights > 0).any())
