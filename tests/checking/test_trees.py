"""Checks see tensors in containers, dataclasses that PyTorch does not know included."""

from __future__ import annotations

import functools
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking import trees
from tests.authoring.examples import Pair, x

A, B = x(3), x(3, seed=2)


@dataclass(frozen=True)
class Frozen:
    value: Tensor
    k: int = 2

    def __post_init__(self) -> None:
        assert isinstance(self.value, Tensor), "not run again"


@dataclass
class Settings:
    k: int = 2


@dataclass
class Deep:
    pairs: list[Pair]
    settings: Settings = field(default_factory=Settings)
    unset: Any = field(init=False)

    def __post_init__(self) -> None:
        self.number = len(self.pairs)

    @functools.cached_property
    def total(self) -> Tensor:
        return self.pairs[0].first + self.pairs[0].second


@dataclass(eq=False)
class Module(torch.nn.Module):
    weight: Tensor

    def __new__(cls, *_: Any) -> Module:
        made = super().__new__(cls)
        torch.nn.Module.__init__(made)
        return made


@dataclass(slots=True)
class Slotted:
    value: Tensor


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (A, [""]),
        ([A, 2], ["[0]", "[1]"]),
        (Frozen(A), [".value", ".k"]),
        (Slotted(A), [".value"]),
        ({"p": Pair(A, B)}, ["['p'].first", "['p'].second", "['p'].scale"]),
        (OrderedDict(a=Frozen(A)), ["['a'].value", "['a'].k"]),
        (
            Deep([Pair(A, B)]),
            [".pairs[0].first", ".pairs[0].second", ".pairs[0].scale", ".settings"],
        ),
        (Settings(), [""]),
        (Settings, [""]),
        (Frozen, [""]),
    ],
)
def test_round_trip(value: Any, paths: list[str]) -> None:
    leaves, structure = trees.flatten(value)
    assert trees.leaf_paths(value) == paths
    again = trees.unflatten(leaves, structure)
    assert type(again) is type(value)
    assert again is value or trees.flatten(again)[0] == leaves


def test_a_dataclass_without_tensors_stays_itself() -> None:
    settings = Settings()
    assert trees.flatten([settings])[0] == [settings]
    leaves, structure = trees.flatten(Deep([Pair(A, B)], settings))
    assert trees.unflatten(leaves, structure).settings is settings


def test_a_module_stays_itself_though_it_is_a_dataclass() -> None:
    module = Module(A)
    assert trees.flatten(module)[0] == [module]


def test_other_attributes_are_kept_and_what_was_computed_once_is_computed_again() -> None:
    deep = Deep([Pair(A, B)])
    assert torch.equal(deep.total, A + B)
    leaves, structure = trees.flatten(deep)
    again = trees.unflatten([2 * leaf if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)
    assert again.number == 1
    assert torch.equal(again.total, 2 * (A + B))
    assert not hasattr(again, "unset")


# -------------------------------------------------------------------- whole checks


def product(pair: Pair) -> Pair:
    return Pair(pair.first * pair.second, pair.first.exp(), pair.scale)


def rule(factor: float) -> Any:
    def product_vjp(g: Pair, pair: Pair) -> dict[str, Any]:
        return {
            "pair": {
                "first": g.first * pair.second + g.second * pair.first.exp(),
                "second": factor * g.first * pair.first,
            }
        }

    return product_vjp


def test_a_rule_is_compared_in_every_field() -> None:
    assert gw.check(gw.define(product, vjp=rule(1)), Pair(A, B), level="quick")
    report = gw.check(gw.define(product, vjp=rule(2)), Pair(A, B), level="quick")
    assert "pair.second" in report["matches-differences"].message
    assert "off by the factor 2" in report["matches-differences"].message


def test_a_plain_function_of_dataclasses_passes() -> None:
    assert gw.check(product, Pair(A, B), level="quick")


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, pair: Pair) -> Tensor:
        return 2 * value + pair.first

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g, None


def test_a_tensor_in_a_dataclass_that_a_function_gets_is_lost() -> None:
    report = gw.check(Doubling, A, Pair(B.clone().requires_grad_(), B), level="quick")
    message = report["gradients-reach-leaves"].message
    assert "`pair.first` requires grad and the output moves with it, but it is inside a Pair" in message
    assert gw.check(Doubling, A, Pair(B, B), level="quick")


class Returning(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Any:
        return 2 * value, Pair(3 * value, value.clone())

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        return 2 * g


def test_a_tensor_in_a_dataclass_that_a_function_returns_is_lost() -> None:
    message = gw.check(Returning, A, level="quick")["gradients-reach-leaves"].message
    assert "output 1 is returned inside a Pair (out[1].first), where autograd does not track it" in message


def test_a_size_stays_a_size() -> None:
    value = {"shape": torch.Size([2, 3]), "x": x(2)}
    leaves, structure = trees.flatten(value)
    assert leaves[0] == torch.Size([2, 3])
    assert isinstance(trees.unflatten(leaves, structure)["shape"], torch.Size)
    assert trees.leaf_paths(value) == ["['shape']", "['x']"]
