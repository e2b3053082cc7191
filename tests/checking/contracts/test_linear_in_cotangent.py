"""linear-in-cotangent: each way of not being linear is found and named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, Linear, RoundSTE, SinCos, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="linear-in-cotangent", seed=0)["linear-in-cotangent"]


def using(change: Any) -> Any:
    """An exponential whose backward sees a changed cotangent."""
    return variant(Exp, "Changed", backward=lambda ctx, g: change(g) * ctx.saved_tensors[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex128])
def test_right_ones_pass_in_every_dtype(dtype: torch.dtype) -> None:
    t = torch.randn(4, dtype=dtype)
    assert result(torch.sin, t).verdict == "pass"
    if not dtype.is_complex:
        assert result(Exp, t).verdict == "pass"


def test_right_ones_pass() -> None:
    assert result(RoundSTE, x(3)).verdict == "pass"
    assert result(Linear, x(2, 3), x(4, 3), x(4)).verdict == "pass"
    assert result(torch.sqrt, torch.tensor([0.0, 1.0], dtype=torch.float64)).verdict == "pass", (
        "0 times inf is no fault"
    )
    assert result(lambda t: t.logcumsumexp(0), x(50) * 30).verdict == "pass"
    assert result(lambda t: t.softmax(-1).sum(-1), x(3, 5)).verdict == "pass", "the true gradient is zero"
    saturated = torch.tensor([0.0, 28.0, 3.5], dtype=torch.float64)
    assert result(lambda t: t.softmax(0), saturated).verdict == "pass", "large terms cancel"
    zeros = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    assert result(torch.sqrt, zeros).verdict == "pass", "infinity minus infinity is no fault"
    assert result(lambda t: t.float().sin().double(), x(20)).verdict == "pass", "rounding of a float32 forward"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (torch.ones_like, "the factor grad_output is missing"),
        (lambda g: g + 1, "a term is added that does not contain grad_output"),
        (torch.abs, "the same for v and -v"),
        (lambda g: g * g, "the same for v and -v"),
        (torch.relu, "positive and negative grad_output differently"),
        (lambda g: (g != 0).to(g.dtype), "mask of zeros and ones"),
        (torch.sign, "only on its sign or direction"),
        (lambda g: g / (g.norm() + 1e-300), "only on its sign or direction"),
        (lambda g: g.clamp(-2, 2), "limits large incoming gradients"),
        (lambda g: torch.where(g.abs() < 1e-4, 0.0, g), "loses small incoming gradients"),
        (lambda g: g.float().double(), "rounded to float32"),
        (lambda g: g.bfloat16().double(), "rounded to bfloat16"),
        (torch.round, "rounded to whole numbers"),
        (lambda g: g.to(torch.int64).to(g.dtype), "rounded to whole numbers"),
        (lambda g: g * (0.0 / g), "NaN for a zero incoming gradient"),
    ],
)
def test_broken_ones_are_named(change: Any, words: str) -> None:
    found = result(using(change), x(5))
    assert found.verdict == "fail"
    (finding,) = found.findings
    assert words in finding.message
    assert finding.hint
    assert finding.where is not None
    assert finding.where.input == "x"


def test_product_of_two_incoming_gradients() -> None:
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return a * t.cos() - b * t.sin() + a * a * b / (a * a + b * b + 1e-300)

    found = result(variant(SinCos, "Mixed", backward=backward), x(5))
    assert found.verdict == "fail"
    assert "for different outputs" in found.message


def test_product_of_two_elements() -> None:
    found = result(using(lambda g: g + g * g.flip(0) ** 2 / (g**2 + g.flip(0) ** 2 + 1e-300)), x(4))
    assert found.verdict == "fail"
    assert "non-linearly" in found.message


def test_one_output_overwrites_the_other() -> None:
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return -b * t.sin() if bool(b.any()) else a * t.cos()

    found = result(variant(SinCos, "Overwrites", backward=backward), x(5))
    assert found.verdict == "fail"
    assert "overwrites" in (found.findings[0].hint or "")


@pytest.mark.parametrize(
    "function",
    [
        lambda t: torch.nn.functional.layer_norm(t, (2,)),
        torch.corrcoef,
        lambda t: torch.nn.functional.softmax(t * 200, -1),
    ],
)
def test_what_cancels_is_judged_by_its_own_rounding(function: Any) -> None:
    for seed in range(5):
        found = result(function, 3 * x(3, 2, seed=seed))
        assert found.verdict == "pass", found.message


def test_rounding_of_what_cancels_hides_no_cast() -> None:
    def normalised(t: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(t, (2,))

    class Cast(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return normalised(t)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            with torch.enable_grad():
                t = t.detach().requires_grad_()
                return torch.autograd.grad(normalised(t), t, g.float().double())[0]

    assert result(Cast, x(3, 2)).verdict == "fail"


def test_one_deviating_element_is_enough() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        grad = g * ctx.saved_tensors[0]
        grad[1] = grad[1].abs()
        return grad

    finding = result(variant(Exp, "One", backward=backward), x(5)).findings[0]
    assert finding.where is not None
    assert finding.where.index == (1,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.clamp(-65504, 65504), "limits large incoming gradients: B(2^40 v) is not 2^40 B(v)"),
        (lambda g: g.clamp(-1e4, 1e4), "limits large incoming gradients"),
        (lambda g: g.clamp(min=-1e9), "limits large incoming gradients"),
        (lambda g: g.clamp(max=1e9), "limits large incoming gradients"),
        (lambda g: torch.where(g.abs() < 1e-8, 0.0, g), "loses small incoming gradients: B(2^-40 v)"),
        (lambda g: torch.where(g.abs() < 1e-10, 1e-10 * g.sign(), g), "loses small incoming gradients"),
    ],
)
@pytest.mark.parametrize("size", [1, 5])
def test_distant_limits_and_thresholds(change: Any, words: str, size: int) -> None:
    for seed in range(3):
        found = gw.check(using(change), x(size), only="linear-in-cotangent", seed=seed)["linear-in-cotangent"]
        assert found.verdict == "fail"
        assert words in found.message


def test_distant_limits_in_float32() -> None:
    assert result(using(lambda g: g.clamp(-65504, 65504)), x(4).float()).verdict == "fail"
    assert result(using(lambda g: torch.where(g.abs() < 1e-8, 0.0, g)), x(4).float()).verdict == "fail"


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_rounding_of_a_single_element_is_found_with_every_seed(name: str) -> None:
    narrow = using(lambda g: g.to(getattr(torch, name)).to(g.dtype))
    for seed in range(40):
        found = gw.check(narrow, x(1), only="linear-in-cotangent", seed=seed)["linear-in-cotangent"]
        assert f"rounded to {name}" in found.message, seed


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_rounding_is_named_where_rounded_terms_add_up(name: str) -> None:
    dtype = getattr(torch, name)

    def backward(ctx: Any, g: Tensor) -> Any:
        t, w = ctx.saved_tensors[:2]
        g, t, w = (a.to(dtype) for a in (g, t, w))
        return (g @ w).double(), (g.mT @ t).double(), g.double().sum(0)

    found = result(variant(Linear, "Narrow", backward=backward), x(3, 4), x(5, 4), x(5))
    assert f"rounded to {name}" in found.message


def test_what_overflows_or_underflows_far_out_is_not_accused() -> None:
    def through(factor: float) -> Any:
        return using(lambda g: g * factor / factor)

    for dtype, large in ((torch.float64, 1e300), (torch.float32, 1e33)):
        assert result(through(large), x(3).to(dtype)).verdict == "pass"
    assert result(lambda t: 1e-300 * t.sin(), x(3)).verdict == "pass", "the gradient becomes subnormal"
    assert result(lambda t: 1e-32 * t.sin(), x(3).float()).verdict == "pass"
    steep = torch.tensor([6.0, 2.0], dtype=torch.float16)
    assert result(torch.exp, steep).verdict == "pass", "1024 times the gradient is beyond float16"
    assert result(torch.matrix_exp, x(4, 4)).verdict == "pass", "its backward loses digits of large cotangents"
    replaced = using(lambda g: g.nan_to_num(0.0))
    assert result(replaced, x(3)).verdict == "pass"
