"""Calling a foreign function: how often, on what, in which order, and what is said when it fails."""

from __future__ import annotations

import pickle
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gradwright as gw
from gradwright.errors import ExternalError, GradwrightError, NondeterministicWarning, RuleError
from tests.wrapping.examples import real

X = real(1, 2, 3)


def counted(function: Any = lambda x: 2 * x, **options: Any) -> Any:
    calls: list[Any] = []

    def host(x: Any) -> Any:
        calls.append(x.copy())
        return function(x)

    made = gw.external(host, **options)
    made.register_vjp(lambda g, x: 2 * g)
    made.host_calls = calls
    return made


# ---------------------------------------------------------------- errors


def broken(x: Any, n: int = 3) -> Any:
    pressure = {"known": 1.0}
    return x * pressure["unknown"]


def test_an_error_says_where_and_with_what() -> None:
    function = gw.external(broken)
    for given in (X, X.clone().requires_grad_()):
        with pytest.raises(ExternalError) as caught:
            function(given)
        error = caught.value
        message = str(error)
        assert message.startswith("broken: it raised KeyError: 'unknown'; it was called with x=float64 (3,), n=3;")
        assert isinstance(error.__cause__, KeyError)
        assert error.index is None
        assert 'pressure["unknown"]' in error.traceback
        assert 'pressure["unknown"]' in "".join(traceback.format_exception(error)), "the line is seen in the traceback"
        assert isinstance(error, GradwrightError)
        assert isinstance(error, RuntimeError)


@pytest.mark.parametrize("kind", ["vjp", "jvp", "jacobian", "hvp"])
def test_an_error_in_a_rule_names_the_rule(kind: str) -> None:
    function = gw.external(lambda x: x**2)
    if kind == "hvp":
        function.register_vjp(lambda g, x: 2 * x * g)
    asks = {"vjp": "g, x", "jvp": "t, x", "jacobian": "x", "hvp": "g, t, x"}[kind]
    scope: dict[str, Any] = {}
    exec(f"def the_rule({asks}):\n    return 1 / 0\n", scope)
    getattr(function, f"register_{kind}")(scope["the_rule"])
    for _ in range(2):
        with pytest.raises(
            ExternalError, match=r"its rule 'the_rule' raised ZeroDivisionError.*x=float64 \(3,\)"
        ) as caught:
            torch.func.hessian(lambda x: function(x).sum())(X)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert "ZeroDivisionError" in caught.value.traceback


def test_interrupts_are_passed_on() -> None:
    class StopError(BaseException):
        pass

    def host(x: Any) -> Any:
        raise StopError

    with pytest.raises(StopError):
        gw.external(host)(X)


def test_an_error_leaves_the_function_usable() -> None:
    function = counted(lambda x: 2 * x if x[0] > 0 else 1 / 0)
    for _ in range(2):
        assert torch.equal(function(X), 2 * X)
        with pytest.raises(ExternalError):
            function(-X)


def test_warnings_of_the_function_are_its_own() -> None:
    function = gw.external(lambda x: np.log(x))
    with pytest.warns(RuntimeWarning, match="invalid value"):
        function(-X)


# ---------------------------------------------------------------- how often it is called


def test_the_first_call_is_made_twice_and_later_ones_once() -> None:
    function = counted()
    for expected in (2, 3, 4):
        function(X)
        assert len(function.host_calls) == expected
    x = X.clone().requires_grad_()
    out = function(x).sum()
    for _ in range(2):
        out.backward(retain_graph=True)
    assert len(function.host_calls) == 5, "no backward calls the function"


def test_a_function_that_returns_something_else_each_time_is_told() -> None:
    random = np.random.default_rng(0)
    function = gw.external(lambda x: x * random.random())
    with pytest.warns(NondeterministicWarning, match="function: two calls with the same arguments .*pure=False"):
        function(X)
    function(X)  # once is enough


def test_parallel_sums_and_nan_are_no_randomness() -> None:
    noise = iter([0.0, 1e-12, 0.0])
    gw.external(lambda x: x + next(noise))(X)
    gw.external(lambda x: x * np.nan)(X)
    gw.external(lambda x: x / np.zeros(3) if False else x + np.inf)(X)


def test_a_cache_finds_results_by_the_values_of_arguments() -> None:
    calls = []

    def power(x: Any, n: int = 2) -> Any:
        calls.append((x.tolist(), n))
        return x**n

    function = gw.external(power, cache=2)
    function.register_vjp(lambda g, x, n: n * x ** (n - 1) * g)
    function(X)
    calls.clear()
    for _ in range(3):
        assert torch.equal(function(X), X**2)
        function(X).add_(7)  # what it keeps is nobody else's
    assert calls == []
    assert torch.equal(function(X, 3), X**3)
    assert torch.equal(function(2 * X), 4 * X**2)
    assert len(calls) == 2
    assert torch.equal(function(X), X**2)
    assert len(calls) == 3, "the oldest is forgotten"
    assert torch.equal(function(X.float()), X.float() ** 2)
    assert torch.equal(function(X[None]), X[None] ** 2)
    assert len(calls) == 5, "dtype and shape tell arguments apart"
    x = X.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(function(x).sum(), x)[0], 2 * X)
    torch.func.vmap(function)(torch.stack([X, X, X]))


