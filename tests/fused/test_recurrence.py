"""Linear recurrences: every layout and length, factors whose products leave the range, complex numbers, memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError
from tests.footprint import peak_bytes

LAYOUTS = [
    ((5, 3, 2), 0),
    ((3, 70, 2), 1),
    ((300, 70), 0),
    ((70, 300), 1),
    ((3000, 100), 0),  # several blocks of rows
    ((40, 2000, 8), 1),  # and of columns, short rows
    ((3, 1000, 300), 1),
    ((20, 9000), 0),  # wide rows
    ((2, 3, 500), -1),
    ((1,), 0),
]


def loop(a: Tensor, b: Tensor, initial: Tensor | None, dim: int, reverse: bool) -> Tensor:
    steps = list(range(b.shape[dim]))
    h = torch.zeros_like(b.select(dim, 0)) if initial is None else initial
    found: list[Tensor] = []
    for k in reversed(steps) if reverse else steps:
        h = a.select(dim, k) * h + b.select(dim, k)
        found.append(h)
    return torch.stack(found[::-1] if reverse else found, dim)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype).mul_(0.7).requires_grad_()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "dim"), LAYOUTS)
def test_any_layout_is_a_loop(shape: tuple[int, ...], dim: int, reverse: bool) -> None:
    torch.manual_seed(0)
    a, b = leaf(*shape), leaf(*shape)
    state = b.detach().select(dim, 0).clone().requires_grad_()
    out = gw.fused.linear_recurrence(a, b, state, dim=dim, reverse=reverse)
    want = loop(*(x.detach() for x in (a, b, state)), dim, reverse)
    torch.testing.assert_close(out, want)
    g = torch.randn_like(want)
    wide = torch.zeros_like(b).select(dim, 0)
    s = loop(a.detach().roll(1 if reverse else -1, dim), g, wide, dim, not reverse)
    end = -1 if reverse else 0
    grads = torch.autograd.grad(out, (a, b, state), g)
    torch.testing.assert_close(grads[1], s)
    torch.testing.assert_close(grads[2], a.detach().select(dim, end) * s.select(dim, end))
    before = want.detach().roll(-1 if reverse else 1, dim)
    before.select(dim, end).copy_(state.detach())
    torch.testing.assert_close(grads[0], s * before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives_of_two_orders(dtype: torch.dtype, reverse: bool) -> None:
    torch.manual_seed(0)
    tensors = (leaf(3, 2, dtype=dtype), leaf(3, 2, dtype=dtype), leaf(2, dtype=dtype))

    def run(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
        return gw.fused.linear_recurrence(a, b, initial, dim=0, reverse=reverse)

    assert torch.autograd.gradcheck(run, tensors, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(run, tensors, check_fwd_over_rev=not dtype.is_complex)


def test_a_third_derivative() -> None:
    a, b = leaf(6), leaf(6)

    def third(run: Any) -> Tensor:
        out = run(a, b)
        for _ in range(3):
            (out,) = torch.autograd.grad(out.sin().sum(), a, create_graph=True)
        return out.detach()

    ours = third(lambda a, b: gw.fused.linear_recurrence(a, b, dim=0))
    torch.testing.assert_close(ours, third(lambda a, b: loop(a, b, None, 0, False)))


def test_transforms_have_long_ones_too() -> None:
    """The formula for transforms has parts, parts of parts, and rests."""
    a, b = leaf(3, 77), leaf(3, 77)
    for reverse in (False, True):
        together = torch.func.vmap(lambda a, b, r=reverse: gw.fused.linear_recurrence(a, b, dim=0, reverse=r))(a, b)
        torch.testing.assert_close(together, loop(a, b, None, 1, reverse))


def test_products_of_factors_may_leave_the_range() -> None:
    """The states stay in it: they are zero until something is added, and are forgotten where a factor is zero."""
    a = torch.full((600, 3), 3.0)
    b = torch.zeros(600, 3)
    b[580], a[590] = 1.0, 0.0
    out = gw.fused.linear_recurrence(a, b, dim=0)
    assert out.isfinite().all()
    assert not out[:580].any()
    assert not out[590:].any()
    assert out[589].tolist() == [3.0**9] * 3


def test_nan_goes_no_further_than_in_a_loop() -> None:
    a, b = torch.ones(100, 2), torch.ones(100, 2)
    b[50, 0], a[60] = math.nan, 0.0
    out = gw.fused.linear_recurrence(a, b, dim=0)
    assert out[:50].isfinite().all()
    assert out[50:, 0].isnan().all()
    assert out[:, 1].isfinite().all()


def test_broadcast_arguments_have_gradients_of_their_own_shape() -> None:
    a, b, state = leaf(4), leaf(2, 30, 1), leaf(1)
    out = gw.fused.linear_recurrence(a, b, state, dim=1)
    want = loop(a.expand(2, 30, 4), b.expand(2, 30, 4), state.expand(2, 4), 1, False)
    torch.testing.assert_close(out, want)
    g = torch.randn_like(out)
    for ours, true in zip(*(torch.autograd.grad(x, (a, b, state), g) for x in (out, want))):
        torch.testing.assert_close(ours, true)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_nothing_to_do(shape: tuple[int, ...]) -> None:
    a, b = leaf(*shape), leaf(*shape)
    state = leaf(*shape[1:])
    out = gw.fused.linear_recurrence(a, b, state, dim=0)
    assert out.shape == shape
    grads = torch.autograd.grad(out.sum(), (a, b, state))
    assert not any(x.any() for x in grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_rounded_once(dtype: torch.dtype) -> None:
    a, b = torch.full((2000, 3), 0.999).to(dtype), torch.full((2000, 3), 0.01).to(dtype)
    out = gw.fused.linear_recurrence(a, b, dim=0)
    want = loop(a.double(), b.double(), None, 0, False)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), want, rtol=torch.finfo(dtype).eps, atol=0.0)


def test_mixed_dtypes_and_autocast() -> None:
    a, b = torch.rand(4, 2, requires_grad=True), torch.randn(4, 2).bfloat16().requires_grad_()
    out = gw.fused.linear_recurrence(a, b, dim=0)
    assert out.dtype == torch.float32
    assert [x.dtype for x in torch.autograd.grad(out.sum(), (a, b))] == [torch.float32, torch.bfloat16]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gw.fused.linear_recurrence(a, b, dim=0), out)


def test_two_runs_are_equal() -> None:
    a, b = torch.rand(700, 33), torch.randn(700, 33)
    assert torch.equal(*(gw.fused.linear_recurrence(a, b, dim=0) for _ in range(2)))


def test_memory_is_the_states_and_two_gradients() -> None:
    a, b, g = leaf(1024, 1024, dtype=torch.float32), leaf(1024, 1024, dtype=torch.float32), torch.ones(1024, 1024)
    peak = peak_bytes(lambda: torch.autograd.grad(gw.fused.linear_recurrence(a, b, dim=0), (a, b), g))
    assert peak <= 3.3 * g.nbytes  # and a block


def test_bad_arguments_are_refused() -> None:
    x = torch.ones(3, 2)
    run = gw.fused.linear_recurrence
    with pytest.raises(ArgumentError, match=r"a is torch\.int64; expected a floating-point or complex"):
        run(torch.ones(3, dtype=torch.int64), x, dim=0)
    with pytest.raises(ArgumentError, match="b is a float"):
        run(x, 1.0, dim=0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"shape \(3, 2\) and b \(4, 2\)"):
        run(x, torch.ones(4, 2), dim=0)
    with pytest.raises(ArgumentError, match=r"initial has the shape \(3,\).*that of a step, \(2,\)"):
        run(x, x, torch.ones(3), dim=0)
    with pytest.raises(ArgumentError, match="no dimension"):
        run(torch.tensor(1.0), torch.tensor(1.0), dim=0)
    with pytest.raises(ArgumentError, match="dim is"):
        run(x, x, dim="time")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_many_steps_compile() -> None:
    a, b = leaf(256, 64, dtype=torch.float32), leaf(256, 64, dtype=torch.float32)
    torch.compiler.reset()
    fast = torch.compile(lambda a, b: gw.fused.linear_recurrence(a, b, dim=0), fullgraph=True)
    for got, want in zip(
        *(torch.autograd.grad(run(a, b).sum(), (a, b)) for run in (fast, lambda a, b: loop(a, b, None, 0, False)))
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_state_that_grows_back_from_below_what_a_product_can_be(reverse: bool, dtype: torch.dtype) -> None:
    """The product of the two small factors is no number of float32; the state times one and then the other is."""
    a = torch.tensor([1.0, 1.0, 1e-25, -1e-25, 1e15, 1e15, 1.0, 1.0])
    a = (a.flip(0) if reverse else a).to(dtype)
    b, start = torch.zeros(8, dtype=dtype), torch.tensor(1e30, dtype=dtype)
    found = gw.fused.linear_recurrence(a, b, start, dim=0, reverse=reverse)
    last = found[0 if reverse else -1]
    torch.testing.assert_close(last, torch.tensor(-1e10, dtype=dtype), rtol=1e-6, atol=0)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_factor_without_a_state_has_no_gradient_whatever_follows(reverse: bool) -> None:
    a = torch.tensor([0.5, torch.inf, 0.25]).double()
    a = (a.flip(0) if reverse else a).requires_grad_()
    for graph in (False, True):
        h = gw.fused.linear_recurrence(a, torch.ones_like(a), dim=0, reverse=reverse)
        (grad,) = torch.autograd.grad(h.sum(), a, create_graph=graph)
        assert grad[-1 if reverse else 0] == 0
