"""What is special about clipping; the suite of the catalogue proves the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError


def test_no_gradient_is_lost_between_learned_bounds() -> None:
    x = torch.tensor([-1.0, 0.0, 0.5, 2.0, 3.0], requires_grad=True)
    low, high = torch.tensor(0.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    for edges, want in (("exclusive", (1.0, 2.0, 2.0)), ("inclusive", (3.0, 1.0, 1.0))):
        out = gw.ste.clamp_learned(x, low, high, edges=edges)  # type: ignore[arg-type]
        assert out.tolist() == [0.0, 0.0, 0.5, 2.0, 2.0]
        assert tuple(float(grad.sum()) for grad in torch.autograd.grad(out.sum(), (x, low, high))) == want


def test_an_infinite_number_belongs_to_the_bound_it_is_clipped_to() -> None:
    x = torch.tensor([torch.inf, -torch.inf])
    low, high = torch.tensor(0.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    out = gw.ste.clamp_learned(x, low, high)
    assert torch.autograd.grad(out, (low, high), torch.tensor([3.0, 5.0])) == (torch.tensor(5.0), torch.tensor(3.0))
    free = torch.tensor([torch.inf, -torch.inf], requires_grad=True)
    out = gw.ste.clamp(free, low=0.0, edges="exclusive")
    assert torch.autograd.grad(out.sum(), free)[0].tolist() == [1.0, 0.0]


def test_gradient_descent_comes_back_into_the_range() -> None:
    x = torch.tensor([5.0, -5.0], requires_grad=True)
    step = torch.optim.SGD([x], lr=1.0)
    for _ in range(20):
        step.zero_grad()
        gw.ste.clamp_inward(x, -1.0, 1.0).square().sum().backward()
        step.step()
    assert bool((x.abs() <= 1).all())


def test_what_has_no_second_derivative_refuses() -> None:
    x = torch.tensor([3.0], requires_grad=True)
    (grad,) = torch.autograd.grad(gw.ste.clamp_inward(x, -1.0, 1.0).square(), x, create_graph=True)
    with pytest.raises(gw.errors.RuleError, match="clamp_inward"):
        grad.backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "clamp: low and high are both None; expected a bound"),
        ({"low": 1.0, "high": 1.0}, r"clamp: low is 1.0 and high 1.0; expected low < high"),
        ({"low": 1.0, "mask": "post-round"}, "clamp: mask: got 'post-round'; expected one of none, range"),
        ({"low": 1.0, "edges": "open"}, "clamp: edges: got 'open'; expected one of inclusive, exclusive"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        gw.ste.clamp(torch.ones(2), **options)


def test_learned_bounds_check_their_options() -> None:
    with pytest.raises(OptionError, match="clamp_learned: edges: got 'open'"):
        gw.ste.clamp_learned(torch.ones(2), 0.0, 1.0, edges="open")  # type: ignore[arg-type]
    with pytest.raises(gw.errors.ArgumentError, match="clamp_learned: a parameter has the shape"):
        gw.ste.clamp_learned(torch.ones(2, 4), 0.0, torch.ones(3), axis=0)
