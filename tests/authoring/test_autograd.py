"""What autograd does besides a backward: duals, captured leaves, checkpoint, hooks, batched gradients, linearize."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import gradwright as gw
from gradwright.errors import GradwrightError
from tests.authoring.examples import EXAMPLES, Example, affine, exp, linear, logsumexp, x
from tests.authoring.test_transforms import measured

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.name}{len(e.inputs)}")


def gradients(function: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(function(*leaves), leaves, materialize_grads=True)


@each_example
def test_reverse_over_dual_numbers(example: Example) -> None:
    def tangent(function: Any) -> Any:
        def along(*leaves: Tensor) -> Tensor:
            with forward_ad.dual_level():
                duals = [forward_ad.make_dual(t, torch.cos(t.detach())) for t in leaves]
                found = forward_ad.unpack_dual(function(*duals)).tangent
                assert found is not None
                return found

        return along

    ours, theirs = (tangent(measured(example, f)) for f in (example.function, example.truth))
    if example.refuses & {"second", "forward"}:
        with pytest.raises(GradwrightError, match=f"^{example.name}: "):
            gradients(ours, example.inputs)
        return
    torch.testing.assert_close(gradients(ours, example.inputs), gradients(theirs, example.inputs))


@each_example
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(example: Example, reentrant: bool) -> None:
    def checked(function: Any) -> Any:
        return lambda *leaves: checkpoint(function, *leaves, use_reentrant=reentrant)

    def backward(function: Any) -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in example.inputs]
        function(*leaves).backward()
        return [t.grad for t in leaves if t.grad is not None]

    ours = backward(checked(measured(example, example.function)))
    torch.testing.assert_close(ours, backward(measured(example, example.truth)))


@each_example
def test_saved_tensors_may_be_moved(example: Example) -> None:
    def moved(*leaves: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            return measured(example, example.function)(*leaves)

    expected = gradients(measured(example, example.truth), example.inputs)
    for _ in range(2):
        torch.testing.assert_close(gradients(moved, example.inputs), expected)


@pytest.mark.parametrize("function", [exp, logsumexp])
def test_batched_gradients(function: Any) -> None:
    for _ in range(2):
        t = x(3).requires_grad_()
        out = function(t)
        directions = x(5, *out.shape, seed=4)
        (batched,) = torch.autograd.grad(out, t, directions, is_grads_batched=True, retain_graph=True)
        single = [torch.autograd.grad(out, t, d, retain_graph=True)[0] for d in directions]
        torch.testing.assert_close(batched, torch.stack(single))


def test_a_leaf_outside_of_the_transform() -> None:
    w = x(2, 3).requires_grad_()
    inner = torch.func.grad(lambda t: linear(t, w).sin().sum())(x(4, 3))
    (ours,) = torch.autograd.grad(inner.sum(), w)
    v = x(2, 3).requires_grad_()
    inner = torch.func.grad(lambda t: (t @ v.mT).sin().sum())(x(4, 3))
    torch.testing.assert_close(ours, torch.autograd.grad(inner.sum(), v)[0])


def test_a_tensor_that_outlives_its_transform() -> None:
    out, pull = torch.func.vjp(exp, x(3))
    cotangent = x(3, seed=2).requires_grad_()
    (pulled,) = pull(exp(cotangent))
    torch.testing.assert_close(torch.autograd.grad(pulled.sum(), cotangent)[0], (out * cotangent.exp()).detach())


@gw.custom_gradient
def power_of_two(t: Tensor) -> Tensor:
    return t * t


@power_of_two.jvp
def power_of_two_jvp(v: Tensor, t: Tensor) -> Tensor:
    return 2 * v * t


def test_tensors_without_values() -> None:
    from torch._subclasses import FakeTensorMode

    for context, device in ((nullcontext(), "meta"), (FakeTensorMode(), "cpu")):
        with context:
            t = torch.zeros(3, device=device)
            for function in (exp, logsumexp, power_of_two):
                assert torch.func.jvp(function, (t,), (t,))[1].shape == function(t).shape
                assert torch.func.grad(lambda t, f=function: f(t).sum())(t).shape == t.shape


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # torch's own folding of constants
def test_linearize() -> None:
    out, push = torch.func.linearize(exp, x(3))
    torch.testing.assert_close(push(x(3)), x(3) * x(3).exp())
    torch.testing.assert_close(out, x(3).exp())


def test_functional_call_and_per_sample_gradients() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(x(3, 2))
            self.b = torch.nn.Parameter(x(2))

        def forward(self, t: Tensor) -> Tensor:
            return affine({"w": self.w, "b": self.b}, t)["y"].sin().sum()

    model = Model()
    params = {k: v.detach() for k, v in model.named_parameters()}

    def loss(params: dict[str, Tensor], t: Tensor) -> Tensor:
        return torch.func.functional_call(model, params, (t.unsqueeze(0),))  # type: ignore[no-any-return]

    batch = x(5, 3)
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, batch)
    for k, t in enumerate(batch):
        (w,) = torch.autograd.grad(model(t.unsqueeze(0)), model.w)
        torch.testing.assert_close(per_sample["w"][k], w)


def test_randomness_is_that_of_the_vmap() -> None:
    @gw.custom_gradient
    def dropped(t: Tensor) -> tuple[Tensor, Tensor]:
        mask = (torch.rand(t.shape) < 0.5).to(t.dtype)
        return t * mask, mask

    @dropped.vjp
    def dropped_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor]) -> Tensor:
        return g[0] * out[1]

    t = x(4, 8)
    different, mask = torch.func.vmap(dropped, randomness="different")(t)
    assert torch.equal(different, t * mask)
    assert not torch.equal(mask[0], mask[1])
    (pulled,) = torch.func.vjp(lambda t: torch.func.vmap(dropped, randomness="same")(t)[0], t)[1](torch.ones_like(t))
    assert torch.equal(pulled[0], pulled[1])


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_the_functional_interface_of_autograd(strategy: str) -> None:
    fresh = gw.define(lambda t: torch.exp(t), vjp=lambda g, out: g * out)
    found = torch.autograd.functional.jacobian(fresh, x(3), vectorize=True, strategy=strategy)
    torch.testing.assert_close(found, torch.diag(x(3).exp()))
    torch.testing.assert_close(
        torch.autograd.functional.hvp(lambda t: fresh(t).sum(), x(3), x(3))[1], x(3) * x(3).exp()
    )


@gw.custom_gradient
def inner(t: Tensor) -> Tensor:
    return torch.exp(t)


@inner.vjp
def inner_vjp(g: Tensor, t: Tensor) -> Tensor:
    return g * inner(t)


@gw.custom_gradient
def outer(t: Tensor) -> Tensor:
    return inner(t) * t


@outer.vjp
def outer_vjp(g: Tensor, t: Tensor) -> Tensor:
    return g * (inner(t) * t + inner(t))


def test_functions_and_rules_may_call_decorated_functions() -> None:
    def plain(t: Tensor) -> Tensor:
        return (t.exp() * t).sum()

    for transform in (torch.func.grad, torch.func.hessian, lambda f: torch.func.jacfwd(torch.func.jacfwd(f))):
        for _ in range(2):
            torch.testing.assert_close(transform(lambda t: outer(t).sum())(x(3)), transform(plain)(x(3)))
    assert torch.autograd.gradgradcheck(outer, x(3).requires_grad_())


def test_needs_of_an_argument_after_a_container_are_its_own() -> None:
    asked = []

    @gw.custom_gradient
    def weighted(parts: list[Tensor], x: Tensor) -> Tensor:
        return (parts[0] + parts[1]) * x

    @weighted.vjp
    def weighted_vjp(g, parts, x, needs):
        asked.append(dict(needs))
        total = parts[0] + parts[1]
        return {"parts": [g * x, g * x] if needs["parts"] else None, "x": g * total if needs["x"] else None}

    still, moving, x = torch.ones(2), torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    for parts in ([moving, still], [still, moving], [moving, moving]):
        found = torch.autograd.grad(weighted(parts, x).sum(), (moving, x))
        assert [each.tolist() for each in found] == [[1.0 + (parts[0] is parts[1])] * 2, [2.0, 2.0]]
    torch.autograd.grad(weighted([still, still], x).sum(), x)
    assert asked == [{"parts": True, "x": True}] * 3 + [{"parts": False, "x": True}]


def test_batched_containers_of_which_a_part_is_shared() -> None:
    weights, bias, batch = x(5, 3, 2), x(2, seed=2), x(5, 4, 3, seed=3)

    def total(function: Any, bias: Tensor) -> Tensor:
        def one(params: dict[str, Tensor], t: Tensor) -> Tensor:
            return function(params, t)["y"].sin()  # type: ignore[no-any-return]

        return torch.func.vmap(one, in_dims=({"w": 0, "b": None}, 0))({"w": weights, "b": bias}, batch).sum()

    truth = next(e.truth for e in EXAMPLES if e.function is affine)
    ours = torch.func.grad(lambda b: total(affine, b))(bias)
    torch.testing.assert_close(ours, torch.func.grad(lambda b: total(truth, b))(bias))
