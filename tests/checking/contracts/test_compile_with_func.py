"""compile-with-func: a rule that torch drops is named with the upstream issue; a harmless drop passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import RoundSTE, x

pytestmark = [pytest.mark.compile]


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="compile-with-func", seed=0)["compile-with-func"]


class Sine(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor) -> Tensor:
        return t.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0].cos()


class Seven(Sine):
    """A rule that nothing else gives."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 7 * g


def test_a_drop_that_changes_nothing_passes() -> None:
    found = result(Sine, x(3))
    assert found.verdict == "pass", found.message
    assert len(found.support) == 4


def test_a_dropped_rule_is_found_by_value() -> None:
    """torch 2.13 (pytorch/pytorch#193279, #192985, #129845); when this fails, torch keeps the rule."""
    found = result(Seven, x(3))
    assert found.verdict == "fail"
    assert "replaced by autograd's own derivative" in found.message
    assert "pytorch/pytorch#193279" in found.message
    assert "The rule itself is not at fault" in found.message
    assert "keep torch.func out" in (found.findings[0].hint or "")
    wrong = {row.transform for row in found.support if row.verdict == "fail"}
    assert {"compile of vjp", "compile of grad", "compile of vmap"} <= wrong


def test_old_style_is_refused_not_accused() -> None:
    found = result(RoundSTE, x(3))
    assert found.verdict == "unsupported"
    assert "does not even refuse it" in found.message
    assert "pytorch/pytorch#193279" in found.message


@pytest.mark.slow
def test_plain_functions_and_modules_pass() -> None:
    assert result(torch.sin, x(3)).verdict == "pass"
    assert result(torch.nn.Linear(3, 2), torch.randn(2, 3)).verdict == "pass"
