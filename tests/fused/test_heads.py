"""What the heads promise beside true gradients: memory, the forms of the backward, and calls at the edges."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from gradwright.fused import crossentropy, heads
from gradwright.fused.heads import block_of
from tests.footprint import kept_bytes, peak_bytes

IGNORED = -100


def layer(rows: int = 6, features: int = 4, classes: int = 9, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * classes)
    x = torch.randn(rows, features, generator=generator, dtype=torch.float64).to(dtype)
    w = torch.randn(classes, features, generator=generator, dtype=torch.float64).to(dtype)
    target = torch.randint(0, classes, (rows,), generator=generator)
    return x.requires_grad_(), w.requires_grad_(), target


def eager(x: Tensor, w: Tensor, target: Tensor, **options: Any) -> Tensor:
    return functional.cross_entropy(functional.linear(x, w), target, **options)


def gradients(loss: Tensor, *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, leaves, retain_graph=True))


@pytest.mark.parametrize(
    ("rows", "block"),
    [(1, None), (1, 1), (7, 3), (6, 6), (6, 100), (256, None)],
    ids=["one row", "one row a block", "a smaller last block", "one block", "a block too large", "many rows"],
)
@pytest.mark.parametrize("again", [False, True], ids=["formed", "again"])
def test_any_number_of_rows_is_that_of_torch(rows: int, block: int | None, again: bool) -> None:
    x, w, target = layer(rows)
    ours = gw.fused.linear_cross_entropy(x, w, target, block=block, again=again)
    theirs = eager(x, w, target)
    torch.testing.assert_close(ours, theirs)
    for got, want in zip(gradients(ours, x, w), gradients(theirs, x, w)):
        torch.testing.assert_close(got, want)


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


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_rows_that_do_not_count_are_not_multiplied(reduction: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ignored ones in the forward, nor those whose incoming gradient is zero in the backward."""
    x, w, target = layer()
    target[:3] = IGNORED
    seen = []
    original = heads._swept

    def watched(x: Tensor, *rest: Any) -> Any:
        seen.append(x.shape[0])
        return original(x, *rest)

    monkeypatch.setattr(heads, "_swept", watched)
    losses = gw.fused.linear_cross_entropy(x, w, target, reduction=reduction)
    loss = losses if reduction == "mean" else losses[:4].sum()
    want = eager(x, w, target) if reduction == "mean" else eager(x[:4], w, target[:4], reduction="sum")
    torch.testing.assert_close(loss, want)
    for got, true in zip(gradients(loss, x, w), gradients(want, x, w)):
        torch.testing.assert_close(got, true)
    assert seen == ([3] if reduction == "mean" else [3, 1])


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


@pytest.mark.parametrize("frozen", ["x", "w"])
def test_what_is_frozen_costs_nothing(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, target = layer()
    (x if frozen == "x" else w).requires_grad_(False)
    made = []
    original = heads._Sums

    def watched(x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]) -> Any:
        made.append(wanted)
        return original(x, weight, wanted)

    monkeypatch.setattr(heads, "_Sums", watched)
    gw.fused.linear_cross_entropy(x, w, target).backward()
    assert made == [(frozen != "x", frozen != "w", False)]
    made.clear()
    gw.fused.linear_cross_entropy(x, w, target, again=True).backward()
    assert made == [(False, False, False), (frozen != "x", frozen != "w", False)]


def test_a_weight_that_is_tied_to_an_embedding() -> None:
    _, w, target = layer()
    tokens = torch.tensor([0, 3, 3, 8, 1, 2])
    ours = gw.fused.linear_cross_entropy(functional.embedding(tokens, w), w, target)
    theirs = eager(functional.embedding(tokens, w), w, target)
    torch.testing.assert_close(gradients(ours, w), gradients(theirs, w))


def test_nothing_is_formed_without_a_gradient() -> None:
    x, w, target = layer()
    with torch.no_grad():
        loss = gw.fused.linear_cross_entropy(x, w, target)
    assert not loss.requires_grad
    assert not gw.fused.linear_cross_entropy(x.detach(), w.detach(), target).requires_grad


