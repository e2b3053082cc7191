"""Binary cross-entropy of logits: what is special about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError

X = torch.linspace(-5, 5, 12, dtype=torch.float64).reshape(3, 4)
T = torch.linspace(0, 1, 12, dtype=torch.float64).reshape(3, 4)
WEIGHT = torch.tensor([[0.5], [2.0], [0.0]], dtype=torch.float64)
POSITIVE = torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weights", [{}, {"weight": WEIGHT}, {"pos_weight": POSITIVE}])
def test_it_is_the_function_of_pytorch(reduction: Any, weights: dict[str, Any]) -> None:
    ours = gw.stable.bce_with_logits(X, T, reduction=reduction, **weights)
    theirs = functional.binary_cross_entropy_with_logits(X, T, reduction=reduction, **weights)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("weights", [{}, {"weight": WEIGHT, "pos_weight": POSITIVE}])
def test_both_arguments_may_learn(weights: dict[str, Any]) -> None:
    leaves = (X.clone().requires_grad_(), T.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda x, t: gw.stable.bce_with_logits(x, t, **weights), leaves)
    assert torch.autograd.gradgradcheck(lambda x, t: gw.stable.bce_with_logits(x, t, **weights), leaves)


def test_what_is_classified_rightly_still_has_a_gradient() -> None:
    x = torch.tensor([40.0, -40.0], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1.0, 0.0], dtype=torch.float64)
    loss = gw.stable.bce_with_logits(x, target, reduction="none")
    (slope,) = torch.autograd.grad(loss.sum(), x)
    tail = torch.exp(torch.tensor([-40.0, -40.0], dtype=torch.float64))
    torch.testing.assert_close(loss.detach(), tail, rtol=1e-15, atol=0)
    torch.testing.assert_close(slope, tail * torch.tensor([-1, 1]), rtol=1e-15, atol=0)


def test_the_mean_of_half_types_is_taken_in_float32() -> None:
    x = torch.full((4096,), 8.0, dtype=torch.float16)
    assert gw.stable.bce_with_logits(x, torch.zeros_like(x)) == 8
    assert gw.stable.bce_with_logits(x, torch.zeros_like(x)).dtype == torch.float16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": T[0]}, r"target has shape \(4,\); expected that of input, \(3, 4\); reshape it."),
        ({"weight": T[0, :3]}, r"weight has shape \(3,\); expected one that is broadcast to that of input, \(3, 4\)"),
        ({"pos_weight": T[None]}, r"pos_weight has shape \(1, 3, 4\); expected one that is broadcast"),
        ({"target": T.long()}, "target is torch.int64; expected a floating-point tensor"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^bce_with_logits: {message}"):
        gw.stable.bce_with_logits(**{"input": X, "target": T, **arguments})


def test_another_reduction_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^bce_with_logits: reduction: got 'avg'; expected one of mean, sum, none"):
        gw.stable.bce_with_logits(X, T, reduction="avg")  # type: ignore[arg-type]
