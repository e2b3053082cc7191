"""Forwards that iterate until a tolerance is met."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.case import Case
from gradwright.checking.iterating import operations_vary
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, x


def root(tolerance: float, factor: float) -> type[Function]:
    """Return the solution of ``y + y^3 / 3 = x`` by a fixed-point iteration, and its implicit derivative."""

    class Root(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            y = t.clone()
            for _ in range(500):
                new = y - 0.4 * (y + y**3 / 3 - t)
                if (new - y).abs().max() < tolerance:
                    break
                y = new
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (y,) = ctx.saved_tensors
            return factor * g / (1 + y**2)

    return Root


def test_a_loop_with_a_test_is_recognised() -> None:
    assert operations_vary(Case(as_subject(root(1e-6, 1.0)), Sample((x(4),))))
    assert not operations_vary(Case(as_subject(Exp), Sample((x(4),))))


@pytest.mark.parametrize("tolerance", [1e-5, 1e-8, 1e-12])
def test_an_iteration_is_not_accused_of_its_tolerance(tolerance: float) -> None:
    for seed in range(3):
        report = gw.check(root(tolerance, 1.0), x(4), only="matches-differences", seed=seed)
        assert report, report
    found = gw.check(root(1e-5, 1.0), x(4), only="matches-differences")["matches-differences"]
    assert found.verdict == "unresolved"
    assert "rtol=" in found.message
    assert (
        gw.check(root(1e-5, 1.0), x(4), only="matches-differences", rtol=1e-2)["matches-differences"].verdict == "pass"
    )


def test_a_wrong_rule_of_an_iteration_is_accused() -> None:
    assert not gw.check(root(1e-8, 1.01), x(4), only="matches-differences")
