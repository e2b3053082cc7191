"""same-tensor-twice: f(x, x), by value and by gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, Frees, right
from tests.subjects import Exp, variant, x


class Product(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return g * b, g * a


def result(target: Any, *inputs: Any, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="same-tensor-twice", seed=0, **options)["same-tensor-twice"]


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict in ("pass", "skipped")


def test_sum_of_both() -> None:
    for target in (Product, Frees, torch.mul):
        assert "1 pair of inputs" in result(target, x(3), x(3, seed=1)).message


def test_inputs_found_by_identity() -> None:
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        if a.data_ptr() == b.data_ptr():
            return 2 * g * a, 2 * g * a
        return g * b, g * a

    found = result(variant(Product, "Identity", backward=backward), x(3), x(3, seed=1))
    assert found.verdict == "fail"
    assert "not the sum of both when the same tensor is passed for `a` and `b`" in found.message
    finding = found.findings[0]
    assert isinstance(finding.analytic, float)
    assert isinstance(finding.numeric, float)
    assert abs(finding.analytic / finding.numeric - 2) < 1e-9
    assert "b = a" in (finding.repro or "")


def test_value_that_depends_on_identity() -> None:
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b + (1.0 if a.data_ptr() == b.data_ptr() else 0.0)

    found = result(variant(Product, "Shifted", forward=forward), x(3), x(3, seed=1))
    assert found.verdict == "fail"
    assert "forward gives another value" in found.message


def test_pairs_are_counted_by_level() -> None:
    def total(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a * b * c

    inputs = x(3), x(3, seed=1), x(3, seed=2)
    assert "2 more pairs not tried" in result(total, *inputs, level="quick").message
    assert "3 pairs" in result(total, *inputs).message


def test_what_cannot_be_tried_is_skipped_with_a_reason() -> None:
    assert "no two inputs" in result(Exp, x(3)).message

    def picky(a: Tensor, b: Tensor) -> Tensor:
        if torch.equal(a, b):
            raise ValueError("distinct tensors only")
        return a * b

    assert "does not accept equal values" in result(picky, x(3), x(3, seed=1)).message
