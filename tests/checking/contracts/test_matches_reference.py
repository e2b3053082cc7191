"""matches-reference: a wrong value that agrees with its own gradient is found; kinks and rounding are not accused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from gradwright.errors import OptionError, SampleError
from tests.subjects import ComplexSquare, Exp, Linear, NewStyleScale, RoundSTE, SinCos, variant, x


def result(target: Any, *inputs: Any, seed: int = 0, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="matches-reference", seed=seed, **options)["matches-reference"]


class Abs(Function):
    """At 0 it chooses another slope than PyTorch does."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.abs()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.where(ctx.saved_tensors[0] >= 0, g, -g)


def linear(t: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return torch.nn.functional.linear(t, w, b)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_right_ones_pass(seed: int, dtype: torch.dtype) -> None:
    for target, inputs, reference in (
        (Exp, (x(5),), torch.exp),
        (SinCos, (x(2, 3),), lambda t: (t.sin(), t.cos())),
        (Linear, (x(2, 30), x(4, 30), x(4)), linear),
        (NewStyleScale, (x(3), 2), lambda t, k=2: t * k),
        (Abs, (torch.tensor([-1.0, 0.0, 2.0]),), torch.abs),
        (lambda t: t.square().mean() - t.mean().square(), (x(40),), lambda t: t.var(unbiased=False)),
    ):
        converted = tuple(t.to(dtype) if isinstance(t, Tensor) else t for t in inputs)
        found = result(target, *converted, seed=seed, reference=reference)
        assert found.verdict == "pass", (target, found.message)


def test_complex_numbers_and_surrogates() -> None:
    assert result(ComplexSquare, torch.randn(3, dtype=torch.complex128), reference=lambda z: z * z).verdict == "pass"
    found = result(RoundSTE, x(3), reference=torch.round, surrogate=lambda t: t)
    assert found.verdict == "pass"
    assert "value agrees" in found.message


def test_without_a_reference_it_is_skipped() -> None:
    assert result(Exp, x(3)).verdict == "skipped"


def test_a_value_that_agrees_with_its_own_gradient() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return 2 * t.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * g * ctx.saved_tensors[0].exp()

    found = result(Wrong, x(3), reference=torch.exp)
    assert found.verdict == "fail"
    assert "the value of the output is not that of the declared reference in 3 of 3 elements" in found.message
    assert "off by the factor 2" in found.message
    assert found.findings[0].repro


def test_a_wrong_gradient() -> None:
    wrong = variant(Exp, "Twice", backward=lambda ctx, g: 2 * g * ctx.saved_tensors[0])
    found = result(wrong, x(3), reference=torch.exp)
    assert found.verdict == "fail"
    assert "the gradient of `x` is not that of the declared reference" in found.message
    assert found.findings[0].where is not None
    assert found.findings[0].where.input == "x"


def test_wrong_in_float32_only() -> None:
    wrong = variant(
        Exp,
        "Single",
        backward=lambda ctx, g: g * ctx.saved_tensors[0] * (1.001 if g.dtype == torch.float32 else 1.0),
    )
    assert "in float32" in result(wrong, x(3), reference=torch.exp).message


def test_a_sample_may_declare_it() -> None:
    from gradwright.checking.samples import declared_samples

    (sample,) = declared_samples({"args": (x(3),), "reference": torch.exp, "domain": (None, 5)}, "samples_Exp")
    assert sample.reference is torch.exp
    assert sample.domain == (None, 5)
    with pytest.raises(SampleError, match=r"`reference` is of type int"):
        declared_samples({"args": (x(3),), "reference": 3}, "samples_Exp")
    with pytest.raises(SampleError, match="expected a pair"):
        declared_samples({"args": (x(3),), "domain": 3}, "samples_Exp")


def test_a_bad_reference_is_an_error() -> None:
    with pytest.raises(SampleError, match="reference returns outputs of the shapes"):
        result(Exp, x(3), reference=lambda t: t.sum())
    with pytest.raises(OptionError, match="reference"):
        result(Exp, x(3), reference=3)