def test_what_was_formed_is_freed_by_the_backward() -> None:
    x, w, target = layer()
    seen: list[weakref.ref[Tensor]] = []
    original = heads.Formed.take

    def watched(self: heads.Formed) -> Any:
        grads = original(self)
        seen.extend(weakref.ref(grad) for grad in grads or () if grad is not None)
        return grads

    heads.Formed.take = watched  # type: ignore[method-assign]
    try:
        loss = gw.fused.linear_cross_entropy(x, w, target)
        loss.backward()
    finally:
        heads.Formed.take = original  # type: ignore[method-assign]
    assert len(seen) == 2
    x.grad = w.grad = None
    gc.collect()
    assert all(ref() is None for ref in seen), "the graph does not hold them"


def test_accumulated_gradients_do_not_share_memory() -> None:
    """What the backward hands out is written to by nobody else, also where a graph is used twice."""
    x, w, target = layer()
    loss = gw.fused.linear_cross_entropy(x, w, target)
    loss.backward(retain_graph=True)
    assert w.grad is not None
    once = w.grad.clone()
    loss.backward()
    torch.testing.assert_close(w.grad, 2 * once)


@pytest.mark.parametrize("reentrant", [False, True])
def test_within_a_checkpoint(reentrant: bool) -> None:
    x, w, target = layer()
    call: Callable[..., Tensor] = gw.fused.linear_cross_entropy
    loss = checkpoint(call, x, w, target, use_reentrant=reentrant)
    loss.backward()
    torch.testing.assert_close([x.grad, w.grad], gradients(eager(x, w, target), x, w))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_summed_in_float32(dtype: torch.dtype) -> None:
    """So the gradient of the weight is as near to the truth as its dtype allows, however many blocks there are."""
    x, w, target = layer(512, 8, 16, dtype)
    loss = gw.fused.linear_cross_entropy(x, w, target, block=1, dtype=torch.float32)
    truth = eager(x.double(), w.double(), target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), truth, rtol=5e-3, atol=0.0)
    (want,) = torch.autograd.grad(truth, w)
    (got,) = torch.autograd.grad(loss, w)
    size = want.abs().max()
    assert ((got - want).abs().max() / size).item() < 4 * torch.finfo(dtype).eps


def test_small_gradients_of_float16_do_not_vanish() -> None:
    """As with a scaled loss: what is formed does not know of the scale yet."""
    x, w, target = layer(64, 8, 512, torch.float16)
    small = torch.full((64,), 1e-4)
    mean = gw.fused.linear_cross_entropy(x, w, target, token_weight=small, dtype=torch.float32)
    (got,) = torch.autograd.grad(mean * 65536, w)
    truth = eager(x.double(), w.double(), target) * 1e-4 * 65536
    (want,) = torch.autograd.grad(truth, w)
    assert ((got - want).abs().max() / want.abs().max()).item() < 4e-3


def test_autocast_is_that_of_a_layer() -> None:
    x, w, target = layer(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = gw.fused.linear_cross_entropy(x, w, target, dtype=torch.float32)
        theirs = eager(x, w, target)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    for got, want in zip(gradients(ours, x, w), gradients(theirs, x, w)):
        assert got.dtype == want.dtype == torch.float32
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-3)


def test_memory_is_that_of_the_gradients_and_one_block() -> None:
    x, w, target = layer(1024, 64, 4000, torch.float32)
    one_block = 256 * 4000 * 4
    formed = (x.numel() + w.numel()) * 4

    def run() -> Any:
        loss = gw.fused.linear_cross_entropy(x, w, target, block=256)
        return torch.autograd.grad(loss, (x, w))

    assert peak_bytes(run) <= 1.05 * (formed + one_block)
    assert kept_bytes(lambda: gw.fused.linear_cross_entropy(x, w, target, again=True), [x, w, target]) < 0.05 * formed


