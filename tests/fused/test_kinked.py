"""Activations with kinks from their output: exactly PyTorch's gradients, at every number next to a kink."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import gradwright as gw
from gradwright.authoring.catalogue import around, joined
from gradwright.authoring.exact import whole_range
from gradwright.errors import ArgumentError
from tests.fused.stack import Stack, after
from tests.fused.test_outputs import DTYPES, saved

CALLS = [
    ("leaky_relu", {}),
    ("leaky_relu", {"negative_slope": 0.0}),
    ("leaky_relu", {"negative_slope": -0.5}),
    ("leaky_relu", {"negative_slope": 1e-30}),
    ("leaky_relu", {"negative_slope": 3}),
    ("hardtanh", {}),
    ("hardtanh", {"min_val": -0.3, "max_val": 0.7}),
    ("hardtanh", {"min_val": -0.7, "max_val": 0.3}),
    ("hardtanh", {"min_val": 0.5, "max_val": 0.5}),
    ("hardtanh", {"min_val": -1e-9, "max_val": 1e4}),
    ("hardtanh", {"min_val": -float("inf"), "max_val": 2.0}),
    ("relu6", {}),
]


@DTYPES
@pytest.mark.parametrize(("name", "kwargs"), CALLS)
def test_gradients_are_those_of_pytorch_to_the_bit(name: str, kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=dtype)
    near = around(0.0, 0.3, -0.3, 0.5, 0.7, -0.7, 1.0, -1.0, 6.0, dtype=dtype, steps=3)
    x = joined([near, whole_range(dtype), ends]).requires_grad_()
    g = torch.linspace(-1.0, 2.0, x.numel(), dtype=dtype)
    out, true = (getattr(module, name)(x, **kwargs) for module in (gw.fused, functional))
    (got,), (want,) = (torch.autograd.grad(y, x, g) for y in (out, true))
    assert torch.equal(out.nan_to_num(7.0), true.nan_to_num(7.0))
    assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("name", "kwargs", "dtype", "want"),
    [
        ("leaky_relu", {}, torch.bfloat16, "output"),
        ("leaky_relu", {"negative_slope": 0.0}, torch.float32, "output"),
        ("leaky_relu", {"negative_slope": -0.5}, torch.float32, "input"),
        ("hardtanh", {"min_val": -0.3, "max_val": 0.7}, torch.float32, "output"),
        ("hardtanh", {"min_val": -0.3, "max_val": 0.7}, torch.bfloat16, "input"),
        ("hardtanh", {"min_val": -0.375, "max_val": 0.75}, torch.bfloat16, "output"),
        ("hardtanh", {"min_val": -1e-9}, torch.float16, "input"),
        ("relu6", {}, torch.float16, "output"),
    ],
)
def test_the_output_is_kept_where_it_tells(name: str, kwargs: dict[str, Any], dtype: torch.dtype, want: str) -> None:
    assert saved(getattr(gw.fused, name), torch.linspace(-3.0, 3.0, 7, dtype=dtype), **kwargs) == want


@pytest.mark.parametrize("name", ["leaky_relu", "hardtanh", "relu6"])
def test_a_stack_keeps_what_one_of_relu_keeps(name: str) -> None:
    stack = Stack()
    fused, plain = after(getattr(gw.fused, name)), after(getattr(functional, name))
    assert stack.kept(fused) == stack.kept(after(functional.relu))
    assert stack.kept(plain) - stack.kept(fused) == stack.blocks * stack.rows * stack.inner * 4
    for got, want in zip(stack.gradients(fused), stack.gradients(plain)):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["leaky_relu", "hardtanh", "relu6"])
def test_derivatives_compose(name: str) -> None:
    function = getattr(gw.fused, name)
    x = torch.tensor([-2.3, -0.4, 0.6, 7.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, x)
    assert not torch.func.vmap(torch.func.hessian(function))(x.detach()).any()


def test_bounds_in_the_wrong_order_are_refused_by_pytorch() -> None:
    with pytest.raises(ValueError, match="min_val cannot be greater than max_val"):
        gw.fused.hardtanh(torch.ones(2), 1.0, -1.0)


@pytest.mark.parametrize(("name", "argument"), [("leaky_relu", "negative_slope"), ("hardtanh", "max_val")])
def test_a_constant_that_is_a_tensor_is_refused(name: str, argument: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: {argument} is a Tensor; expected a number"):
        getattr(gw.fused, name)(torch.ones(2), **{argument: torch.ones(2)})


@pytest.mark.parametrize("name", ["leaky_relu", "hardtanh", "relu6"])
def test_what_is_no_tensor_of_floats_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: x is torch.int64; expected a floating-point tensor"):
        getattr(gw.fused, name)(torch.arange(3))
