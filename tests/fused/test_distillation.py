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


@pytest.mark.parametrize("kind", ["kl", "reverse-kl", "js", "tv"])
def test_autocast_rounds_the_layer_and_nothing_else(kind: Any) -> None:
    """It casts products of float32 matrices; the sums over classes are none of these."""
    x, w, _ = layer(16, 8, 24, torch.float32)
    teacher = torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    options: dict[str, Any] = {"divergence": kind, "dtype": torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        ours = gw.fused.linear_distillation(x, w, teacher, **options)
    inputs, weight = (tensor.detach().bfloat16().requires_grad_() for tensor in (x, w))
    same = gw.fused.linear_distillation(inputs, weight, teacher, **options)
    torch.testing.assert_close(ours, same, rtol=1e-6, atol=1e-7)
    for got, want in zip(gradients(ours, x, w), gradients(same, inputs, weight)):
        torch.testing.assert_close(got, want.float(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["kl", "reverse-kl", "js", "tv"])
@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float32), (torch.float32, torch.float64)], ids=str)
def test_a_teacher_of_another_dtype(kind: Any, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    x, w, _ = layer(dtype=dtypes[0])
    teacher = torch.randn(6, 9, generator=torch.Generator().manual_seed(1)).to(dtypes[1])
    ours = gw.fused.linear_distillation(x, w, teacher, divergence=kind)
    same = gw.fused.linear_distillation(x, w, teacher.to(dtypes[0]), divergence=kind)
    assert ours.dtype == dtypes[0]
    assert torch.equal(ours, same)
    assert all(map(torch.equal, gradients(ours, x, w), gradients(same, x, w)))


@pytest.mark.parametrize("kind", ["kl", "reverse-kl", "js", "tv"])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_large_logits_are_told_apart_and_a_row_of_minus_inf_is_no_distribution(kind: Any, reduction: Any) -> None:
    x, w, _ = layer()
    teacher = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    options: dict[str, Any] = {"divergence": kind, "reduction": reduction}
    ours = gw.fused.linear_distillation(x, w, (4 * teacher).round() / 4 + 2.0**50, **options)
    torch.testing.assert_close(ours, gw.fused.linear_distillation(x, w, (4 * teacher).round() / 4, **options))
    teacher[2] = -torch.inf
    nothing = gw.fused.linear_distillation(x, w, teacher, divergence=kind, reduction="none")
    assert nothing.isnan().nonzero().tolist() == [[2]]


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
