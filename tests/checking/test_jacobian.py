"""The dense comparison: correct functions at awkward points are never accused, and joint directions see ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking.case import Case
from gradwright.checking.jacobian import analytic_jacobian, compare, fits_dense
from gradwright.checking.judge import State
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, variant


def case(target: Any, *inputs: Any, level: Any = "standard") -> Case:
    return Case(as_subject(target), Sample(inputs), level=level)


def states(target: Any, *inputs: Any) -> set[State]:
    return {State(int(s)) for c in compare(case(target, *inputs)) for s in c.state.flatten()}


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_analytic_jacobian_is_laid_out_input_by_output() -> None:
    w = torch.randn(3, 2, dtype=torch.float64)
    (jacobian,), missing = analytic_jacobian(case(lambda x: x @ w, torch.randn(3, dtype=torch.float64)))
    assert torch.equal(jacobian, w)
    assert missing == [False]


class GreedyMax(Function):
    """Gives the whole gradient to each of several tied elements: right along every axis, wrong along (1, 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.max()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * (x == x.max())


def test_tie_that_only_a_joint_direction_sees() -> None:
    assert State.WRONG in states(GreedyMax, t(1.0, 1.0, 0.0))
    assert State.WRONG not in states(GreedyMax, t(1.0, 2.0, 0.0))
    assert State.WRONG not in states(torch.amax, t(1.0, 1.0, 0.0))


def test_wrong_element_among_right_ones_is_the_only_one_accused() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        grad = g * out
        grad[2] = 0
        return grad

    (comparison,) = compare(case(variant(Exp, "HoleExp", backward=backward), torch.randn(5, dtype=torch.float64)))
    assert comparison.state.eq(int(State.WRONG)).nonzero().tolist() == [[2, 2]]


def test_ill_conditioned_but_right_is_not_accused() -> None:
    matrix = torch.diag(t(1.0, 1e-8)) + 1e-9 * torch.randn(2, 2, dtype=torch.float64)
    assert State.WRONG not in states(torch.linalg.inv, matrix)


def test_aliasing_steps_do_not_accuse() -> None:
    assert State.WRONG not in states(torch.sin, t(1e10))


def test_size_decides_between_dense_and_projected() -> None:
    assert fits_dense(case(torch.sin, torch.randn(10, dtype=torch.float64)))
    assert not fits_dense(case(torch.sin, torch.randn(1000, dtype=torch.float64)))
    assert not fits_dense(case(torch.sin, torch.randn(30, dtype=torch.float64), level="quick"))


@pytest.mark.parametrize("seed", range(3))
def test_relative_error_far_below_the_tolerance_of_gradcheck_is_seen(seed: int) -> None:
    torch.manual_seed(seed)
    wrong = variant(Exp, "Off", backward=lambda ctx, g: g * ctx.saved_tensors[0] * (1 + 1e-7))
    assert State.WRONG in states(wrong, torch.randn(4, dtype=torch.float64))
