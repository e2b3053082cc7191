"""A function that uses a tensor which requires grad, without receiving it, says so once."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from tests.authoring.examples import x

WEIGHT = x(3).requires_grad_()
FIXED = x(3)
NET = torch.nn.Linear(3, 3, dtype=torch.float64)


def seen(function: Any, *inputs: Any) -> str:
    """Return what the first calls of a function warn of; all but the first must not warn again."""
    function = gw.custom_gradient(function)
    function.vjp(lambda g: g)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            function(*(inputs or (x(3).requires_grad_(),)))
    assert len(caught) < 2
    assert all(warning.filename == __file__ for warning in caught)
    return str(caught[0].message) if caught else ""


def a_global(x: Tensor) -> Tensor:
    return x * WEIGHT


def a_method_of_it(x: Tensor) -> Tensor:
    return x + WEIGHT.exp()


def under_another_name_as_well(x: Tensor) -> Tensor:
    return torch.stack([x, WEIGHT.detach()]).sum(0) + WEIGHT


def a_module(x: Tensor) -> Tensor:
    return NET(x)  # type: ignore[no-any-return]


def a_forward(x: Tensor) -> Tensor:
    return NET.forward(x)


def a_parameter(x: Tensor) -> Tensor:
    return x @ NET.weight


def in_an_inner_function(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return y * WEIGHT

    return inner(x)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (a_global, "it uses `WEIGHT`, which requires grad, without receiving it as an argument"),
        (a_method_of_it, "`WEIGHT`, which requires grad,"),
        (under_another_name_as_well, "`WEIGHT`, which requires grad,"),
        (a_module, "the module `NET`, whose parameters require grad,"),
        (a_forward, "the module `NET`, whose parameters require grad,"),
        (a_parameter, "`NET.weight`, which requires grad, without"),
        (in_an_inner_function, "`WEIGHT`, which requires grad,"),
        (lambda x: x + 2 * WEIGHT, "<lambda>: it uses `WEIGHT`, which requires grad,"),
    ],
)
def test_it_is_named(function: Any, words: str) -> None:
    assert words in seen(function)


def test_it_says_what_to_do() -> None:
    assert seen(a_global) == (
        "a_global: it uses `WEIGHT`, which requires grad, without receiving it as an argument, so that no gradient "
        "arrives there; expected everything that is trained among the arguments; pass it and return its gradient from "
        "the rule, or use `WEIGHT.detach()`, or `requires_grad_(False)` on a module, if it is meant as a constant."
    )


def test_variables_of_the_enclosing_function() -> None:
    w, net = torch.nn.Parameter(x(3)), torch.nn.Sequential(NET)

    def function(x: Tensor) -> Tensor:
        return net[0](net(x)) * w

    text = seen(function)
    assert "the module `net`, whose parameters require grad," in text
    assert "`w`, which requires grad," in text


@dataclass
class Holder:
    weight: Tensor

    def scale(self, x: Tensor) -> Tensor:
        return self.weight * x


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Module()
        self.inner.weight = torch.nn.Parameter(x(3))
        self.net = NET

    def scale(self, x: Tensor) -> Tensor:
        return x * self.inner.weight

    def call(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def innocent(self, x: Tensor) -> Tensor:
        return x * 2 if self.training else x.expand_as(self.inner.weight)


def test_attributes_of_self() -> None:
    t = x(3).requires_grad_()
    assert "`self.weight`, which requires grad," in seen(Holder.scale, Holder(WEIGHT), t)
    assert "`self.inner.weight`, which requires grad," in seen(Layer.scale, Layer(), t)
    assert "the module `self.net`, whose parameters require grad," in seen(Layer.call, Layer(), t)
    assert not seen(Layer.innocent, Layer(), t)
    assert not seen(Holder.scale, Holder(FIXED), t)


def test_the_forward_that_keeps_residuals_is_searched_too() -> None:
    function = gw.define(torch.exp, fwd=lambda x: (x.exp() * WEIGHT, x), vjp=lambda g, residuals: g, name="f")
    with pytest.warns(UserWarning, match="f: it uses `WEIGHT`"):
        function(x(3))


# -------------------------------------------------------------------- nothing is said


def not_trained(x: Tensor) -> Tensor:
    return x * FIXED


def only_detached(x: Tensor) -> Tensor:
    return x * WEIGHT.detach() * NET.weight.data.sum() + WEIGHT.numel()


def only_its_form(x: Tensor) -> Tensor:
    assert isinstance(WEIGHT, Tensor)
    assert WEIGHT is not None
    return x + torch.zeros_like(WEIGHT, requires_grad=False)


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = NET(x) * WEIGHT
    return x * scale


def functional(x: Tensor) -> Tensor:
    parameters = {"weight": torch.ones(3, 3, dtype=torch.float64), "bias": torch.zeros(3, dtype=torch.float64)}
    return torch.func.functional_call(NET, parameters, (x,))  # type: ignore[no-any-return]


def modes_of_a_module(x: Tensor) -> Tensor:
    return x * NET.in_features if NET.training else x


def a_name_of_its_own(x: Tensor) -> Tensor:
    def inner(WEIGHT: Tensor) -> Tensor:
        return WEIGHT * 2

    return inner(x)


def an_attribute_of_that_name(x: Tensor) -> Tensor:
    class Other:
        WEIGHT = 3

    return x * Other.WEIGHT


def renamed(x: Tensor) -> Tensor:
    w = WEIGHT
    return x * w.detach()


@pytest.mark.parametrize(
    "function",
    [
        not_trained,
        only_detached,
        only_its_form,
        without_grad,
        functional,
        modes_of_a_module,
        a_name_of_its_own,
        an_attribute_of_that_name,
        renamed,
    ],
)
def test_a_constant_is_no_matter(function: Any) -> None:
    assert not seen(function)


def test_what_is_passed_as_well_is_no_matter() -> None:
    assert not seen(a_global, WEIGHT)


def test_frozen_modules_and_variables_that_are_not_set_yet() -> None:
    net = torch.nn.Linear(3, 3, dtype=torch.float64).requires_grad_(False)

    def function(x: Tensor) -> Tensor:
        return net(x) + (0 if x is not None else late)

    assert not seen(function)
    late = 3


def test_without_a_text_nothing_is_said() -> None:
    scope: dict[str, Any] = {"WEIGHT": WEIGHT}
    exec("def function(x): return x * WEIGHT", scope)
    assert not seen(scope["function"])


def test_it_is_said_under_a_transform() -> None:
    function = gw.custom_gradient(lambda x: (x * WEIGHT).sum())
    function.vjp(lambda g, x: g.expand_as(x))
    with pytest.warns(UserWarning, match=re.escape("it uses `WEIGHT`")):
        torch.func.grad(function)(x(3))
