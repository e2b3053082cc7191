"""second-order: silently wrong or missing second derivatives fail, loud refusals are unsupported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import ComplexSquare, Exp, Linear, NumpySquare, RoundSTE, Scale, SinCos, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="second-order", seed=0)["second-order"]


class XExp(Function):
    """``x exp(x)``; the first derivative is right, the second depends on what was saved."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t * t.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return g * t.exp() * (1 + t)


def save_intermediate(ctx: Any, t: Tensor) -> Tensor:
    e = t.exp()
    ctx.save_for_backward(t, e)
    return t * e


def from_intermediate(ctx: Any, g: Tensor) -> Tensor:
    t, e = ctx.saved_tensors
    return g * e * (1 + t)


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Exp, (x(3),)),
        (XExp, (x(3, 4),)),
        (SinCos, (x(3),)),
        (Scale, (x(3), 2)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (ComplexSquare, (torch.randn(3, dtype=torch.complex128),)),
        (RoundSTE, (x(3),)),
        (torch.relu, (torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64),)),
        (torch.round, (x(4),)),
        (torch.sin, (torch.randn(4),)),
        (torch.exp, (x(3000),)),
        (lambda t: t * 1e200, (x(3),)),
    ],
)
def test_right_ones_pass(target: Any, inputs: tuple[Any, ...]) -> None:
    found = result(target, *inputs)
    assert found.verdict == "pass", found.message


@pytest.mark.parametrize("n", [3, 2000])
def test_saved_intermediate_is_silently_wrong(n: int) -> None:
    wrong = variant(XExp, "Saved", forward=save_intermediate, backward=from_intermediate)
    found = result(wrong, x(n))
    assert found.verdict == "fail"
    assert "silently wrong" in found.message
    assert "recompute it in backward" in (found.findings[0].hint or "")
    assert found.findings[0].where is not None
    assert found.findings[0].where.input is not None


def test_detached_saved_tensor_is_silently_missing() -> None:
    wrong = variant(XExp, "Detached", backward=lambda ctx, g: XExp.backward(Fake(ctx.saved_tensors[0].detach()), g))
    found = result(wrong, x(3))
    assert found.verdict == "fail"
    assert "silently missing" in found.message


class Fake:
    def __init__(self, tensor: Tensor) -> None:
        self.saved_tensors = (tensor,)


def test_cut_by_numpy_is_silently_missing_in_both() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return torch.from_numpy(g.detach().numpy() * 2 * t.detach().numpy())

    found = result(variant(NumpySquare, "Cut", backward=backward), x(3))
    assert found.verdict == "fail"
    assert len(found.findings) == 2
    assert "no path from the gradient to grad_output" in found.findings[1].message


def test_lost_cotangent_alone() -> None:
    found = result(variant(XExp, "Lost", backward=lambda ctx, g: XExp.backward(ctx, g.detach())), x(3))
    assert [f.where.input for f in found.findings if f.where] == [None]


def test_loud_refusals_are_unsupported() -> None:
    found = result(NumpySquare, x(3))
    assert found.verdict == "unsupported"
    assert "once_differentiable" in found.message

    def raising(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(g.numpy() * 2)

    assert result(variant(NumpySquare, "Raises", backward=raising), x(3)).verdict == "unsupported"


def test_once_differentiable_is_recognised_although_grad_walks_past_its_node() -> None:
    wrapped = variant(XExp, "Once", backward=once_differentiable(XExp.backward))
    assert result(wrapped, x(3)).verdict == "unsupported"


def test_nan_second_derivative_is_named() -> None:
    class RootSquare(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t * t

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            return g * 2 * t.sign() * (t * t).sqrt()

    found = result(RootSquare, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert found.verdict in ("fail", "unresolved")
    assert result(RootSquare, x(3)).verdict == "pass"


def test_infinite_second_derivative_is_not_accused() -> None:
    assert result(lambda t: t**1.5, torch.tensor([0.0, 1.0], dtype=torch.float64)).verdict != "fail"


def test_once_more_wrong_factor() -> None:
    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            return CubeGrad.apply(g, t)

    class CubeGrad(Function):
        @staticmethod
        def forward(ctx: Any, g: Tensor, t: Tensor) -> Tensor:
            ctx.save_for_backward(g, t)
            return 3 * g * t * t

        @staticmethod
        def backward(ctx: Any, gg: Tensor) -> Any:
            g, t = ctx.saved_tensors
            return gg * 3 * t * t, -gg * 6 * g * t

    finding = result(Cube, x(3)).findings[0]
    assert finding.analytic is not None
    assert finding.numeric is not None
    assert finding.analytic == pytest.approx(-finding.numeric, rel=1e-6)
