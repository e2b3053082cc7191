"""How samples of a batch reach foreign code: one by one, all at once, or by a rule; and what becomes of failures."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import DefinitionError, ExternalError, RuleError
from tests.wrapping.examples import EXAMPLES, real, wrapped

METHODS = ["sequential", "expand_dims", "broadcast_all", "rules"]
XS = torch.stack([real(1, 2, 3), real(2, 2, 2), real(0.5, -1, 4), real(-1, 1, 1)])
W = real(2, -1, 0.5)


def product(x: Any, w: Any) -> Any:
    """Return ``x Σw``, with leading dimensions apart."""
    return x * w.sum(-1, keepdims=True)


def product_vjp(g: Any, x: Any, w: Any) -> Any:
    return {"x": g * w.sum(-1, keepdims=True), "w": (g * x).sum(-1, keepdims=True) * np.ones_like(w)}


def product_jvp(t: Any, x: Any, w: Any) -> Any:
    return t["x"] * w.sum(-1, keepdims=True) + x * t["w"].sum(-1, keepdims=True)


def truth(x: Tensor, w: Tensor) -> Tensor:
    return x * w.sum(-1, keepdim=True)


def made(method: str, **options: Any) -> Any:
    """Return the product with one way to run a batch."""
    calls: list[tuple[Any, Any]] = []

    def host(x: Any, w: Any) -> Any:
        calls.append((x.shape, w.shape))
        return product(x, w)

    function = gw.external(host, vmap_method="sequential" if method == "rules" else method, **options)
    function.register_vjp(product_vjp)
    function.register_jvp(product_jvp)
    if method == "rules":
        function.register_vmap(host, vjp=product_vjp, jvp=product_jvp)
    function.host_calls = calls
    return function


def every(f: Any) -> dict[str, Any]:
    """Return values and derivatives under each kind of batch."""
    vmap, grad, both = torch.func.vmap, torch.func.grad, (0, 1)

    def total(x: Tensor, w: Tensor) -> Tensor:
        return (f(x, w) ** 2).sum()

    return {
        "both": vmap(f)(XS, XS + 1),
        "first": vmap(f, (0, None))(XS, W),
        "second": vmap(f, (None, 0))(W, XS),
        "another dim": vmap(f, (1, 0), 1)(XS.T, XS),
        "nested": vmap(vmap(f, (None, 0)), (0, None))(XS, XS + 1),
        "gradient of a batch": grad(lambda x, w: (vmap(f, (0, None))(x, w) ** 2).sum(), both)(XS, W),
        "gradient of batches": grad(lambda x, w: (vmap(vmap(f, (None, 0)), (0, None))(x, w) ** 2).sum(), both)(XS, XS),
        "nested both": vmap(vmap(f))(XS.reshape(2, 2, 3), XS.reshape(2, 2, 3) + 1),
        "gradient": vmap(grad(total, both), (0, None))(XS, W),
        "gradient nested": vmap(vmap(grad(total, both), (None, 0)), (0, None))(XS, XS + 1),
        "jvp": vmap(lambda x: torch.func.jvp(f, (x, W), (2 * x, W)))(XS),
        "jacrev": torch.func.jacrev(f, both)(XS[0], W),
        "jacfwd": torch.func.jacfwd(f, both)(XS[0], W),
        "vmap(jacrev)": vmap(torch.func.jacrev(f, both), (0, None))(XS, W),
    }


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_right(method: str, declared: bool) -> None:
    function = made(method, out=gw.like("x") if declared else None)
    expected = every(truth)
    for name, found in every(function).items():
        torch.testing.assert_close(found, expected[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("method", "shapes"),
    [
        ("sequential", [((3,), (3,))] * 4),
        ("expand_dims", [((4, 3), (1, 3))]),
        ("broadcast_all", [((4, 3), (4, 3))]),
        ("rules", [((4, 3), (4, 3))]),
    ],
)
def test_what_the_function_is_called_with(method: str, shapes: Any) -> None:
    function = made(method)
    function(XS[0], W)
    function.host_calls.clear()
    torch.func.vmap(function, (0, None))(XS, W)
    assert function.host_calls == shapes


def test_a_batch_may_be_forbidden() -> None:
    function = made("sequential")
    refused = gw.external(product, vmap_method=None)
    refused.register_vjp(product_vjp)
    for ask in (
        lambda f: torch.func.vmap(f)(XS, XS),
        lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x, W).sum()))(XS),
        lambda f: torch.func.jacrev(f)(XS[0], W),
    ):
        ask(function)
        with pytest.raises(RuleError, match=r"product: it was called under vmap, but .*'sequential'.*register_vmap"):
            ask(refused)
    refused.register_vmap(product)
    torch.testing.assert_close(torch.func.vmap(refused)(XS, XS), truth(XS, XS))


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
@pytest.mark.parametrize("out", [None, gw.spec(())])
def test_a_function_that_does_not_treat_leading_dimensions_apart(method: str, out: Any) -> None:
    function = gw.external(lambda x: x.sum(), vmap_method=method, out=out)
    with pytest.raises(ExternalError, match=r"called with a batch of \(4,\) .*returned float64 \(\).*'sequential'"):
        torch.func.vmap(function)(XS)
    torch.testing.assert_close(
        torch.func.vmap(gw.external(lambda x: x.sum(-1), vmap_method=method, out=out))(XS), XS.sum(-1)
    )


# ---------------------------------------------------------------- empty batches


@pytest.mark.parametrize("method", METHODS[:3])
def test_an_empty_batch(method: str) -> None:
    function = made(method, out=gw.like("x"))
    none = torch.empty(0, 3, dtype=torch.float64)
    assert torch.func.vmap(function, (0, None))(none, W).shape == (0, 3)
    grads = torch.func.vmap(torch.func.grad(lambda x, w: function(x, w).sum(), (0, 1)), (0, None))(none, W)
    assert [grad.shape for grad in grads] == [(0, 3), (0, 3)]


def test_an_empty_batch_of_something_undeclared() -> None:
    with pytest.raises(ExternalError, match=r"nothing tells the shape .*the batch is empty; .*out=gw.like\(0\)"):
        torch.func.vmap(made("sequential"), (0, None))(torch.empty(0, 3, dtype=torch.float64), W)


# ---------------------------------------------------------------- rules for batches


def test_rules_for_batches_ask_by_name() -> None:
    function = gw.external(product)
    function.register_vjp(product_vjp)
    function.register_vmap(product, vjp=lambda g, w, needs: {"x": g * w.sum(-1, keepdims=True)})
    found = torch.func.vmap(torch.func.grad(lambda x: function(x, W).sum()))(XS)
    torch.testing.assert_close(found, torch.full_like(XS, W.sum().item()))
    for word in ("out", "residuals"):
        rule = eval(f"lambda g, {word}: g")
        with pytest.raises(DefinitionError, match=f"its vjp asks for {word}; .*nothing else is kept of a batch"):
            function.register_vmap(product, vjp=rule)
    with pytest.raises(DefinitionError, match="asks for"):
        function.register_vmap(product, vjp=lambda g, y: g)
    with pytest.raises(DefinitionError, match="register_vmap: got nothing"):
        function.register_vmap()


@pytest.mark.parametrize(
    ("batched", "vjp", "text"),
    [
        (lambda x, w: x[:2], None, r"rule for batches returned an array of shape \(2, 3\) for a batch of 4"),
        (lambda x, w: x.sum(), None, r"shape \(\) for a batch of 4"),
        (lambda x, w: 1 / 0, None, "it raised ZeroDivisionError.*x=float64 .4, 3."),
        (product, lambda g, x: (g, g, g), "3 gradients for 2 arguments|returned 3 arrays; expected 2"),
        (product, lambda g, x: {"x": g[:2]}, r"shape \(2, 3\) for a batch of 4"),
        (product, lambda g, x: {"x": g[:, :2]}, r"shape"),
    ],
)
def test_rules_for_batches_that_return_something_else(batched: Any, vjp: Any, text: str) -> None:
    function = gw.external(product)
    function.register_vjp(product_vjp)
    with pytest.raises((ExternalError, RuleError, DefinitionError), match=f"product: .*({text})"):
        function.register_vmap(batched, vjp=vjp)
        torch.func.vmap(torch.func.grad(lambda x, w: function(x, w).sum(), (0, 1)))(XS, XS)


def test_a_batched_function_is_compared_with_what_was_declared() -> None:
    function = gw.external(product, out=gw.like("x"))
    function.register_vmap(lambda x, w: x[:, :2])
    with pytest.raises(ExternalError, match=r"returned float64 \(4, 2\); out declares float64 \(4, 3\)"):
        torch.func.vmap(function)(XS, XS)


def test_several_outputs_in_batches() -> None:
    def both(x: Any) -> Any:
        return x.sum(-1), x**2

    function = gw.external(both)
    function.register_vjp(lambda g, x: g[0] + 2 * x * g[1])
    torch.testing.assert_close(torch.func.vmap(function)(XS), (XS.sum(-1), XS**2))
    found = torch.func.vmap(torch.func.jacrev(function))(XS)
    torch.testing.assert_close(found, torch.func.vmap(torch.func.jacrev(lambda x: (x.sum(), x**2)))(XS))
    function.register_vmap(both)
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(function))(XS.reshape(2, 2, 3))[0].flatten(), XS.sum(-1))


# ---------------------------------------------------------------- failures


def picky(x: Any) -> Any:
    if x[0] == 2:
        raise ValueError("a bad sample")
    return 2 * x


def test_a_failure_names_its_sample() -> None:
    function = gw.external(picky)
    with pytest.raises(ExternalError, match="picky: it raised ValueError: a bad sample at sample 1 of the") as caught:
        torch.func.vmap(function)(XS)
    assert caught.value.index == (1,)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ExternalError, match=re.escape("at sample (0, 1) of the batch")):
        torch.func.vmap(torch.func.vmap(function))(XS.reshape(2, 2, 3))


def test_failures_as_nan() -> None:
    function = gw.external(picky, on_error="nan")
    found = torch.func.vmap(function)(XS)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2, 3]], 2 * XS[[0, 2, 3]])


@pytest.mark.parametrize("declared", [False, True])
def test_failures_of_all_samples(declared: bool) -> None:
    function = gw.external(picky, on_error="nan", out=gw.like(0) if declared else None)
    if declared:
        assert torch.func.vmap(function)(XS[1:2]).isnan().all()
        return
    with pytest.raises(ExternalError, match="nothing tells the shape of its results, since every sample failed"):
        torch.func.vmap(function)(XS[1:2])


def test_failures_of_a_rule_as_nan() -> None:
    function = gw.external(lambda x: 2 * x, on_error="nan")
    function.register_vjp(lambda g, x: picky(x) * g / x)
    found = torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(XS)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2, 3]], torch.full((3, 3), 2.0, dtype=torch.float64))


def test_what_takes_the_place_of_a_failure() -> None:
    seen = []

    def instead(error: Exception, index: tuple[int, ...], inputs: tuple[Any, ...]) -> Any:
        seen.append((error, index, inputs))
        return np.full(3, -7.0)

    found = torch.func.vmap(gw.external(picky, on_error=instead))(XS)
    assert torch.equal(found[1], torch.full((3,), -7.0, dtype=torch.float64))
    ((error, index, (x,)),) = seen
    assert isinstance(error, ValueError)
    assert index == (1,)
    assert np.array_equal(x, [2, 2, 2])
    with pytest.raises(ExternalError, match=r"shape \(2,\) for sample 1 of the batch, and of \(3,\) for another"):
        torch.func.vmap(gw.external(picky, on_error=lambda *_: np.ones(2)))(XS)


def test_a_single_call_that_fails_is_an_error() -> None:
    for policy in ("raise", "nan", lambda *_: np.ones(3)):
        with pytest.raises(ExternalError, match="picky: it raised ValueError: a bad sample; it was called"):
            gw.external(picky, on_error=policy)(XS[1])


def test_results_of_different_shapes() -> None:
    function = gw.external(lambda x: np.ones(int(abs(x[1]))))
    with pytest.raises(ExternalError, match=r"shape \(1,\) for sample 2 of the batch, and of \(2,\) for another"):
        torch.func.vmap(function)(XS)


# ---------------------------------------------------------------- derivatives that share a point


def test_a_jacobian_runs_once_for_all_cotangents() -> None:
    example, calls = EXAMPLES["vector"], []
    function = gw.external(example.host, out=example.out)

    @function.register_jacobian
    def jacobian(x: Any) -> Any:
        calls.append(1)
        return example.rules["jacobian"](x)

    found = torch.func.jacrev(function)(example.inputs[0])
    torch.testing.assert_close(found, torch.func.jacrev(example.truth)(example.inputs[0]))
    assert len(calls) == 1


def test_tensors_in_a_container_are_not_taken_apart() -> None:
    """Each sample would get the whole batch."""
    function = gw.external(lambda x, more: x * float(more[0].sum()), argnums="x")
    function.register_vjp(lambda g, more: g * float(more[0].sum()))
    torch.testing.assert_close(torch.func.vmap(lambda x: function(x, [W]))(XS), XS * W.sum())
    with pytest.raises(RuleError, match="'more' holds tensors that are batched by vmap, but only arguments"):
        torch.func.vmap(lambda w: function(W, [w]))(XS)
    with pytest.raises(RuleError, match=r"a gradient of 'more' is needed, but it is not among .*argnums"):
        function(W, [W.clone().requires_grad_()])


@pytest.mark.parametrize("way", ["vjp", "jvp", "jacobian"])
def test_batched_derivatives_of_a_function_of_two_arguments(way: str) -> None:
    example = EXAMPLES["two"]
    function = wrapped(example, way)
    x, y = example.inputs
    batch = torch.stack([x, 2 * x])
    for dims in ((0, None), (None, 0)):
        inputs = (batch, y) if dims[0] == 0 else (x, torch.stack([y, -y]))
        found = torch.func.vmap(torch.func.jacrev(function, (0, 1)), dims)(*inputs)
        torch.testing.assert_close(found, torch.func.vmap(torch.func.jacrev(example.truth, (0, 1)), dims)(*inputs))


@pytest.mark.parametrize("method", METHODS)
def test_constants_are_the_same_for_all_samples(method: str) -> None:
    """An array that is no tensor has no batch, also where its first size is that of the batch."""
    constant = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    shapes = []

    def host(x: Any, a: Any) -> Any:
        shapes.append(a.shape)
        return x @ a

    function = gw.external(host, argnums="x", vmap_method="sequential" if method == "rules" else method)
    function.register_vjp(lambda g, a: g @ a.T)
    if method == "rules":
        function.register_vmap(host, vjp=lambda g, a: g @ a.T)
    batch, matrix = XS[:3], torch.tensor(constant)
    torch.testing.assert_close(torch.func.vmap(lambda x: function(x, constant))(batch), batch @ matrix)
    found = torch.func.vmap(torch.func.grad(lambda x: (function(x, constant) ** 2).sum()))(batch)
    torch.testing.assert_close(found, 2 * (batch @ matrix) @ matrix.T)
    torch.testing.assert_close(torch.func.jacrev(lambda x: function(x, constant))(batch[0]), matrix.T)
    assert set(shapes) == {(3, 3)}
    assert constant.flags.writeable


def test_the_gradient_of_a_sample_that_failed_is_nan_too() -> None:
    @gw.external(out=gw.spec(()), on_error="nan")
    def root(x: np.ndarray) -> Any:
        if x < 0:
            raise ValueError("negative")
        return np.sqrt(x)

    @root.register_vjp
    def root_vjp(g: Any, x: Any) -> Any:
        return g * 0.5 * np.abs(x) ** -0.5  # a number for every x

    x = torch.tensor([4.0, -4.0, 16.0], dtype=torch.float64)
    slopes = torch.func.vmap(torch.func.grad(root))(x)
    torch.testing.assert_close(slopes, torch.tensor([0.25, torch.nan, 0.125], dtype=x.dtype), equal_nan=True)
    leaf = x.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(torch.func.vmap(root)(leaf).sum(), leaf)
    torch.testing.assert_close(slopes, torch.tensor([0.25, torch.nan, 0.125], dtype=x.dtype), equal_nan=True)


def test_the_backward_of_a_batch_uses_the_outputs_that_were_kept() -> None:
    calls = []

    @gw.external(out=gw.spec(()))
    def norm(x: np.ndarray) -> Any:
        calls.append(1)
        return np.sqrt((x * x).sum())

    @norm.register_vjp
    def norm_vjp(g: Any, x: Any, out: Any) -> Any:
        return g * x / out

    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    torch.func.vmap(norm)(x)  # the first call looks closer
    calls.clear()
    (slopes,) = torch.autograd.grad(torch.func.vmap(norm)(x).sum(), x)
    torch.testing.assert_close(slopes, (x / x.norm(dim=1, keepdim=True)).detach())
    assert len(calls) == 4


def test_a_batch_of_no_cotangents() -> None:
    @gw.external(out=gw.like("x"))
    def double(x: np.ndarray) -> Any:
        return 2 * x

    double.register_jacobian(lambda x: 2 * np.eye(len(x)))
    x = torch.ones(3, dtype=torch.float64)
    _, pull = torch.func.vjp(double, x)
    (found,) = torch.func.vmap(pull)(torch.zeros(0, 3, dtype=torch.float64))
    assert found.shape == (0, 3)
