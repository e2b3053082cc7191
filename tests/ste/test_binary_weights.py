"""What is special about signs times the mean size; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError

BOTH = pytest.mark.parametrize("function", [gw.ste.xnor_weights, gw.ste.magnitude_sign], ids=["xnor", "magnitude"])


@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_two_values_for_each_scale(function: gw.typing.CustomGradient, dtype: torch.dtype) -> None:  # type: ignore[type-arg]
    x = torch.randn(5, 33, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert len(function(x).unique()) == 2
    for row in function(x, axis=0):
        assert len(row.abs().unique()) == 1


def test_the_formula_of_the_paper() -> None:
    x = torch.tensor([[-3.0, 0.5], [1.0, 0.25]], requires_grad=True)
    g = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    (grad,) = torch.autograd.grad(gw.ste.xnor_weights(x, axis=0), x, g)
    scales = torch.tensor([[1.75], [0.625]])
    assert torch.equal(grad, g * (0.5 + scales * torch.tensor([[0.0, 1.0], [1.0, 1.0]])))
    (grad,) = torch.autograd.grad(gw.ste.magnitude_sign(x, axis=0), x, g)
    assert torch.equal(grad, g * scales * torch.tensor([[0.0, 1.0], [1.0, 1.0]]))


@BOTH
def test_a_scale_for_each_element(function: gw.typing.CustomGradient) -> None:  # type: ignore[type-arg]
    x = torch.tensor([-3.0, 0.5])
    assert torch.equal(function(x, axis=0), x)


@BOTH
def test_special_values(function: gw.typing.CustomGradient) -> None:  # type: ignore[type-arg]
    assert function(torch.zeros(3)).tolist() == [0, 0, 0]
    assert function(torch.zeros(0)).shape == (0,)
    assert function(torch.tensor(-2.0)).item() == -2.0
    assert bool(function(torch.tensor([torch.nan, 1.0])).isnan().all())


@BOTH
def test_second_derivatives_are_refused(function: gw.typing.CustomGradient) -> None:  # type: ignore[type-arg]
    x = torch.tensor([0.5, 2.0], requires_grad=True)
    (grad,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()


@BOTH
def test_errors(function: gw.typing.CustomGradient) -> None:  # type: ignore[type-arg]
    with pytest.raises(OptionError, match="axis=2 for a tensor of 1 dimensions; expected one of them"):
        function(torch.ones(3), axis=2)
