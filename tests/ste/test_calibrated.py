"""What is special about measured ranges; the suite of the catalogue proves the rest."""

from __future__ import annotations

import functools
import math

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError, RuleError
from gradwright.ste.calibrated import GAUSSIAN_CLIPS


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_largest_value_stays_what_it_is(bits: int) -> None:
    x = torch.rand(64, 33, generator=torch.Generator().manual_seed(0)) * 5 + 0.1
    amax = x.amax(1)
    out = gw.ste.absmax(x, amax, bits=bits, axis=0)
    assert torch.equal(out.amax(1), amax)


def test_a_channel_of_zeros_stays_zero() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, -2.0]], requires_grad=True)
    for amax, axis in ((torch.tensor([0.0, 2.0]), 0), (0.0, None)):
        out = gw.ste.absmax(x, amax, bits=4, axis=axis)
        assert out[0].tolist() == [0.0, 0.0]
        assert bool(torch.autograd.grad(out.sum(), x)[0].isfinite().all())


def test_what_is_measured_is_not_learned() -> None:
    x = torch.tensor([0.3, -2.0])
    with pytest.raises(RuleError, match="gradient of 'amax' is needed, but it is declared in nondiff"):
        gw.ste.absmax(x, torch.tensor(1.0, requires_grad=True), bits=4)
    with pytest.raises(RuleError, match="gradient of 'scale' is needed, but it is declared in nondiff"):
        gw.ste.quest(x, torch.tensor(1.0, requires_grad=True), bits=4)


def squared_error(clip: float, bits: int) -> float:
    """Return the mean squared error for normal data of evenly spaced values up to a bound, from its closed form."""

    def moments(a: float, b: float) -> tuple[float, float, float]:
        density, below = (lambda t: math.exp(-t * t / 2) / math.sqrt(2 * math.pi), lambda t: math.erf(t / 2**0.5) / 2)
        p = (0.5 if b == math.inf else below(b)) - below(a)
        ends = a * density(a) - (0.0 if b == math.inf else b * density(b))
        return p, density(a) - (0.0 if b == math.inf else density(b)), p + ends

    count = 2 ** (bits - 1)
    step, total = clip / (count - 0.5), 0.0
    for i in range(count):
        p, mean, square = moments(i * step, math.inf if i == count - 1 else (i + 1) * step)
        q = (i + 0.5) * step
        total += square - 2 * q * mean + q * q * p
    return 2 * total


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_bounds_are_the_best_for_normal_data(bits: int) -> None:
    # Those of the paper are found by numerical integration; the error is flat about its least value.
    best = min(squared_error(k / 1000, bits) for k in range(500, 5000))
    assert squared_error(GAUSSIAN_CLIPS[bits - 1], bits) <= best * 1.002


def test_the_trust_of_the_paper_is_half_a_step() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    sd = x.detach().square().mean().sqrt()
    for bits in (2, 4):
        out = gw.ste.quest(x, bits=bits)
        trust = sd * GAUSSIAN_CLIPS[bits - 1] / (2**bits - 1)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, ((out - x).abs() <= trust * (1 + 1e-7)).double())
        assert 0 < (grad == 0).sum() < 1000
        assert len(out.unique()) == 2**bits


def test_ties_are_trusted_whatever_rounding_makes_of_them() -> None:
    # Next to a tie the sum with 1/2 is rounded, so that the value may go to the neighbour a hair further away.
    step = torch.tensor(0.1)
    ties = torch.arange(-7, 8) * step
    x = torch.cat([ties, *(torch.nextafter(ties, torch.full_like(ties, end)) for end in (-9.0, 9.0))]).requires_grad_()
    (grad,) = torch.autograd.grad(gw.ste.quest(x, step, bits=4).sum(), x)
    assert bool((grad == 1).all())


def test_a_measured_step_is_a_constant() -> None:
    x = torch.linspace(-2, 3, 24, dtype=torch.float64).reshape(3, 8).requires_grad_()
    for options in ({}, {"axis": 1}, {"axis": 0}, {"axis": 1, "group_size": 4}):
        step = gw.ste.quest_scale(x, 3, **options)
        assert not step.requires_grad
        one, other = gw.ste.quest(x, bits=3, **options), gw.ste.quest(x, step, bits=3, **options)
        assert torch.equal(one, other)
        assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out in (one, other)))
    assert gw.ste.quest_scale(x, 3, axis=1, group_size=4).shape == (3, 2)


def test_a_tensor_of_zeros() -> None:
    out = gw.ste.quest(torch.zeros(3), bits=4)
    assert bool((out.abs() < 1e-8).all())


def test_errors() -> None:
    x = torch.zeros(2, 6)
    with pytest.raises(OptionError, match="absmax: mask: got 'post-round'; expected one of range, none"):
        gw.ste.absmax(x, 1.0, bits=4, mask="post-round")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="absmax: bits is 1 with signed codes; expected at least 2"):
        gw.ste.absmax(x, 1.0, bits=1)
    with pytest.raises(ArgumentError, match=r"absmax: a parameter has the shape \(3,\)"):
        gw.ste.absmax(x, torch.ones(3), bits=4, axis=0)
    with pytest.raises(OptionError, match="quest_scale: bits is 9; expected 1 to 8; or give quest a scale"):
        gw.ste.quest(x, bits=9)
    with pytest.raises(OptionError, match="quest: trust is 0; expected a positive number"):
        gw.ste.quest(x, 1.0, bits=4, trust=0)


def test_a_measured_step_does_not_depend_on_the_layout() -> None:
    x = torch.randn(1000, 33, generator=torch.Generator().manual_seed(0))
    for options in ({}, {"axis": 0}, {"axis": -1, "group_size": 11}):
        step = gw.ste.quest_scale(x, 4, **options)
        assert torch.equal(step, gw.ste.quest_scale(x.T.contiguous().T, 4, **options))
        rows = x if options else x.reshape(1, -1)
        groups = rows.reshape(1000, 3, 11) if "group_size" in options else rows
        want = groups.double().square().mean(-1).sqrt() * (2 * 2.513931 / 15)
        torch.testing.assert_close(step, want.float().reshape(step.shape), rtol=1e-6, atol=1e-7)


def test_a_measured_step_is_not_accused() -> None:
    assert gw.check(functools.partial(gw.ste.quest, bits=3), torch.randn(4, 6).double(), level="quick")


@pytest.mark.parametrize("amax", [1e-39, 1e-45, 0.0])
def test_a_subnormal_range_is_not_nan(amax: float) -> None:
    x = torch.tensor([[0.0, 1.0, -1.0, 0.5], [0.0, 1.0, -1.0, 0.5]])
    x[0] *= amax
    maxima = x.abs().amax(1)
    for out in (
        gw.ste.absmax(x, maxima, bits=8, axis=0),
        torch.stack([gw.ste.absmax(row, float(most), bits=8) for row, most in zip(x, maxima)]),
        gw.ste.pact(x, maxima, bits=8, axis=0),
    ):
        assert out[0].abs().max() <= amax
        assert out[1, 1] == 1.0
