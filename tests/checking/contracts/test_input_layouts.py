"""input-layouts: reading inputs without their strides is found, in forward and in backward; refusing is allowed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.checking.contracts.test_cotangent_layouts import flat_memory
from tests.subjects import ComplexSquare, Exp, Gather, InPlaceDouble, Linear, NumpySquare, RoundSTE, SinCos, variant, x


def result(target: Any, *inputs: Any, seed: int = 0, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="input-layouts", seed=seed, **options)["input-layouts"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_right_ones_pass(seed: int) -> None:
    hilbert = 1 / (torch.arange(6)[:, None] + torch.arange(6) + 1.0).double()
    for target, inputs in (
        (Exp, (x(2, 3),)),
        (Exp, (x(2, 3, 2, 4),)),
        (Exp, (torch.tensor(0.3, dtype=torch.float64),)),
        (SinCos, (x(2, 3),)),
        (RoundSTE, (x(4),)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (Gather, (x(4), torch.tensor([0, 2, 2]))),
        (InPlaceDouble, (x(2, 3),)),
        (ComplexSquare, (torch.randn(2, 3, dtype=torch.complex128),)),
        (torch.nn.Conv2d(2, 3, 2), (torch.randn(1, 2, 4, 4),)),
        (torch.nn.Linear(3, 2), (torch.randn(4, 3),)),
        (torch.linalg.inv, (hilbert,)),
        (torch.linalg.cholesky, (hilbert,)),
        (lambda t: t.softmax(0), (torch.randn(3, 4, dtype=torch.bfloat16),)),
        (lambda t: t.max(0).values, (torch.ones(3, 4, dtype=torch.float64),)),
        (lambda t: (t @ t.mT).round(), (x(3, 4),)),
    ):
        found = result(target, *inputs, seed=seed)
        assert found.verdict == "pass", (target, found.message)


def test_random_numbers_may_follow_the_memory() -> None:
    assert result(lambda t: torch.nn.functional.dropout(t, 0.5), x(3, 4)).verdict == "skipped"


def test_numpy_passes() -> None:
    assert result(NumpySquare, x(2, 3)).verdict == "pass"


def test_a_forward_that_refuses_is_unsupported() -> None:
    def strict(t: Tensor) -> Tensor:
        if not t.is_contiguous():
            raise ValueError("t must be contiguous")
        return t * 2

    found = result(strict, x(2, 3))
    assert found.verdict == "unsupported"
    assert "t must be contiguous" in found.message
    assert result(strict, x(2, 3), require="input-layouts").verdict == "fail"


def test_a_forward_that_reads_flat_memory() -> None:
    class Kernel(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return flat_memory(t).sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.saved_tensors[0].cos()

    found = result(Kernel, x(2, 3))
    assert found.verdict == "fail"
    assert "forward gives other values when an input is transposed" in found.message
    given = result(Kernel, x(3, 2).t())
    assert "laid out as given" in given.message


def test_a_backward_that_reads_flat_memory() -> None:
    class Saved(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * flat_memory(ctx.saved_tensors[0]).cos()

    found = result(Saved, x(2, 3))
    assert found.verdict == "fail"
    assert "although forward gives the same values" in found.message
    assert found.findings[0].where is not None
    assert found.findings[0].where.input == "t"


def test_a_backward_that_raises() -> None:
    views = variant(SinCos, "Views", backward=lambda ctx, a, b: a * ctx.saved_tensors[0].view(-1).view(a.shape).cos())
    found = result(views, x(2, 3))
    assert found.verdict == "fail"
    assert "backward raises when an input is transposed, although forward runs" in found.message


def test_an_index_may_be_strided_too() -> None:
    class Wrong(Gather):
        @staticmethod
        def forward(ctx: Any, t: Tensor, index: Tensor) -> Tensor:
            ctx.save_for_backward(index)
            ctx.n = len(t)
            return t[flat_memory(index)]

    assert result(Wrong, x(4), torch.tensor([0, 3, 2])).verdict == "fail"


def test_lazy_bits() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return g * 2 * (z if z.is_conj() else z.conj())

    found = result(variant(ComplexSquare, "Forgets", backward=backward), torch.randn(3, dtype=torch.complex128))
    assert found.verdict == "fail"
    assert "lazily conjugated" in found.message


def test_constant_rows_may_be_singular() -> None:
    assert result(lambda t: torch.linalg.eigvals(t).abs(), x(4, 4)).verdict == "pass"


def test_pytorch_itself_is_suspected_only() -> None:
    assert result(lambda t: t.as_strided((2, 2), (1, 2)), x(10)).verdict == "suspect"
