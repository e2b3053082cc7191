"""export: the exported program computes and trains as eager mode does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, NumpySquare, RoundSTE, x

pytestmark = [pytest.mark.compile]


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="export", seed=0)["export"]


def verdicts(found: ContractResult) -> dict[str, str]:
    return {row.transform: row.verdict for row in found.support}


def test_plain_functions_and_modules_pass() -> None:
    for target, inputs in ((torch.sin, (x(3),)), (torch.nn.Linear(3, 2), (torch.randn(2, 3),))):
        found = result(target, *inputs)
        assert found.verdict == "pass", found.message


def test_a_right_rule_survives_where_the_program_has_a_gradient() -> None:
    found = result(Exp, x(3))
    assert verdicts(found) == {"export": "pass", "export (strict)": "unsupported"}
    assert "no gradient" in found.message


def test_a_straight_through_rule_becomes_zero() -> None:
    """torch 2.13 (pytorch/rfcs#28); when this fails, export keeps the rule."""
    found = result(RoundSTE, x(3))
    assert found.verdict == "fail"
    assert "is 0, where eager mode gives" in found.message
    assert "which is zero" in found.message
    assert "pytorch/rfcs#28" in found.message
    assert "gw.custom_gradient(op=" in (found.findings[0].hint or "")
    assert found.findings[0].analytic == 0.0


def test_a_rule_of_which_a_warning_says_that_it_is_not_exported_is_unsupported() -> None:
    @gw.custom_gradient(surrogate=lambda t: t.clone())
    def rounded(t: Tensor) -> Tensor:
        return torch.round(t)

    rounded.vjp(lambda g: g)
    found = result(rounded, x(3))
    assert verdicts(found) == {"export": "unsupported", "export (strict)": "unsupported"}
    assert "warns, and does not export the rule" in found.message


def test_a_straight_through_rule_in_plain_operations_survives() -> None:
    def through(t: Tensor) -> Tensor:
        return t + (t.round() - t).detach()

    assert result(through, x(3)).verdict == "pass"


def test_refusals_are_unsupported() -> None:
    assert result(NumpySquare, x(3)).verdict == "unsupported"
    assert result(lambda t: t * (1.0 if float(t.detach().sum()) > 0 else 2.0), x(3)).verdict == "unsupported"
