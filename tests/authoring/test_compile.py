"""Under torch.compile in one graph: the same gradients, whatever the arguments and outputs are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from tests.authoring.examples import EXAMPLES, Example, exp, linear, logsumexp, x
from tests.authoring.test_transforms import measured

pytestmark = [pytest.mark.compile, pytest.mark.filterwarnings("ignore")]


def grads(function: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(function(*leaves), leaves, materialize_grads=True)


@pytest.mark.parametrize("example", EXAMPLES[:3], ids=lambda e: f"{e.name}{len(e.inputs)}")
def test_some_examples_are_traced_whole(example: Example) -> None:
    """A part of the next one that every run can afford: Dynamo takes the rules, nothing is compiled."""
    torch.compiler.reset()
    traced = torch.compile(measured(example, example.function), fullgraph=True, backend="eager")
    torch.testing.assert_close(grads(traced, example.inputs), grads(measured(example, example.truth), example.inputs))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.name}{len(e.inputs)}")
def test_every_example_compiles_whole(example: Example) -> None:
    torch.compiler.reset()
    ours = torch.compile(measured(example, example.function), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(grads(ours, example.inputs), grads(measured(example, example.truth), example.inputs))


def test_calls_without_a_gradient_are_traced_whole() -> None:
    """Also those in the rule of another: Dynamo gives the forward a context, where there are several tensors."""

    @gw.custom_gradient
    def slope(g: Tensor, x: Tensor) -> Tensor:
        return g * torch.cos(x)

    slope.vjp(lambda h, g, x: {"g": slope(h, x), "x": -h * g * torch.sin(x)})
    sine = gw.define(torch.sin, vjp=lambda g, x: slope(g, x))
    torch.compiler.reset()
    a, b = x(2), x(2) + 1
    traced: Any = torch.compile(slope, fullgraph=True, backend="eager")
    assert torch.equal(traced(a, b), a * torch.cos(b))
    traced = torch.compile(sine, fullgraph=True, backend="eager")
    torch.testing.assert_close(grads(lambda t: traced(t).sum(), (b,)), (torch.cos(b),))


@pytest.mark.slow
def test_a_function_that_was_never_called_compiles() -> None:
    @gw.custom_gradient
    def fresh(x):  # type: ignore[no-untyped-def]
        return {"y": x * 2, "n": 3}

    fresh.vjp(lambda g: 7 * g["y"])
    torch.compiler.reset()
    compiled = torch.compile(lambda t: fresh(t)["y"].sum(), fullgraph=True, backend="aot_eager")
    assert grads(compiled, (x(2),))[0].tolist() == [7, 7]


@pytest.mark.slow
def test_inductor_and_dynamic_shapes() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda a, w: linear(exp(a), w).sum(), fullgraph=True, dynamic=True)
    for n in (3, 5):
        inputs = (x(n, 3), x(2, 3, seed=2))
        torch.testing.assert_close(grads(compiled, inputs), grads(lambda a, w: (a.exp() @ w.mT).sum(), inputs))


@pytest.mark.slow
def test_compiled_autograd() -> None:
    torch.compiler.reset()
    t = x(3).requires_grad_()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        torch.compile(lambda t: (exp(t) + logsumexp(t)).sum(), backend="aot_eager", fullgraph=True)(t).backward()
    assert t.grad is not None
    torch.testing.assert_close(t.grad, (t.exp() + 3 * t.softmax(0)).detach())


@pytest.mark.slow
def test_autocast() -> None:
    @gw.custom_gradient
    def product(a: Tensor, w: Tensor) -> Tensor:
        return a @ w

    @product.vjp
    def product_vjp(g: Tensor, a: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return g @ w.mT, a.mT @ g

    def under(a: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return product(a, w).float().sum()

    torch.compiler.reset()
    inputs = (x(2, 3).float(), x(3, 2, seed=2).float())
    found = grads(torch.compile(under, fullgraph=True, backend="aot_eager"), inputs)
    assert [g.dtype for g in found] == [torch.float32, torch.float32]
    torch.testing.assert_close(found, grads(under, inputs))


@pytest.mark.slow
def test_a_vjp_that_is_recorded_of_a_rule_that_asks_for_nothing_and_is_sealed() -> None:
    @gw.custom_gradient(double_backward="once")
    def negated(x: Tensor) -> Tensor:
        return x * 1

    negated.vjp(lambda g: -g)

    def pulled(x: Tensor, g: Tensor) -> Tensor:
        return torch.func.vjp(negated, x)[1](g)[0]

    torch.compiler.reset()
    compiled = torch.compile(pulled, backend="aot_eager")  # the transform breaks the graph, so that rules are read too
    assert torch.equal(compiled(x(3), x(3)), -x(3))


@pytest.mark.slow
def test_what_forward_and_rule_captured_may_change() -> None:
    factors = [3.0, 7.0]

    @gw.custom_gradient
    def scaled(x: Tensor) -> Tensor:
        return x * factors[0]

    scaled.vjp(lambda g: g * factors[1])
    torch.compiler.reset()
    compiled = torch.compile(scaled, fullgraph=True, backend="aot_eager")
    for factors[:] in ([3.0, 7.0], [4.0, 5.0]):
        t = torch.ones(2, requires_grad=True)
        out = compiled(t)
        assert out.tolist() == [factors[0]] * 2
        assert torch.autograd.grad(out.sum(), t)[0].tolist() == [factors[1]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("op", [None, "gwtest::compiled_and_transformed"])
def test_a_compiled_function_works_in_a_transform_and_then_without(op: str | None) -> None:
    @gw.custom_gradient(op=op)
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    scaled.vjp(lambda g: 7 * g)
    torch.compiler.reset()
    compiled = torch.compile(scaled, backend="aot_eager")
    t = torch.ones(2, requires_grad=True)
    for _ in range(2):
        assert torch.func.vmap(torch.func.grad(compiled))(torch.ones(2)).tolist() == [7, 7]
        assert torch.func.jvp(compiled, (t.detach(),), (t.detach(),))[1].tolist() == [7, 7]
        assert torch.autograd.grad(compiled(t).sum(), t)[0].tolist() == [7, 7]


def test_functions_of_several_tensors_where_nothing_is_differentiated() -> None:
    """Also inside of a rule, where the compiler counts nothing as differentiated."""

    @gw.custom_gradient
    def scaled(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    @scaled.vjp
    def scaled_vjp(g: Tensor, b: Tensor) -> dict[str, Tensor | None]:
        return {"a": scaled(g, b), "b": None}

    @gw.custom_gradient
    def product(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    @product.vjp
    def product_vjp(g: Tensor, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"a": scaled(g, b), "b": scaled(g, a)}

    a, b = x(3).detach(), x(3, seed=2).detach()
    fast = torch.compile(product, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(fast(a, b), a * b)
    a.requires_grad_()
    (grad,) = torch.autograd.grad(fast(a, b).sum(), a)
    torch.testing.assert_close(grad, b)
