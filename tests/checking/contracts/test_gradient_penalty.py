"""gradient-penalty: a lost second derivative fails, unless its author declared first order only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.checking.contracts.test_second_order import XExp, save_intermediate
from tests.subjects import ComplexSquare, Exp, Linear, NumpySquare, RoundSTE, Scale, SinCos, variant, x


def result(target: Any, *inputs: Any, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="gradient-penalty", seed=0, **options)["gradient-penalty"]


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Exp, (x(3),)),
        (SinCos, (x(3),)),
        (Scale, (x(3), 2)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (ComplexSquare, (torch.randn(3, dtype=torch.complex128),)),
        (RoundSTE, (x(3),)),
        (torch.round, (x(3),)),
        (torch.sin, (torch.randn(4),)),
        (torch.exp, (x(3000),)),
        (torch.sin, (torch.tensor(0.5, dtype=torch.float64),)),
        (torch.sin, (x(0),)),
        (torch.nn.Dropout(0.5), (x(5),)),
        (lambda t: t * 1e200, (x(3),)),
    ],
)
def test_right_ones_pass(target: Any, inputs: tuple[Any, ...]) -> None:
    found = result(target, *inputs)
    assert found.verdict == "pass", found.message


def test_a_declared_surrogate_is_not_judged_as_a_derivative() -> None:
    found = result(RoundSTE, x(3), surrogate=lambda t: t)
    assert found.verdict == "pass"
    assert "Hessian" not in found.message


def test_first_order_only_is_unsupported_and_says_what_pytorch_does() -> None:
    once = variant(XExp, "Once", backward=once_differentiable(XExp.backward))
    for target in (once, NumpySquare, lambda t: once.apply(t) + t**4):
        found = result(target, x(3))
        assert found.verdict == "unsupported"
        assert "silently drops the term" in found.message
        assert "pytorch/pytorch#76185" in found.message


def test_first_order_only_of_a_linear_function_loses_nothing() -> None:
    once = variant(Scale, "OnceScale", backward=once_differentiable(Scale.backward))
    assert result(once, x(3), 2).verdict in ("pass", "unsupported")


def cut(ctx: Any, g: Tensor) -> Tensor:
    (t,) = ctx.saved_tensors
    return torch.from_numpy(g.detach().numpy() * 2 * t.detach().numpy())


def test_an_undeclared_cut_fails() -> None:
    found = result(variant(NumpySquare, "Cut", backward=cut), x(3))
    assert found.verdict == "fail"
    assert "a gradient penalty with respect to `x` is silently missing" in found.message
    assert found.findings[0].repro is not None
    assert "grad.square()" in found.findings[0].repro


def test_a_partial_one_fails() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        t, e = ctx.saved_tensors
        return g * e * (1 + t)

    found = result(variant(XExp, "Partial", forward=save_intermediate, backward=backward), x(3))
    assert found.verdict == "fail"
    assert "silently incomplete" in found.message


def test_it_is_found_although_only_a_constant_cotangent_loses_the_graph() -> None:
    """second-order makes the incoming gradient require grad, so it cannot see this one."""

    def backward(ctx: Any, g: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return g * t.exp() * (1 + t) if g.requires_grad else g * t.detach().exp() * (1 + t.detach())

    hidden = variant(XExp, "Hidden", backward=backward)
    report = gw.check(hidden, x(3), only=("second-order", "gradient-penalty"), seed=0)
    assert report["second-order"].verdict == "pass"
    assert report["gradient-penalty"].verdict == "fail"


def test_one_fault_is_counted_once() -> None:
    report = gw.check(
        variant(NumpySquare, "Cut", backward=cut), x(3), only=("second-order", "gradient-penalty"), seed=0
    )
    assert [r.id for r in report.failed] == ["second-order"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_another_direction_is_tried_where_one_does_not_tell(seed: int) -> None:
    edge = torch.tensor([1 - 1e-9, -1 + 1e-9, 0.0], dtype=torch.float64)
    found = gw.check(torch.asin, edge, only="gradient-penalty", seed=seed)["gradient-penalty"]
    assert found.verdict == "pass", found.message
