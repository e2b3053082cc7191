"""How heads work: in blocks, formed or again, and what that costs."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import gradwright as gw
from gradwright.fused import head_sweep, heads
from gradwright.fused.head_sweep import NOTHING, block_of, swept
from gradwright.fused.heads import Formed
from tests.footprint import kept_bytes, peak_bytes
from tests.fused.heads import IGNORED, eager, gradients, layer


@pytest.mark.parametrize(
    ("rows", "block"),
    [(1, None), (1, 1), (7, 3), (6, 6), (6, 100), (256, None)],
    ids=["one row", "one row a block", "a smaller last block", "one block", "a block too large", "many rows"],
)
@pytest.mark.parametrize("recompute", [False, True], ids=["formed", "recomputed"])
def test_any_number_of_rows_is_that_of_torch(rows: int, block: int | None, recompute: bool) -> None:
    x, w, target = layer(rows)
    ours = gw.fused.linear_cross_entropy(x, w, target, block=block, recompute=recompute)
    theirs = eager(x, w, target)
    torch.testing.assert_close(ours, theirs)
    for got, want in zip(gradients(ours, x, w), gradients(theirs, x, w)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_rows_that_do_not_count_are_not_multiplied(reduction: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ignored ones in the forward, nor those whose incoming gradient is zero in the backward."""
    x, w, target = layer()
    target[:3] = IGNORED
    seen = []
    original = swept

    def watched(x: Tensor, *rest: Any) -> Any:
        seen.append(x.shape[0])
        return original(x, *rest)

    monkeypatch.setattr(head_sweep, "swept", watched)  # where some rows are left out of a backward
    monkeypatch.setattr(heads, "swept", watched)
    losses = gw.fused.linear_cross_entropy(x, w, target, reduction=reduction)
    loss = losses if reduction == "mean" else losses[:4].sum()
    want = eager(x, w, target) if reduction == "mean" else eager(x[:4], w, target[:4], reduction="sum")
    torch.testing.assert_close(loss, want)
    for got, true in zip(gradients(loss, x, w), gradients(want, x, w)):
        torch.testing.assert_close(got, true)
    assert seen == ([3] if reduction == "mean" else [3, 1])


@pytest.mark.parametrize("frozen", ["x", "w"])
def test_what_is_frozen_costs_nothing(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, target = layer()
    (x if frozen == "x" else w).requires_grad_(False)
    made = []
    original = head_sweep.Sums

    def watched(x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]) -> Any:
        made.append(wanted)
        return original(x, weight, wanted)

    monkeypatch.setattr(head_sweep, "Sums", watched)
    gw.fused.linear_cross_entropy(x, w, target).backward()
    assert made == [(frozen != "x", frozen != "w", False)]
    made.clear()
    gw.fused.linear_cross_entropy(x, w, target, recompute=True).backward()
    assert made == [(False, False, False), (frozen != "x", frozen != "w", False)]


def test_nothing_is_formed_without_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, target = layer()
    made = []

    def watched(*args: Any) -> Any:
        made.append(args[5])  # what is wanted
        return swept(*args)

    monkeypatch.setattr(heads, "swept", watched)
    with torch.no_grad():
        loss = gw.fused.linear_cross_entropy(x, w, target)
    assert not loss.requires_grad
    assert not gw.fused.linear_cross_entropy(x.detach(), w.detach(), target).requires_grad
    assert made == [NOTHING, NOTHING]


def test_weights_of_tokens_have_their_gradient_from_the_same_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the losses, which the forward had: the logits are not multiplied once more for it."""
    x, w, target = layer()
    weights = torch.linspace(0.5, 1.5, len(target), dtype=torch.float64).requires_grad_()
    count = []

    def watched(*args: Any) -> Any:
        count.append(1)
        return swept(*args)

    monkeypatch.setattr(heads, "swept", watched)
    monkeypatch.setattr(heads, "_each_plainly", None)
    loss = gw.fused.linear_cross_entropy(x, w, target, token_weight=weights, reduction="sum")
    (got,) = torch.autograd.grad(3 * loss, weights, retain_graph=True)
    assert len(count) == 1
    torch.testing.assert_close(got, 3 * eager(x, w, target, reduction="none").detach())
    (again,) = torch.autograd.grad(3 * loss, weights)  # what was formed is taken: a sweep in the backward
    assert len(count) == 2
    torch.testing.assert_close(again, got)


def test_what_was_formed_is_freed_by_the_backward() -> None:
    x, w, target = layer()
    seen: list[weakref.ref[Tensor]] = []
    original = heads.Formed.take

    def watched(self: heads.Formed) -> Any:
        found = original(self)
        seen.extend(weakref.ref(grad) for grad in (found[1] if found else ()) if grad is not None)
        return found

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


def test_memory_is_that_of_the_gradients_and_one_block() -> None:
    x, w, target = layer(1024, 64, 4000, torch.float32)
    one_block = 256 * 4000 * 4
    formed = (x.numel() + w.numel()) * 4

    def run() -> Any:
        loss = gw.fused.linear_cross_entropy(x, w, target, block=256)
        return torch.autograd.grad(loss, (x, w))

    assert peak_bytes(run) <= 1.05 * (formed + one_block)
    assert (
        kept_bytes(lambda: gw.fused.linear_cross_entropy(x, w, target, recompute=True), [x, w, target]) < 0.05 * formed
    )


def test_repeated_calls_are_equal_to_the_bit() -> None:
    x, w, target = layer(64, 16, 300, torch.float32)
    results = [
        gradients(gw.fused.linear_cross_entropy(x, w, target, block=20, recompute=recompute), x, w)
        for recompute in (False, False, True)
    ]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_of_two_threads_one_takes_the_gradients_that_were_formed() -> None:
    """Whatever the first one was about to do when the second one came."""

    def interrupted(after: int) -> list[Any]:
        formed, found, steps = Formed(), [], itertools.count()
        formed.held["swept"] = torch.ones(1), (torch.ones(1), None, None)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code is not Formed.take.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(steps) == after:
                sys.settrace(None)
                found.append(formed.take())
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            found.append(formed.take())
        finally:
            sys.settrace(before)
        return [grads for grads in found if grads is not None]

    assert all(len(interrupted(after)) == 1 for after in range(12))


def test_blocks_are_of_equal_size_and_not_too_small() -> None:
    assert block_of(2048, 32000, 4) == 256
    assert block_of(300, 32000, 4) == 150
    assert block_of(100, 10, 4) == 100
    assert block_of(0, 10, 4) == 1
