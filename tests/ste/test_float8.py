"""What is special about FP8; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError

KINDS = [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)]


@pytest.mark.parametrize(("kind", "largest"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_those_of_the_cast(kind: torch.dtype, largest: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(4000, generator=generator) * 2.0 ** (40 * torch.rand(4000, generator=generator) - 20)).to(dtype)
    want = x.float().clamp(-largest, largest).to(kind).to(dtype)
    assert torch.equal(gw.ste.float8(x, dtype=kind), want)


def test_without_saturation() -> None:
    x = torch.tensor([464.0, 465.0, -torch.inf])  # the first is a tie between 448 and a code that is nan
    out = gw.ste.float8(x, saturate=False)
    assert out[0] == 448
    assert bool(out[1:].isnan().all())
    x = torch.tensor([61439.0, 61440.0, -torch.inf])
    assert gw.ste.float8(x, dtype=torch.float8_e5m2, saturate=False).tolist() == [57344, torch.inf, -torch.inf]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_small_gradients_survive(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 7, dtype=dtype, requires_grad=True)
    g = torch.full_like(x, 1e-6)  # which float8 would flush to zero
    (grad,) = torch.autograd.grad(gw.ste.float8(x), x, g)
    assert torch.equal(grad, g)


def test_the_largest_size_is_always_inside() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):  # for many of them amax / (amax / 448) is more than 448
        x = torch.randn(4, generator=generator, requires_grad=True)
        out = gw.ste.float8(x, amax=x.detach().abs().amax())
        assert torch.autograd.grad(out.sum(), x)[0].tolist() == [1, 1, 1, 1]


def test_nothing_but_zeros() -> None:
    assert gw.ste.float8(torch.zeros(3), amax=torch.tensor(0.0)).tolist() == [0, 0, 0]


def test_errors() -> None:
    x = torch.ones(4)
    with pytest.raises(OptionError, match=r"float8: dtype: got 'torch\.int8'; expected one of torch"):
        gw.ste.float8(x, dtype=torch.int8)
    with pytest.raises(OptionError, match="float8: got both scale and amax; expected one of them"):
        gw.ste.float8(x, 1.0, amax=2.0)


def test_a_range_whose_step_vanishes_is_not_nan() -> None:
    x = torch.tensor([0.0, 1e-45, -1e-45], requires_grad=True)
    out = gw.ste.float8(x, amax=x.detach().abs().amax())
    assert out.abs().max() <= 2e-45
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.ones(3))
