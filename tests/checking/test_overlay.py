from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.case import Case
from gradwright.checking.overlay import MAX_CALLS, curves
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp

DOUBLE = torch.float64


class SignThrough(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


def of(target, *inputs, **options):
    return curves(Case(as_subject(target), Sample(inputs, **options)))


def test_forward_surrogate_and_true_derivative_are_laid_over_each_other():
    x = torch.linspace(-2.0, 2.0, 30, dtype=DOUBLE)
    value, slope = of(SignThrough, x, surrogate=lambda x: x.clamp(-1, 1))
    assert [line.name for line in value.lines] == ["forward", "surrogate"]
    assert [line.name for line in slope.lines] == ["used by backward", "true, by differences", "of the surrogate"]
    assert value.lines[0].y == tuple(math.copysign(1, at) if at else 0.0 for at in value.x)
    assert value.lines[1].y == pytest.approx([min(max(at, -1), 1) for at in value.x])
    rule, true, surrogate = (line.y for line in slope.lines)
    assert rule == surrogate
    assert {y for y in true if not math.isnan(y)} == {0.0}
    # At the jump there is no slope, rather than a huge one.
    assert [at for at, y in zip(slope.x, true) if math.isnan(y)] == pytest.approx([0.0])
    assert (min(value.x), max(value.x)) == (-2.0, 2.0)


def test_a_sample_of_few_elements_costs_few_calls():
    value, _ = of(Exp, torch.tensor([-1.0, 1.0], dtype=DOUBLE))
    assert len(value.x) == 2 * MAX_CALLS


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x.cumsum(0), (torch.randn(4, dtype=DOUBLE),)),
        (lambda x: x.sum(), (torch.randn(4, dtype=DOUBLE),)),
        (lambda x, y: x * y, (torch.randn(4, dtype=DOUBLE), torch.randn(4, dtype=DOUBLE))),
        (lambda x: x * torch.tensor([1.0, 2.0, 3.0]), (torch.randn(3, dtype=DOUBLE),)),
        (lambda x: (x, 2 * x), (torch.randn(3, dtype=DOUBLE),)),
        (torch.exp, (torch.full((3,), 2.0, dtype=DOUBLE),)),
        (torch.exp, (torch.randn(3, dtype=torch.complex128),)),
        (torch.exp, (torch.randn(1, dtype=DOUBLE),)),
    ],
    ids=[
        "mixes",
        "reduces",
        "two variables",
        "differs by element",
        "two outputs",
        "one point",
        "complex",
        "one element",
    ],
)
def test_what_is_no_function_of_one_number_has_no_curves(function, inputs):
    assert of(function, *inputs) == ()


def test_a_scale_beside_the_variable_is_held():
    value, _ = of(lambda x, scale: torch.round(x / scale) * scale, torch.randn(9, dtype=DOUBLE), torch.tensor(0.5))
    assert {2 * y % 1 for y in value.lines[0].y} == {0.0}


def test_where_forward_has_no_value_there_is_a_gap():
    value, slope = of(lambda x: torch.log((x - 1).abs() - 0.3), torch.tensor([0.0, 2.0, 0.2], dtype=DOUBLE))
    for drawn in (value.lines[0], slope.lines[1]):
        holes = [at for at, y in zip(value.x, drawn.y) if math.isnan(y)]
        assert (min(holes), max(holes)) == pytest.approx((0.7, 1.3), abs=0.04)


def test_a_declared_surrogate_shows_in_the_report():
    report = gw.check(gw.ste.round, torch.linspace(-1.9, 1.9, 20, dtype=DOUBLE), only="matches-surrogate")
    assert [picture.y_name for picture in report["matches-surrogate"].pictures] == ["value", "slope"]
    assert report
