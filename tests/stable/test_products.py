"""Products: what is special about them."""

from __future__ import annotations

import math

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError
from gradwright.stable import products
from gradwright.stable.exponents import Scaled, scaled, times_power

torch.manual_seed(0)
x = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)


def test_values_are_those_of_pytorch() -> None:
    for dim in (0, 1, -1):
        torch.testing.assert_close(gw.stable.prod(x, dim), torch.prod(x, dim))
        torch.testing.assert_close(gw.stable.prod(x, dim, True), torch.prod(x, dim, True))
        torch.testing.assert_close(gw.stable.cumprod(x, dim), torch.cumprod(x, dim))
    torch.testing.assert_close(gw.stable.prod(x), torch.prod(x))
    assert gw.stable.prod(x, keepdim=True).shape == (1, 1, 1)


def test_nothing_and_one_number() -> None:
    assert gw.stable.prod(torch.ones(2, 0), 1).tolist() == [1, 1]
    assert gw.stable.cumprod(torch.ones(2, 0), 1).shape == (2, 0)
    number = torch.tensor(3.0, requires_grad=True)
    assert torch.autograd.grad(gw.stable.prod(number), number)[0] == 1
    assert gw.stable.cumprod(number, 0) == 3


def test_derivatives() -> None:
    assert torch.autograd.gradgradcheck(lambda x: gw.stable.prod(x, 1), x)
    assert torch.autograd.gradgradcheck(lambda x: gw.stable.cumprod(x, 1), x)


@pytest.mark.parametrize("zeros", [1, 2, 3])
def test_zeros(zeros: int) -> None:
    v = torch.tensor([2.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    v[:zeros] = 0
    for name in ("prod", "cumprod"):
        ours, theirs = (lambda w, f=getattr(f, name): f(w, 0) for f in (gw.stable, torch))
        torch.testing.assert_close(torch.func.jacrev(ours)(v), torch.func.jacrev(theirs)(v))
        torch.testing.assert_close(torch.func.hessian(ours)(v), torch.func.jacrev(torch.func.jacrev(theirs))(v))


def test_a_thousand_numbers_whose_product_is_one() -> None:
    v = torch.cat([torch.full((500,), 0.125), torch.full((500,), 8.0)]).requires_grad_()
    out = gw.stable.prod(v)
    assert out.item() == 1
    assert torch.equal(torch.autograd.grad(out, v)[0], 1 / v.detach())


def test_third_derivatives() -> None:
    def third(name: str, module: object) -> torch.Tensor:
        f = torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(lambda w: getattr(module, name)(w, 0))))
        return f(torch.tensor([1.5, -2.0, 0.5, 0.25], dtype=torch.float64))  # type: ignore[no-any-return]

    for name in ("prod", "cumprod"):
        torch.testing.assert_close(third(name, gw.stable), third(name, torch))


def test_infinity_and_nan() -> None:
    assert gw.stable.prod(torch.tensor([math.inf, 2.0])) == math.inf
    assert gw.stable.prod(torch.tensor([math.inf, 0.0])).isnan()
    assert gw.stable.cumprod(torch.tensor([2.0, math.nan, 3.0]), 0).isnan().tolist() == [False, True, True]


# -------------------------------------------------------------------- the short way


