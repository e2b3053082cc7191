"""low-precision: losing digits that the precision has is found; rounding, cancellation and ties are not accused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, Gather, InPlaceDouble, Linear, NumpySquare, RoundSTE, SinCos, by_hand, variant, x


def result(target: Any, *inputs: Any, seed: int = 0, level: Any = "standard", **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="low-precision", seed=seed, level=level, **options)["low-precision"]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("level", ["standard", "full"])
def test_right_ones_pass(seed: int, level: str) -> None:
    hilbert = 1 / (torch.arange(4)[:, None] + torch.arange(4) + 1.0).double()
    for target, inputs in (
        (Exp, (x(200),)),
        (SinCos, (x(2, 3),)),
        (Linear, (x(2, 30), x(4, 30), x(4))),
        (Gather, (x(4), torch.tensor([0, 2, 2]))),
        (InPlaceDouble, (x(2, 3),)),
        (NumpySquare, (x(3).float(),)),
        (by_hand(lambda t: t.softmax(0)), (x(40),)),
        (by_hand(lambda t: t.std(0)), (x(40) + 100,)),
        (by_hand(lambda t: t.square().mean() - t.mean().square()), (x(40) + 50,)),
        (by_hand(lambda t: t.max(0).values), ((x(5, 3) * 4).round() / 4,)),
        (by_hand(lambda t: (t @ t.mT).amax()), (x(3, 4),)),
        (by_hand(lambda t: (t * 10).round() / 10 + t), (x(6),)),
        (by_hand(torch.linalg.inv), (hilbert,)),
        (by_hand(lambda t: t.logcumsumexp(0)), (x(50) * 30,)),
        (by_hand(torch.sin), (torch.randn(5, dtype=torch.complex128),)),
        (torch.nn.functional.gelu, (torch.randn(6, dtype=torch.bfloat16),)),
        (torch.nn.functional.layer_norm, (torch.randn(6, 8, dtype=torch.float16), (8,))),
    ):
        found = result(target, *inputs, seed=seed, level=level)
        assert found.verdict in ("pass", "skipped"), (target, found.message)


def in_bfloat16(ctx: Any, g: Tensor) -> Tensor:
    (out,) = ctx.saved_tensors
    if g.dtype == torch.float32:
        return (g.bfloat16() * out.bfloat16()).float()
    return g * out


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_wrong_in_float32_only(seed: int) -> None:
    broken = variant(Exp, "InBfloat16", backward=in_bfloat16)
    found = result(broken, x(8), seed=seed)
    assert found.verdict == "fail"
    assert "in float32 the gradient of `x` is off by" in found.message
    assert "in float64 it is right" in found.message
    assert "bfloat16" in (found.findings[0].hint or "")
    assert result(broken, torch.randn(8), seed=seed).verdict == "fail"


def test_wrong_by_a_thousandth_in_float32_only() -> None:
    broken = variant(
        Exp,
        "Thousandth",
        backward=lambda ctx, g: g * ctx.saved_tensors[0] * (1.001 if g.dtype == torch.float32 else 1),
    )
    assert result(broken, x(4)).verdict == "fail"


def test_a_value_that_is_wrong_in_float32_only() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = t.exp() if t.dtype == torch.float64 else t.exp() + 1e-3
        ctx.save_for_backward(t.exp())
        return out

    found = result(variant(Exp, "Value", forward=forward), x(4))
    assert found.verdict == "fail"
    assert "of forward is off by" in found.message


def test_squares_that_underflow_are_no_loss_of_precision() -> None:
    found = result(by_hand(lambda t: t.square().sum().sqrt()), x(3).abs() * 1e-30)
    assert found.verdict in ("pass", "skipped"), found.message


def test_what_cannot_be_compared_is_skipped_with_the_reason() -> None:
    def only_double(t: Tensor) -> Tensor:
        if t.dtype != torch.float64:
            raise TypeError("float64 only")
        return t * 2

    assert "does not run in float32" in result(by_hand(only_double), x(3)).message
    assert "random numbers" in result(by_hand(torch.nn.functional.dropout), x(9)).message
    assert result(RoundSTE, x(3) * 7, surrogate=lambda t: t).verdict == "pass"
