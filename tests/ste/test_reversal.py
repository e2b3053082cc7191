"""Gradient reversal: the values stay, the gradient turns round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError

X = torch.linspace(-3.0, 3.0, 7, dtype=torch.float64)


def test_reversal() -> None:
    reverse = gw.ste.GradientReversal(0.25)
    x = X.clone().requires_grad_()
    assert torch.equal(reverse(x), x)
    for strength in (0.25, 0.0, 2.0):
        reverse.strength = strength
        (grad,) = torch.autograd.grad(reverse(x).square().sum(), x)
        assert torch.equal(grad, -strength * 2 * x)
    assert reverse.strength == 2.0
    assert not reverse.state_dict()
    assert repr(reverse) == "GradientReversal(strength=2)"
    assert gw.check(reverse, X, level="quick")["matches-surrogate"].verdict == "pass"
    with pytest.raises(OptionError, match=r"strength is -1.0; expected at least 0; the sign is added here"):
        reverse.strength = -1.0


def test_what_was_recorded_keeps_its_strength() -> None:
    reverse = gw.ste.GradientReversal(0.5)
    x = X.clone().requires_grad_()
    out = reverse(x)
    reverse.strength = 2.0
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [-0.5] * 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_stay(dtype: torch.dtype) -> None:
    x = X.to(dtype).requires_grad_()
    out = gw.ste.GradientReversal(0.5)(x)
    assert out.dtype == dtype
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [-0.5] * 7


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_a_schedule_does_not_compile_anew() -> None:
    torch.compiler.reset()
    reverse = gw.ste.GradientReversal()
    fast: Any = torch.compile(reverse, fullgraph=True)
    x = X.clone().requires_grad_()
    with torch.compiler.set_stance("default"):
        fast(x).sum().backward()
    with torch.compiler.set_stance("fail_on_recompile"):
        for strength in (0.1, 0.7):
            reverse.strength = strength
            (grad,) = torch.autograd.grad(fast(x).sum(), x)
            torch.testing.assert_close(grad, torch.full_like(x, -strength), rtol=1e-6, atol=0)


def test_the_strength_survives_what_moves_a_module() -> None:
    with torch.device("meta"):
        reverse = gw.ste.GradientReversal(0.3)
    assert repr(reverse) == "GradientReversal(strength=0.3)"
    reverse.to_empty(device="cpu")
    assert torch.autograd.grad(reverse(x := X.clone().requires_grad_()).sum(), x)[0].tolist() == pytest.approx(
        [-0.3] * 7
    )
    reverse.half().double()
    assert reverse.strength == 0.3
    assert torch.autograd.grad(reverse(x).sum(), x)[0].tolist() == [-0.3] * 7


def test_a_strength_set_in_inference_mode() -> None:
    with torch.inference_mode():
        reverse = gw.ste.GradientReversal(0.25)
        reverse.strength = 0.5
    x = X.clone().requires_grad_()
    assert torch.autograd.grad(reverse(x).sum(), x)[0].tolist() == [-0.5] * 7
