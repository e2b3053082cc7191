"""What is special about random forwards: their distribution, their generators, what they keep."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError
from gradwright.ste import stochastic

DRAWS = 40_000
SIGMAS = 6.0
"""A right function exceeds so many standard errors with a probability of 2e-9 for each number."""


def standard_errors(x: Tensor, out: Tensor) -> Tensor:
    """Return how far the mean of draws is from ``x``, beyond the rounding of the probability, in standard errors."""
    part = x.double() - x.double().floor()
    error = (out.double().mean(0) - x.double()).abs() - 2.0**-24
    return error / ((part * (1 - part) / DRAWS).sqrt() + 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_stochastic_rounding_is_unbiased(dtype: torch.dtype) -> None:
    x = torch.tensor([-2.75, -1.5, -0.01, 0.0, 0.003, 0.25, 0.5, 0.99, 3.125, 7.0], dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    out = gw.ste.stochastic_round(x.expand(DRAWS, -1), generator=generator)
    assert bool((standard_errors(x, out) < SIGMAS).all())
    assert bool((standard_errors(x, x.round().expand(DRAWS, -1)) > SIGMAS).any()), "the test sees nearest rounding"


def test_numbers_are_drawn_from_the_generator_alone() -> None:
    x = torch.full((100,), 0.5)
    state = torch.get_rng_state()
    for function in (gw.ste.stochastic_round, gw.ste.uniform_noise):
        first, second = (function(x, generator=torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(gw.ste.stochastic_round(x), gw.ste.stochastic_round(x))


def test_special_values_and_large_numbers_stay() -> None:
    x = torch.tensor([torch.inf, -torch.inf, 2.0**30, -(2.0**30)])
    assert torch.equal(gw.ste.stochastic_round(x), x)
    assert bool(gw.ste.stochastic_round(torch.tensor([torch.nan])).isnan())
    tiny = torch.tensor([-1e-30, 1e-30]).repeat(1000)
    assert not gw.ste.stochastic_round(tiny, generator=torch.Generator().manual_seed(0)).any()


def test_an_integer_stays_even_where_zero_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stochastic, "uniform", lambda like, generator: torch.zeros_like(like))
    assert gw.ste.stochastic_round(torch.tensor([-1.0, 0.0, 3.0, 3.5])).tolist() == [-1.0, 0.0, 3.0, 4.0]


def test_drawn_noise_is_uniform_and_the_backward_uses_the_same() -> None:
    x, scale = torch.zeros(DRAWS, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    out = gw.ste.uniform_noise(x, scale, generator=torch.Generator().manual_seed(0))
    noise = out.detach() / 0.5
    assert bool((noise.abs() <= 0.5).all())
    assert abs(float(noise.mean())) < SIGMAS * (1 / 12 / DRAWS) ** 0.5
    assert abs(float(noise.var()) - 1 / 12) < SIGMAS * (1 / 180 / DRAWS) ** 0.5
    g = torch.randn(DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(out, scale, g, retain_graph=True)[0], (g * noise).sum())


@pytest.mark.parametrize("learned", [True, False])
def test_noise_is_kept_only_for_a_scale_that_is_learned(learned: bool) -> None:
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    x = torch.zeros(1000, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        gw.ste.uniform_noise(x, torch.tensor(1.0, requires_grad=learned))
    assert sum(number for number in kept if number > 8) == 4000 * learned


def test_a_coarse_noise_of_half_precision_is_not_used() -> None:
    x = torch.zeros(DRAWS, dtype=torch.bfloat16)
    out = gw.ste.uniform_noise(x, generator=torch.Generator().manual_seed(0))
    assert int((out != 0).sum()) > 0.999 * DRAWS  # torch.rand in bfloat16 gives 1/2 with a probability of 2 ** -8
    assert len(out.unique()) > 500


def test_noise_of_another_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"uniform_noise: noise has the shape \(3,\); expected that of x, \(2,\)"):
        gw.ste.uniform_noise(torch.ones(2), noise=torch.ones(3))


def test_vmap_asks_how_samples_differ() -> None:
    x = torch.rand(3, 50)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(gw.ste.stochastic_round)(x)
    grads = torch.func.vmap(torch.func.grad(lambda x: gw.ste.stochastic_round(x).sum()), randomness="different")(x)
    assert torch.equal(grads, torch.ones_like(x))


@pytest.mark.parametrize("draw", [stochastic.uniform, stochastic.normal])
def test_numbers_do_not_depend_on_the_layout(draw) -> None:
    x = torch.zeros(3, 4)
    drawn = []
    for like in (x, x.T.contiguous().T, torch.zeros(1).expand(3, 4)):
        torch.manual_seed(0)
        drawn.append(draw(like, None))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("function", [gw.ste.uniform_noise, functools.partial(gw.ste.noisy_gradient, std=0.1)])
def test_noise_that_is_drawn_is_not_accused(function) -> None:
    x = torch.randn(4, 6, dtype=torch.float64)
    assert gw.check(function, x, level="quick")


def test_a_learned_scale_of_drawn_noise_is_not_accused() -> None:
    assert gw.check(gw.ste.uniform_noise, torch.randn(4, 6).double(), torch.tensor(0.5).double(), level="quick")
