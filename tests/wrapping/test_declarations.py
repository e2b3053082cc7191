"""What the signature of a foreign function says of its arguments."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

import gradwright as gw
from gradwright.errors import ArgumentError


def test_arguments_by_keyword_only() -> None:
    @gw.external(out=gw.like("x"))
    def power(x, *, n: int = 2):
        return x**n

    @power.register_vjp
    def power_vjp(g, x, n):
        return g * n * x ** (n - 1)

    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert power(x).tolist() == [1.0, 4.0]
    assert torch.autograd.grad(power(x, n=3).sum(), x)[0].tolist() == [3.0, 12.0]
    assert vmap(grad(lambda v: power(v, n=3)))(x.detach()).tolist() == [3.0, 12.0]


def test_the_signature_is_that_of_the_function() -> None:
    def rotated(x, angle=0.5, *, turns: int = 1):
        return x * np.cos(angle * turns)

    call = gw.external(rotated, derivative=gw.fd(), out=gw.like(0))
    assert str(inspect.signature(call)) == "(x, angle=0.5, *, turns=1)"
    report = gw.check(call, torch.ones(2, dtype=torch.float64), level="quick")
    assert report, str(report)
    assert "declared: x: float64 (2,)" in str(report), "findings name the arguments"
    assert str(inspect.signature(gw.external(np.sin))) == "(x, /)"


@pytest.mark.parametrize("annotation", [np.ndarray, "np.ndarray", "NDArray[np.float64]", np.typing.NDArray[np.float64]])
def test_an_annotation_with_an_array_is_a_tensor(annotation) -> None:
    def square(x):
        return x**2

    square.__annotations__ = {"x": annotation}
    square = gw.external(square)
    square.register_vjp(lambda g, x: 2 * g * x)
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(square(x).sum(), x)[0].tolist() == [2.0, 4.0]
    with pytest.raises(ArgumentError, match="'x' is a float"):
        square(2.0)
