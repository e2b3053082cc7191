"""Second derivatives at points where they jump: right rules are never accused, wrong elements beside them are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult

IDS = ("nested-forward", "second-order", "gradient-penalty")
Map = Callable[[Tensor], Tensor]


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ruled(forward: Map, derivative: Map, *, jvp: bool = False) -> Map:
    """Return an elementwise function with a rule of its own for the derivative."""

    @gw.custom_gradient
    def f(a: Tensor) -> Tensor:
        return forward(a)

    @f.vjp
    def f_vjp(g: Tensor, a: Tensor) -> Tensor:
        return g * derivative(a)

    if jvp:

        @f.jvp
        def f_jvp(tangent: Tensor, a: Tensor) -> Tensor:
            return tangent * derivative(a)

    return f


def bent(a: Tensor) -> Tensor:
    return torch.where(a > 0, a + a**2 / 2, a)


def bent_slope(a: Tensor) -> Tensor:
    return torch.where(a > 0, 1 + a, torch.ones_like(a))


RIGHT: dict[str, Map] = {
    "bent": ruled(bent, bent_slope),
    "square of relu": ruled(lambda a: torch.relu(a) ** 2 / 2, torch.relu),
    "huber": ruled(lambda a: torch.where(a.abs() < 1, a * a / 2, a.abs() - 0.5), lambda a: a.clamp(-1, 1)),
    "elu": ruled(torch.nn.functional.elu, lambda a: torch.where(a > 0, 1.0, a.exp())),
    "soft staircase, nearly straight": lambda a: gw.ste.soft_round(a, 1e-3),
}
POINTS = {
    "one zero": t(0, 1.3, -2.1, 0.7),
    "zeros": t(0, 0, 0, 0),
    "zeros and others": t(0, 0, 0, 1.3, -0.4),
    "ones": t(1, 1, -1, 0.3, 2),
    "sizes": t(0, 1e-4, 1),
    "near zero": t(1e-9, 1.3, -2.1, 0.7),
}


def verdicts(f: Map, values: Tensor, seed: int) -> dict[str, ContractResult]:
    """Each contract alone, since one is not judged while another one fails from which it may follow."""
    return {i: gw.check(f, values, only=i, level="full", seed=seed)[i] for i in IDS}


@pytest.mark.parametrize(
    "point",
    [pytest.param(name, marks=[] if "zeros" in name or name == "one zero" else pytest.mark.slow) for name in POINTS],
)
@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_are_not_accused_where_the_second_derivative_jumps(name: str, point: str) -> None:
    f = RIGHT[name]
    for seed, g in enumerate((f, lambda a: f(a).sum())):
        for found in verdicts(g, POINTS[point], seed).values():
            assert found.verdict in ("pass", "unresolved"), (found.id, seed, found.message)


@pytest.mark.parametrize("point", ["one zero", "zeros and others"])
def test_nested_forward_mode_says_that_it_is_the_kink(point: str) -> None:
    found = verdicts(RIGHT["bent"], POINTS[point], 0)["nested-forward"]
    assert found.verdict == "unresolved"
    assert "not smooth here" in found.message


class Slightly(Function):
    """The identity; its derivative is off by 1e-5, in both modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        return a.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * (1 + 1e-5)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return tangent * (1 + 1e-5)


WRONG: dict[str, Map] = {"missing": lambda slope: slope.detach(), "slightly wrong": Slightly.apply}
PLACES = {
    "beside one kink": (t(0, 1.3, -2.1, 0.7), 1),
    "beside several": (t(0, 0, 0, 1.3, -2.1, 0.7), 3),
    "among many": (torch.cat([t(0), torch.full((10,), 0.3), t(1.3), torch.full((20,), 0.5), t(0)]).double(), 11),
    "where all is smooth": (t(0.3, 1.3, -2.1, 0.7), 1),
}


@pytest.mark.parametrize(
    ("name", "place", "reduced"),
    [
        ("missing", "beside one kink", False),
        ("slightly wrong", "beside one kink", True),
        ("missing", "beside several", True),
        ("slightly wrong", "beside several", False),
        ("missing", "among many", True),
        ("slightly wrong", "where all is smooth", False),
    ],
)
def test_a_wrong_one_is_found_and_its_element_named(name: str, place: str, reduced: bool) -> None:
    def derivative(a: Tensor) -> Tensor:
        slope = 1 + a
        return torch.where(a > 0, torch.where(a > 1, WRONG[name](slope), slope), torch.ones_like(a))

    f = ruled(bent, derivative, jvp=True)
    values, element = PLACES[place]
    for found in verdicts((lambda a: f(a).sum()) if reduced else f, values, 1).values():
        assert found.verdict == "fail", (found.id, found.message)
        where = found.findings[0].where
        assert where is not None
        assert where.index == (element,)


def test_the_element_is_found_in_the_second_of_two_inputs() -> None:
    @gw.custom_gradient
    def f(a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(a) ** 2 / 2 * b**3

    @f.vjp
    def f_vjp(g: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.where(b > 1, b.detach(), b)
        return g * torch.relu(a) * b**3, g * torch.relu(a) ** 2 / 2 * 3 * b * wrong

    @f.jvp
    def f_jvp(tangents: Any, a: Tensor, b: Tensor) -> Tensor:
        wrong = torch.where(b > 1, b.detach(), b)
        return tangents["a"] * torch.relu(a) * b**3 + tangents["b"] * torch.relu(a) ** 2 / 2 * 3 * b * wrong

    for i in IDS:
        found = gw.check(f, t(0, 0, 2), t(0.5, 0.7, 1.5), only=i, level="full", seed=0)[i]
        assert found.verdict == "fail", (i, found.message)
        assert str(found.findings[0].where) == "b[2]"
