"""Activations from their output: the switch, the places where the output does not tell, and a whole stack."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import gradwright as gw
from gradwright.authoring.catalogue import around
from gradwright.errors import ArgumentError
from tests.footprint import peak_bytes
from tests.fused.stack import Stack, after

NAMES = ("softplus", "elu", "celu", "selu")
EACH = pytest.mark.parametrize("name", NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)


def both(name: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    return getattr(gw.fused, name), getattr(functional, name)


def derivatives(function: Callable[..., Tensor], x: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, slope and curvature at each number."""
    x = x.detach().clone().requires_grad_()
    out = function(x, **kwargs)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x) if slope.requires_grad else (torch.zeros_like(x),)
    return out.detach(), slope.detach(), curvature


def saved(function: Callable[..., Tensor], x: Tensor, **kwargs: Any) -> str:
    """Say which of input and output a call keeps."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.untyped_storage().data_ptr())
        return tensor

    x = x.detach().clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = function(x, **kwargs)
    known = {x.untyped_storage().data_ptr(): "input", out.untyped_storage().data_ptr(): "output"}
    return " ".join(sorted({known.get(pointer, "other") for pointer in kept}))


# -------------------------------------------------------------------- what is kept


@pytest.mark.parametrize(
    ("name", "kwargs", "dtype", "want"),
    [
        ("softplus", {}, torch.float32, "output"),
        ("softplus", {"beta": 3.0}, torch.bfloat16, "output"),
        ("softplus", {}, torch.float64, "input"),
        ("softplus", {"threshold": 40.0}, torch.float64, "output"),
        ("softplus", {"threshold": 5.0}, torch.float32, "input"),
        ("softplus", {"beta": 1e-4}, torch.float32, "input"),
        ("softplus", {"beta": 1e4}, torch.float32, "input"),
        ("elu", {}, torch.float32, "output"),
        ("elu", {"alpha": 0.0}, torch.float32, "output"),
        ("elu", {"alpha": -0.5}, torch.float32, "input"),
        ("elu", {"alpha": 100.0}, torch.float32, "input"),
        ("elu", {}, torch.bfloat16, "input"),
        ("celu", {"alpha": 100.0}, torch.float64, "output"),
        ("celu", {"alpha": -0.5}, torch.float64, "input"),
        ("celu", {}, torch.float16, "input"),
        ("selu", {}, torch.float32, "output"),
        ("selu", {}, torch.bfloat16, "input"),
    ],
)
def test_the_output_is_kept_where_it_tells(name: str, kwargs: dict[str, Any], dtype: torch.dtype, want: str) -> None:
    fused, plain = both(name)
    x = torch.linspace(-3.0, 3.0, 7, dtype=dtype)
    assert saved(fused, x, **kwargs) == want
    assert saved(plain, x, **kwargs) == "input"


@EACH
def test_a_stack_keeps_what_one_of_relu_keeps(name: str) -> None:
    """And the gradient of every parameter is right."""
    fused, plain = both(name)
    stack = Stack()
    relu, eager, kept = (stack.kept(after(f)) for f in (functional.relu, plain, fused))
    assert kept == relu
    inner = stack.rows * stack.inner * 4
    assert eager == kept + stack.blocks * inner
    for got, want in zip(stack.gradients(after(fused)), stack.gradients(after(plain))):
        assert float((got - want).abs().max() / want.abs().max()) < 1e-6


def test_a_stack_has_a_lower_peak_by_what_is_not_kept() -> None:
    stack = Stack()
    inner = stack.rows * stack.inner * 4
    fused, plain = (stack.peak(after(f)) for f in (gw.fused.softplus, functional.softplus))
    assert fused <= plain - (stack.blocks - 1.1) * inner


# -------------------------------------------------------------------- softplus at its switch


@DTYPES
@pytest.mark.parametrize(
    ("beta", "threshold"), [(1.0, 20.0), (1.0, 40.0), (3.0, 20.0), (-0.7, 18.0), (1.0, 1.0), (2.0, -1.0)]
)
def test_softplus_is_that_of_pytorch_next_to_its_switch(dtype: torch.dtype, beta: float, threshold: float) -> None:
    """Value, slope and curvature, where numbers that are switched and others that are not have outputs alike."""
    x = around(threshold / beta, dtype=dtype, steps=40)
    off = {torch.float64: 1e-12, torch.float32: 1e-7}.get(dtype, 1e-6)  # of PyTorch's curvature, from a rounded sigmoid
    fused, plain = both("softplus")
    for got, want in zip(
        derivatives(fused, x, beta=beta, threshold=threshold), derivatives(plain, x, beta=beta, threshold=threshold)
    ):
        torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=off)


def test_beyond_its_switch_softplus_has_slope_one_and_no_curvature() -> None:
    x = torch.tensor([19.9, 20.1, 1e30, torch.inf], dtype=torch.float32)
    _, slope, curvature = derivatives(gw.fused.softplus, x)
    assert slope.tolist() == [1.0, 1.0, 1.0, 1.0]
    assert curvature[1:].tolist() == [0.0, 0.0, 0.0]
    assert float(curvature[0]) == pytest.approx(math.exp(-19.9), rel=1e-5)


def test_softplus_keeps_its_digits_where_it_is_small() -> None:
    x = torch.tensor([-80.0, -40.0, -10.0], dtype=torch.float32)
    _, slope, curvature = derivatives(gw.fused.softplus, x)
    want = torch.sigmoid(x.double())
    torch.testing.assert_close(slope.double(), want, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(curvature.double(), want * (1 - want), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("shape", [(2048, 300), (3, 70000), (1,), (0, 5), (5, 0), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_softplus_in_blocks_is_that_of_whole_tensors(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype).requires_grad_()
    g = torch.randn(shape).to(dtype)
    (got,) = torch.autograd.grad(gw.fused.softplus(x), x, g)
    (want,) = torch.autograd.grad(functional.softplus(x), x, g)
    torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps)


def test_the_backward_of_softplus_allocates_the_gradient_alone() -> None:
    x = torch.randn(2048, 512, requires_grad=True)
    out, g = gw.fused.softplus(x), torch.ones(2048, 512)
    assert peak_bytes(lambda: torch.autograd.grad(out, x, g)) <= 1.05 * x.nbytes


# -------------------------------------------------------------------- exponential linear units


@DTYPES
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("softplus", {"threshold": 40.0}),
        ("elu", {}),
        ("elu", {"alpha": 0.0}),
        ("elu", {"alpha": -1.5}),
        ("celu", {"alpha": 0.25}),
        ("celu", {"alpha": -0.25}),
        ("selu", {}),
    ],
)
def test_at_zero_and_at_the_ends_it_is_that_of_pytorch(name: str, kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal
    x = torch.tensor([0.0, -0.0, tiny, -tiny, -torch.inf, torch.inf, torch.nan, -60.0], dtype=dtype)
    fused, plain = both(name)
    for got, want in zip(derivatives(fused, x, **kwargs), derivatives(plain, x, **kwargs)):
        finite = want.isfinite()  # of the curvature PyTorch has nan at infinity
        torch.testing.assert_close(got[finite], want[finite], rtol=1e-6, atol=1e-6)
    assert derivatives(fused, x, **kwargs)[0].isnan().tolist() == derivatives(plain, x, **kwargs)[0].isnan().tolist()


@pytest.mark.parametrize("name", ["elu", "celu", "selu"])
def test_the_slope_of_a_tail_is_off_by_little_beside_one(name: str) -> None:
    fused, plain = both(name)
    x = torch.linspace(-30.0, 0.0, 4001)
    _, got, _ = derivatives(fused, x)
    _, want, _ = derivatives(plain, x.double())
    assert float((got - want).abs().max()) < 3e-7


def test_a_celu_without_alpha_is_refused_by_pytorch() -> None:
    with pytest.raises(RuntimeError, match="alpha cannot be 0"):
        gw.fused.celu(torch.ones(2), alpha=0.0)


# -------------------------------------------------------------------- composition


@EACH
def test_derivatives_compose(name: str) -> None:
    function = getattr(gw.fused, name)
    x = torch.tensor([-2.3, -0.4, 0.6, 3.1], dtype=torch.float64, requires_grad=True)
    kwargs = {"threshold": 40.0} if name == "softplus" else {}
    call = lambda x: function(x, **kwargs)  # noqa: E731 - both checks take it
    assert torch.autograd.gradcheck(call, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, x, check_batched_grad=True)
    third = torch.func.jacrev(torch.func.jacfwd(torch.func.jacrev(call)))(x.detach())
    want = torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(lambda x: both(name)[1](x, **kwargs))))(x.detach())
    torch.testing.assert_close(third, want)


@EACH
def test_autocast_leaves_it_alone(name: str) -> None:
    x = torch.randn(5, requires_grad=True)
    want = torch.autograd.grad(getattr(gw.fused, name)(x).sum(), x)
    with torch.autocast("cpu", torch.bfloat16):
        out = getattr(gw.fused, name)(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x), want)


@EACH
def test_two_runs_are_equal_to_the_bit(name: str) -> None:
    x, g = torch.randn(700, 300, requires_grad=True), torch.randn(700, 300)
    one, two = (torch.autograd.grad(getattr(gw.fused, name)(x), x, g)[0] for _ in range(2))
    assert torch.equal(one, two)


@EACH
def test_what_is_no_tensor_of_floats_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: x is torch.int64; expected a floating-point tensor"):
        getattr(gw.fused, name)(torch.arange(3))


@pytest.mark.parametrize(("name", "argument"), [("softplus", "beta"), ("softplus", "threshold"), ("elu", "alpha")])
def test_a_constant_that_is_a_tensor_is_refused(name: str, argument: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: {argument} is a Tensor; expected a number"):
        getattr(gw.fused, name)(torch.ones(2), **{argument: torch.ones(2)})
