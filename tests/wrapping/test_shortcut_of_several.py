"""The short way of rules with several gradients: what is usual takes it, and the rest is told as ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gradwright as gw

F64 = torch.float64


def product(rule: Any) -> Any:
    @gw.external(out=gw.like("x"))
    def product(x: np.ndarray, y: np.ndarray, z: np.ndarray | None = None) -> Any:
        return x * y if z is None else x * y * z

    product.register_vjp(rule)
    return product


def gradients(function: Any, *args: Any) -> list[Any]:
    function(*args)  # the first call goes the long way
    leaves = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
    found = torch.autograd.grad(function(*args).sum(), leaves, allow_unused=True)
    return [None if each is None else each.tolist() for each in found]


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tensor([1.0, 2.0], dtype=F64, requires_grad=True)
    return x, torch.tensor([3.0, 5.0], dtype=F64, requires_grad=True)


def test_by_name_by_position_and_in_part() -> None:
    def by_name(g: Any, x: Any, y: Any) -> Any:
        return {"y": g * x, "x": g * y}

    def by_position(g: Any, x: Any, y: Any) -> Any:
        return g * y, g * x, None

    def in_part(g: Any, y: Any) -> Any:
        return {"x": g * y}

    assert gradients(product(by_name), *leaves()) == [[3, 5], [1, 2]]
    assert gradients(product(by_position), *leaves()) == [[3, 5], [1, 2]]
    assert gradients(product(in_part), *leaves()) == [[3, 5], None]


def test_one_array_for_both_is_given_out_once() -> None:
    def both(g: Any, x: Any, y: Any) -> Any:
        same = g * x * y
        return {"x": same, "y": same}

    x, y = leaves()
    function = product(both)
    function(x, y)
    a, b = torch.autograd.grad(function(x, y).sum(), (x, y))
    assert a.data_ptr() != b.data_ptr()
    assert a.tolist() == b.tolist() == [3, 10]


def test_what_needs_no_gradient_and_what_is_not_there() -> None:
    def by_name(g: Any, x: Any, y: Any, z: Any) -> Any:
        z = 1.0 if z is None else z
        return {"x": g * y * z, "y": g * x * z, "z": None}

    x, y = leaves()
    assert gradients(product(by_name), x, y.detach()) == [[3, 5]]
    assert gradients(product(by_name), x, y, torch.ones(2, dtype=F64)) == [[3, 5], [1, 2]]


def test_other_dtypes_and_numbers() -> None:
    def mixed(g: Any, x: Any, y: Any) -> Any:
        return {"x": (g * y).astype(np.float32), "y": g * x}

    assert gradients(product(mixed), *leaves()) == [[3, 5], [1, 2]]


def test_a_wrong_shape_and_a_wrong_name_are_told() -> None:
    def wrong_shape(g: Any, x: Any, y: Any) -> Any:
        return {"x": g.sum(), "y": g * x}

    def wrong_name(g: Any, x: Any) -> Any:
        return {"w": g * x}

    with pytest.raises(gw.ExternalError, match="for 'x'; expected the shape"):
        gradients(product(wrong_shape), *leaves())
    with pytest.raises(gw.ExternalError, match="returned something for 'w'"):
        gradients(product(wrong_name), *leaves())
