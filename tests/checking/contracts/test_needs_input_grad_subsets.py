"""needs-input-grad-subsets: frozen inputs, and the value without grad."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, Frees, right
from tests.subjects import Exp, Linear, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="needs-input-grad-subsets", seed=0)["needs-input-grad-subsets"]


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict == "pass"


def test_subsets_are_counted() -> None:
    assert "2 subsets" in result(Frees, x(3), x(3)).message
    assert "6 subsets" in result(Linear, x(2, 3), x(4, 3), x(4)).message


def test_crash_when_one_is_frozen() -> None:
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(b if ctx.needs_input_grad[0] else None, a)
        return a * b

    def backward(ctx: Any, g: Tensor) -> Any:
        b, a = ctx.saved_tensors
        return b * g, a * g

    found = result(variant(Frees, "Crash", forward=forward, backward=backward), x(3), x(3, seed=1))
    assert found.verdict == "fail"
    assert "TypeError" in found.message
    assert "when only `b` requires grad" in found.message
    assert "needs_input_grad" in (found.findings[0].hint or "")


def test_other_gradient_or_none_when_one_is_frozen() -> None:
    def wrong(ctx: Any, g: Tensor) -> Any:
        b, a = ctx.saved_tensors
        return None if b is None else g * b, None if a is None else g * a * (2 if b is None else 1)

    def missing(ctx: Any, g: Tensor) -> Any:
        b, a = ctx.saved_tensors
        return (None, None) if b is None else (g * b, None if a is None else g * a)

    for backward, words in ((wrong, " instead of "), (missing, "is missing")):
        found = result(variant(Frees, "Wrong", backward=backward), x(3), x(3, seed=1))
        assert found.verdict == "fail"
        assert "the gradient of `b`" in found.message
        assert words in found.message
        assert "when only `b` requires grad" in found.message


def test_wrong_only_when_one_of_three_is_left_out() -> None:
    def backward(ctx: Any, g: Tensor) -> Any:
        w, t = ctx.saved_tensors[1], ctx.saved_tensors[0]
        factor = 2 if ctx.needs_input_grad == (True, False, True) else 1
        return g @ w * factor, g.t() @ t, g.sum(0)

    found = result(variant(Linear, "Wrong", backward=backward), x(2, 3), x(4, 3), x(4))
    assert found.verdict == "fail"
    assert "when `w` does not require grad" in found.message


def test_other_value_without_grad() -> None:
    def by_need(ctx: Any, t: Tensor) -> Tensor:
        out = t.exp() if ctx.needs_input_grad[0] else t.exp() + 1e-3
        ctx.save_for_backward(out)
        return out

    found = result(variant(Exp, "Path", forward=by_need), x(3))
    assert found.verdict == "fail"
    assert "forward gives another value when no input requires grad" in found.message
    assert "without grad" in (found.findings[0].repro or "")


def test_other_value_under_no_grad_in_plain_code_is_a_suspicion() -> None:
    def by_mode(t: Tensor) -> Tensor:
        return t * 2 if torch.is_grad_enabled() else t * 3

    found = result(by_mode, x(3))
    assert found.verdict == "suspect"
    assert "under torch.no_grad()" in found.message
    assert result(lambda t: Exp.apply(t) * (1 if torch.is_grad_enabled() else 2), x(3)).verdict == "fail"


def test_other_outputs_without_grad_are_noted() -> None:
    def forward(ctx: Any, t: Tensor) -> Any:
        out = t.exp()
        ctx.save_for_backward(out)
        return (out, out * 0) if ctx.needs_input_grad[0] else out

    found = result(variant(Exp, "More", forward=forward, backward=lambda ctx, g, _: g * ctx.saved_tensors[0]), x(3))
    assert found.verdict == "pass"
    assert "returns other outputs" in found.message


def test_refused_inference_is_noted() -> None:
    def physics(t: Tensor) -> Any:
        energy = (t**2).sum()
        return torch.autograd.grad(energy, t, create_graph=True)[0]

    found = result(physics, x(3))
    assert found.verdict == "pass"
    assert "forward raises" in found.message
