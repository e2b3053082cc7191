"""What is special about signs; the suite of the catalogue proves the rest."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import OptionError

SIGNS: dict[str, Callable[..., Tensor]] = {
    "sign": gw.ste.sign,
    "clipped": gw.ste.clipped_sign,
    "approx": gw.ste.approx_sign,
    "swish": gw.ste.swish_sign,
    "error decay": functools.partial(gw.ste.error_decay_sign, t=4.0),
    "evaluation": functools.partial(gw.ste.stochastic_sign, training=False),
}


@pytest.mark.parametrize("name", SIGNS)
def test_values(name: str) -> None:
    x = torch.tensor([torch.inf, 1e-45, 0.0, -0.0, -1e-45, -torch.inf, torch.nan])
    out = SIGNS[name](x)
    assert out[:-1].tolist() == [1, 1, 1, 1, -1, -1]
    assert bool(out[-1].isnan())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["swish", "error decay"])
def test_no_size_overflows(name: str, dtype: torch.dtype) -> None:
    huge = torch.finfo(dtype).max
    x = torch.tensor([-torch.inf, -huge, -1e3, 1e3, huge, torch.inf], dtype=dtype, requires_grad=True)
    (grad,) = torch.autograd.grad(SIGNS[name](x).sum(), x)
    assert bool((grad == 0).all())


@pytest.mark.parametrize("u", [1e-8, 0.3, 2.3994, 10.0, 40.0, 300.0, 700.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_slopes_keep_their_digits_in_the_tails(u: float, dtype: torch.dtype) -> None:
    x = torch.tensor(u, dtype=dtype, requires_grad=True)
    tiny = 4 * torch.finfo(dtype).smallest_normal  # the product of two sigmoids ends where exp does
    v = mpmath.mpf(x.item())
    wants: dict[str, tuple[Callable[..., Tensor], Any]] = {
        "swish": (
            functools.partial(gw.ste.swish_sign, beta=1.0),
            (2 - v * mpmath.tanh(v / 2)) / (1 + mpmath.cosh(v)),
        ),
        "error decay": (functools.partial(gw.ste.error_decay_sign, t=1.0), mpmath.sech(v) ** 2),
    }
    for function, want in wants.values():
        (grad,) = torch.autograd.grad(function(x), x)
        near_root = 2 * u * torch.finfo(dtype).eps  # 2 - u tanh(u/2) cancels near u = 2.4
        assert grad.item() == pytest.approx(
            float(want), rel=(20 + u) * torch.finfo(dtype).eps, abs=near_root * float(1 / (1 + mpmath.cosh(v))) + tiny
        )


def test_second_derivatives_are_those_of_the_surrogate() -> None:
    x = torch.tensor([-1.5, -0.5, 0.25, 3.0], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(gw.ste.approx_sign(x).sum(), x, create_graph=True)
    assert torch.autograd.grad(grad.sum(), x)[0].tolist() == [0, 2, -2, 0]


def test_a_learned_shift() -> None:
    x = torch.tensor([[0.5, 0.1], [-0.2, 2.0]])
    shift = torch.tensor([0.25, 0.0], requires_grad=True)
    out = gw.ste.approx_sign(x - shift)
    assert out.tolist() == [[1, 1], [-1, 1]]
    (grad,) = torch.autograd.grad(out.sum(), shift)
    assert grad.tolist() == pytest.approx([-(2 - 0.5) - (2 - 0.9), -(2 - 0.2)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("x", [-1.5, -1.0, -0.75, 0.0, 0.5, 0.9375, 1.0, 3.0])
def test_the_mean_of_random_signs(x: float, dtype: torch.dtype) -> None:
    count = 40000
    out = gw.ste.stochastic_sign(
        torch.full((count,), x, dtype=dtype), generator=torch.Generator().manual_seed(round(x * 1024) + 4096)
    )
    mean = max(-1.0, min(1.0, x))
    # Of 48 such means one in 10^5 is further away than 5 standard errors; from -1 down and 1 up none is away at all.
    assert abs(out.double().mean().item() - mean) <= 5 * math.sqrt((1 - mean * mean) / count)


def test_the_smallest_number_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    assert gw.ste.stochastic_sign(torch.tensor([-2.0, -1.0, -0.5, 1.0])).tolist() == [-1, -1, 1, 1]


def test_a_generator_makes_random_signs_repeatable() -> None:
    x = torch.zeros(100)
    one, other = (gw.ste.stochastic_sign(x, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)
    torch.manual_seed(3)
    assert torch.equal(gw.ste.stochastic_sign(x), one)


def test_errors() -> None:
    x = torch.ones(3)
    with pytest.raises(OptionError, match="clipped_sign: bound is 0; expected a positive number"):
        gw.ste.clipped_sign(x, bound=0)
    with pytest.raises(OptionError, match="clipped_sign: edges: got 'open'; expected one of inclusive, exclusive"):
        gw.ste.clipped_sign(x, edges="open")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="swish_sign: beta is -1; expected a positive number"):
        gw.ste.swish_sign(x, beta=-1)
    with pytest.raises(OptionError, match=r"error_decay_sign: t is 0\.0; expected a positive number"):
        gw.ste.error_decay_sign(x, t=0.0)
