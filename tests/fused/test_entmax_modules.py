"""The modules give what the functions give, and hold what is learned."""

from __future__ import annotations

import torch

import gradwright as gw


def test_modules_are_the_functions() -> None:
    x = torch.randn(3, 5, 4)
    assert torch.equal(gw.fused.Sparsemax()(x), gw.fused.sparsemax(x))
    assert torch.equal(gw.fused.Sparsemax(1)(x), gw.fused.sparsemax(x, 1))
    assert torch.equal(gw.fused.Entmax15(1)(x), gw.fused.entmax15(x, 1))
    assert torch.equal(gw.fused.Entmax(1.25, 1)(x), gw.fused.entmax(x, 1.25, 1))
    assert torch.equal(gw.fused.Entmax()(x), gw.fused.entmax15(x))


def test_what_is_shown() -> None:
    assert repr(gw.fused.Entmax15(1)) == "Entmax15(dim=1)"
    assert repr(gw.fused.Entmax(1.25)) == "Entmax(alpha=1.25, dim=-1)"
    assert repr(gw.fused.Entmax(torch.ones(3, 1))) == "Entmax(alpha=of shape (3, 1), dim=-1)"


def test_a_parameter_is_learned_and_a_tensor_moves_along() -> None:
    x = torch.randn(2, 3, 6)
    module = gw.fused.Entmax(torch.nn.Parameter(torch.tensor([[1.25], [1.5], [1.75]])))
    module(x).square().sum().backward()  # type: ignore[no-untyped-call]
    (alpha,) = module.parameters()
    assert alpha.grad is not None
    assert bool((alpha.grad > 0).all()), "the larger it is, the sparser and the larger the squares"
    fixed = gw.fused.Entmax(torch.tensor(1.25))
    assert not list(fixed.parameters())
    assert list(fixed.state_dict()) == ["alpha"]
    assert fixed.double()(x.double()).dtype == torch.float64
