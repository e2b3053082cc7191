"""inputs-untouched: undeclared writes to inputs, in forward and in backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, Gather, InPlaceDouble, Linear, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="inputs-untouched", seed=0)["inputs-untouched"]


def forward_with(write: Any) -> Any:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = t.exp()
        write(t)
        ctx.save_for_backward(out)
        return out

    return variant(Exp, "Writes", forward=forward)


def test_right_ones_pass() -> None:
    assert result(Exp, x(3)).verdict == "pass"
    assert result(Linear, x(2, 3), x(4, 3), x(4)).verdict == "pass"
    assert result(torch.nn.BatchNorm1d(3), torch.randn(4, 3)).verdict == "pass", "running statistics are not inputs"


def test_declared_in_place_is_allowed() -> None:
    found = result(InPlaceDouble, x(3))
    assert found.verdict == "pass"
    assert "in place as declared" in found.message


def test_writes_are_seen_however_they_are_made() -> None:
    for write in (lambda t: t.data.mul_(2), lambda t: t.detach().numpy().fill(3.0), lambda t: t.mul_(2)):
        found = result(forward_with(write), x(3))
        assert found.verdict == "fail"
        assert "forward changes its input `t` in place: 3 of 3 elements" in found.message
        assert "mark_dirty" in (found.findings[0].hint or "")


def test_integer_inputs_are_looked_at_too() -> None:
    def forward(ctx: Any, t: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index.clone())
        ctx.n = len(t)
        out = t[index]
        index[0] = 1
        return out

    found = result(variant(Gather, "Writes", forward=forward), x(3), torch.tensor([0, 2]))
    assert "`index`" in found.message


def test_a_callable_may_update_constants_as_far_as_autograd_notices() -> None:
    def norm(t: Tensor, running_mean: Tensor) -> Tensor:
        running_mean.mul_(0.9).add_(0.1 * t.detach().mean())
        return t - t.mean()

    def hidden(t: Tensor, running_mean: Tensor) -> Tensor:
        running_mean.numpy()[...] = 3.0
        return t - t.mean()

    given = x(4).requires_grad_()
    assert result(norm, given, x(1)).verdict == "pass"
    assert result(hidden, given, x(1)).verdict == "fail"


def test_write_in_backward_is_told_apart() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.sin()

    def backward(ctx: Any, g: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        grad = g * t.cos()
        t.data.zero_()
        return grad

    found = result(variant(Exp, "Writes", forward=forward, backward=backward), x(3))
    assert found.verdict == "fail"
    assert found.message.startswith("backward changes its input `t`")
