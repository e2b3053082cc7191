"""What is seen of values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gradwright.stable.seen import seen_below, seen_within, visible

x = torch.tensor([0.5, 1.0, 2.0])


def test_bounds_are_not_among_what_they_bound() -> None:
    assert seen_below(x, 2.5)
    assert not seen_below(x, 2.0)
    assert seen_within(x, 0.4, 2.5)
    assert not seen_within(x, 0.5, 2.5)
    assert seen_within(torch.nn.Parameter(x), 0.4, 2.5)
    assert seen_within(x[:0], 0.0, 0.0), "of no values"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_within(value: float) -> None:
    assert not seen_within(torch.tensor([1.0, value]), -math.inf, math.inf)


def test_what_is_recorded_is_not_looked_at() -> None:
    """Else a program that make_fx records would hold the shorter way, which is right for these values alone."""
    looked = []

    def look(values: torch.Tensor) -> torch.Tensor:
        looked.append(visible(values))
        return values + 1

    make_fx(look)(x)
    assert looked == [False]


def _vmapped(look: Callable[[torch.Tensor], None]) -> None:
    torch.func.vmap(lambda row: (look(row), row)[1])(x[None])


def _batched(look: Callable[[torch.Tensor], None]) -> None:
    """Look under the vmap of batched gradients."""
    leaf = x.clone().requires_grad_()
    out = leaf * 1.0
    out.register_hook(look)
    torch.autograd.grad(out, leaf, torch.eye(3), is_grads_batched=True)


@pytest.mark.parametrize("run", [_vmapped, _batched, lambda look: look(x.to("meta"))])
def test_what_cannot_be_looked_at_is_not_seen(run: Callable[[Callable[[torch.Tensor], None]], None]) -> None:
    answers = []
    run(lambda values: answers.append((seen_below(values, math.inf), seen_within(values, -math.inf, math.inf))))
    assert answers == [(False, False)]


def test_nothing_is_seen_in_compiled_code() -> None:
    look = torch.compile(lambda values: values + seen_below(values, math.inf), backend="eager", fullgraph=True)
    assert torch.equal(look(x), x)
