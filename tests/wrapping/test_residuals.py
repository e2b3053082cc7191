"""What a function keeps for its derivative: used once, freed in time, and made again where it was lost."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gradwright as gw
from tests.wrapping.examples import real


class Factor:
    """Something that can be watched."""

    def __init__(self, x: Any) -> None:
        self.x = x.copy()


def keeping(**options: Any) -> Any:
    """Return ``x²`` whose derivative uses only what was kept, after a first call; ``made`` are the objects kept."""
    made: list[weakref.ref[Factor]] = []

    def host(x: Any) -> Any:
        factor = Factor(x)
        made.append(weakref.ref(factor))
        return gw.save(x**2, factor)

    function = gw.external(host, **options)
    function.register_vjp(lambda g, residuals: 2 * residuals.x * g)
    function(real(1, 2, 3))
    made.clear()
    function.made = made
    return function


def leaf() -> Any:
    return real(1, 2, 3).requires_grad_()


def test_what_was_kept_is_used_and_freed() -> None:
    function, x = keeping(), leaf()
    out = function(x)
    (factor,) = function.made
    assert factor() is not None
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], 2 * x.detach())
    assert len(function.made) == 1, "it was not made again"
    assert factor() is None, "freed by the backward"


def test_it_stays_for_a_retained_graph() -> None:
    function, x = keeping(), leaf()
    out = function(x).sum()
    out.backward(retain_graph=True)
    assert function.made[0]() is not None
    out.backward()
    assert len(function.made) == 1
    assert function.made[0]() is None
    assert torch.equal(x.grad, 4 * x.detach())


def test_it_is_freed_with_the_graph() -> None:
    function = keeping()
    out = function(leaf())
    assert function.made[0]() is not None
    del out
    assert function.made[0]() is None


def test_nothing_is_kept_where_nothing_is_differentiated() -> None:
    function = keeping()
    for given in (real(1, 2, 3), leaf()):
        with torch.no_grad():
            out = function(given)
        assert function.made[-1]() is None
        assert not out.requires_grad


def test_it_is_made_again_where_it_was_lost() -> None:
    function, x = keeping(), real(1, 2, 3)
    batch = torch.stack([x, 2 * x])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(batch), 2 * batch)
    torch.testing.assert_close(torch.func.jacfwd(function)(x), torch.diag(2 * x))


def test_a_jacobian_uses_what_was_kept_once() -> None:
    function, x = keeping(), real(1, 2, 3)
    torch.testing.assert_close(torch.func.jacrev(function)(x), torch.diag(2 * x))
    assert len(function.made) == 1, "all cotangents have the same point"


def test_second_derivatives() -> None:
    function, x = keeping(second_order="differences"), real(1, 2, 3)
    torch.testing.assert_close(
        torch.func.hessian(lambda x: function(x).sum())(x), 2 * torch.eye(3).double(), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    function, x = keeping(), leaf()
    out = checkpoint(lambda x: function(x) * 1, x, use_reentrant=reentrant)
    assert all(factor() is None for factor in function.made)
    out.sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())
    assert len(function.made) == 2, "once in the forward, once when it is run again"


def test_hooks_on_saved_tensors() -> None:
    function = keeping()
    for hooks in (
        torch.autograd.graph.save_on_cpu(),
        torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t),
        torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), lambda a: torch.from_numpy(a)),
    ):
        x = leaf()
        with hooks:
            out = function(x)
        out.sum().backward()
        assert torch.equal(x.grad, 2 * x.detach())


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_makes_it_again() -> None:
    function, x = keeping(out=gw.like(0)), leaf()
    torch.compiler.reset()
    out = torch.compile(lambda x: function(x) * 1, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], 2 * x.detach())


@pytest.mark.parametrize("save", [True, False])
def test_nothing_may_be_kept(save: bool) -> None:
    """None is a residual like others, and what is there when nothing was saved; the function does not run again."""
    calls = []

    def host(x: Any) -> Any:
        calls.append(1)
        return gw.save(x**2, None) if save else x**2

    function = gw.external(host)
    seen = []
    function.register_vjp(lambda g, x, residuals: seen.append(residuals) or 2 * x * g)
    for _ in range(3):
        x = leaf()
        assert torch.equal(torch.autograd.grad(function(x).sum(), x)[0], 2 * x.detach())
    assert seen == [None] * 3


def test_several_outputs_with_something_kept() -> None:
    function = gw.external(lambda x: gw.save((x**2, x**3), x.copy()))
    function.register_vjp(lambda g, residuals: 2 * residuals * g[0] + 3 * residuals**2 * g[1])
    for _ in range(3):
        x = leaf()
        square, cube = function(x)
        (grad,) = torch.autograd.grad(square.sum() + 2 * cube.sum(), x, retain_graph=True)
        torch.testing.assert_close(grad, (2 * x + 6 * x**2).detach())
        torch.testing.assert_close(torch.autograd.grad(cube.sum(), x)[0], 3 * x.detach() ** 2)


def test_what_was_kept_is_the_very_object() -> None:
    handles = []

    def host(x: Any) -> Any:
        handles.append({"times": 0, "x": x.copy()})
        return gw.save(x**2, handles[-1])

    function = gw.external(host, copy=True)

    @function.register_vjp
    def rule(g: Any, residuals: Any) -> Any:
        assert residuals is handles[-1]
        residuals["times"] += 1
        return 2 * residuals["x"] * g

    function(real(1, 2, 3))
    x = leaf()
    out = function(x).sum()
    out.backward(retain_graph=True)
    out.backward()
    assert handles[-1]["times"] == 2


def test_a_cached_result_brings_what_was_kept() -> None:
    function, x = keeping(cache=2), leaf()
    for _ in range(3):
        assert torch.equal(torch.autograd.grad(function(2 * x).sum(), x)[0], 8 * x.detach())
    assert len(function.made) == 1