def test_a_cache_leaves_alone_what_has_no_key() -> None:
    function = gw.external(lambda x, k: x * k[0], argnums="x", cache=4)
    for k in (2.0, 3.0):
        assert torch.equal(function(X, [k]), X * k)


# ---------------------------------------------------------------- functions with effects


def test_an_impure_function_is_called_as_often_as_asked_for_in_order() -> None:
    function = counted(pure=False)
    for expected in (1, 2):
        function(X)
        assert len(function.host_calls) == expected
    x = X.clone().requires_grad_()
    function(x).sum().backward()
    assert len(function.host_calls) == 3
    function.host_calls.clear()
    torch.func.vmap(function)(torch.stack([X, 2 * X, 3 * X]))
    assert [call[0] for call in function.host_calls] == [1, 2, 3]


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_impure_function_refuses_a_checkpoint(reentrant: bool) -> None:
    function, x = counted(pure=False), X.clone().requires_grad_()
    function(X)
    with pytest.raises(RuleError, match=r"pure=False, and torch.utils.checkpoint would run it a second time.*move it"):
        checkpoint(lambda x: function(x) * 1, x, use_reentrant=reentrant)
    assert len(function.host_calls) == 1
    checkpoint(lambda x: 2 * x, function(x), use_reentrant=reentrant).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 4.0).double())


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_an_impure_function_is_not_compiled() -> None:
    function = counted(pure=False, out=gw.like(0))
    torch.compiler.reset()
    assert torch.equal(torch.compile(lambda x: function(x) * 1, backend="aot_eager")(X), 2 * X)
    torch.compiler.reset()
    with pytest.raises(Exception, match="pure=False, and compiled code may call it more or less often"):
        torch.compile(lambda x: function(x) * 1, backend="aot_eager", fullgraph=True)(X)


# ---------------------------------------------------------------- threads


def test_threads_that_call_one_function() -> None:
    def host(x: Any) -> Any:
        return x**2

    function = gw.external(host)
    function.register_vjp(lambda g, x, out: 2 * np.sqrt(out) * g)
    start = threading.Barrier(4)

    def work(k: int) -> bool:
        start.wait()
        right = True
        for i in range(50):
            x = (X * (k + 1) + i).requires_grad_()
            (grad,) = torch.autograd.grad(function(x).sum(), x)
            right &= torch.allclose(grad, 2 * x.detach())
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


# ---------------------------------------------------------------- names and copies


@gw.external(out=gw.like("x"))
def at_module_level(x: Any) -> Any:
    """Return ``2 x``."""
    return 2 * x


@at_module_level.register_vjp
def at_module_level_vjp(g: Any) -> Any:
    return 2 * g


def test_a_function_of_a_module_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    assert at_module_level.__name__ == "at_module_level"
    assert at_module_level.__doc__ == "Return ``2 x``."
    assert at_module_level.__module__ == __name__


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_a_definition_that_is_run_again_replaces_the_first() -> None:
    """As a cell of a notebook does."""
    source = """
@gw.external(out=gw.like("x"))
def cell(x):
    return {factor} * x

@cell.register_vjp
def cell_vjp(g):
    return {factor} * g
"""
    found = []
    for factor in (2, 5):
        scope: dict[str, Any] = {"gw": gw, "__name__": "a_notebook"}
        exec(source.format(factor=factor), scope)
        found.append(scope["cell"])
        torch.compiler.reset()
        x = X.clone().requires_grad_()
        out = torch.compile(lambda x, cell=scope["cell"]: cell(x) * 1, backend="aot_eager", fullgraph=True)(x)
        assert torch.equal(out.detach(), factor * X)
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.full((3,), float(factor)).double())
    assert torch.equal(found[0](X), 2 * X), "the first one is still itself"


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_two_functions_of_one_factory_compiled_together() -> None:
    def scaled(factor: float) -> Any:
        @gw.external(out=gw.like("x"))
        def local(x: Any) -> Any:
            return factor * x

        local.register_vjp(lambda g: factor * g)
        return local

    two, five = scaled(2.0), scaled(5.0)
    torch.compiler.reset()
    x = X.clone().requires_grad_()
    out = torch.compile(lambda x: two(x) * five(x), backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(out.detach(), 10 * X**2)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], 20 * X)
