"""The dense comparison: correct functions at awkward points are never accused, and joint directions see ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking.case import Case
from gradwright.checking.jacobian import MOST_ELEMENTS, Comparison, affordable_pattern, compare
from gradwright.checking.judge import State
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, variant


def case(target: Any, *inputs: Any, level: Any = "standard") -> Case:
    return Case(as_subject(target), Sample(inputs), level=level)


def compared(target: Any, *inputs: Any, level: Any = "standard") -> Comparison:
    comparison = compare(case(target, *inputs, level=level), 0, 0)
    assert comparison is not None
    return comparison


def states(target: Any, *inputs: Any) -> set[State]:
    return {State(int(s)) for s in compared(target, *inputs).state.flatten()}


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_analytic_jacobian_is_laid_out_input_by_output() -> None:
    w = torch.randn(3, 2, dtype=torch.float64)
    comparison = compared(lambda x: x @ w, torch.randn(3, dtype=torch.float64))
    assert torch.equal(comparison.analytic, w)
    assert not comparison.none


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

    hole = variant(Exp, "HoleExp", backward=backward)
    comparison = compared(hole, torch.randn(5, dtype=torch.float64))
    assert comparison.state.eq(int(State.WRONG)).nonzero().tolist() == [[2, 2]]
    large = compared(hole, torch.randn(3000, dtype=torch.float64))
    assert large.pattern.elements()[large.state == State.WRONG].tolist() == [2]


def test_ill_conditioned_but_right_is_not_accused() -> None:
    matrix = torch.diag(t(1.0, 1e-8)) + 1e-9 * torch.randn(2, 2, dtype=torch.float64)
    assert State.WRONG not in states(torch.linalg.inv, matrix)


def test_aliasing_steps_do_not_accuse() -> None:
    assert State.WRONG not in states(torch.sin, t(1e10))


def test_structure_decides_what_is_compared_entry_by_entry() -> None:
    big = torch.randn(1000, dtype=torch.float64)
    assert compared(torch.sin, big).pattern.groups == 1
    assert compare(case(lambda x: x.softmax(0), big), 0, 0) is None
    rows = compared(lambda x: x.softmax(-1), big.reshape(100, 10))
    assert (rows.pattern.groups, rows.pattern.rests) == (10, 10)
    assert compare(case(lambda x: x.softmax(-1), big.reshape(20, 50), level="quick"), 0, 0) is None


def test_a_pattern_that_misleads_does_not_accuse(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows depend on each other through their maximum; believed independent, the sums over rows disagree.
    from gradwright.checking import pattern

    monkeypatch.setattr(pattern, "_independent", lambda *place: True)
    x = torch.randn(30, 20, dtype=torch.float64)
    assert State.WRONG not in states(lambda t: t * t.amax(), x)


@pytest.mark.parametrize("seed", range(3))
def test_relative_error_far_below_the_tolerance_of_gradcheck_is_seen(seed: int) -> None:
    torch.manual_seed(seed)
    wrong = variant(Exp, "Off", backward=lambda ctx, g: g * ctx.saved_tensors[0] * (1 + 1e-7))
    assert State.WRONG in states(wrong, torch.randn(4, dtype=torch.float64))


def test_functions_of_symmetric_matrices_are_right_along_symmetric_directions() -> None:
    matrix = torch.randn(3, 3, dtype=torch.float64)
    symmetric = matrix @ matrix.t() + torch.eye(3, dtype=torch.float64)
    symmetric = (symmetric + symmetric.t()) / 2
    for f in (torch.linalg.cholesky, torch.linalg.eigvalsh):
        assert State.WRONG not in states(f, symmetric)
    assert State.WRONG in states(lambda a: 2 * torch.linalg.cholesky(a) - torch.linalg.cholesky(a.detach()), symmetric)


def test_what_has_very_many_elements_is_left_to_projections() -> None:
    elements = MOST_ELEMENTS["quick"]
    for count, affordable in ((elements, True), (elements + 1, False)):
        case = Case(as_subject(torch.sin), Sample((torch.rand(count, dtype=torch.float64),)), level="quick")
        assert (affordable_pattern(case, 0, 0) is not None) == affordable
