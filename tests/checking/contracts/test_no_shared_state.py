"""no-shared-state: calls that disturb each other, through the class, a buffer or memory."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, right
from tests.subjects import Exp, variant, x


def result(target: Any, *inputs: Any, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="no-shared-state", seed=0, **options)["no-shared-state"]


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict in ("pass", "skipped")


def test_state_on_the_class() -> None:
    kept: dict[str, Tensor] = {}

    def forward(ctx: Any, t: Tensor) -> Tensor:
        kept["out"] = t.exp()
        return kept["out"].clone()

    found = result(variant(Exp, "OnClass", forward=forward, backward=lambda ctx, g: g * kept["out"]), x(3))
    assert found.verdict == "fail"
    assert "interleaved calls disturb each other" in found.message
    assert "the gradient of `t` of the first call" in found.message
    assert "ctx.save_for_backward" in (found.findings[0].hint or "")


def test_stack_of_saved_tensors_breaks_in_one_order_only() -> None:
    stack: list[Tensor] = []

    def forward(ctx: Any, t: Tensor) -> Tensor:
        stack.append(t.exp())
        return stack[-1].clone()

    found = result(variant(Exp, "Stack", forward=forward, backward=lambda ctx, g: g * stack.pop()), x(3))
    assert found.verdict == "fail"


def test_static_output_buffer() -> None:
    buffer = torch.zeros(3, dtype=torch.float64)

    def forward(ctx: Any, t: Tensor) -> Tensor:
        buffer.copy_(t.exp())
        ctx.save_for_backward(t)
        return buffer.view(-1)

    target = variant(Exp, "Static", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0].exp())
    found = result(target, x(3))
    assert found.verdict == "fail"
    # The buffer handed out as a view is caught either by its bytes or by autograd's own complaint about the other view.
    assert "overwrites output 0" in found.message or "in interleaved calls" in found.message


def test_static_gradient_buffer() -> None:
    buffer = torch.zeros(3, dtype=torch.float64)

    def backward(ctx: Any, g: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return torch.mul(g, out, out=buffer)

    found = result(variant(Exp, "Static", backward=backward), x(3))
    assert found.verdict == "fail"
    assert "a later backward overwrites the gradient of `x`" in found.message or "interleaved" in found.message


def test_change_after_many_calls_is_seen_where_something_counts_them() -> None:
    calls = [0]

    def backward(ctx: Any, g: Tensor) -> Tensor:
        calls[0] += 1
        (out,) = ctx.saved_tensors
        return g * out * (1 if calls[0] < 900 else 2)

    found = result(variant(Exp, "Tires", backward=backward), x(3))
    assert found.verdict == "fail"
    assert "changes at repeated call" in found.message
    assert "keeps state between calls (entry 0 of `calls`" in found.message


def test_a_counter_that_changes_nothing_is_not_accused() -> None:
    calls = [0]

    def backward(ctx: Any, g: Tensor) -> Tensor:
        calls[0] += 1
        (out,) = ctx.saved_tensors
        return g * out

    found = result(variant(Exp, "Counts", backward=backward), x(3))
    assert found.verdict == "pass"
    assert "repeated calls" in found.message


def test_change_after_many_calls_that_nothing_visible_counts_is_seen_at_level_full() -> None:
    def tiring() -> Any:
        count = itertools.count()

        def backward(ctx: Any, g: Tensor) -> Tensor:
            (out,) = ctx.saved_tensors
            return g * out * (1 if next(count) < 900 else 2)

        return variant(Exp, "Tires", backward=backward)

    assert result(tiring(), x(3)).verdict == "pass"
    found = result(tiring(), x(3), level="full")
    assert found.verdict == "fail"
    assert "changes at repeated call" in found.message


def test_state_on_the_class_is_one_finding() -> None:
    class OnClass(torch.autograd.Function):
        kept: Tensor

        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            OnClass.kept = t
            return t.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * OnClass.kept.cos()

    report = gw.check(OnClass, x(3), only=("no-shared-state", "saved-untouched", "second-backward"), seed=0)
    assert [r.id for r in report.failed] == ["no-shared-state"]


def test_overwritten_saved_output_is_not_called_shared_state() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        grad = g * out
        out.data.mul_(0.5)
        return grad

    report = gw.check(
        variant(Exp, "Writes", backward=backward), x(3), seed=0, only=("no-shared-state", "saved-untouched")
    )
    assert [r.id for r in report.failed] == ["saved-untouched"]


def test_layouts_that_have_no_plain_bytes() -> None:
    assert result(lambda t: t.to_sparse() * 2, x(3)).verdict != "fail"
    assert result(lambda t: (t * 2).as_strided((1,), (2,)), x(3)).verdict == "pass"


def test_static_output_buffer_that_is_handed_out_detached() -> None:
    """The values that the check compares are copies; else both would be the buffer's, and no inputs would differ."""
    buffer = torch.zeros(3, dtype=torch.float64)

    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        buffer.copy_(t.exp())
        return buffer.detach()

    target = variant(Exp, "Static", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0].exp())
    found = result(target, x(3))
    assert found.verdict == "fail"
    assert "a later call of forward overwrites output 0" in found.message


@pytest.mark.parametrize("default", [True, False])
def test_state_of_the_thread_that_ran_forward(default: bool) -> None:
    local = threading.local()

    def forward(ctx: Any, t: Tensor) -> Tensor:
        local.scale = 3.0
        return t * 3

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (getattr(local, "scale", 1.0) if default else local.scale)

    found = result(variant(Exp, "ThreadLocal", forward=forward, backward=backward), x(3))
    assert found.verdict == "fail"
    assert "in another thread than forward" in found.message
    assert "thread-local" in (found.findings[0].hint or "")


def test_a_static_gradient_buffer_is_not_reported_as_a_cut_graph() -> None:
    buffer = torch.zeros(3, dtype=torch.float64)

    def backward(ctx: Any, g: Tensor) -> Tensor:
        buffer.copy_((g * ctx.saved_tensors[0]).detach())
        return buffer

    report = gw.check(variant(Exp, "Static", backward=backward), x(3), only=("no-shared-state", "second-order"), seed=0)
    assert report["no-shared-state"].verdict == "fail"
    assert report["second-order"].verdict == "skipped"
