"""matches-surrogate: a declared surrogate is proved, at its edges too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from gradwright.errors import SampleError
from tests.subjects import RoundSTE, SinCos, variant, x


def result(target: Any, *inputs: Any, surrogate: Any = None) -> ContractResult:
    name = "matches-surrogate"
    return gw.check(target, *inputs, surrogate=surrogate, only=name, seed=0)[name]


class ClippedRound(Function):
    """Rounds; the gradient passes inside the bounds, which belong to the inside."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(t)
        ctx.bound = bound
        return t.round().clamp(-bound, bound)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return g * (t.abs() <= ctx.bound), None


def clamp(t: Tensor, bound: float) -> Tensor:
    return torch.where(t.abs() <= bound, t, t.detach().clamp(-bound, bound))


EDGES = torch.tensor([-2.0, -1.0, -0.3, 0.0, 1.0, 1.5], dtype=torch.float64)


def test_declared_ones_pass() -> None:
    assert result(RoundSTE, x(5), surrogate=lambda t: t).verdict == "pass"
    assert result(ClippedRound, EDGES, 1.0, surrogate=clamp).verdict == "pass"
    assert result(SinCos, x(3), surrogate=lambda t: (t.sin(), t.cos())).verdict == "pass"


def test_not_declared_is_skipped() -> None:
    assert result(RoundSTE, x(3)).verdict == "skipped"


def test_edge_rule_is_told_from_its_neighbour() -> None:
    strict = variant(
        ClippedRound, "Strict", backward=lambda ctx, g: (g * (ctx.saved_tensors[0].abs() < ctx.bound), None)
    )
    found = result(strict, EDGES, 1.0, surrogate=clamp)
    assert found.verdict == "fail"
    finding = found.findings[0]
    assert finding.where is not None
    assert finding.where.input == "t"
    assert finding.where.index in ((1,), (4,))
    assert finding.analytic == 0.0


def test_factor_is_named() -> None:
    twice = variant(RoundSTE, "Twice", backward=lambda ctx, g: 2 * g)
    assert "off by the factor 2" in result(twice, x(3), surrogate=lambda t: t).message


def test_inverted_mask() -> None:
    inverted = variant(
        ClippedRound, "Inverted", backward=lambda ctx, g: (g * (ctx.saved_tensors[0].abs() > ctx.bound), None)
    )
    assert result(inverted, EDGES, 1.0, surrogate=clamp).verdict == "fail"


def test_float32_has_the_allowance_of_float32() -> None:
    tanh = variant(RoundSTE, "T", backward=lambda ctx, g: g)
    assert result(tanh, torch.randn(5), surrogate=lambda t: t).verdict == "pass"


def test_surrogate_of_a_constant_has_gradient_zero() -> None:
    blocked = variant(RoundSTE, "Blocked", backward=lambda ctx, g: g * 0)
    assert result(blocked, x(3), surrogate=lambda t: torch.zeros_like(t)).verdict == "pass"


@pytest.mark.parametrize("surrogate", [lambda t: t[:1], lambda: None])
def test_bad_surrogate_is_an_error(surrogate: Any) -> None:
    with pytest.raises(SampleError, match="surrogate"):
        result(RoundSTE, x(3), surrogate=surrogate)
