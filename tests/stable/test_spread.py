"""Variance and standard deviation: what is special about them."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError

torch.manual_seed(0)
x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("dim", [None, -1, (0, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("correction", [1, 0, 2.5])
def test_values_are_those_of_pytorch(
    name: str, dim: int | tuple[int, ...] | None, keepdim: bool, correction: float
) -> None:
    ours, theirs = (getattr(f, name)(x, dim, correction=correction, keepdim=keepdim) for f in (gw.stable, torch))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["var", "std"])
def test_derivatives(name: str) -> None:
    assert torch.autograd.gradcheck(lambda x: getattr(gw.stable, name)(x, (0, 2)), x)
    assert torch.autograd.gradgradcheck(lambda x: getattr(gw.stable, name)(x, (0, 2)), x)


def test_the_square_root_of_a_variance_is_not_needed() -> None:
    """``var(x).sqrt()`` at a constant is nan in PyTorch (row 9); ``std`` is not."""
    constant = torch.full((3,), 0.1, requires_grad=True)
    assert torch.autograd.grad(gw.stable.std(constant), constant)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["var", "std"])
def test_no_dimensions_are_all(name: str) -> None:
    torch.testing.assert_close(getattr(gw.stable, name)(x, ()), getattr(torch, name)(x, ()))


def test_too_few_numbers_have_none() -> None:
    one = torch.ones(2, 1)
    assert gw.stable.std(one, -1).isnan().all()
    assert gw.stable.var(one, -1, correction=0).tolist() == [0, 0]
    assert gw.stable.var(torch.tensor(2.0), correction=0) == 0


def test_errors() -> None:
    for name in ("var", "std"):
        with pytest.raises(ArgumentError, match=rf"{name}: x is torch.int64"):
            getattr(gw.stable, name)(torch.arange(3))
