"""deterministic: randomness and state of forward and of backward, told apart and named."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, Dropout, StochasticGradient, right
from tests.subjects import Exp, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="deterministic", seed=0)["deterministic"]


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    verdict = result(*right(name)).verdict
    assert verdict == "pass" or (verdict == "unresolved" and name == "spectral norm")


def test_random_forward_is_said() -> None:
    for target in (Dropout, torch.nn.functional.dropout):
        found = result(target, x(20))
        assert found.verdict == "pass"
        assert "forward draws random numbers and was seeded" in found.message
        assert "torch.manual_seed" in found.message


def test_random_backward_of_a_deterministic_forward_is_said() -> None:
    found = result(StochasticGradient, x(20))
    assert found.verdict == "pass"
    assert "backward draws random numbers" in found.message


def test_redrawn_mask() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t * (torch.rand_like(t) > 0.5)

    redraws = variant(Exp, "Redraws", forward=forward, backward=lambda ctx, g: g * (torch.rand_like(g) > 0.5))
    for inputs in (x(20), x(20).float()):
        found = result(redraws, inputs)
        assert found.verdict == "fail"
        assert "backward draws its own random numbers instead of using those of forward" in found.message
        assert "save_for_backward" in (found.findings[0].hint or "")
    assert result(lambda t: redraws.apply(t) * 2, x(20)).verdict == "fail"


def test_random_surrogate_is_not_called_a_redraw() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return torch.floor(t + torch.rand_like(t))

    rounds = variant(Exp, "Rounds", forward=forward, backward=lambda ctx, g: torch.floor(g * 64 + torch.rand_like(g)))
    assert result(rounds, x(20)).verdict == "unresolved"


def test_forward_that_counts() -> None:
    calls = [0]

    def forward(ctx: Any, t: Tensor) -> Tensor:
        calls[0] += 1
        return t * calls[0]

    found = result(variant(Exp, "Counts", forward=forward, backward=lambda ctx, g: g), x(3))
    assert found.verdict == "unresolved"
    assert "keeps state between calls" in found.message
    assert "`calls` of the enclosing function" in found.message


def test_forward_with_a_generator_of_its_own() -> None:
    generator = torch.Generator()

    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t * torch.rand(t.shape, generator=generator)

    found = result(variant(Exp, "Own", forward=forward, backward=lambda ctx, g: g), x(3))
    assert found.verdict == "unresolved"
    assert "it draws from `generator` of the enclosing function" in found.message


def test_backward_that_accumulates() -> None:
    total = torch.zeros(3, dtype=torch.float64)

    def backward(ctx: Any, g: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return total.add_(g * out).clone()

    found = result(variant(Exp, "Accumulates", backward=backward), x(3))
    assert found.verdict == "fail"
    assert "backward gives another gradient each time" in found.message
    assert "`total` of the enclosing function" in found.message


def test_noise_of_summation_is_allowed_and_reported() -> None:
    calls = [0]

    def backward(ctx: Any, g: Tensor) -> Tensor:
        calls[0] += 1
        (out,) = ctx.saved_tensors
        return g * out * (1 + 1e-15 * (calls[0] % 2))

    found = result(variant(Exp, "Noisy", backward=backward), x(3))
    assert found.verdict == "pass"
    assert "as the order of summation makes it" in found.message
    assert found.sensitivity is not None
