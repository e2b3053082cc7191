"""The short way of plain calls gives what the long way gives, whatever dtype a function computes in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gradwright as gw
from gradwright.wrapping import shortcut


def sine(x: np.ndarray) -> Any:
    return np.sin(x)


def declared(out: Any, **options: Any) -> Any:
    function = gw.external(sine, out=out, **options)
    function.register_vjp(lambda g, x: g * np.cos(x))
    return function


@pytest.mark.parametrize("out", [None, gw.like(0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_declared_dtype_is_computed_in(out: Any, dtype: torch.dtype) -> None:
    seen = []

    def look(x: np.ndarray) -> Any:
        seen.append(x.dtype)
        return np.sin(x)

    function = gw.external(look, out=out, dtype="float64")

    @function.register_vjp
    def rule(g: Any, x: Any) -> Any:
        seen.extend((g.dtype, x.dtype))
        return g * np.cos(x)

    for _ in range(2):  # the first call goes the long way
        x = torch.tensor([0.5, 2.0], dtype=dtype, requires_grad=True)
        y = function(x)
        y.sum().backward()
        assert x.grad is not None
        assert (y.dtype, x.grad.dtype) == (dtype, dtype)
        assert torch.equal(y, x.detach().double().sin().to(dtype))
        assert torch.equal(x.grad, x.detach().double().cos().to(dtype))
    assert set(seen) == {np.dtype("float64")}


def test_a_result_of_another_dtype_is_cast_back() -> None:
    function = gw.external(lambda x: np.sin(x).astype(np.float32), dtype="float64")
    x = torch.tensor([0.5, 2.0], dtype=torch.float64)
    assert [function(x).dtype for _ in range(2)] == [torch.float64] * 2


def test_a_declared_dtype_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"dtype": "float64"}):
        function = declared(gw.like(0), **options)
        assert shortcut.is_short(function.external.marshal)
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        function(x)
        with monkeypatch.context() as patch:
            patch.setattr(function.external.marshal, "results", None)  # what the long way ends with
            patch.setattr(function.external.marshal, "gradient", None)
            function(x).sum().backward()
        assert x.grad is not None
