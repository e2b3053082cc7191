"""Which arguments have a derivative, and how constants, keywords and arguments that are not there are passed."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, DefinitionError, ExternalError, OptionError, RuleError
from tests.wrapping.examples import real

X, Y = real(1, 2, 3), real(0.5, -1, 2)


def affine(x: Any, scale: float = 2.0, *, shift: float = 0.0, mode: str = "plain") -> Any:
    return scale * x + shift if mode == "plain" else -scale * x


def affine_vjp(g: Any, scale: Any, mode: Any) -> Any:
    return scale * g if mode == "plain" else -scale * g


def test_constants_by_position_and_keyword() -> None:
    function = gw.external(affine, out=gw.like("x"))
    function.register_vjp(affine_vjp)
    for _ in range(2):
        for args, kwargs in (((), {}), ((3.0,), {}), ((), {"scale": 3.0, "shift": 1.0}), ((3.0,), {"mode": "minus"})):
            x = X.clone().requires_grad_()
            out = function(x, *args, **kwargs)
            torch.testing.assert_close(out.detach(), affine(X, *args, **kwargs))
            expected = affine_vjp(
                torch.ones(3).double(), (args or (kwargs.get("scale", 2.0),))[0], kwargs.get("mode", "plain")
            )
            torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], expected)
            batch = torch.func.vmap(lambda x, a=args, k=kwargs: function(x, *a, **k))(torch.stack([X, Y]))
            torch.testing.assert_close(batch, affine(torch.stack([X, Y]), *args, **kwargs))
    with pytest.raises(TypeError):
        function(X, 2.0, 1.0)


def test_tensors_by_keyword_only() -> None:
    function = gw.external(lambda x, *, w: x * w)
    function.register_vjp(lambda g, x, w: {"x": g * w, "w": g * x})
    function.register_vmap(lambda x, *, w: x * w)
    for f in (lambda x, w: function(x, w=w), lambda x, w: x * w):
        found = torch.func.grad(lambda x, w, f=f: f(x, w).sum(), (0, 1))(X, Y)
        torch.testing.assert_close(found, (Y, X))
    torch.testing.assert_close(
        torch.func.vmap(lambda x: function(x, w=Y))(torch.stack([X, Y])), torch.stack([X, Y]) * Y
    )


@pytest.mark.parametrize("argnums", [0, "x", (0,), ["x"], -2, (0, "x")])
def test_argnums_name_arguments(argnums: Any) -> None:
    function = gw.external(lambda x, w: x * w, argnums=argnums)
    function.register_vjp(lambda g, w: g * w)
    for w in (Y, 3.0, np.array([1.0, 2.0, 3.0])):
        x = X.clone().requires_grad_()
        out = function(x, w)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], torch.as_tensor(w).double().expand(3))
    with pytest.raises(RuleError, match=r"a gradient of 'w' is needed, but it is not among .*name it in argnums"):
        function(X, Y.clone().requires_grad_())


@pytest.mark.parametrize("argnums", ["q", 2, -3, (), True, 1.5])
def test_argnums_that_name_nothing(argnums: Any) -> None:
    with pytest.raises(DefinitionError, match="function: argnums"):
        gw.external(lambda x, w: x * w, argnums=argnums)


def test_a_value_that_is_no_tensor() -> None:
    function = gw.external(lambda x: 2 * x)
    for value in ([1.0, 2.0], np.ones(2), 3.0, None):
        with pytest.raises(
            ArgumentError, match=r"function: 'x' is .* among the arguments that have a derivative; .*as_tensor"
        ):
            function(value)


# ---------------------------------------------------------------- arguments that are not there


def weighed(x: Any, b: Any = None) -> Any:
    return x**2 if b is None else x**2 * b


def weighed_vjp(g: Any, x: Any, b: Any) -> Any:
    return {"x": 2 * x * g, "b": None} if b is None else {"x": 2 * x * g * b, "b": g * x**2}


def weighed_jvp(t: Any, x: Any, b: Any) -> Any:
    found = 0 * x
    if t["x"] is not None:
        found = found + 2 * x * t["x"] * (1 if b is None else b)
    return found if t["b"] is None else found + x**2 * t["b"]


def weighed_hvp(g: Any, t: Any, x: Any, b: Any) -> Any:
    if b is None:
        return {"x": 2 * g * t["x"]}
    return {"x": 2 * g * t["x"] * b + 2 * x * g * t["b"], "b": 2 * x * g * t["x"]}


ASKED: dict[str, Any] = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: torch.func.jvp(f, (X,), (Y,)),
    "vmap": lambda f: torch.func.vmap(f)(torch.stack([X, Y])),
    "vmap(grad)": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(torch.stack([X, Y])),
    "jacfwd": lambda f: torch.func.jacfwd(f)(X),
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sum())(X),
    "jacfwd(jacfwd)": lambda f: torch.func.jacfwd(torch.func.jacfwd(f))(X),
    "both": lambda f: torch.func.hessian(lambda x, b: f(x, b).sum(), (0, 1))(X, Y),
}


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("kinds", [("vjp",), ("jvp",), ("vjp", "hvp"), ("vjp", "jvp", "hvp")])
def test_an_argument_that_is_not_there(kinds: tuple[str, ...], ask: str) -> None:
    function = gw.external(weighed, argnums=("x", "b"))
    rules = {"vjp": weighed_vjp, "jvp": weighed_jvp, "hvp": weighed_hvp}
    for kind in kinds:
        getattr(function, f"register_{kind}")(rules[kind])
    if "hvp" not in kinds and ask in ("hessian", "jacfwd(jacfwd)", "both"):
        with pytest.raises(RuleError, match=r"weighed: its derivative was differentiated again"):
            ASKED[ask](function)
        return
    torch.testing.assert_close(ASKED[ask](function), ASKED[ask](weighed))


# ---------------------------------------------------------------- what can be wrapped


def test_ufuncs_have_the_inputs_that_they_have() -> None:
    function = gw.external(np.arctan2)
    function.register_vjp(lambda g, x0, x1: {"x0": g * x1 / (x0**2 + x1**2), "x1": -g * x0 / (x0**2 + x1**2)})
    found = torch.func.grad(lambda x, y: function(x, y).sum(), (0, 1))(X, Y)
    torch.testing.assert_close(found, torch.func.grad(lambda x, y: torch.atan2(x, y).sum(), (0, 1))(X, Y))
    sine = gw.external(np.sin)
    sine.register_vjp(lambda g, x: g * np.cos(x))
    torch.testing.assert_close(torch.func.grad(lambda x: sine(x).sum())(X), X.cos())


def test_arguments_with_names_that_rules_use() -> None:
    with pytest.raises(DefinitionError, match=r"dot: its argument 'out' has a name .*`lambda x: dot\(x\)`"):
        gw.external(np.dot)
    with pytest.raises(DefinitionError, match=r"an argument is called 'out'.*rename the argument"):
        gw.external(lambda x, out: x)


def test_functions_without_a_signature() -> None:
    with pytest.raises(DefinitionError, match=r"max: Python does not know the signature .*argnums=\(0,\)"):
        gw.external(max)
    assert gw.external(max, argnums=(0,))(X).item() == 3


class Doubles:
    """A callable object."""

    def __call__(self, x: Any) -> Any:
        return 2 * x

    def method(self, x: Any) -> Any:
        return 2 * x


@pytest.mark.parametrize(
    "host",
    [Doubles(), Doubles().method, functools.partial(lambda n, x: n * x, 2), functools.partial(lambda x, n: n * x, n=2)],
)
def test_what_can_be_called_can_be_wrapped(host: Any) -> None:
    torch.testing.assert_close(gw.external(host)(X), 2 * X)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (Doubles, "expected a function of arrays"),
        (3, "expected a function of arrays"),
        (lambda *a: a[0], r"\*a"),
        (lambda x, **a: x, r"\*\*a"),
        (lambda n=3: n, "none of its arguments .* can have a derivative"),
        (gw.external(lambda x: x), "it is differentiable already"),
    ],
)
def test_what_cannot_be_wrapped(host: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        gw.external(host)


def test_rules_are_checked_when_they_are_attached() -> None:
    function = gw.external(lambda x: x)
    for kind in ("vjp", "jvp", "jacobian", "hvp"):
        with pytest.raises(DefinitionError, match=f"register_{kind}: got 3; expected a function"):
            getattr(function, f"register_{kind}")(3)
    with pytest.raises(DefinitionError, match=r"asks for|takes"):
        function.register_vjp(lambda g, y: g)
    with pytest.raises(DefinitionError, match=r"\*args"):
        function.register_vjp(lambda *args: args[0])


def test_a_rule_that_returns_something_for_a_constant() -> None:
    function = gw.external(lambda x, w: x * w, argnums="x")
    function.register_vjp(lambda g, x, w: dict.fromkeys(("x", "w"), g))
    x = X.clone().requires_grad_()
    with pytest.raises(ExternalError, match="returned something for 'w'; expected x, which have a derivative"):
        torch.autograd.grad(function(x, Y).sum(), x)


def test_copies_are_the_function_itself() -> None:
    function = gw.external(affine)
    assert copy.copy(function) is function
    assert copy.deepcopy(function) is function


def test_modules_that_hold_a_function_are_copied() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = gw.external(affine)
            self.weight = torch.nn.Parameter(X.clone())

        def forward(self) -> Tensor:
            return self.function(self.weight)

    model = copy.deepcopy(Model())
    torch.testing.assert_close(model().detach(), 2 * X)


def test_constants_are_passed_as_they_are() -> None:
    """An array, a list or an object of the user's is the very same in the function, which may write into it."""
    log: list[float] = []
    work = np.zeros(3)

    def host(x: Any, log: Any, work: Any) -> Any:
        log.append(float(x[0]))
        np.multiply(x, 2, out=work)
        return work

    function = gw.external(host, argnums="x")
    function.register_vjp(lambda g, work: 2 * g + 0 * work)
    for scale in (1, 2, 3):
        x = (scale * X).requires_grad_()
        out = function(x, log, work)
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.full((3,), 2.0).double())
        assert np.array_equal(work, 2 * scale * X.numpy())
        assert log[-1] == scale
        work[:] = 0
        assert torch.equal(out.detach(), 2 * scale * X), "the result is not the buffer"
    assert work.flags.writeable


@pytest.mark.parametrize("argnums", [None, "x"])
def test_an_array_as_default(argnums: Any) -> None:
    weights = np.array([2.0, 3.0, 4.0])

    def host(x: Any, w: Any = weights) -> Any:
        return x * w

    function = gw.external(host, argnums=argnums)
    function.register_vjp(lambda g, x, w: {"x": g * w, "w": g * x} if argnums is None else g * w)
    truth = torch.tensor(weights)
    for _ in range(3):
        torch.testing.assert_close(torch.func.grad(lambda x: function(x).sum())(X), truth)
        x = X.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(function(x).sum(), x)[0], truth)
    torch.testing.assert_close(torch.func.jvp(function, (X,), (Y,)), (X * truth, Y * truth))
    batch = torch.stack([X, Y, X])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(batch), truth.expand(3, 3))
    torch.testing.assert_close(function(X, Y), X * Y)
    assert weights.flags.writeable


@pytest.mark.parametrize("workers", ["processes", 0, 2.5])
def test_what_are_no_workers_is_refused_when_it_is_declared(workers: Any) -> None:
    with pytest.raises(OptionError, match="expected"):
        gw.external(lambda x: x, workers=workers)
