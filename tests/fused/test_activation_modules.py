"""Modules in the place of PyTorch's: same constructor, representation, state and results."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import gradwright as gw
from gradwright.errors import OptionError

ACTIVATIONS = [
    ("Softplus", {}),
    ("Softplus", {"beta": 2.0, "threshold": 30.0}),
    ("ELU", {"alpha": 0.5}),
    ("CELU", {"alpha": 0.5}),
    ("SELU", {}),
    ("LeakyReLU", {"negative_slope": 0.2}),
    ("Hardtanh", {"min_val": -0.5, "max_val": 2.0}),
    ("ReLU6", {}),
]
LINEAR: dict[str, dict[str, Any]] = {"GELU": {"approximate": "tanh"}, "SiLU": {}, "Mish": {}}


@pytest.mark.parametrize(("name", "kwargs"), ACTIVATIONS)
def test_an_activation_takes_the_place_of_that_of_pytorch(name: str, kwargs: dict[str, Any]) -> None:
    ours, theirs = getattr(gw.fused, name)(**kwargs), getattr(nn, name)(**kwargs)
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    assert ours.state_dict() == {}
    x = torch.linspace(-8.0, 8.0, 33, requires_grad=True)
    y = ours(x)
    torch.testing.assert_close(y, theirs(x), rtol=0.0, atol=0.0)
    (got,), (want,) = (torch.autograd.grad(out.sum(), x) for out in (y, theirs(x)))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=3e-7)
    assert type(y.grad_fn) is not type(theirs(x).grad_fn), "the gradient is our own"
    assert torch.equal(pickle.loads(pickle.dumps(ours))(x), y)


@pytest.mark.parametrize("name", ["ELU", "CELU", "SELU", "LeakyReLU", "Hardtanh", "ReLU6"])
def test_nothing_is_done_in_place(name: str) -> None:
    getattr(gw.fused, name)(inplace=False)
    with pytest.raises(OptionError, match=f"{name}: inplace is True; expected False"):
        getattr(gw.fused, name)(inplace=True)


@pytest.mark.parametrize("activation", LINEAR)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_takes_the_place_of_two(activation: str, bias: bool) -> None:
    """The parameters are those of the linear layer, under its names, drawn in the same way."""
    kwargs = LINEAR[activation]
    torch.manual_seed(0)
    two = nn.Sequential(nn.Linear(4, 6), getattr(nn, activation)(**kwargs), nn.Linear(6, 3, bias=bias))
    torch.manual_seed(0)
    layer = getattr(gw.fused, f"{activation}Linear")
    one = nn.Sequential(nn.Linear(4, 6), nn.Identity(), layer(6, 3, bias=bias, **kwargs))
    assert one.state_dict().keys() == two.state_dict().keys()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters()))
    one.load_state_dict(two.state_dict())
    x = torch.randn(5, 4)
    got, want = one(x), two(x)
    torch.testing.assert_close(got, want)
    pairs = zip(*(torch.autograd.grad(y.square().sum(), list(m.parameters())) for y, m in ((got, one), (want, two))))
    for a, b in pairs:
        torch.testing.assert_close(a, b)
    assert torch.equal(copy.deepcopy(one)(x), got)
    assert layer(6, 3, dtype=torch.float64).weight.dtype == torch.float64


def test_representations() -> None:
    assert repr(gw.fused.GELULinear(4, 2)) == "GELULinear(in_features=4, out_features=2, bias=True, approximate='none')"
    assert repr(gw.fused.SiLULinear(4, 2, bias=False)) == "SiLULinear(in_features=4, out_features=2, bias=False)"


def test_an_unknown_approximation_is_refused_when_the_layer_is_made() -> None:
    with pytest.raises(OptionError, match="approximate: got 'erf'; expected one of none, tanh"):
        gw.fused.GELULinear(4, 2, approximate="erf")
