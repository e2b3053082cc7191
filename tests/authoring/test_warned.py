"""Warnings point at the line of the user's, and speak of what the user wrote."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import RuleNotExportedWarning


class OnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.x, ctx.dtype = x, dtype
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (2 * g * ctx.x).to(ctx.dtype), None


def subclass() -> Any:
    return type("OnContext", (gw.Function,), {name: vars(OnContext)[name] for name in ("forward", "backward")}).apply


def exported(function: Any, *, strict: bool) -> list[Any]:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return function(x)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RuleNotExportedWarning)
        torch.export.export(Module(), (torch.ones(2),), strict=strict)
    return [w for w in caught if w.category is RuleNotExportedWarning]


@pytest.mark.parametrize("transform", [lambda f: f, torch.func.vmap])
def test_what_is_kept_on_ctx_is_told_at_the_call(transform: Any) -> None:
    apply = subclass()
    x = torch.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="attribute of ctx") as caught:
        transform(lambda t: apply(t, torch.float32))(x)
    assert {w.filename for w in caught} == {__file__}


def test_the_dtype_of_a_gradient_is_told_at_the_backward() -> None:
    apply = subclass()
    x = torch.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="dtype torch.float64|attribute of ctx") as caught:
        apply(x, torch.float64).sum().backward()
    assert [w.filename for w in caught] == [__file__, __file__]


def test_what_is_captured_is_told_at_the_call() -> None:
    w = torch.ones(2, requires_grad=True)

    @gw.custom_gradient
    def f(x: Tensor) -> Tensor:
        return x * w

    f.vjp(lambda g: g)
    with pytest.warns(UserWarning, match="without receiving it as an argument") as caught:
        f(torch.ones(2, requires_grad=True))
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.slow
@pytest.mark.compile
def test_the_export_of_a_function_of_ours_is_told_in_terms_of_what_was_called() -> None:
    (warning,) = exported(lambda x: gw.ste.lsq_plus(x, torch.ones(()), torch.zeros(()), bits=4), strict=False)
    assert str(warning.message).startswith("gw.ste.lsq_plus: torch.export keeps its values")
    assert str(warning.message).endswith("; export for inference only.")
    assert warning.filename == __file__
    (warning,) = exported(lambda x: gw.ste.sign(x), strict=False)
    assert str(warning.message).startswith("gw.ste.sign: ")


@pytest.mark.slow
@pytest.mark.compile
def test_the_strict_export_of_a_function_of_ours() -> None:
    (warning,) = exported(lambda x: gw.ste.sign(x), strict=True)
    assert str(warning.message).startswith("gw.ste.sign: ")
    assert "op=" not in str(warning.message)
    assert warning.filename == __file__
