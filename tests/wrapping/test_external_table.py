"""What composes: every way to give a derivative, under everything that torch can ask for.

Each cell is right by value, against the same function in torch, or refuses with our message, which names the function
and says what to do. It is never zero, None, detached, or an error that nobody wrote for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import gradwright as gw
from gradwright.errors import GradwrightError
from tests.controls.op_db import without_expecttest
from tests.wrapping.examples import EXAMPLES, WAYS, wrapped

FIRST = {"vjp", "jvp", "jacobian", "vjp+hvp", "vjp+jvp+hvp", "differences", "tensors"}
"""The ways that give a first derivative."""
SECOND = {"vjp+hvp", "vjp+jvp+hvp", "differences", "tensors"}
"""Those that give a second one."""


def weighted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a scalar function whose cotangent is no constant along the output and depends on the value."""

    def scalar(*inputs: Tensor) -> Tensor:
        value = function(*inputs) ** 2
        return (value * torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64).reshape(value.shape)).sum()

    return scalar


def places(inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(range(len(inputs)))


def leaves(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(value.clone().requires_grad_() for value in inputs)


def backward(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    given = leaves(inputs)
    return torch.autograd.grad(weighted(f)(*given), given)


def double_backward(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    """Return a gradient penalty's gradient, of the plain sum: its cotangent is a constant, as in the silent case 4."""
    given = leaves(inputs)
    first = torch.autograd.grad(f(*given).sum(), given, create_graph=True)
    return torch.autograd.grad(sum((grad**2).sum() for grad in first), given)


def forward_mode(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(value, torch.cos(value + i)) for i, value in enumerate(inputs)]
        value, tangent = forward_ad.unpack_dual(f(*duals))
        assert tangent is not None, "no tangent came out"
        return value.clone(), tangent.clone()


def func_grad(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.func.grad(weighted(f), places(inputs))(*inputs)


def jvp(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.func.jvp(f, inputs, tuple(torch.cos(value) for value in inputs))


def jacfwd(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.func.jacfwd(f, places(inputs))(*inputs)


def jacrev(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.func.jacrev(f, places(inputs))(*inputs)


def nested_jacfwd(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.func.jacfwd(torch.func.jacfwd(f, places(inputs)), places(inputs))(*inputs)


def hessian(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.func.hessian(weighted(f), places(inputs))(*inputs)


def batched(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.stack([value, value + 0.3, value * 0.5]) for value in inputs)


def vmap(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.func.vmap(f)(*batched(inputs))


def vmap_of_grad(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.func.vmap(torch.func.grad(weighted(f), places(inputs)))(*batched(inputs))


def grad_of_vmap(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    """Differentiate a batch in which the last argument is the same for all samples."""
    dims = (0, None) if len(inputs) > 1 else 0
    given = (batched(inputs)[0], *inputs[1:])
    return torch.func.grad(weighted(torch.func.vmap(f, dims)), places(inputs))(*given)


def jvp_of_vmap(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return jvp(torch.func.vmap(f), batched(inputs))


def hessian_of_vmap(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    every = batched(inputs)
    return torch.func.hessian(lambda *values: (torch.func.vmap(f)(*values) ** 2).sum(), places(inputs))(*every)


def grads_batched(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    given = leaves(inputs)
    out = f(*given)
    cotangents = torch.stack([torch.ones_like(out), torch.linspace(1, 2, out.numel()).reshape(out.shape).to(out)])
    return torch.autograd.grad(out, given, cotangents, is_grads_batched=True)


ROWS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "backward": (backward, FIRST),
    "double backward": (double_backward, SECOND),
    "fwAD": (forward_mode, FIRST),
    "func.grad": (func_grad, FIRST),
    "func.jvp": (jvp, FIRST),
    "jacfwd": (jacfwd, FIRST),
    "jacrev": (jacrev, FIRST),
    "jacfwd(jacfwd)": (nested_jacfwd, SECOND),
    "hessian": (hessian, SECOND),
    "vmap": (vmap, set(WAYS)),
    "vmap(grad)": (vmap_of_grad, FIRST),
    "grad(vmap)": (grad_of_vmap, FIRST),
    "jvp(vmap)": (jvp_of_vmap, FIRST),
    "hessian(vmap)": (hessian_of_vmap, SECOND),
    "is_grads_batched": (grads_batched, FIRST),
}
"""What is asked for, and the ways that answer it; the others refuse."""


def compare(found: Any, expected: Any, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", EXAMPLES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", ROWS)
def test_right_or_refused(row: str, way: str, shape: str) -> None:
    ask, right = ROWS[row]
    example = EXAMPLES[shape]
    function = wrapped(example, way)
    if way in right:
        tolerance = 1e-6 if way == "differences" and right is SECOND else 1e-12
        compare(ask(function, example.inputs), ask(example.truth, example.inputs), tolerance)
        return
    with pytest.raises(GradwrightError) as caught:
        ask(function, example.inputs)
    message = str(caught.value)
    assert message.startswith(f"{example.host.__name__}: "), message
    assert "; expected" in message, message
    assert f"@{example.host.__name__}." in message, message


@pytest.mark.parametrize("shape", EXAMPLES)
@pytest.mark.parametrize("way", sorted(FIRST))
def test_gradcheck_in_both_modes_and_batched(way: str, shape: str) -> None:
    example = EXAMPLES[shape]
    assert torch.autograd.gradcheck(
        wrapped(example, way), leaves(example.inputs), check_forward_ad=True, check_batched_grad=True
    )


@pytest.mark.parametrize("shape", EXAMPLES)
@pytest.mark.parametrize("way", sorted(SECOND - {"differences"}))
def test_gradgradcheck(way: str, shape: str) -> None:
    example = EXAMPLES[shape]
    function = wrapped(example, way)
    assert torch.autograd.gradgradcheck(function, leaves(example.inputs), check_fwd_over_rev=True)


# ---------------------------------------------------------------- orders


def third(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    every = places(inputs)
    return torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(f, every), every), every)(*inputs)


def third_forward(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    every = places(inputs)
    return torch.func.jacfwd(torch.func.jacfwd(torch.func.jacfwd(f, every), every), every)(*inputs)


@pytest.mark.parametrize("ask", [third, third_forward])
@pytest.mark.parametrize("shape", EXAMPLES)
@pytest.mark.parametrize("way", ["vjp+hvp", "vjp+jvp+hvp", "differences"])
def test_a_third_derivative_is_refused(way: str, shape: str, ask: Any) -> None:
    example = EXAMPLES[shape]
    with pytest.raises(GradwrightError, match=f"{example.host.__name__}: it was differentiated three times") as caught:
        ask(wrapped(example, way), example.inputs)
    assert f"@{example.host.__name__}.vjp" in str(caught.value)


@pytest.mark.parametrize("ask", [third, third_forward])
@pytest.mark.parametrize("shape", EXAMPLES)
def test_rules_on_tensors_have_every_order(shape: str, ask: Any) -> None:
    example = EXAMPLES[shape]
    compare(ask(wrapped(example, "tensors"), example.inputs), ask(example.truth, example.inputs), 1e-12)


@pytest.mark.parametrize("shape", EXAMPLES)
def test_max_order_refuses_what_is_not_promised(shape: str) -> None:
    example = EXAMPLES[shape]
    function = wrapped(example, "vjp+jvp+hvp", max_order=1)
    compare(backward(function, example.inputs), backward(example.truth, example.inputs), 1e-12)
    for row in ("double backward", "hessian", "jacfwd(jacfwd)"):
        with pytest.raises(GradwrightError, match="max_order"):
            ROWS[row][0](function, example.inputs)


# ---------------------------------------------------------------- some of the arguments


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("way", [pytest.param("jvp", marks=pytest.mark.slow), "jacobian", "vjp+jvp+hvp"])
@pytest.mark.parametrize("which", [0, 1])
def test_one_of_two_arguments(which: int, way: str, row: str) -> None:
    """The other is held: what is asked of it is nothing, and mixed second derivatives do not leak in."""
    ask, right = ROWS[row]
    example = EXAMPLES["two"]
    function = wrapped(example, way)
    x, y = example.inputs

    def held(f: Any) -> Any:
        return (lambda v: f(v, y)) if which == 0 else (lambda v: f(x, v))

    given = (example.inputs[which],)
    if way in right:
        tolerance = 1e-6 if way == "differences" and right is SECOND else 1e-12
        compare(ask(held(function), given), ask(held(example.truth), given), tolerance)
    else:
        with pytest.raises(GradwrightError, match=r"blend: .*; expected"):
            ask(held(function), given)


# ---------------------------------------------------------------- compiled code and export


def compiles(test: Any) -> Any:
    """Mark a test that compiles; torch warns of its own code while it does."""
    for mark in (pytest.mark.compile, pytest.mark.filterwarnings("ignore")):
        test = mark(test)
    return test


def bessel(x: Any) -> Any:
    return scipy.special.j0(x)


def bessel_vjp(g: Any, x: Any) -> Any:
    return -g * scipy.special.j1(x)


def compiled(function: Any, *, fullgraph: bool = True, backend: str = "aot_eager") -> Any:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=fullgraph, backend=backend)


def cells(default: set[tuple[str, str]], ways: list[str]) -> Any:
    """Take each shape and way; those that are not in ``default`` only with the slow tests."""
    every = [(shape, way) for shape in EXAMPLES for way in ways]
    marks = [() if cell in default else pytest.mark.slow for cell in every]
    return pytest.mark.parametrize(("shape", "way"), [pytest.param(*cell, marks=m) for cell, m in zip(every, marks)])


@compiles
@cells({("scalar", "vjp"), ("vector", "jacobian"), ("two", "jvp"), ("two", "tensors")}, sorted(FIRST))
def test_compiled_in_one_graph(shape: str, way: str) -> None:
    example = EXAMPLES[shape]
    function = wrapped(example, way)
    found = backward(compiled(lambda *inputs: 2 * function(*inputs)), example.inputs)
    compare(found, backward(lambda *inputs: 2 * example.truth(*inputs), example.inputs), 1e-12)


@compiles
@cells({("two", "none")}, ["none"])
def test_compiled_without_a_derivative_is_refused(shape: str, way: str) -> None:
    example = EXAMPLES[shape]
    function = wrapped(example, way)
    with pytest.raises(GradwrightError, match="a derivative was asked for, but it has none"):
        backward(compiled(lambda *inputs: 2 * function(*inputs)), example.inputs)


@compiles
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_scipy_body_is_compiled_in_one_graph(backend: str) -> None:
    function = gw.external(bessel, out=gw.like(0))
    function.register_vjp(bessel_vjp)
    x = torch.linspace(0.5, 3.0, 5, dtype=torch.float64, requires_grad=True)
    whole = compiled(lambda x: 2 * function(x) + x, backend=backend)
    compare(whole(x), 2 * torch.special.bessel_j0(x) + x, 1e-10)
    compare(torch.autograd.grad(whole(x).sum(), x)[0], 1 - 2 * torch.special.bessel_j1(x), 1e-10)


@compiles
@pytest.mark.parametrize("row", ["func.grad", "func.jvp", "vmap"])
@cells({("two", "vjp")}, ["vjp", "tensors", "none"])
def test_transforms_inside_of_compiled_code(shape: str, way: str, row: str) -> None:
    """They are right by a break of the graph, or refuse; with ``fullgraph=True`` the reason for the break is ours."""
    example = EXAMPLES[shape]
    ask, right = ROWS[row]
    function = wrapped(example, way)
    broken = compiled(lambda *inputs: ask(function, inputs), fullgraph=False)
    if way in right:
        compare(broken(*example.inputs), ask(example.truth, example.inputs), 1e-12)
    else:
        with pytest.raises(GradwrightError, match="a derivative was asked for, but it has none"):
            broken(*example.inputs)
    whole = compiled(lambda *inputs: ask(function, inputs))
    with pytest.raises(Exception, match=f"{example.host.__name__}: a transform of torch.func .*compile inside the tra"):
        whole(*example.inputs)


@compiles
@pytest.mark.parametrize("way", ["vjp", "tensors", "none"])
@pytest.mark.parametrize("shape", EXAMPLES)
def test_exported(shape: str, way: str) -> None:
    example = EXAMPLES[shape]
    function = wrapped(example, way)

    class Model(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return 2 * function(*inputs)

    program = torch.export.export(Model(), example.inputs)
    compare(program.module()(*example.inputs), 2 * example.truth(*example.inputs), 1e-12)


@pytest.mark.filterwarnings("ignore")
@cells({("two", "vjp")}, ["vjp", "jacobian", "jvp", "tensors"])
def test_opcheck_of_the_operator(shape: str, way: str) -> None:
    example = EXAMPLES[shape]
    name = f"wrapping_tests::{shape}_{way}"
    wrapped(example, way, op=name)
    namespace, _, op = name.partition("::")
    with without_expecttest():
        operator = getattr(getattr(torch.ops, namespace), op).default
        found = torch.library.opcheck(operator, (*leaves(example.inputs), ""))
    assert set(found.values()) == {"SUCCESS"}, found


# ---------------------------------------------------------------- recorded by make_fx, and tensors without numbers


def gradient(f: Any, inputs: tuple[Tensor, ...]) -> Any:
    return torch.autograd.grad(weighted(f)(*inputs), inputs)


RECORDED = {"value": lambda f, inputs: f(*inputs), "autograd": gradient, "func.grad": func_grad, "vmap": vmap}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", RECORDED)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize(("shape", "way"), [("scalar", "vjp"), ("two", "vjp"), ("two", "jvp"), ("two", "tensors")])
def test_recorded_by_make_fx(shape: str, way: str, mode: str, row: str) -> None:
    """What is recorded depends on its inputs: the values seen while recording are in no result."""
    example, ask = EXAMPLES[shape], RECORDED[row]
    function = wrapped(example, way)
    given = leaves(example.inputs) if row == "autograd" else example.inputs
    graph = make_fx(lambda *inputs: ask(function, inputs), tracing_mode=mode)(*given)
    other = tuple((value.detach() * 0.9 + 0.1).requires_grad_(value.requires_grad) for value in given)
    compare(graph(*other), ask(example.truth, other), 1e-12)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_recorded_without_a_declaration_is_refused(mode: str) -> None:
    function = gw.external(lambda x: np.sin(x))
    for ask in (lambda x: function(x), torch.func.grad(lambda x: function(x).sum())):
        with pytest.raises(GradwrightError, match=r"torch.export cannot know what it returns; .*out=gw.like"):
            make_fx(ask, tracing_mode=mode)(torch.ones(3))


@pytest.mark.parametrize("way", ["vjp", "jvp", "jacobian"])
def test_tensors_without_numbers(way: str) -> None:
    """The meta device and fake tensors tell what is returned, from what was declared."""
    example = EXAMPLES["two"]
    function = wrapped(example, way)
    inputs = tuple(value.to("meta").requires_grad_() for value in example.inputs)
    out = function(*inputs)
    assert out.is_meta
    assert out.shape == (2,)
    assert [grad.shape for grad in torch.autograd.grad(out.sum(), inputs)] == [(3,), (2,)]
    with FakeTensorMode():
        assert function(torch.empty(3), torch.empty(2)).shape == (2,)


def test_residuals_are_made_again_where_the_call_was_recorded() -> None:
    def scaled(x: Any) -> Any:
        return gw.save(x * 3, {"scale": 3 * np.ones_like(x)})

    function = gw.external(scaled, out=gw.like(0))
    function.register_vjp(lambda g, residuals: g * residuals["scale"])
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    graph = make_fx(lambda x: torch.autograd.grad(function(x).sum(), x)[0])(x)
    compare(graph(torch.zeros(2, dtype=torch.float64)), 3 * torch.ones(2, dtype=torch.float64), 0.0)


def test_functions_of_a_factory_have_names_of_this_process_only() -> None:
    """Which is declared first may be another one in another process, which would run it in an exported program."""

    def scaled(factor: float) -> Any:
        return gw.external(lambda x: factor * x, out=gw.like(0), derivative=gw.fd())

    first, second = (scaled(factor).external.leaves.op.rpartition("_") for factor in (2.0, 3.0))
    assert first[0] == second[0]
    assert first[2] != second[2]
    assert len(first[2]) == len(second[2]) == 12  # random, and no count
