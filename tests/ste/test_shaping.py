"""What is special about the shaping of gradients; the suite of the catalogue proves the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, GradwrightError, OptionError, RuleError

SHAPERS: list[Callable[[Tensor], Tensor]] = [
    gw.ste.reverse_gradient,
    gw.ste.stop_gradient,
    lambda x: gw.ste.scale_gradient(x, 2.0),
    lambda x: gw.ste.clip_gradient(x, 1.0),
    lambda x: gw.ste.clip_gradient_norm(x, 1.0),
    lambda x: gw.ste.noisy_gradient(x, 1.0),
]


def pulled(function: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    x = torch.zeros_like(g, requires_grad=True)
    return torch.autograd.grad(function(x), x, g)[0]


@pytest.mark.parametrize("function", SHAPERS)
def test_values_are_not_copied_and_editing_them_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    for _ in range(3):  # the first call takes another way than those that follow
        x = torch.randn(4, requires_grad=True)
        out = function(x)
        assert out.data_ptr() == x.data_ptr()
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            out.mul_(2)
        hidden = x * 1
        out = function(hidden)
        hidden.mul_(2)
        with pytest.raises(RuntimeError, match="modified inplace"):
            out.sum()
        function(x).clone().mul_(2).sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the first forward mode of a process (torch 2.13)
def test_forward_mode_of_what_is_linear() -> None:
    x, t = torch.ones(2), torch.tensor([1.0, 2.0])
    for function, factor in zip(SHAPERS[:3], (-1.0, 0.0, 2.0)):
        with torch.autograd.forward_ad.dual_level():
            out = function(torch.autograd.forward_ad.make_dual(x, t))
            tangent = torch.autograd.forward_ad.unpack_dual(out).tangent
        assert torch.equal(tangent, t * factor)


def test_strength_and_factor_may_be_tensors_without_gradients() -> None:
    g, rows = torch.ones(2, 3), torch.tensor([[1.0], [2.0]])
    assert torch.equal(pulled(lambda x: gw.ste.scale_gradient(x, rows), g), rows.expand(2, 3))
    assert torch.equal(pulled(lambda x: gw.ste.reverse_gradient(x, rows), g), -rows.expand(2, 3))
    with pytest.raises(GradwrightError, match="factor"):
        pulled(lambda x: gw.ste.scale_gradient(x, rows.requires_grad_()), g)


def test_an_adversary_learns_while_what_feeds_it_unlearns() -> None:
    feature, weight = torch.tensor(1.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    loss = gw.ste.reverse_gradient(feature, 0.5) * weight
    assert torch.autograd.grad(loss, (feature, weight)) == (torch.tensor(-1.0), torch.tensor(1.0))


def test_nothing_passes_a_stop_whatever_it_is() -> None:
    g = torch.tensor([torch.inf, torch.nan, -torch.inf, 1.0])
    assert torch.equal(pulled(gw.ste.stop_gradient, g), torch.zeros(4))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_norms_of_large_and_small_gradients(size: float) -> None:
    g = torch.tensor([3.0, 4.0]) * size
    got = pulled(lambda x: gw.ste.clip_gradient_norm(x, size), g)
    torch.testing.assert_close(got, torch.tensor([0.6, 0.8]) * size)
    assert torch.equal(pulled(lambda x: gw.ste.clip_gradient_norm(x, 6 * size), g), g)


def test_norms_of_what_is_zero_or_empty_or_no_number() -> None:
    def clipped(x: Tensor) -> Tensor:
        return gw.ste.clip_gradient_norm(x, 1.0)

    for g in (torch.zeros(3), torch.zeros(0), torch.tensor(0.5)):
        assert torch.equal(pulled(clipped, g), g)
    assert bool(pulled(clipped, torch.tensor([torch.nan, 1.0])).isnan().any())
    assert not bool(pulled(clipped, torch.tensor([torch.inf, 1.0])).isfinite().all())


def test_a_norm_for_each_slice() -> None:
    g = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    rows = pulled(lambda x: gw.ste.clip_gradient_norm(x, 1.0, axis=0), g)
    torch.testing.assert_close(rows, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    columns = pulled(lambda x: gw.ste.clip_gradient_norm(x, 1.0, axis=-1), g)
    torch.testing.assert_close(columns, g / g.norm(dim=0))
    line = torch.tensor([3.0, -0.5])
    assert pulled(lambda x: gw.ste.clip_gradient_norm(x, 1.0, axis=0), line).tolist() == [1.0, -0.5]


def test_noise_is_drawn_anew_from_the_generator_with_its_deviation() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(40_000, dtype=torch.bfloat16, requires_grad=True)
    out = gw.ste.noisy_gradient(x, 0.5, generator=generator)
    state = torch.get_rng_state()
    first, second = (torch.autograd.grad(out, x, torch.ones_like(x), retain_graph=True)[0] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, second)
    assert abs(float(first.float().mean()) - 1) < 6 * 0.5 / 200
    assert abs(float(first.float().std()) - 0.5) < 0.02


def test_a_variance_below_the_bound_is_not_stuck() -> None:
    x = torch.tensor([-1.0], requires_grad=True)
    step = torch.optim.SGD([x], lr=0.5)
    for _ in range(40):
        step.zero_grad()
        (gw.ste.lower_bound(x, 0.1) - 2.0).square().sum().backward()
        step.step()
    torch.testing.assert_close(x.detach(), torch.tensor([2.0]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the first forward mode of a process (torch 2.13)
@pytest.mark.parametrize("function", SHAPERS[3:])
def test_what_is_not_linear_refuses_forward_mode_and_second_derivatives(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuleError, match="forward mode was asked for"):
        function(torch.autograd.forward_ad.make_dual(x, x))
    (grad,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuleError):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clip_gradient", {"limit": 0.0}, "clip_gradient: limit is 0.0; expected a positive number"),
        ("clip_gradient_norm", {"limit": torch.nan}, "clip_gradient_norm: limit is nan; expected a positive number"),
        ("clip_gradient_norm", {"limit": 1.0, "axis": 2}, "clip_gradient_norm: axis=2 for a tensor of 1 dimensions"),
        ("noisy_gradient", {"std": -1.0}, "noisy_gradient: std is -1.0; expected a number of at least 0"),
    ],
)
def test_options_are_checked(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        getattr(gw.ste, name)(torch.ones(2), **options)


def test_noise_of_another_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match="noisy_gradient: noise has the shape"):
        gw.ste.noisy_gradient(torch.ones(2), 1.0, noise=torch.ones(3))
