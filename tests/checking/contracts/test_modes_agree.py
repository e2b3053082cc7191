"""modes-agree: each way in which a jvp goes wrong is found and named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, RoundSTE, SinCos, variant, x


def result(target: Any, *inputs: Any, seed: int = 0, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="modes-agree", seed=seed, **options)["modes-agree"]


class Product(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return g * b, g * a

    @staticmethod
    def jvp(ctx: Any, ta: Tensor, tb: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return ta * b + tb * a


class NewStyle(Function):
    @staticmethod
    def forward(t: Tensor) -> Any:
        return t.sin(), t.cos()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return a * t.cos() - b * t.sin()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return tangent * t.cos(), -tangent * t.sin()


class Relu(Function):
    """The two modes choose different slopes at 0, and both may."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        ctx.save_for_forward(t)
        return t.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * (ctx.saved_tensors[0] > 0)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return tangent * (ctx.saved_tensors[0] >= 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_right_ones_pass(seed: int) -> None:
    for target, inputs in (
        (Product, (x(3), x(3, seed=1))),
        (Product, (torch.randn(3), torch.randn(3))),
        (NewStyle, (x(2, 3),)),
        (Relu, (torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64),)),
        (torch.sin, (torch.randn(3, dtype=torch.complex128),)),
        (torch.nn.Linear(3, 2), (torch.randn(4, 3),)),
        (lambda t: t.softmax(0), (x(40),)),
        (lambda t: torch.nn.functional.dropout(t), (x(9),)),
        (torch.linalg.inv, (x(4, 4),)),
    ):
        found = result(target, *inputs, seed=seed)
        assert found.verdict == "pass", (target, found.message)


def test_a_surrogate_may_have_a_jvp() -> None:
    both = variant(RoundSTE, "Both", jvp=lambda ctx, t: t.clone())
    assert result(both, x(3), surrogate=lambda t: t).verdict == "pass"
    zero = variant(RoundSTE, "Zero", jvp=lambda ctx, t: t * 0)
    assert result(zero, x(3), surrogate=lambda t: t).verdict == "fail"


def test_no_jvp_is_unsupported() -> None:
    assert result(Exp, x(3)).verdict == "unsupported"
    assert result(lambda t: SinCos.apply(t)[0], x(3)).verdict == "unsupported"


def jvp_of(change: Any) -> Any:
    return variant(Product, "Changed", jvp=lambda ctx, ta, tb: change(*ctx.saved_tensors, ta, tb))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, b, ta, tb: -(ta * b + tb * a), "forward mode is wrong"),
        (lambda a, b, ta, tb: ta * b, "forward mode is wrong with respect to `b`"),
        (lambda a, b, ta, tb: ta * b + tb * a + ta * tb, "not linear in its tangents"),
        (lambda a, b, ta, tb: (ta * b + tb * a).abs(), "J(-u) is not -J u"),
        (lambda a, b, ta, tb: ta * b + tb * a if tb.any() else 0 * ta, "single inputs do not add up"),
        (lambda a, b, ta, tb: ta.mul_(b) + tb * a, "writes to the tangent of `a` in place"),
        (lambda a, b, ta, tb: (ta * b + tb * a).float(), "dtype torch.float32 for output 0"),
        (lambda a, b, ta, tb: 1 / 0, "jvp raises ZeroDivisionError"),
        (lambda a, b, ta, tb: ta * 0 + 7, "not linear in its tangents"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_broken_ones_are_named(change: Any, words: str, seed: int) -> None:
    found = result(jvp_of(change), x(3), x(3, seed=1), seed=seed)
    assert found.verdict == "fail", found.message
    assert words in found.message
    assert found.findings[0].hint


def test_saved_for_backward_only() -> None:
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    found = result(variant(Product, "BackwardOnly", forward=forward), x(3), x(3))
    assert found.verdict == "fail"
    assert "save_for_forward" in (found.findings[0].hint or "")


def test_a_wrong_backward_is_told_from_a_wrong_jvp() -> None:
    wrong = variant(Product, "Backward", backward=lambda ctx, g: (g * ctx.saved_tensors[1], g))
    found = result(wrong, x(3), x(3, seed=1))
    assert found.verdict == "fail"
    assert "backward is wrong, forward mode is right" in found.message


def test_symmetric_matrices_are_pushed_along_symmetric_directions() -> None:
    a = x(4, 4)
    assert result(torch.linalg.cholesky, a @ a.mT + torch.eye(4)).verdict == "pass"
    assert result(torch.linalg.eigvalsh, a + a.mT).verdict == "pass"