def test_repeated_calls_are_equal_to_the_bit() -> None:
    x, w, target = layer(64, 16, 300, torch.float32)
    results = [
        gradients(gw.fused.linear_cross_entropy(x, w, target, block=20, again=again), x, w)
        for again in (False, False, True)
    ]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_a_second_derivative_is_the_true_one() -> None:
    x, w, target = layer(4, 3, 5)
    target[1] = IGNORED

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return gw.fused.linear_cross_entropy(x, w, target, softcap=3.0, z_loss=0.1, entropy=0.2, block=3)

    assert torch.autograd.gradgradcheck(ours, (x, w))
    hessian = torch.func.hessian(lambda w: gw.fused.linear_cross_entropy(x.detach(), w, target))(w.detach())
    want = torch.func.hessian(lambda w: eager(x.detach(), w, target))(w.detach())
    torch.testing.assert_close(hessian, want)


def test_blocks_are_of_equal_size_and_not_too_small() -> None:
    assert block_of(2048, 32000, 4) == 256
    assert block_of(300, 32000, 4) == 150
    assert block_of(100, 10, 4) == 100
    assert block_of(0, 10, 4) == 1


def test_a_class_that_is_excluded() -> None:
    """A bias of -inf keeps a class out: it has no gradient, and nothing becomes nan."""
    x, w, target = layer()
    bias = torch.zeros(9, dtype=torch.float64)
    bias[4] = -torch.inf
    target[target == 4] = 0
    for again in (False, True):
        loss = gw.fused.linear_cross_entropy(x, w, target, linear_bias=bias, entropy=0.5, again=again)
        _, of_weight = gradients(loss, x, w)
        assert of_weight.isfinite().all()
        assert not of_weight[4].any()


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


def test_the_entropy_comes_with_the_log_probabilities() -> None:
    x, w, target = layer()
    logs, entropy = gw.fused.linear_log_probs(x, w, target, entropy=True)
    probabilities = torch.distributions.Categorical(logits=functional.linear(x, w))
    torch.testing.assert_close(logs, probabilities.log_prob(target))
    torch.testing.assert_close(entropy, probabilities.entropy())
    ours = torch.autograd.grad((2 * logs - entropy).sum(), (x, w))
    theirs = torch.autograd.grad((2 * probabilities.log_prob(target) - probabilities.entropy()).sum(), (x, w))
    torch.testing.assert_close(ours, theirs)


def test_the_module_is_a_drop_in() -> None:
    theirs_class = getattr(torch.nn, "LinearCrossEntropyLoss", None)
    if theirs_class is None:
        pytest.skip("this torch has no LinearCrossEntropyLoss")
    weight = torch.linspace(0.5, 2.0, 9)
    theirs = theirs_class(4, 9, bias=True, weight=weight, label_smoothing=0.1)
    ours = gw.fused.LinearCrossEntropyLoss(4, 9, bias=True, weight=weight, label_smoothing=0.1)
    ours.load_state_dict(theirs.state_dict())
    x, _, target = layer(dtype=torch.float32)
    torch.testing.assert_close(ours(x, target), theirs(x, target))
    assert "label_smoothing=0.1" in repr(ours)
    with pytest.raises(ArgumentError, match=r"weight has the shape \(3,\); expected \(9,\)"):
        gw.fused.LinearCrossEntropyLoss(4, 9, weight=torch.ones(3))


X, W, T = torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, dtype=torch.int64)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
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
    "block": (lambda: gw.fused.linear_cross_entropy(X, W, T, block=0), OptionError, "block is 0"),
    "temperature": (lambda: gw.fused.linear_log_probs(X, W, T, temperature=-1.0), OptionError, "temperature is -1.0"),
    "index": (lambda: gw.fused.linear_log_probs(X, W, T[:1]), ArgumentError, "one class for each row of x"),
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


def test_an_index_beyond_the_classes_is_an_error() -> None:
    x, w, target = layer()
    target[0] = 9
    with pytest.raises((IndexError, RuntimeError)):
        gw.fused.linear_cross_entropy(x, w, target)


def test_what_is_ignored_by_default_is_what_torch_ignores() -> None:
    assert crossentropy.IGNORED == IGNORED == functional.cross_entropy.__defaults__[2]  # type: ignore[index]
