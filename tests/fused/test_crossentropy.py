"""The head of a language model beside PyTorch's: edges, dtypes, second derivatives, bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from gradwright.fused import head_arguments
from tests.fused.heads import IGNORED, eager, gradients, layer


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_rows(reduction: Any) -> None:
    x, w, target = layer(0)
    ours = gw.fused.linear_cross_entropy(x, w, target, reduction=reduction)
    theirs = eager(x, w, target, reduction=reduction)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    for grad in gradients(ours.sum(), x, w):
        assert not grad.any(), "nothing to learn from"


def test_where_no_row_counts_the_mean_is_nan_and_the_gradient_zero() -> None:
    x, w, target = layer()
    loss = gw.fused.linear_cross_entropy(x, w, torch.full_like(target, IGNORED))
    assert loss.isnan()
    assert all(not grad.any() for grad in gradients(loss, x, w))
    total = gw.fused.linear_cross_entropy(x, w, torch.full_like(target, IGNORED), reduction="sum", z_loss=1.0)
    assert total.item() == 0.0


def test_an_incoming_gradient_for_each_row_is_honoured() -> None:
    x, w, target = layer()
    g = torch.tensor([1.0, 0.0, -2.0, 0.5, 3.0, 1e-3], dtype=torch.float64)
    ours = gw.fused.linear_cross_entropy(x, w, target, reduction="none", block=4)
    theirs = eager(x, w, target, reduction="none")
    for got, want in zip(torch.autograd.grad(ours, (x, w), g), torch.autograd.grad(theirs, (x, w), g, True)):
        torch.testing.assert_close(got, want)
    weighed = gw.fused.linear_cross_entropy(x, w, target, reduction="sum", token_weight=g)
    for got, want in zip(
        gradients(weighed, x, w), torch.autograd.grad(eager(x, w, target, reduction="none"), (x, w), g)
    ):
        torch.testing.assert_close(got, want)


def test_a_weight_that_is_tied_to_an_embedding() -> None:
    _, w, target = layer()
    tokens = torch.tensor([0, 3, 3, 8, 1, 2])
    ours = gw.fused.linear_cross_entropy(functional.embedding(tokens, w), w, target)
    theirs = eager(functional.embedding(tokens, w), w, target)
    torch.testing.assert_close(gradients(ours, w), gradients(theirs, w))


def test_small_gradients_of_float16_do_not_vanish() -> None:
    """As with a scaled loss: what is formed does not know of the scale yet."""
    x, w, target = layer(64, 8, 512, torch.float16)
    small = torch.full((64,), 1e-4)
    mean = gw.fused.linear_cross_entropy(x, w, target, token_weight=small, dtype=torch.float32)
    (got,) = torch.autograd.grad(mean * 65536, w)
    truth = eager(x.double(), w.double(), target) * 1e-4 * 65536
    (want,) = torch.autograd.grad(truth, w)
    assert ((got - want).abs().max() / want.abs().max()).item() < 4e-3


def test_autocast_is_that_of_a_layer_and_the_loss_is_in_float32() -> None:
    x, w, target = layer(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = gw.fused.linear_cross_entropy(x, w, target)
        theirs = eager(x, w, target)
        assert gw.fused.linear_log_probs(x, w, target).dtype == torch.float32
        assert gw.fused.linear_distillation(x, w, x.detach(), w.detach()).dtype == torch.float32
        assert gw.fused.linear_cross_entropy(x, w, target, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    for got, want in zip(gradients(ours, x, w), gradients(theirs, x, w)):
        assert got.dtype == want.dtype == torch.float32
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"soft": True}], ids=["hard", "smoothed", "soft"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("followed", [False, True], ids=["blocks", "formula"])
def test_a_shift_of_all_logits_changes_nothing(options: dict[str, Any], reduction: Any, followed: bool) -> None:
    """As in PyTorch: large logits leave no digits for the logarithm of the sum of exponentials."""
    x, w, target = layer(dtype=torch.float32)
    x, w = ((8 * tensor.detach()).round() / 8 for tensor in (x, w))
    rest = {name: value for name, value in options.items() if name != "soft"}
    wanted = torch.full((6, 9), 1 / 9) if "soft" in options else target

    def loss(bias: float) -> Tensor:
        offset = torch.full((9,), bias)
        return gw.fused.linear_cross_entropy(x, w, wanted, linear_bias=offset, reduction=reduction, **rest)

    found = torch.func.vmap(lambda _: loss(2.0**16))(torch.zeros(1))[0] if followed else loss(2.0**16)
    torch.testing.assert_close(found, loss(0.0), rtol=1e-5, atol=1e-6)


def test_weights_of_classes_that_sum_to_zero_or_less() -> None:
    """A mean by zero is nan as in PyTorch, with the gradient 0 and not that of the sum."""
    x, w, target = layer()
    for weight in (torch.zeros(9, dtype=torch.float64), torch.linspace(-2, 1, 9, dtype=torch.float64)):
        ours = gw.fused.linear_cross_entropy(x, w, target, weight=weight, label_smoothing=0.1)
        theirs = eager(x, w, target, weight=weight, label_smoothing=0.1)
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        for got, want in zip(gradients(ours, x, w), gradients(theirs, x, w)):
            torch.testing.assert_close(got, want.nan_to_num(0.0))
    spared = torch.where(torch.arange(9).unsqueeze(1) == target, 0.0, 1.0).amin(1).double()
    ours = gw.fused.linear_cross_entropy(x, w, target, weight=spared, label_smoothing=0.1)
    assert ours.isnan()
    assert not any(grad.any() for grad in gradients(ours, x, w))


def test_probabilities_of_another_dtype_in_forward_mode() -> None:
    x, w, _ = layer(dtype=torch.bfloat16)
    target = torch.full((6, 9), 1 / 9, dtype=torch.float64)
    moved = torch.ones_like(x)
    _, tangent = torch.func.jvp(lambda x: gw.fused.linear_cross_entropy(x, w.detach(), target), (x.detach(),), (moved,))
    (grad,) = torch.autograd.grad(gw.fused.linear_cross_entropy(x, w, target), x)
    torch.testing.assert_close(tangent, grad.sum(), rtol=2e-2, atol=2e-2)


def test_a_layer_without_inputs() -> None:
    x, w = torch.zeros(3, 0), torch.zeros(4, 0, requires_grad=True)
    loss = gw.fused.linear_cross_entropy(x, w, torch.tensor([0, 3, 1]), linear_bias=torch.zeros(4))
    torch.testing.assert_close(loss, torch.tensor(4.0).log())
    assert torch.autograd.grad(loss, w)[0].shape == (4, 0)


def test_a_second_derivative_is_the_true_one() -> None:
    x, w, target = layer(4, 3, 5)
    target[1] = IGNORED

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return gw.fused.linear_cross_entropy(x, w, target, softcap=3.0, z_loss=0.1, entropy_bonus=0.2, block=3)

    assert torch.autograd.gradgradcheck(ours, (x, w))
    hessian = torch.func.hessian(lambda w: gw.fused.linear_cross_entropy(x.detach(), w, target))(w.detach())
    want = torch.func.hessian(lambda w: eager(x.detach(), w, target))(w.detach())
    torch.testing.assert_close(hessian, want)


def test_a_class_that_is_excluded() -> None:
    """A bias of -inf keeps a class out: it has no gradient, and nothing becomes nan."""
    x, w, target = layer()
    bias = torch.zeros(9, dtype=torch.float64)
    bias[4] = -torch.inf
    target[target == 4] = 0
    for recompute in (False, True):
        loss = gw.fused.linear_cross_entropy(x, w, target, linear_bias=bias, entropy_bonus=0.5, recompute=recompute)
        _, of_weight = gradients(loss, x, w)
        assert of_weight.isfinite().all()
        assert not of_weight[4].any()


def test_an_index_beyond_the_classes_is_an_error() -> None:
    x, w, target = layer()
    target[0] = 9
    with pytest.raises(ArgumentError, match="target holds 9; expected classes from 0 to 8, or ignore_index"):
        gw.fused.linear_cross_entropy(x, w, target)


def test_what_is_ignored_by_default_is_what_torch_ignores() -> None:
    assert head_arguments.IGNORED == IGNORED == functional.cross_entropy.__defaults__[2]  # type: ignore[index]


X, W, T = torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, dtype=torch.int64)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "another device": (
        lambda: gw.fused.linear_cross_entropy(X, W, T, weight=torch.ones(5, device="meta")),
        ArgumentError,
        "x is on cpu, weight on meta; expected one device",
    ),
    "a dtype by name": (
        lambda: gw.fused.linear_cross_entropy(X, W, T, dtype="float32"),  # type: ignore[arg-type]
        OptionError,
        "write dtype=torch.float32",
    ),
    "an integer dtype": (
        lambda: gw.fused.linear_cross_entropy(X, W, T, dtype=torch.int64),
        OptionError,
        "expected a floating-point dtype",
    ),
    "no class": (
        lambda: gw.fused.linear_cross_entropy(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)),
        ArgumentError,
        "linear_weight has no class",
    ),
    "no tensor": (
        lambda: gw.fused.linear_cross_entropy(X, W, [0, 1]),  # type: ignore[arg-type]
        ArgumentError,
        "target is a list; expected a tensor of class indices",
    ),
    "small integers": (lambda: gw.fused.linear_cross_entropy(X, W, T.int()), ArgumentError, r"write `target.long\(\)`"),
    "features": (
        lambda: gw.fused.linear_cross_entropy(X, W.t(), T),
        ArgumentError,
        r"x has the shape \(2, 3\) and linear_weight \(3, 5\)",
    ),
    "targets": (
        lambda: gw.fused.linear_cross_entropy(X, W, T[:1]),
        ArgumentError,
        r"expected \(2,\) for class indices",
    ),
    "bias": (
        lambda: gw.fused.linear_cross_entropy(X, W, T, linear_bias=torch.zeros(3)),
        ArgumentError,
        r"linear_bias has the shape \(3,\); expected \(5,\)",
    ),
    "dtypes": (
        lambda: gw.fused.linear_cross_entropy(X.double(), W, T),
        ArgumentError,
        "x is torch.float64, linear_weight torch.float32; expected one dtype",
    ),
    "weights of classes": (
        lambda: gw.fused.linear_cross_entropy(X, W, T, weight=torch.ones(4)),
        ArgumentError,
        "expected one constant for each of the 5 classes",
    ),
    "weights of tokens": (
        lambda: gw.fused.linear_cross_entropy(X, W, T, token_weight=torch.ones(3)),
        ArgumentError,
        "token_weight has the shape",
    ),
    "learned targets": (
        lambda: gw.fused.linear_cross_entropy(X, W, torch.zeros(2, 5, requires_grad=True)),
        ArgumentError,
        "target requires grad",
    ),
    "reduction": (
        lambda: gw.fused.linear_cross_entropy(X, W, T, reduction="avg"),  # type: ignore[arg-type]
        OptionError,
        "reduction",
    ),
    "smoothing": (
        lambda: gw.fused.linear_cross_entropy(X, W, T, label_smoothing=2.0),
        OptionError,
        "expected a number from 0 to 1",
    ),
    "softcap": (lambda: gw.fused.linear_cross_entropy(X, W, T, softcap=0.0), OptionError, "softcap is 0.0"),
    "no cap": (lambda: gw.fused.linear_cross_entropy(X, W, T, softcap=float("inf")), OptionError, "write None"),
    "block": (lambda: gw.fused.linear_cross_entropy(X, W, T, block=0), OptionError, "block is 0"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input_is_refused_with_what_to_do(name: str) -> None:
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        call()


def test_no_index_that_is_ignored_is_the_default_one() -> None:
    """As PyTorch's own function has it."""
    x, w, target = layer()
    target[0] = IGNORED
    loss = gw.fused.linear_cross_entropy(x, w, target, ignore_index=None)
    torch.testing.assert_close(loss, gw.fused.linear_cross_entropy(x, w, target))
