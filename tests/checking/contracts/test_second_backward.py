"""second-backward: graphs that are used twice, and rules that spoil them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, right
from tests.subjects import Exp, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="second-backward", seed=0)["second-backward"]


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict == "pass"


def test_cache_that_is_cleared() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.cache = [3.0]
        return t * 3

    def cleared(ctx: Any, g: Tensor) -> Tensor:
        grad = g * ctx.cache[0]
        ctx.cache = None
        return grad

    def deleted(ctx: Any, g: Tensor) -> Tensor:
        grad = g * ctx.cache[0]
        del ctx.cache
        return grad

    for backward, error in ((cleared, "TypeError"), (deleted, "AttributeError")):
        found = result(variant(Exp, "Clears", forward=forward, backward=backward), x(3))
        assert found.verdict == "fail"
        assert f"the second backward through the same graph raises {error}" in found.message
        assert "at line" in found.message
        assert "retain_graph=True" in (found.findings[0].repro or "")


def test_overwritten_saved_tensor_gives_another_gradient() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        out.data.mul_(2)
        return g * out / 2

    found = result(variant(Exp, "Doubles", backward=backward), x(3))
    assert found.verdict == "fail"
    assert "gives another gradient of `x`" in found.message
    finding = found.findings[0]
    assert isinstance(finding.analytic, float)
    assert isinstance(finding.numeric, float)
    assert abs(finding.analytic / finding.numeric - 2) < 1e-9


def test_graph_of_its_own_that_is_freed() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.inner = t.detach().requires_grad_()
            ctx.out = ctx.inner.sin()
        return ctx.out.detach()

    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.autograd.grad(ctx.out, ctx.inner, g)[0]

    found = result(variant(Exp, "Inner", forward=forward, backward=backward), x(3))
    assert found.verdict == "fail"
    assert "a graph of its own" in (found.findings[0].hint or "")


def test_refusal_aloud_is_unsupported() -> None:
    def backward(ctx: Any, g: Tensor) -> Any:
        if hasattr(ctx, "done"):
            raise RuntimeError("backward of Once may run once only")
        ctx.done = True
        (out,) = ctx.saved_tensors
        return g * out

    found = result(variant(Exp, "Once", backward=backward), x(3))
    assert found.verdict == "unsupported"
    assert "may run once only" in found.message
