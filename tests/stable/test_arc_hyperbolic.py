"""Inverse hyperbolic functions: what is special about them."""

from __future__ import annotations

import math

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError


@pytest.mark.parametrize(("name", "forth"), [("asinh", torch.sinh), ("acosh", torch.cosh)])
def test_the_inverse(name: str, forth: torch.Tensor) -> None:
    x = torch.linspace(0.5, 5.0, 10, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(getattr(gw.stable, name)(forth(x)), x)  # type: ignore[operator]
    assert torch.autograd.gradgradcheck(getattr(gw.stable, name), x + 1)


def test_outside_the_domain() -> None:
    x = torch.tensor([0.5, 1.0, math.nan], requires_grad=True)
    out = gw.stable.acosh(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert out.isnan().tolist() == [True, False, True]
    assert grad[0].isnan()
    assert grad[1] == math.inf


def test_errors() -> None:
    for name in ("asinh", "acosh"):
        with pytest.raises(ArgumentError, match=rf"{name}: x is torch.int64"):
            getattr(gw.stable, name)(torch.arange(3))
