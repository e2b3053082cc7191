"""What is kept and how much is allocated: on cases where both are known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.footprint import Kept, kept, kept_bytes, peak_bytes

SIZE = 1 << 18
BYTES = 4 * SIZE
"""Of one tensor of ``SIZE`` numbers in float32."""


def leaf() -> Tensor:
    return torch.linspace(1.0, 2.0, SIZE, requires_grad=True)


class _Keeping(Function):
    """The identity, which keeps a tensor in the way that it is told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Callable[[Any, Tensor], None]) -> Tensor:
        keep(ctx, x)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, None


def _saved(ctx: Any, x: Tensor) -> None:
    ctx.save_for_backward(x * 2)


def _on_ctx(ctx: Any, x: Tensor) -> None:
    ctx.doubled = x * 2


def _in_a_container(ctx: Any, x: Tensor) -> None:
    ctx.state = {"parts": [x * 2]}


def _in_a_closure(ctx: Any, x: Tensor) -> None:
    doubled = x * 2
    ctx.later = lambda g: g * doubled


def _in_a_partial(ctx: Any, x: Tensor) -> None:
    ctx.later = functools.partial(torch.mul, x * 2)


def _in_an_object(ctx: Any, x: Tensor) -> None:
    class State:
        __slots__ = ("doubled",)

    ctx.state = State()
    ctx.state.doubled = x * 2


def _nothing(ctx: Any, x: Tensor) -> None:
    pass


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("keep", [_on_ctx, _in_a_container, _in_a_closure, _in_a_partial, _in_an_object])
def test_what_ctx_hides_is_found(keep: Callable[[Any, Tensor], None], hooks: bool) -> None:
    x = leaf()
    assert kept(lambda: _Keeping.apply(x, keep), [x], hooks) == Kept(saved=0, hidden=BYTES)


@pytest.mark.parametrize("hooks", [True, False])
def test_what_is_saved_passes_the_hooks(hooks: bool) -> None:
    x = leaf()
    assert kept(lambda: _Keeping.apply(x, _saved), [x], hooks) == Kept(saved=BYTES, hidden=0)
    assert kept(lambda: _Keeping.apply(x, _nothing), [x], hooks) == Kept(saved=0, hidden=0)


@pytest.mark.parametrize("hooks", [True, False])
def test_what_operators_of_pytorch_save_counts(hooks: bool) -> None:
    x = leaf()
    assert kept(lambda: torch.exp(torch.sin(x)), [x], hooks) == Kept(saved=0, hidden=0)  # argument and output
    assert kept(lambda: torch.exp(x) * torch.sin(x), [x], hooks) == Kept(saved=2 * BYTES, hidden=0)
    assert kept(lambda: torch.stack([x, x]).prod(0), [x], hooks) == Kept(saved=2 * BYTES, hidden=0)


def test_nodes_are_asked_where_hooks_are_refused() -> None:
    class Transforming(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(torch.func.grad(lambda x: x.square().sum())(x))
            return x.square()

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    x = leaf()
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        kept(lambda: Transforming.apply(x), [x])
    assert kept(lambda: Transforming.apply(x), [x], hooks=False) == Kept(saved=BYTES, hidden=0)


def test_the_same_memory_counts_once() -> None:
    def both(ctx: Any, x: Tensor) -> None:
        doubled = x * 2
        ctx.save_for_backward(doubled, doubled.view(2, -1))
        ctx.same = [doubled, doubled[1:]]

    x = leaf()
    assert kept(lambda: _Keeping.apply(x, both), [x]) == Kept(saved=BYTES, hidden=0)


def test_a_small_view_keeps_all_of_its_memory() -> None:
    def saved(ctx: Any, x: Tensor) -> None:
        ctx.save_for_backward((x * 2)[:1])

    def hidden(ctx: Any, x: Tensor) -> None:
        ctx.first = (x * 2)[:1]

    x = leaf()
    assert kept_bytes(lambda: _Keeping.apply(x, saved), [x]) == BYTES
    assert kept_bytes(lambda: _Keeping.apply(x, hidden), [x]) == BYTES


def test_arguments_and_the_output_do_not_count() -> None:
    def arguments(ctx: Any, x: Tensor) -> None:
        ctx.save_for_backward(x)
        ctx.also = x.view(2, -1)

    x = leaf()
    assert kept_bytes(lambda: _Keeping.apply(x, arguments), [x]) == 0
    assert kept_bytes(lambda: torch.exp(x), [x]) == 0  # PyTorch saves the output


def test_what_lies_between_two_calls_counts() -> None:
    x = leaf()
    assert kept(lambda: _Keeping.apply(torch.exp(_Keeping.apply(x, _on_ctx)), _saved), [x]) == Kept(2 * BYTES, BYTES)


def test_every_output_is_followed() -> None:
    x = leaf()
    assert kept_bytes(lambda: (_Keeping.apply(x, _on_ctx), _Keeping.apply(x, _saved)), [x]) == 2 * BYTES


def test_temporaries_that_are_freed_count_while_they_live() -> None:
    x = leaf().detach()

    def three_in_turn() -> Tensor:
        for _ in range(3):
            torch.empty_like(x)
        return torch.empty_like(x)

    def two_at_once() -> Tensor:
        held = torch.empty_like(x)
        return torch.empty_like(held)

    assert peak_bytes(three_in_turn) == BYTES
    assert peak_bytes(two_at_once) == 2 * BYTES


def test_what_is_returned_is_held_and_what_was_there_is_not_counted() -> None:
    x = leaf().detach()
    assert peak_bytes(lambda: [torch.empty_like(x) for _ in range(3)]) == 3 * BYTES
    assert peak_bytes(lambda: x.neg_()) == 0


def test_what_a_backward_allocates_counts() -> None:
    class Wasteful(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            held = [torch.empty_like(g) for _ in range(4)]
            return torch.empty_like(held[0])

    x, g = leaf(), torch.ones(SIZE)

    def run(function: Callable[[Tensor], Tensor]) -> object:
        return torch.autograd.grad(function(x), x, g)

    assert peak_bytes(lambda: run(torch.clone)) == BYTES  # the output; the gradient is the cotangent
    assert peak_bytes(lambda: run(Wasteful.apply)) == 6 * BYTES
