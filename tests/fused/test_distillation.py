"""Divergences from a teacher at the edges, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from tests.fused.heads import gradients, layer


@pytest.mark.parametrize("kind", ["kl", "reverse-kl", "js", "tv"])
def test_classes_that_both_exclude_take_no_part(kind: Any) -> None:
    x, w, _ = layer()
    bias = torch.zeros(9, dtype=torch.float64)
    bias[7:] = -torch.inf
    teacher = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    teacher[:, 7:] = -torch.inf
    ours = gw.fused.linear_distillation(x, w, teacher, linear_bias=bias, divergence=kind)
    short = gw.fused.linear_distillation(x, w[:7], teacher[:, :7], divergence=kind)
    torch.testing.assert_close(ours, short)
    for got, want in zip(gradients(ours, x, w), gradients(short, x, w)):
        torch.testing.assert_close(got, want)


def test_a_student_that_is_the_teacher() -> None:
    x, w, _ = layer()
    for kind in ("kl", "reverse-kl", "js", "tv"):
        loss = gw.fused.linear_distillation(x, w, x.detach(), w.detach(), divergence=kind)  # type: ignore[arg-type]
        assert abs(loss.item()) < 1e-15
        assert all(grad.abs().max() < 1e-15 for grad in gradients(loss, x, w))


X, W, T = torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, dtype=torch.int64)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "divergence": (
        lambda: gw.fused.linear_distillation(X, W, X @ W.t(), divergence="KL"),  # type: ignore[arg-type]
        OptionError,
        "expected one of kl, reverse-kl, js, tv",
    ),
    "beta": (lambda: gw.fused.linear_distillation(X, W, X @ W.t(), beta=1.0), OptionError, "between 0 and 1"),
    "teacher": (lambda: gw.fused.linear_distillation(X, W, X), ArgumentError, r"expected \(2, 5\) for logits"),
    "learned teacher": (
        lambda: gw.fused.linear_distillation(X, W, torch.zeros(2, 5, requires_grad=True)),
        ArgumentError,
        "teacher requires grad",
    ),
    "another vocabulary": (
        lambda: gw.fused.linear_distillation(X, W, X, torch.zeros(4, 3)),
        ArgumentError,
        "teacher_weight has 4 classes and linear_weight 5",
    ),
    "a bias alone": (
        lambda: gw.fused.linear_distillation(X, W, X @ W.t(), teacher_bias=torch.zeros(5)),
        ArgumentError,
        "without teacher_weight",
    ),
    "mask": (
        lambda: gw.fused.linear_distillation(X, W, X @ W.t(), mask=torch.ones(2)),
        ArgumentError,
        "expected a boolean tensor",
    ),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input_is_refused_with_what_to_do(name: str) -> None:
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        call()
