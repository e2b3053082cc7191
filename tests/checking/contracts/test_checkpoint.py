"""checkpoint: gradients with a recomputed forward are those without."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import ComplexSquare, Exp, Gather, InPlaceDouble, Linear, NewStyleScale, SinCos, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="checkpoint", seed=0)["checkpoint"]


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Exp, (x(3),)),
        (SinCos, (x(3),)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (NewStyleScale, (x(3),)),
        (Gather, (x(4), torch.tensor([0, 2, 2]))),
        (InPlaceDouble, (x(3),)),
        (ComplexSquare, (torch.randn(3, dtype=torch.complex128),)),
        (torch.nn.Dropout(0.5), (x(50),)),
        (torch.nn.BatchNorm1d(3), (torch.randn(4, 3),)),
        (lambda pair: pair[0] * pair[1], ((x(3), x(3, seed=1)),)),
        (torch.sin, (x(3).to(torch.float16),)),
    ],
)
def test_right_ones_pass(target: Any, inputs: tuple[Any, ...]) -> None:
    found = result(target, *inputs)
    assert found.verdict == "pass", found.message
    assert len(found.support) == 2


def test_random_numbers_that_checkpoint_does_not_restore() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.factor = random.random()
        return t * ctx.factor

    found = result(variant(Exp, "Python", forward=forward, backward=lambda ctx, g: g * ctx.factor), x(3))
    assert found.verdict == "fail"
    assert "random numbers that are others" in found.message
    assert "torch's generators" in (found.findings[0].hint or "")


def test_a_backward_that_draws_random_numbers() -> None:
    """It draws the same ones with a checkpoint, whether or not forward, or the surrogate, draws too."""

    def forward(ctx: Any, t: Tensor) -> Tensor:
        noise = torch.rand_like(t)
        ctx.save_for_backward(noise)
        return t * noise

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0] * torch.rand_like(g)

    def quiet_forward(ctx: Any, t: Tensor) -> Tensor:
        return (t > 0).to(t.dtype)

    def quiet_backward(ctx: Any, g: Tensor) -> Tensor:
        return g * torch.rand_like(g)

    def surrogate(t: Tensor) -> Tensor:
        return t * torch.rand_like(t)

    both = variant(Exp, "Both", forward=forward, backward=backward)
    backward_only = variant(Exp, "BackwardOnly", forward=quiet_forward, backward=quiet_backward)
    assert result(both, x(3)).verdict == "pass"
    assert result(backward_only, x(3)).verdict == "pass"
    only = ("matches-surrogate", "checkpoint")
    assert gw.check(backward_only, x(3), surrogate=surrogate, only=only, seed=0)["checkpoint"].verdict == "pass"


def test_another_number_of_saved_tensors_is_refused() -> None:
    calls: list[int] = []

    def forward(ctx: Any, t: Tensor) -> Tensor:
        calls.append(1)
        out = t.exp()
        ctx.save_for_backward(out, *([out * 1] * (len(calls) % 2)))
        return out

    stateful = variant(Exp, "Stateful", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    found = result(stateful, x(3))
    assert found.verdict == "unsupported"
    assert "saves something else when it runs again" in found.message
