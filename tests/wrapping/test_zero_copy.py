"""Results lie where foreign code put them, unless something else can reach that memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gradwright as gw

F64 = torch.float64
FORMS = ("array", "tuple", "dict", "saved")


def doubled(form: str, seen: dict[str, int]) -> Any:
    """Return a function of one argument that notes where its result and its gradient are."""

    @gw.external
    def double(x: np.ndarray) -> Any:
        result = 2 * x
        seen["value"] = result.ctypes.data
        if form == "tuple":
            return result, np.zeros(2)
        return gw.save(result, None) if form == "saved" else result

    @double.register_vjp
    def double_vjp(g: Any) -> Any:
        gradient = 2 * (g[0] if form == "tuple" else g)
        seen["gradient"] = gradient.ctypes.data
        return {"x": gradient} if form == "dict" else gradient

    return double


def is_shared(form: str) -> bool:
    seen: dict[str, int] = {}
    double = doubled(form, seen)
    x = torch.ones(3, dtype=F64, requires_grad=True)
    double(x)  # the first call looks closer
    out = double(x)
    out = out[0] if form == "tuple" else out
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert out.tolist() == gradient.tolist() == [2, 2, 2]
    return (out.data_ptr(), gradient.data_ptr()) == (seen["value"], seen["gradient"])


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_copied(form: str) -> None:
    assert is_shared(form)


@pytest.mark.compile
def test_nor_after_code_was_compiled() -> None:
    # From then on Python counts one reference more for each value that is passed from function to function.
    assert torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
    assert all(map(is_shared, FORMS))


@pytest.mark.parametrize("within", ["array", "tuple", "view"])
def test_what_is_used_again_is_copied(within: str) -> None:
    buffer = np.zeros((2, 3))

    @gw.external
    def fill(x: np.ndarray) -> Any:
        buffer[:] = x
        return {"array": buffer, "tuple": (buffer, 1.0), "view": buffer[0]}[within]

    found = []
    for number in (1.0, 2.0, 3.0):
        out = fill(torch.full((2, 3), number, dtype=F64))
        found.append(out[0] if within == "tuple" else out)
    assert [float(out.max()) for out in found] == [1, 2, 3]


def test_a_gradient_that_the_rule_keeps_is_copied() -> None:
    kept = np.ones(3)

    @gw.external
    def total(x: np.ndarray) -> Any:
        return x.sum()

    @total.register_vjp
    def total_vjp(g: Any) -> Any:
        kept[:] = g
        return kept

    x = torch.zeros(3, dtype=F64, requires_grad=True)
    for factor in (1.0, 5.0):
        (factor * total(x)).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6, 6]