def _both(name: str, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return value and gradient along the last dimension."""
    v = v.clone().requires_grad_()
    out = getattr(gw.stable, name)(v, -1)
    return out.detach(), torch.autograd.grad(out, v, g if name == "cumprod" else g[..., 0])[0]


def _without_looking(name: str, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same from under a transform, where numbers cannot be looked at."""
    out, pull = torch.func.vjp(lambda v: getattr(gw.stable, name)(v, -1), v)
    return out, pull(g if name == "cumprod" else g[..., 0])[0]


def _ordinary(dtype: torch.dtype, size: int = 10, spread: float = 0.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(50, size, generator=generator, dtype=dtype) - 0.5).sign() * torch.exp(
        spread * torch.randn(50, size, generator=generator, dtype=dtype)
    )


def _refuse(*_: object) -> None:
    raise AssertionError("the long way was taken")


@pytest.mark.parametrize("name", ["prod", "cumprod"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "spread"), [(1, 0.5), (10, 0.5), (10, 2.0), (100, 0.1)])
def test_ordinary_numbers_take_the_short_way_to_the_same_result(
    name: str, dtype: torch.dtype, size: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = _ordinary(dtype, size, spread)
    g = _ordinary(dtype, size).abs() * v.sign().cumprod(-1)  # so that nothing cancels in the sums
    long = _without_looking(name, v, g)
    monkeypatch.setattr(products, "scaled", _refuse)
    short = _both(name, v, g)
    for ours, theirs in zip(short, long):
        torch.testing.assert_close(ours, theirs, rtol=2 * (size + 2) * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("name", ["prod", "cumprod"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-38, 1e-20, 1e20, 1e38, math.inf, math.nan])
def test_one_number_that_is_not_ordinary_takes_the_long_way(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = _ordinary(torch.float32)
    v[7, 3] = value
    g = torch.ones_like(v)
    for ours, theirs in zip(_both(name, v, g), _without_looking(name, v, g)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    monkeypatch.setattr(products, "scaled", _refuse)
    with pytest.raises(AssertionError, match="the long way"):
        getattr(gw.stable, name)(v, -1)


def test_a_row_of_small_numbers_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    v = torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0**-30, 2.0**-30, 2.0**30, 2.0**-60]])
    ours, others = _both("prod", v, torch.ones_like(v))
    assert ours.tolist() == [1.0, 2.0**-90]
    assert others[1].tolist() == [2.0**-60, 2.0**-60, 2.0**-120, 2.0**-30]
    monkeypatch.setattr(products, "scaled", _refuse)
    with pytest.raises(AssertionError, match="the long way"):
        gw.stable.prod(v, -1)


@pytest.mark.parametrize(
    ("value", "short"), [(0.0, True), (1e-6, True), (1e-20, False), (1e20, False), (1e-45, False), (math.inf, False)]
)
def test_a_cotangent_that_is_not_ordinary_takes_the_long_way(
    value: float, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = _ordinary(torch.float32).abs()
    g = torch.ones_like(v)
    g[7] = value
    ours, theirs = _both("cumprod", v, g), _without_looking("cumprod", v, g)
    torch.testing.assert_close(ours[1], theirs[1], rtol=24 * torch.finfo(v.dtype).eps, atol=0)
    out = gw.stable.cumprod(v.requires_grad_(), -1)
    monkeypatch.setattr(products, "scaled" if short else "_ordinary_or_zero", _refuse if short else lambda g: False)
    again = torch.autograd.grad(out, v, g)[0]
    assert torch.equal(again, ours[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_any_exponent(dtype: torch.dtype) -> None:
    one = Scaled(torch.tensor([0.75, 0.0, 0.5], dtype=dtype), torch.tensor([5000, 0, -3000]))
    two = Scaled(torch.tensor([0.5, -0.5, 0.75], dtype=dtype), torch.tensor([-4999, 4000, -3001]))
    assert one.times(two).value().tolist() == [0.75, 0, 0]
    total = one.plus(two)
    assert total.mantissa.tolist() == [0.75, -0.5, 0.875]
    assert total.exponent.tolist() == [5000, 4000, -3000]
    info = torch.finfo(dtype)
    for number in (info.max, info.smallest_normal * info.eps, -1.0):
        assert scaled(torch.tensor(number, dtype=dtype)).value() == number
    exponent = torch.tensor(math.frexp(info.smallest_normal * info.eps)[1] - 2)
    assert times_power(torch.tensor(0.75, dtype=dtype), exponent) == 0, "less than half of the smallest number"


def test_errors() -> None:
    for name in ("prod", "cumprod"):
        with pytest.raises(ArgumentError, match=rf"{name}: x is torch.int64"):
            getattr(gw.stable, name)(torch.arange(3), 0)


def test_batched_gradients_of_products_that_take_the_long_way() -> None:
    x = torch.tensor([1.5, -2.0, 0.0, 0.75], dtype=torch.float64, requires_grad=True)
    out = gw.stable.cumprod(x, 0)
    g = torch.eye(4, dtype=torch.float64)
    together = torch.autograd.grad(out, x, g, is_grads_batched=True, retain_graph=True)[0]
    alone = [torch.autograd.grad(out, x, row, retain_graph=True)[0] for row in g]
    assert torch.equal(together, torch.stack(alone))


def test_two_to_an_integer_is_exact() -> None:
    """What batched gradients rely on."""
    for dtype, low, high in ((torch.float64, -1022, 1023), (torch.float32, -126, 127)):
        numbers = range(low, high + 1)
        powers = torch.exp2(torch.tensor(list(numbers), dtype=dtype))
        assert powers.double().tolist() == [2.0**k for k in numbers]
