"""What the elementwise tails have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.authoring.catalogue import entries
from gradwright.authoring.exact import ExactEntry
from gradwright.errors import ArgumentError
from gradwright.stable.arguments import common_dtype, scaled

FAMILIES = {"exponential", "gaussian_gate", "gates", "hyperbolic", "log_logistic", "logistic"}
ENTRIES = [e for e in entries(gw.stable) if isinstance(e, ExactEntry) and e.family in FAMILIES]
EACH = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def test_every_family_is_here() -> None:
    assert {entry.family for entry in ENTRIES} == FAMILIES


@EACH
def test_zero_dimensions_and_no_elements(entry: ExactEntry) -> None:
    assert entry.function(torch.tensor(0.5)).shape == ()
    x = torch.empty(0, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(entry.function(x).sum(), x)
    assert grad.shape == (0, 3)


@EACH
@pytest.mark.parametrize(("dtype", "what"), [(torch.int64, "of integers"), (torch.complex64, "complex")])
def test_other_dtypes_are_refused(entry: ExactEntry, dtype: torch.dtype, what: str) -> None:
    name = entry.name.rpartition(".")[2]
    with pytest.raises(ArgumentError, match=f"^{name}: x is {dtype}; expected a floating-point tensor, .* {what}"):
        entry.function(torch.ones(2).to(dtype))


@EACH
def test_half_types_stay_what_they_are(entry: ExactEntry) -> None:
    x = torch.tensor([0.25, 0.75], dtype=torch.bfloat16, requires_grad=True)
    out = entry.function(x)
    assert out.dtype == torch.bfloat16
    assert torch.autograd.grad(out.sum(), x)[0].dtype == torch.bfloat16


@EACH
def test_differences_agree_to_third_order(entry: ExactEntry) -> None:
    x = torch.tensor([0.2, 0.45, 0.9], dtype=torch.float64, requires_grad=True)

    def slope(y: Tensor) -> Tensor:
        return torch.autograd.grad(entry.function(y).sum(), y, create_graph=True)[0]

    assert torch.autograd.gradgradcheck(entry.function, x)
    assert torch.autograd.gradgradcheck(slope, x)


@EACH
def test_nan_stays_nan(entry: ExactEntry) -> None:
    x = torch.tensor([torch.nan, 0.5], requires_grad=True)
    out = entry.function(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert out.isnan().tolist() == [True, False]
    assert grad.isnan().tolist() == [True, False]


def test_what_has_no_room_for_a_batch_is_not_written_into() -> None:
    x, weights = torch.ones(3), torch.arange(6.0).reshape(2, 3)
    batched = torch.func.vmap(lambda w: scaled(x.exp(), w))
    torch.testing.assert_close(batched(weights), x.exp() * weights)


@pytest.mark.parametrize("name", ["sigmoid", "expm1", "logcosh"])
def test_gradients_of_many_cotangents_at_once(name: str) -> None:
    """``is_grads_batched`` is an older vmap than that of ``torch.func``, and is not told as one."""
    function: Callable[..., Any] = getattr(gw.stable, name)
    x = torch.tensor([0.5, -3.0], requires_grad=True)
    out = function(x)
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    (together,) = torch.autograd.grad(out, x, weights, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(out, x, w, retain_graph=True)[0] for w in weights]
    torch.testing.assert_close(together, torch.stack(alone))


def test_the_common_dtype_is_that_of_pytorch() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for first, second, shape, other in itertools.product(dtypes, dtypes, [(), (2,)], [(), (2,)]):
        x, y = torch.zeros(shape, dtype=first), torch.zeros(other, dtype=second)
        assert common_dtype(x, y) == torch.result_type(x, y)
