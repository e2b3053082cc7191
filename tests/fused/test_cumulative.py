"""Running sums, products, maxima and logarithms of sums: the values of torch, zeros, ties, infinities, layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError
from tests.footprint import peak_bytes

INF = math.inf
TORCH: dict[str, Callable[[Tensor, int], Tensor]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "running_max": lambda x, dim: x.cummax(dim).values,
    "logcumsumexp": torch.logcumsumexp,
}
EACH = pytest.mark.parametrize("name", TORCH)
LARGE = [((500, 700), 0), ((700, 500), 1), ((3, 400, 300), 1), ((90, 100, 40), 1), ((30, 20, 600), -1)]
"""Layouts of more than one block."""


def run(name: str, x: Tensor, dim: int, **options: Any) -> Tensor:
    return getattr(gw.fused, name)(x, dim, **options)  # type: ignore[no-any-return]


def sample(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(0)
    return (torch.randn(shape, dtype=dtype) * 0.2 + 0.9).requires_grad_()


@EACH
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "dim"), LARGE)
def test_large_ones_are_those_of_torch(name: str, reverse: bool, shape: tuple[int, ...], dim: int) -> None:
    x = sample(*shape)
    turned = x.flip(dim) if reverse else x
    want = TORCH[name](turned, dim)
    want = want.flip(dim) if reverse else want
    out = run(name, x, dim, reverse=reverse)
    torch.testing.assert_close(out, want)
    if name != "logcumsumexp":
        assert torch.equal(out, want), "to the last bit"
    g = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, x, g), torch.autograd.grad(want, x, g))


@EACH
@pytest.mark.parametrize("options", [{}, {"exclusive": True}, {"reverse": True}, {"exclusive": True, "reverse": True}])
def test_derivatives_of_two_orders(name: str, options: dict[str, bool]) -> None:
    x = sample(5, 2)

    def cut(x: Tensor) -> Tensor:
        out = run(name, x, 0, **options)
        return out[out.isfinite()]

    def whole(x: Tensor) -> Tensor:
        return run(name, x, 0, **options)

    assert torch.autograd.gradcheck(cut, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(cut, x, check_fwd_over_rev=True)
    if not options.get("exclusive"):
        assert torch.autograd.gradcheck(whole, x, check_batched_grad=True)


def test_exclusive_ones_start_with_nothing() -> None:
    x = torch.tensor([2.0, 3.0, 4.0])
    assert run("cumsum", x, 0, exclusive=True).tolist() == [0, 2, 5]
    assert run("cumsum", x, 0, exclusive=True, reverse=True).tolist() == [7, 4, 0]
    assert run("cumprod", x, 0, exclusive=True).tolist() == [1, 2, 6]
    assert run("running_max", x, 0, exclusive=True).tolist() == [-INF, 2, 3]
    assert run("logcumsumexp", x, 0, exclusive=True)[0] == -INF


def test_zeros_in_a_product() -> None:
    for shape in ((6, 2), (500, 700)):
        x = sample(*shape).detach()
        x[2, 0] = x[1, 1] = x[4, 1] = 0.0
        x.requires_grad_()
        g = torch.randn_like(x)
        ours, theirs = (torch.autograd.grad(f(x, 0), x, g) for f in (gw.fused.cumprod, torch.cumprod))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(6, 3), (600, 500)])
def test_the_latest_of_equal_numbers_has_the_gradient(shape: tuple[int, ...]) -> None:
    """And nan, from the first one on, as in torch."""
    torch.manual_seed(0)
    x = torch.randint(0, 4, shape).double()
    x[3, 0] = math.nan
    x.requires_grad_()
    g = torch.randn(shape, dtype=torch.float64)
    out, want = gw.fused.running_max(x, 0), x.cummax(0).values
    torch.testing.assert_close(out, want, equal_nan=True)
    torch.testing.assert_close(torch.autograd.grad(out, x, g), torch.autograd.grad(want, x, g))


def test_infinities_in_a_sum_of_exponentials() -> None:
    row = [-INF, -INF, 0.5, -INF, 1.0, -2.0]
    for dim in (0, 1):
        x = torch.tensor([row] * 3, dtype=torch.float64).t() if dim == 0 else torch.tensor([row], dtype=torch.float64)
        x = x.clone().requires_grad_()
        g = torch.randn_like(x)
        ours, stable = gw.fused.logcumsumexp(x, dim), gw.stable.logcumsumexp(x, dim)
        torch.testing.assert_close(ours, stable)
        (first,) = torch.autograd.grad(ours, x, g, create_graph=True)
        (want,) = torch.autograd.grad(stable, x, g, create_graph=True)
        torch.testing.assert_close(first, want)
        second = [torch.autograd.grad(f.square().sum(), x)[0] for f in (first, want)]
        torch.testing.assert_close(*second)
    x = torch.tensor([0.0, INF, 1.0, INF, 2.0], requires_grad=True)
    (found,) = torch.autograd.grad(gw.fused.logcumsumexp(x, 0)[-1], x)
    assert found.tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_rounded_once(dtype: torch.dtype) -> None:
    x = (torch.randn(700, 3) * 0.01).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    ours, want = gw.fused.logcumsumexp(x, 0), torch.logcumsumexp(wide, 0)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(ours.double(), want, rtol=eps, atol=eps)
    (found,), (true,) = torch.autograd.grad(ours[-1].sum(), x), torch.autograd.grad(want[-1].sum(), wide)
    torch.testing.assert_close(found.double(), true, rtol=2 * eps, atol=0.0)


@EACH
def test_small_shapes(name: str) -> None:
    number = torch.tensor(1.5, requires_grad=True)
    out = run(name, number, 0)
    assert out.shape == ()
    assert out.item() == 1.5
    assert torch.autograd.grad(out, number)[0] == 1
    for shape in ((0,), (0, 3), (3, 0)):
        x = torch.ones(shape, requires_grad=True)
        for exclusive in (False, True):
            out = run(name, x, 0, exclusive=exclusive)
            assert out.shape == shape
            assert torch.autograd.grad(out.sum(), x)[0].shape == shape


@EACH
def test_bad_arguments_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: x is torch"):
        run(name, torch.ones(3, dtype=torch.int64), 0)
    with pytest.raises(ArgumentError, match=f"{name}: dim is"):
        run(name, torch.ones(3), "time")  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        run(name, torch.ones(3), 2)


@pytest.mark.parametrize(
    ("name", "most"), [("cumsum", 2.2), ("cumprod", 3.3), ("running_max", 2.6), ("logcumsumexp", 3.3)]
)
def test_memory(name: str, most: float) -> None:
    """Output and gradient, for a product and a logarithm one more, and blocks."""
    x, g = sample(1024, 1024, dtype=torch.float32), torch.ones(1024, 1024)
    assert peak_bytes(lambda: torch.autograd.grad(run(name, x, 0), x, g)) <= most * g.nbytes
