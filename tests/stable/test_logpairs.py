"""Sums and differences of two exponentials: identities, domain, dtypes and broadcasting."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError


def two() -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 4, dtype=torch.float64) + 5
    return x.requires_grad_(), torch.randn(4, dtype=torch.float64, requires_grad=True)


def test_derivatives_of_two_orders() -> None:
    for function in (gw.stable.logaddexp, gw.stable.logsubexp):
        assert torch.autograd.gradcheck(function, two(), check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, two(), check_batched_grad=True)


def test_one_undoes_the_other() -> None:
    x, y = two()
    torch.testing.assert_close(gw.stable.logsubexp(gw.stable.logaddexp(x, y), y), x.broadcast_to(3, 4))


def test_outside_the_domain() -> None:
    out = gw.stable.logsubexp(torch.tensor([1.0, 1.0, -torch.inf]), torch.tensor([2.0, 1.0, 0.0]))
    assert out.isnan().tolist() == [True, False, True]
    assert out[1] == -torch.inf


@pytest.mark.parametrize("name", ["logaddexp", "logsubexp"])
def test_dtypes_are_promoted_and_whole_numbers_refused(name: str) -> None:
    function = getattr(gw.stable, name)
    x, y = torch.tensor([3.0], dtype=torch.float16), torch.tensor([1.0], dtype=torch.float32)
    assert function(x, y).dtype == torch.float32
    assert function(x, torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float16
    with pytest.raises(ArgumentError, match=rf"{name}: y is torch\.int64; expected a floating-point tensor"):
        function(x, torch.arange(1))


def test_any_order_is_finite_at_zero_and_zero() -> None:
    x = torch.tensor(-math.inf, requires_grad=True)
    out = gw.stable.logaddexp(x, torch.tensor(-math.inf))
    for _ in range(3):
        (out,) = torch.autograd.grad(out, x, create_graph=True)
        assert out.item() == 0
