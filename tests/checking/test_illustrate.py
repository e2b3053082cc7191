from __future__ import annotations

import math
import time

import pytest
import torch
from torch.autograd import Function

import gradwright as gw
from gradwright.checking import illustrate
from gradwright.checking.case import Case
from gradwright.checking.illustrate import drawn, heat_map, ladder
from gradwright.checking.jacobian import compare
from gradwright.checking.report import Outcome, pictures_of
from gradwright.checking.samples import Sample
from gradwright.checking.shown import Bars, Curves, HeatMap, Ladder
from gradwright.checking.subject import as_subject
from tests.subjects import Exp

DOUBLE = torch.float64
SLOW = ("compile", "compile-with-func", "export")


class OneWrong(Function):
    """Wrong for the element with index 2 only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        factor = torch.full_like(x, 3.0)
        factor[2:3] = 2.0
        return g * factor * x * x


class LinearWrong(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), 2 * x.t() @ g


def pictures(report, contract, kind):
    return [picture for picture in report[contract].pictures if isinstance(picture, kind)]


def case_of(target, *inputs):
    return Case(as_subject(target), Sample(inputs))


def test_a_wrong_gradient_comes_with_ladder_heat_map_and_curves():
    report = gw.check(OneWrong, torch.linspace(-1.0, 2.0, 6, dtype=DOUBLE), only="matches-differences")
    (steps,) = pictures(report, "matches-differences", Ladder)
    assert steps.title == "output 0[2] with respect to x[2]"
    assert (steps.value, steps.analytic) == pytest.approx((0.12, 0.08))
    assert steps.error_bar < 1e-9
    errors = [abs(slope - steps.value) for slope in steps.slopes]
    assert min(errors) < 1e-9
    assert errors[0] > 1e3 * min(errors)
    assert steps.chosen in steps.steps
    assert list(steps.steps[:7]) == sorted(steps.steps[:7], reverse=True)
    (cells,) = pictures(report, "matches-differences", HeatMap)
    assert cells.shape == (6, 6)
    for j, row in enumerate(cells.cells):
        for i, cell in enumerate(row):
            assert (cell > 1 if i == 2 else cell <= 1) if i == j else cell <= 1
    value, slope = pictures(report, "matches-differences", Curves)
    assert value.lines[0].y == pytest.approx([x**3 for x in value.x])
    rule, true = slope.lines
    assert true.y == pytest.approx([3 * x * x for x in slope.x], abs=1e-3)
    assert any(abs(a - b) > 0.1 for a, b in zip(rule.y, true.y))


def test_a_right_gradient_has_no_pictures_of_what_is_wrong():
    report = gw.check(Exp, torch.randn(4, dtype=DOUBLE), only="matches-differences")
    assert report["matches-differences"].pictures == ()


def test_a_projection_that_leads_to_an_element_has_its_ladder():
    report = gw.check(LinearWrong, torch.randn(30, 40, dtype=DOUBLE), torch.randn(40, 30, dtype=DOUBLE), level="quick")
    assert not report
    steps = pictures(report, "matches-differences", Ladder)
    assert [s.title for s in steps] == [str(f.where) for f in report["matches-differences"].findings][: len(steps)]
    assert abs(steps[0].analytic - 2 * steps[0].value) < 1e-6 * abs(steps[0].value)


def test_a_large_jacobian_is_thinned_to_the_worst_of_each_cell():
    case = case_of(OneWrong, torch.linspace(0.5, 2.0, 100, dtype=DOUBLE))
    cells = heat_map(case, compare(case, 0, 0)).cells
    assert (len(cells), len(cells[0])) == (48, 48)
    assert [row[i] for i, row in enumerate(cells) if row[i] is not None and row[i] > 1] == [cells[0][0]]
    assert cells[0][5] is None  # elsewhere the Jacobian is zero by structure


def test_no_ladder_without_numbers():
    case = case_of(Exp, torch.ones(2, dtype=DOUBLE))
    assert ladder(case, 0, 0, 0, math.nan, 1.0, 1e-9) is None
    assert ladder(case, 0, 0, 0, 1.0, 1.0, math.inf) is None


def test_what_goes_wrong_in_a_picture_is_not_told(monkeypatch):
    def broken(case):
        raise RuntimeError("no picture")

    monkeypatch.setattr(illustrate, "curves", broken)
    report = gw.check(OneWrong, torch.linspace(-1.0, 2.0, 6, dtype=DOUBLE), only="matches-differences")
    assert report["matches-differences"].verdict == "fail"
    assert report["matches-differences"].pictures == ()


def test_pictures_are_made_once_for_the_outcome_that_is_reported(monkeypatch):
    made = []
    monkeypatch.setattr(illustrate, "curves", lambda case: made.append(case) or ())
    report = gw.check(OneWrong, torch.linspace(-1.0, 2.0, 6, dtype=DOUBLE), level="standard", skip=SLOW)
    assert not report
    assert "shrunk" in report["matches-differences"].findings[0].repro  # by many more tries
    assert len(made) == 1
    made.clear()
    assert gw.check(gw.ste.round, torch.linspace(-1.9, 1.9, 20, dtype=DOUBLE), skip=SLOW)
    assert len(made) == 1


def test_pictures_that_take_too_long_are_left_out_and_the_verdict_stays():
    outcome = Outcome("fail", "wrong", illustrate=lambda: iter(lambda: time.sleep(0.01), 1))
    assert drawn(outcome, 0.1) == outcome
    assert drawn(outcome, 0.1).pictures == ()


def test_a_slow_subject_gets_no_pictures(monkeypatch):
    monkeypatch.setattr(illustrate, "SECONDS", {"standard": 0.0})
    report = gw.check(OneWrong, torch.linspace(-1.0, 2.0, 6, dtype=DOUBLE), only="matches-differences")
    assert not report
    assert report["matches-differences"].pictures == ()


def test_pictures_are_few_however_many_samples():
    def bars(title):
        return Bars(title, "error", ())

    outcomes = [Outcome("pass", pictures=(bars("a"), bars("b"))), Outcome("fail", pictures=(Bars("a", "telling", ()),))]
    assert pictures_of(outcomes, "fail") == (Bars("a", "telling", ()), bars("b"))
    many = [Outcome("pass", pictures=(bars(str(n)),)) for n in range(50)]
    assert len(pictures_of(many, "pass")) == 6


def test_low_precision_measures_each_dtype():
    report = gw.check(Exp, torch.randn(4, dtype=DOUBLE), only="low-precision", level="full")
    (bars,) = pictures(report, "low-precision", Bars)
    names = [bar.name for bar in bars.bars]
    assert names == [f"{dtype} {what}" for dtype in ("float32", "bfloat16", "float16") for what in ("value", "grad x")]
    assert all(0 <= bar.value <= bar.limit for bar in bars.bars)
    assert bars.bars[0].value < 1e-6 < 1e-4 < bars.bars[2].limit
