"""nested-forward: PyTorch's own functions pass, the upstream zero is recognised, and refusing is allowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import ComplexSquare, Exp, x


def result(target: Any, *inputs: Any, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="nested-forward", seed=0, **options)["nested-forward"]


class Sin(Function):
    @staticmethod
    def forward(t: Tensor) -> Tensor:
        return t.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return tangent * ctx.saved_tensors[0].cos()


def test_right_ones_pass() -> None:
    assert result(torch.sin, x(3)).verdict == "pass"
    assert result(lambda a, b: (a @ b).softmax(0), x(3, 3), x(3, 2)).verdict == "pass"
    assert result(torch.nn.Linear(3, 2), torch.randn(4, 3)).verdict == "pass"
    assert result(torch.relu, x(5)).verdict == "pass"


def test_the_upstream_zero_is_recognised() -> None:
    """Should this fail after an update of torch, pytorch/pytorch#197867 is mended: take the special case out."""
    found = result(Sin, x(3))
    assert found.verdict == "unsupported"
    assert "pytorch/pytorch#197867" in found.message
    assert "torch.func.hessian" in found.message
    assert result(Sin, x(3), require="nested-forward").verdict == "fail"


def test_what_raises_is_unsupported() -> None:
    assert result(Exp, x(3)).verdict == "unsupported"
    assert result(lambda t: Exp.apply(t), x(3)).verdict == "unsupported"


def test_complex_numbers_are_skipped() -> None:
    assert result(torch.sin, torch.randn(2, dtype=torch.complex128)).verdict == "skipped"
    assert result(ComplexSquare, torch.randn(2, dtype=torch.complex128)).verdict == "unsupported"


def test_a_silently_wrong_one_is_found() -> None:
    def detached(t: Tensor) -> Tensor:
        return t * t.detach() if torch.is_grad_enabled() else t * t

    found = result(detached, x(3))
    assert found.verdict == "unresolved", "nobody wrote a rule here"
    assert "none of yours is involved" in found.message
