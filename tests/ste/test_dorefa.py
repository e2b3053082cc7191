"""What is special about DoReFa; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import OptionError


def backward(g: Tensor, **options: object) -> Tensor:
    x = torch.zeros_like(g, requires_grad=True)
    (grad,) = torch.autograd.grad(gw.ste.dorefa_gradients(x, **options), x, g)  # type: ignore[arg-type]
    return grad


def test_gradients_with_noise_are_right_on_average() -> None:
    # A code is one of two neighbours: its variance is at most 1/4, that of the mean of n draws 1/(4 n). The mean is off
    # by more than 5 of these deviations once in two million.
    draws, bits = 20_000, 3
    g = torch.tensor([0.7, -0.31, 0.02, 1.0, -1.0], dtype=torch.float64).expand(draws, 5)
    generator = torch.Generator().manual_seed(0)
    got = backward(g, bits=bits, generator=generator)
    step = 2 / (2**bits - 1)
    assert ((got.mean(0) - g[0]).abs() <= 5 * step / (2 * draws**0.5)).all()
    assert (got - g).abs().max() <= step * (1 + 1e-12)
    assert torch.equal(got[:, 3:], g[:, 3:])  # the largest are values themselves


def test_gradients_without_noise_are_rounded_to_the_nearest() -> None:
    got = backward(torch.tensor([3.0, 0.9, -1.2, -2.9]), bits=2, noise=False)
    torch.testing.assert_close(got, torch.tensor([3.0, 1.0, -1.0, -3.0]))


def test_each_sample_has_its_own_range() -> None:
    g = torch.tensor([[4.0, -1.3], [0.04, -0.013]])
    got = backward(g, bits=8, noise=False)
    torch.testing.assert_close(got[0], got[1] * 100)
    assert got.amax(1).tolist() == pytest.approx([4.0, 0.04])


def test_no_gradient_and_no_elements() -> None:
    assert backward(torch.zeros(2, 3), bits=4).tolist() == [[0.0] * 3] * 2
    assert backward(torch.zeros(0, 3), bits=4).shape == (0, 3)


def test_noise_is_that_of_the_generator() -> None:
    g = torch.linspace(-1, 1, 40)
    one, other = (backward(g, bits=2, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)


def test_weights_that_are_all_zero() -> None:
    w = torch.zeros(4, requires_grad=True)
    out = gw.ste.dorefa_weights(w, bits=2)
    assert bool(out.isfinite().all())
    assert torch.autograd.grad(out.sum(), w)[0].tolist() == [1.0] * 4


def test_the_largest_weight_has_the_largest_value() -> None:
    out = gw.ste.dorefa_weights(torch.tensor([0.002, -0.01, 0.004]), bits=4)
    assert out[1].item() == -1.0


def test_errors() -> None:
    for function in (gw.ste.dorefa_activations, gw.ste.dorefa_weights, gw.ste.dorefa_gradients):
        with pytest.raises(OptionError, match="codes: bits is 0"):
            function(torch.zeros(2), bits=0)


@pytest.mark.parametrize("size", [1e-39, 1e-45])
def test_subnormal_numbers_are_not_nan(size: float) -> None:
    x = (torch.tensor([0.0, 1.0, -1.0, 0.5]) * size).requires_grad_()
    out = gw.ste.dorefa_weights(x, bits=4)
    assert out.abs().max() <= 1
    assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()
    for noise in (False, True):
        same = gw.ste.dorefa_gradients(x, bits=4, noise=noise)
        (grad,) = torch.autograd.grad(same, x, x.detach())
        assert grad.abs().max() <= x.abs().max()
