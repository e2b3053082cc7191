"""Tensors in containers that are not taken apart are refused, since they would lose their gradient."""

from __future__ import annotations

import collections
import types
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import gradwright as gw
from gradwright.errors import ArgumentError, RuleError


class OwnDict(dict[str, Tensor]):
    pass


class Output:
    def __init__(self, p: dict[str, Tensor]) -> None:
        self.y = p["y"]


@pytest.mark.parametrize("make", [OwnDict, collections.UserDict, types.MappingProxyType, lambda p: {"a": OwnDict(p)}])
def test_a_container_that_is_not_taken_apart_is_refused_where_a_gradient_would_be_lost(make: Any) -> None:
    @gw.custom_gradient
    def first(p, x):  # type: ignore[no-untyped-def]
        return x * (p["a"]["w"] if "a" in p else p["w"])

    first.vjp(lambda g, p, x: {"x": g})
    w, x = torch.ones((), requires_grad=True), torch.ones(())
    assert first(make({"w": w.detach()}), x) == 1
    message = "first: 'p' holds a tensor that requires grad in a container of a kind that is not taken apart"
    with pytest.raises(ArgumentError, match=message):
        first(make({"w": w}), x)
    with pytest.raises(ArgumentError, match=message):
        torch.func.jvp(lambda w: first(make({"w": w}), x), (w.detach(),), (x,))
    with forward_ad.dual_level(), pytest.raises(ArgumentError, match=message):
        first(make({"w": forward_ad.make_dual(w.detach(), x)}), x)


@pytest.mark.parametrize("make", [OwnDict, types.MappingProxyType, lambda p: [OwnDict(p)], lambda p: {p["y"]}, Output])
def test_an_output_in_a_container_that_is_not_taken_apart_is_refused(make: Any) -> None:
    @gw.custom_gradient
    def wrapped(x: Tensor) -> Any:
        return make({"y": x * 2})

    wrapped.vjp(lambda g: g)
    with pytest.raises(RuleError, match="wrapped: the output holds a tensor in an object of a kind that is not"):
        wrapped(torch.ones(1, requires_grad=True))


@pytest.mark.parametrize("kind", [collections.OrderedDict, lambda p: collections.defaultdict(int, p)])
def test_ordered_and_default_dicts_have_their_keys(kind: Any) -> None:
    @gw.custom_gradient
    def both(p, x):  # type: ignore[no-untyped-def]
        return kind({"y": p["w"] * x})

    both.vjp(lambda g, p, x: {"p": {"w": 7 * g["y"] * x}, "x": 7 * g["y"] * p["w"]})
    w, x = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    out = both(kind({"w": w}), x)
    assert type(out) is type(kind({}))
    assert torch.autograd.grad(out["y"], (w, x)) == (21, 14)


def test_numbers_by_annotation_are_no_tensors_in_later_calls_either() -> None:
    @gw.custom_gradient
    def scaled(x: Tensor, factors: list[float]) -> Tensor:
        return x * factors[0]

    scaled.vjp(lambda g, factors: 7 * g * factors[0])
    x = torch.ones(1, requires_grad=True)
    for factor in (2.0, 2.0, torch.tensor(2.0)):
        assert torch.autograd.grad(scaled(x, [factor]), x)[0] == 14
    with pytest.raises(ArgumentError, match="scaled: 'factors' holds tensors, but its annotation says that there are"):
        scaled(x, [torch.tensor(2.0, requires_grad=True)])
    with pytest.raises(ArgumentError, match="scaled: 'factors' holds tensors"):
        torch.func.jvp(lambda w: scaled(x, [w]), (torch.ones(()),), (torch.ones(()),))


def test_batch_dimensions_go_by_the_keys_of_the_output() -> None:
    @gw.custom_gradient(vmap="none")
    def two(x: Tensor) -> dict[str, Tensor]:
        return {"a": x * 1, "b": x * 2}

    two.vjp(lambda g: g["a"] + 2 * g["b"])
    x = torch.arange(4.0).reshape(2, 2)
    two.vmap(lambda info, in_dims, x: ({"a": x * 1, "b": x.mT * 2}, {"b": 1, "a": 0}))
    assert torch.equal(torch.func.vmap(two)(x)["b"], 2 * x)
    assert torch.equal(torch.func.vmap(two)(x)["a"], x)
    two.vmap(lambda info, in_dims, x: ({"a": x * 1, "b": x * 2}, {"a": 0}))
    with pytest.raises(RuleError, match="two: the rule '<lambda>' returned no batch dimension for the tensors at 'b'"):
        torch.func.vmap(two)(x)
    two.vmap(lambda info, in_dims, x: ({"a": x * 1, "b": x * 2}, (0, "b")))
    with pytest.raises(RuleError, match="'b' as the batch dimension of a tensor; expected a number or None"):
        torch.func.vmap(two)(x)


def test_residuals_in_an_object_are_refused() -> None:
    """A second derivative would miss them, and come out as zero."""

    @gw.custom_gradient
    def kept(x: Tensor) -> Tensor:
        return x.exp()

    kept.fwd(lambda x: (x.exp(), Output({"y": x.exp()})))
    kept.vjp(lambda g, residuals: g * residuals.y)
    with pytest.raises(RuleError, match=r"kept: what \.fwd keeps holds a tensor in an object of a kind"):
        kept(torch.ones(1, requires_grad=True))
