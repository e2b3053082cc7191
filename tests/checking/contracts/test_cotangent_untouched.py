"""cotangent-untouched: in-place writes to grad_output, also those the version counter does not see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, RoundSTE, SinCos, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="cotangent-untouched", seed=0)["cotangent-untouched"]


def test_right_ones_pass() -> None:
    for target in (Exp, RoundSTE, SinCos, torch.exp):
        assert result(target, x(3)).verdict == "pass"


def test_in_place_write_is_named_with_both_values() -> None:
    found = result(variant(Exp, "InPlace", backward=lambda ctx, g: g.mul_(ctx.saved_tensors[0])), x(3))
    assert found.verdict == "fail"
    (finding,) = found.findings
    assert "writes to grad_output of the output in place: 3 of 3 elements" in finding.message
    assert " from " in finding.message
    assert "clone" in (finding.hint or "")


def test_write_through_numpy_is_seen() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        grad = g * ctx.saved_tensors[0]
        g.numpy()[1] = 7.0
        return grad

    finding = result(variant(Exp, "Numpy", backward=backward), x(3)).findings[0]
    assert finding.where is not None
    assert finding.where.output_index == (1,)


def test_write_that_changes_nothing_for_this_cotangent_still_raises_when_it_is_expanded() -> None:
    # The values stay the same, but PyTorch refuses to write to a tensor with stride 0.
    found = result(variant(Exp, "Times1", backward=lambda ctx, g: g.mul_(1) * ctx.saved_tensors[0]), x(3))
    assert found.verdict == "fail"
    assert "expanded (stride 0)" in found.message


def test_second_output_is_named() -> None:
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        grad = a * t.cos() - b * t.sin()
        b.zero_()
        return grad

    assert "output 1" in result(variant(SinCos, "Zero", backward=backward), x(3)).message
