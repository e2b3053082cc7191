"""extreme-values: overflow in backward is found where the derivative is finite; forward's own is not blamed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import ComplexSquare, Exp, Gather, InPlaceDouble, Linear, RoundSTE, SinCos, by_hand, variant, x


def result(target: Any, *inputs: Any, seed: int = 0, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="extreme-values", seed=seed, **options)["extreme-values"]


class Sigmoid(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = torch.sigmoid(t)
        ctx.save_for_backward(t, out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        _, out = ctx.saved_tensors
        return g * out * (1 - out)


def naive(ctx: Any, g: Tensor) -> Tensor:
    t, _ = ctx.saved_tensors
    return g * t.exp() / (1 + t.exp()) ** 2


Naive = variant(Sigmoid, "Naive", backward=naive)


class Norm(Function):
    """Squares underflow in forward for tiny numbers: that is not backward's fault."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = t.square().sum().sqrt()
        ctx.save_for_backward(t, out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        t, out = ctx.saved_tensors
        return g * t / out


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_right_ones_pass(seed: int, dtype: torch.dtype) -> None:
    t = torch.tensor([0.3, -0.5, 1.2], dtype=dtype)
    for target, inputs in (
        (Sigmoid, (t,)),
        (Exp, (t,)),
        (SinCos, (t,)),
        (Norm, (t,)),
        (Linear, (torch.randn(2, 3, dtype=dtype), torch.randn(4, 3, dtype=dtype))),
        (Gather, (t, torch.tensor([0, 2, 2]))),
        (InPlaceDouble, (t,)),
        (by_hand(torch.rsqrt), (t.abs(),)),
        (by_hand(torch.sqrt), (t.abs(),)),
        (by_hand(torch.log), (t.abs(),)),
        (by_hand(lambda s: s.abs().pow(0.3)), (t,)),
        (by_hand(torch.nn.functional.gelu), (t,)),
        (by_hand(torch.nn.functional.softplus), (t,)),
        (by_hand(lambda s: s.softmax(0)), (t,)),
        (by_hand(lambda s: s.logsumexp(0)), (t,)),
        (by_hand(torch.reciprocal), (t,)),
        (by_hand(torch.tan), (t,)),
        (by_hand(torch.special.erfcx), (t,)) if dtype == torch.float32 else (by_hand(torch.erf), (t,)),
    ):
        found = result(target, *inputs, seed=seed)
        assert found.verdict == "pass", (target, found.message)


def test_other_kinds_pass() -> None:
    assert result(ComplexSquare, torch.randn(3, dtype=torch.complex128)).verdict == "pass"
    assert result(RoundSTE, x(3), surrogate=lambda t: t).verdict == "pass"
    assert result(Sigmoid, torch.zeros(3, dtype=torch.float64)).verdict == "pass"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", [0, 1])
def test_naive_sigmoid(dtype: torch.dtype, seed: int) -> None:
    found = result(Naive, torch.tensor([0.3, -0.5, 1.2], dtype=dtype), seed=seed)
    assert found.verdict == "fail", found.message
    (finding,) = found.findings
    assert "is nan at `t` = " in finding.message
    assert "the derivative is about 0" in finding.message
    assert finding.where is not None
    assert finding.where.input == "t"
    assert finding.repro


def test_a_tiny_number_divided_by_itself() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        t, out = ctx.saved_tensors
        return g * out * (1 - out) * (t**20 / t**20)

    found = result(variant(Sigmoid, "Tiny", backward=backward), x(3))
    assert found.verdict == "fail"


def test_functions_that_meet_at_infinity_are_nobodys_fault() -> None:
    found = result(lambda t: Exp.apply(-Exp.apply(t)), x(3))
    assert found.verdict == "pass", found.message


def test_a_declared_domain_is_kept() -> None:
    assert result(Naive, x(3).clamp(-2, 2), domain=(-300, 300)).verdict == "pass"


def test_derivatives_of_pytorch_itself_are_not_judged() -> None:
    found = result(lambda t: torch.where(t < 50, t.exp().log(), t), x(3).abs())
    assert found.verdict == "skipped"


def test_a_slow_subject_is_not_examined_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwright.checking.contracts import extreme_values

    monkeypatch.setitem(extreme_values.SECONDS, "standard", 0.0)
    assert "stopped early" in result(Sigmoid, x(3)).message
