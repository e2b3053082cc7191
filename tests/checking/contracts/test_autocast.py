"""autocast: as float32, up to bfloat16 where something was lowered, and up to float32 where nothing was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import ComplexSquare, Exp, Gather, Linear, NumpySquare, RoundSTE, SinCos, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="autocast", seed=0)["autocast"]


class SinSaved(Exp):
    """Saves in half precision under autocast; the value does not show it."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t.half() if torch.is_autocast_enabled("cpu") else t)
        return t.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0].to(g.dtype).cos()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_in_half_under_autocast_only(dtype: torch.dtype) -> None:
    found = result(SinSaved, x(5).to(dtype))
    assert found.verdict == "fail"
    assert "although forward gives the same value" in found.message
    assert ".half()" in (found.findings[0].hint or "")


def test_wrong_under_autocast_beyond_any_rounding() -> None:
    def backward(ctx: Any, g: Tensor) -> Any:
        lowered, w = ctx.saved_tensors
        return g @ w * (1.5 if ctx.low else 1.0), g.t() @ lowered, None

    def forward(ctx: Any, t: Tensor, w: Tensor, b: Any = None) -> Tensor:
        ctx.low = torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(t, w)
        return (t @ w.t()).to(t.dtype)

    found = result(variant(Linear, "Wrong", forward=forward, backward=backward), x(2, 3), x(4, 3))
    assert found.verdict == "fail"
    assert "where float32 gives" in found.message


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Exp, (x(3),)),
        (SinCos, (x(3).float(),)),
        (RoundSTE, (x(3).float(),)),
        (NumpySquare, (x(3),)),
        (Gather, (x(4), torch.tensor([0, 2, 2]))),
        (torch.nn.functional.linear, (x(8, 64), x(16, 64), x(16))),
        (torch.nn.Linear(64, 8), (torch.randn(4, 64),)),
        (torch.nn.Conv1d(2, 3, 3), (torch.randn(2, 2, 16),)),
        (torch.nn.Dropout(0.5), (x(50),)),
        (lambda a, b: torch.softmax(a @ b, -1), (x(6, 6), x(6, 6, seed=1))),
        (lambda a: torch.corrcoef(a), (x(2, 1).expand(2, 4) * x(4),)),
        (ComplexSquare, (torch.randn(3, dtype=torch.complex64),)),
    ],
)
def test_right_ones_pass(target: Any, inputs: tuple[Any, ...]) -> None:
    found = result(target, *inputs)
    assert found.verdict == "pass", found.message


def test_a_dtype_that_backward_did_not_expect_is_refused() -> None:
    def forward(ctx: Any, t: Tensor, w: Tensor, b: Any = None) -> Tensor:
        ctx.save_for_backward(t, w)
        return t @ w.t()

    found = result(variant(Linear, "Plain", forward=forward, backward=lambda ctx, g: (
        g @ ctx.saved_tensors[1], g.t() @ ctx.saved_tensors[0], None
    )), x(2, 3), x(4, 3))  # fmt: skip
    assert found.verdict == "unsupported"
    assert "custom_fwd" in found.message
