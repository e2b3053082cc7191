"""What is declared of outputs: ``gw.like``, ``gw.spec``, functions of empty tensors, and what does not fit them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import DefinitionError, ExternalError, OptionError, RuleError
from tests.wrapping.examples import real

X = real(1, 2, 3)


def tiled(x: Any, n: int) -> Any:
    return np.tile(x, n)


def tiled_like(x: Tensor, n: int) -> Tensor:
    return x.new_empty(n * x.shape[0])


def pair_like(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(())


@pytest.mark.parametrize(
    ("host", "out", "expected"),
    [
        (lambda x: 2 * x, gw.like(0), 2 * X),
        (lambda x: 2 * x, gw.like("x"), 2 * X),
        (lambda x: 2 * x, gw.like(-1), 2 * X),
        (lambda x: (2 * x).astype("f4"), gw.like(0, dtype=torch.float32), (2 * X).float()),
        (lambda x: x.sum(), gw.spec(()), X.sum()),
        (lambda x: float(x.sum()), gw.spec((), torch.float32), X.sum().float()),
        (lambda x: np.argsort(-x), gw.spec((3,), torch.int64), torch.tensor([2, 1, 0])),
        (lambda x: np.argsort(-x), gw.spec(3, torch.int64), torch.tensor([2, 1, 0])),
        (lambda x: x > 1, gw.spec((3,), torch.bool), X > 1),
        (lambda x: (x, x.sum()), (gw.like(0), gw.spec(())), (X, X.sum())),
        (lambda x: (x,), (gw.like(0),), (X,)),
        (lambda x: (x, x.sum()), pair_like, (X, X.sum())),
        (lambda x: np.round(x).astype(int), gw.like(0), X),
    ],
)
def test_declarations_that_fit(host: Any, out: Any, expected: Any) -> None:
    function = gw.external(host, out=out)
    for _ in range(3):
        torch.testing.assert_close(function(X), expected)


def test_a_function_of_empty_tensors() -> None:
    function = gw.external(tiled, out=tiled_like)
    function.register_vjp(lambda g, n: g.reshape(n, -1).sum(0))
    x = X.clone().requires_grad_()
    for n in (1, 2, 3):
        out = function(x, n)
        torch.testing.assert_close(out.detach(), X.tile(n))
        torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], torch.full((3,), float(n)).double())
    assert torch.func.vmap(lambda x: function(x, 2))(torch.stack([X, X])).shape == (2, 6)


@pytest.mark.parametrize(
    ("host", "out", "text"),
    [
        (
            lambda x: x[:2],
            gw.like(0),
            r"returned float64 \(2,\); out declares float64 \(3,\); .*correct out, or reshape",
        ),
        (lambda x: x[None], gw.spec((3,)), r"returned float64 \(1, 3\); out declares float64 \(3,\)"),
        (lambda x: x.astype("f4"), gw.like(0), r"returned float32 \(3,\); out declares float64; .*dtype=torch.float32"),
        (lambda x: x, gw.like(0, dtype=torch.float32), "returned float64 .*out declares float32"),
        (lambda x: x, gw.spec((3,), torch.int64), "returned float64 .*out declares int64"),
        (lambda x: x * 1j, gw.like(0), "returned complex128 .*out declares float64"),
        (lambda x: (x, x), gw.like(0), "returned a tuple of 2; out declares one output"),
        (lambda x: x, (gw.like(0),), "returned one output; out declares a tuple of 1"),
        (lambda x: (x,), gw.like(0), "returned a tuple of 1; out declares one output"),
        (lambda x: (x, x), (gw.like(0),) * 3, "returned a tuple of 2; out declares a tuple of 3"),
        (lambda x: (x, x[:1]), (gw.like(0),) * 2, r"returned float64 \(1,\) as output 1; out declares"),
        (lambda x: x, lambda x: x.new_empty(2), r"returned float64 \(3,\); out declares float64 \(2,\)"),
    ],
)
def test_results_that_do_not_fit(host: Any, out: Any, text: str) -> None:
    function = gw.external(host, out=out)
    for given in (X, X, X.clone().requires_grad_()):
        with pytest.raises(ExternalError, match=f"function: it {text}"):
            function(given)


def test_a_later_result_that_does_not_fit() -> None:
    function = gw.external(lambda x: 2 * x if x[0] > 0 else x[:1], out=gw.like(0))
    function(X)
    with pytest.raises(ExternalError, match=r"returned float64 \(1,\); out declares float64 \(3,\)"):
        function(-X)


def test_another_number_of_outputs_than_before() -> None:
    function = gw.external(lambda x: (x, x) if x[0] < 0 else x)
    function(X)
    with pytest.raises(ExternalError, match="returned a tuple of 2, and one output before"):
        function(-X)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (lambda x: np.ones(3), "the function given as out returned a ndarray; expected an empty tensor"),
        (lambda x: 1 / 0, "the function given as out raised ZeroDivisionError"),
        (lambda y: y, r"the function given as out raised TypeError.*of the same arguments \(x\)"),
    ],
)
def test_functions_of_empty_tensors_that_fail(out: Any, text: str) -> None:
    with pytest.raises(RuleError, match=f"function: {text}"):
        gw.external(lambda x: x, out=out)(X)


def test_like_an_argument_that_is_no_tensor() -> None:
    function = gw.external(lambda x, y=None: 1 * x, argnums=("x", "y"), out=gw.like("y"))
    function(X, X)
    for _ in range(2):
        with pytest.raises(RuleError, match=r"out=gw.like\('y'\), which is None in this call"):
            function(X)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (gw.like("z"), r"out=gw.like\('z'\) names no argument; expected one of x"),
        (gw.like(5), r"out=gw.like\(5\), but it has 1 arguments"),
        (3, "out is 3; expected what it returns"),
        ((), r"out is \(\)"),
        ((gw.like(0), 3), "out is"),
        (torch.float64, "out is torch.float64"),
    ],
)
def test_declarations_that_cannot_be(out: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=f"function: {text}"):
        gw.external(lambda x: x, out=out)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: gw.like(1.5), "like: got 1.5"),
        (lambda: gw.like(True), "like: got True"),
        (lambda: gw.spec("x"), "spec: shape is 'x'"),
        (lambda: gw.spec((-1,)), "spec: shape is"),
        (lambda: gw.spec((2,), "float64"), "spec: dtype is 'float64'"),
        (lambda: gw.spec((2,), order="K"), "spec: order is 'K'"),
    ],
)
def test_words_of_declarations_are_checked(call: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        call()


def test_the_order_in_memory_is_what_was_declared() -> None:
    x = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    for out, stride in ((gw.like(0), (3, 1)), (gw.spec((2, 3)), (3, 1)), (gw.spec((2, 3), order="F"), (1, 2))):
        for layout in (np.ascontiguousarray, np.asfortranarray):
            function = gw.external(lambda x, layout=layout: layout(2 * x), argnums="x", out=out)
            for _ in range(2):
                assert function(x).stride() == stride
            batch = torch.func.vmap(function)(torch.stack([x, x]))
            assert batch[0].stride() == stride
            torch.testing.assert_close(batch[1], 2 * x)


@pytest.mark.parametrize("dtype", [None, "float64"])
@pytest.mark.parametrize("out", [gw.like(0), gw.spec(())])
def test_no_imaginary_part_is_dropped(dtype: Any, out: Any) -> None:
    function = gw.external(lambda x: np.sqrt(x.astype(complex) - 2), out=out, dtype=dtype)
    with pytest.raises(ExternalError, match=r"complex128.*out declares float64; .*return its real part, or correct"):
        function(X if out == gw.like(0) else X[0])
