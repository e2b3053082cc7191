"""define, elementwise and surrogate: what they make, and what they refuse."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap

import gradwright as gw
from gradwright.errors import DefinitionError, OptionError, RuleError
from tests.authoring.examples import x

log1pexp = gw.define(lambda x: torch.log1p(x.exp()), vjp=lambda g, x: g * torch.sigmoid(x), name="log1pexp")
tanh = gw.elementwise(torch.tanh, derivative=lambda x, out: 1 - out * out, name="tanh")
sign = gw.surrogate(torch.sign, through=torch.tanh, name="sign")


def product(a: Tensor, b: Tensor, k: float = 1.0) -> Tensor:
    return k * a * b


@pytest.mark.parametrize("function", [log1pexp, tanh, sign])
def test_pickled_by_name(function: Any) -> None:
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__module__ == __name__


def test_without_a_name_they_are_called_like_the_function() -> None:
    assert gw.elementwise(torch.tanh, derivative=lambda x: 1.0).__name__ == "tanh"
    assert gw.surrogate(torch.sign, through=torch.tanh).__name__ == "sign"
    assert gw.define(product, vjp=lambda g: None).__name__ == "product"


# -------------------------------------------------------------------- define


def test_define_takes_every_rule_and_option() -> None:
    calls: list[str] = []

    def batched(info: Any, in_dims: Any, a: Tensor, b: Tensor) -> Any:
        calls.append("vmap")
        assert in_dims.a == in_dims[0] == 0
        assert in_dims.k is None
        return a * b, 0

    def pushed(t: dict[str, Any], a: Tensor, b: Tensor, k: float) -> Tensor:
        calls.append("jvp")
        return k * t["a"] * b

    function = gw.define(product, vjp=lambda g, b: {"a": g * b}, jvp=pushed, vmap=batched, nondiff=("b",))
    assert vmap(function)(x(3), x(3)).shape == (3,)
    assert torch.equal(jvp(lambda a: function(a, x(3)), (x(3),), (x(3),))[1], x(3) * x(3))
    assert calls == ["vmap", "jvp"]
    residual = gw.define(product, fwd=lambda a, b: (a * b, b), vjp=lambda g, residuals: {"a": g * residuals})
    assert torch.equal(grad(lambda a: residual(a, x(3)).sum())(x(3)), x(3))


def test_define_on_a_function_without_a_signature() -> None:
    function = gw.define(torch.log1p, vjp=lambda g, x: 7 * g / (1 + x))
    for _ in range(2):
        t = x(3).abs().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(function(t).sum(), t)[0], 7 / (1 + t.detach()))
    with pytest.raises(DefinitionError, match="sub: Python does not know the signature of this function"):
        gw.define(torch.sub, vjp=lambda g, other, first: (g, -g))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: gw.define(product), DefinitionError, "define: product has no gradient rule; expected one; write vjp="),
        (lambda: gw.define(product, vjp=lambda g, c: g), DefinitionError, "product: the rule '<lambda>' asks for 'c'"),
        (lambda: gw.define(product, vjp=lambda g: g, vmap="all"), OptionError, "product: vmap: got 'all'; expected"),
        (
            lambda: gw.define(product, vjp=lambda g, residuals: g),
            DefinitionError,
            "product: the rule '<lambda>' asks for residuals, but nothing keeps any; expected a forward that does",
        ),
        (
            lambda: gw.define(lambda x: (x, lambda g: g), vjp=lambda g: g, name="habit"),
            DefinitionError,
            "habit: it returns a tuple with a function in it, as custom gradients of TensorFlow do",
        ),
        (lambda: gw.elementwise(product, derivative=2.0), DefinitionError, "the derivative of product is 2.0"),
        (
            lambda: gw.elementwise(product, derivative=lambda c: c),
            DefinitionError,
            "asks for 'c'; it can ask for a, b, k",
        ),
        (lambda: gw.surrogate(torch.sign, through=3), DefinitionError, "surrogate: through is 3; expected a function."),
    ],
)
def test_what_cannot_work_is_refused(make: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        make()


# -------------------------------------------------------------------- elementwise


def test_elementwise_in_every_mode() -> None:
    t = x(3)
    torch.testing.assert_close(vmap(grad(tanh))(t), 1 - t.tanh() ** 2)
    torch.testing.assert_close(jvp(tanh, (t,), (t,))[1], t * (1 - t.tanh() ** 2))
    torch.testing.assert_close(hessian(lambda t: tanh(t).sum())(t), hessian(lambda t: t.tanh().sum())(t))


@pytest.mark.parametrize(
    "derivative", [lambda a, b, k: (k * b, k * a), lambda b, a, k: {"b": k * a, "a": k * b}], ids=["tuple", "dict"]
)
def test_elementwise_of_several_arguments_broadcasts(derivative: Any) -> None:
    function = gw.elementwise(product, derivative=derivative)
    for _ in range(2):
        a, b = x(2, 3).requires_grad_(), x(3).requires_grad_()
        ours = torch.autograd.grad(function(a, b, 3.0).sin().sum(), (a, b))
        torch.testing.assert_close(ours, torch.autograd.grad(product(a, b, 3.0).sin().sum(), (a, b)))
    ours = jvp(lambda a, b: function(a, b, k=3.0), (x(2, 3), x(3)), (x(2, 3), x(3)))[1]
    torch.testing.assert_close(ours, jvp(lambda a, b: product(a, b, 3.0), (x(2, 3), x(3)), (x(2, 3), x(3)))[1])
    ours = jvp(lambda b: function(x(2, 3), b), (x(3),), (x(3),))[1]
    torch.testing.assert_close(ours, x(2, 3) * x(3))


def test_elementwise_of_a_complex_argument() -> None:
    cube = gw.elementwise(lambda z: z**3, derivative=lambda z: 3 * z**2)
    z = torch.complex(x(3), x(3, seed=2)).requires_grad_()
    for _ in range(2):
        assert torch.autograd.gradcheck(cube, z, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(cube, z)
    rotated = gw.elementwise(lambda z: z * 1j, derivative=lambda z: 1j)
    assert torch.autograd.gradcheck(rotated, z, check_forward_ad=True)


def test_an_elementwise_derivative_of_the_wrong_form_is_named() -> None:
    function = gw.elementwise(product, derivative=lambda a: a)
    with pytest.raises(
        RuleError, match=re.escape("product: '<lambda>' returned a Tensor; expected the derivative for")
    ):
        function(x(2).requires_grad_(), x(2)).sum().backward()


# -------------------------------------------------------------------- surrogate


def test_a_surrogate_keeps_the_value_exactly() -> None:
    identity = gw.surrogate(torch.sign, through=lambda x: x)
    large = torch.tensor([1e9, -1e30, 3e-40, 0.0])
    assert torch.equal(identity(large), large.sign())
    t = large.clone().requires_grad_()
    assert torch.autograd.grad(identity(t).sum(), t)[0].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("transform", [grad, lambda f: grad(grad(f)), lambda f: lambda t: jvp(f, (t,), (t,))[1]])
def test_a_surrogate_has_all_derivatives_of_the_other(transform: Any) -> None:
    torch.testing.assert_close(vmap(transform(sign))(x(3)), vmap(transform(torch.tanh))(x(3)))


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_surrogate_survives_what_drops_rules() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda t: grad(lambda t: sign(t).sum())(t), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x(3)), 1 - x(3).tanh() ** 2)


def test_a_surrogate_of_containers_and_of_booleans() -> None:
    both = gw.surrogate(lambda x, k=1: {"a": x > 0, "b": k}, through=lambda x, k=1: {"a": k * x, "b": k})
    t = x(3).requires_grad_()
    out: Any = both(t, k=3)
    assert out["b"] == 3
    assert out["a"].tolist() == (t > 0).double().tolist()
    assert torch.autograd.grad(out["a"].sum(), t)[0].tolist() == [3, 3, 3]


def test_a_surrogate_of_another_shape_is_refused() -> None:
    wrong = gw.surrogate(lambda x: x.sign(), through=lambda x: x.sum(), name="wrong")
    text = re.escape("wrong: it returned tensors of the shapes [(3,)], but its surrogate [()]; expected the same")
    with pytest.raises(RuleError, match=text):
        wrong(x(3))


@pytest.mark.parametrize("right", [True, False])
def test_a_declared_surrogate_is_what_check_compares_with(right: bool) -> None:
    declared = (lambda t: t.clone()) if right else (lambda t: 2 * t)

    @gw.custom_gradient(surrogate=declared)
    def rounded(t: Tensor) -> Tensor:
        return torch.round(t)

    rounded.vjp(lambda g: g)
    named = gw.define(torch.round, vjp=lambda g, t: g, surrogate=declared, name="named")
    for function in (rounded, named):
        report = gw.check(function, x(3), only=("matches-surrogate",))
        assert bool(report) is right
        assert report.results[0].verdict == ("pass" if right else "fail")


def test_a_surrogate_that_is_no_function_is_refused() -> None:
    text = "rounded: surrogate is 'identity'; expected the function whose derivative the rule uses"
    with pytest.raises(DefinitionError, match=text):

        @gw.custom_gradient(surrogate="identity")  # type: ignore[call-overload, untyped-decorator]
        def rounded(t: Tensor) -> Tensor:
            return torch.round(t)


def test_a_function_with_a_surrogate_leaves_its_arguments_alone() -> None:
    halved = gw.surrogate(lambda x: x.mul_(0.5), through=torch.tanh, name="halved")
    for call in (halved, torch.func.vmap(halved)):
        with pytest.raises(RuleError, match="halved: it edited one of its arguments in place"):
            call(torch.ones(2))


def test_a_method_of_a_built_in_class_can_be_given_a_derivative() -> None:
    exponential = gw.elementwise(torch.Tensor.exp, derivative=lambda x, out: 7 * out, name="exponential")
    t = x(3).requires_grad_()
    assert torch.allclose(torch.autograd.grad(exponential(t).sum(), t)[0], 7 * t.exp())
