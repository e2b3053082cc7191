"""Allowances: they widen what counts as right, everywhere derivatives are compared, and never make anything fail."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.allowances import NONE, Allowances
from gradwright.errors import OptionError
from tests.subjects import Exp, RoundSTE, variant, x

QUICK = ("matches-differences",)


def off_by(part: float) -> type[torch.autograd.Function]:
    """Exp with a gradient that is off by a fraction of itself."""
    return variant(Exp, "Off", backward=lambda ctx, g: g * ctx.saved_tensors[0] * (1 + part))


def shifted(error: float, factor: float = 1.0) -> type[torch.autograd.Function]:
    """A small linear function with a gradient that is off by a fixed amount."""

    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t * factor

    return variant(Exp, "Shifted", forward=forward, backward=lambda ctx, g: g * (factor + error))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eps", 0.0),
        ("eps", -1e-6),
        ("eps", math.inf),
        ("atol", -1e-9),
        ("rtol", math.nan),
        ("rtol", "1e-3"),
        ("nondet_tol", True),
        ("atol", None),
    ],
)
def test_values_are_validated(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"{name}: got .*; expected a finite number"):
        gw.check(Exp, x(3), **{name: value})


@pytest.mark.parametrize("n", [3, 2000])
def test_rtol_covers_an_error_relative_to_the_derivative(n: int) -> None:
    wrong = off_by(1e-4)
    assert not gw.check(wrong, x(n), only=QUICK)
    assert not gw.check(wrong, x(n), only=QUICK, rtol=1e-5)
    assert gw.check(wrong, x(n), only=QUICK, rtol=1e-3)["matches-differences"].verdict == "pass"


@pytest.mark.parametrize("n", [3, 2000])
def test_atol_covers_an_error_whatever_the_size(n: int) -> None:
    wrong = shifted(1e-6, 1e-3)
    assert not gw.check(wrong, x(n), only=QUICK)
    assert not gw.check(wrong, x(n), only=QUICK, atol=1e-7)
    assert gw.check(wrong, x(n), only=QUICK, atol=1e-5)["matches-differences"].verdict == "pass"


def test_one_wrong_element_among_many_is_still_found() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        grad = g * ctx.saved_tensors[0]
        grad[-1] = 0
        return grad

    report = gw.check(variant(Exp, "Last", backward=backward), x(2000), only=QUICK, atol=1e-5, rtol=1e-3)
    assert report.findings[0].where is not None
    assert report.findings[0].where.index == (1999,)


def test_every_contract_allows_what_is_granted() -> None:
    """A rule that is off by a ten-thousandth of its size, differently at each call, breaks no contract with rtol."""

    class Drifting(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            Drifting.calls += 1
            (t,) = ctx.saved_tensors
            return g * t.exp() * (1 + 1e-7 * math.sin(Drifting.calls))

    skip = ("compile", "compile-with-func", "export")
    assert gw.check(Drifting, x(4), skip=skip).failed
    report = gw.check(Drifting, x(4), skip=skip, atol=1e-5, rtol=1e-3, nondet_tol=1e-4)
    assert report.ok, str(report)


def test_a_surrogate_and_a_reference_are_compared_with_the_allowances() -> None:
    ste = variant(RoundSTE, "Nearly", backward=lambda ctx, g: g * (1 + 1e-6))
    assert not gw.check(ste, x(3), surrogate=lambda t: t, only="matches-surrogate")
    report = gw.check(ste, x(3), surrogate=lambda t: t, only="matches-surrogate", rtol=1e-5)
    assert report.ok
    assert (report["matches-surrogate"].sensitivity or 0) >= 1e-5
    assert not gw.check(off_by(1e-3), x(3), reference=torch.exp, only="matches-reference")
    assert gw.check(off_by(1e-3), x(3), reference=torch.exp, only="matches-reference", rtol=1e-2)


def test_a_wrong_value_is_no_matter_of_allowances() -> None:
    forward = Exp.forward
    wrong = variant(Exp, "Value", forward=lambda ctx, t: forward(ctx, t) * (1 + 1e-6))
    assert not gw.check(wrong, x(3), reference=torch.exp, only="matches-reference", rtol=1e-3, atol=1e-3)


def test_the_step_is_a_witness_that_acquits() -> None:
    """A wave much shorter than the step: its slope is what a coarse difference does not see and a fine one does."""

    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return (t.sin() + 1e-4 * (1e3 * math.pi * t).sin()).sum()

    smooth = variant(Exp, "Smooth", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0].cos())
    at = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    assert not gw.check(smooth, at, only=QUICK)
    assert not gw.check(smooth, at, only=QUICK, eps=1e-6, atol=1e-5)
    # Half a period: sin(1000 pi (t + h)) - sin(1000 pi (t - h)) vanishes for h = 1e-3.
    report = gw.check(smooth, at, only=QUICK, eps=1e-3, atol=1e-5)
    assert report["matches-differences"].verdict == "unresolved"
    assert "two examinations disagree" in report["matches-differences"].message


def test_a_step_so_small_that_rounding_rules_acquits_nothing() -> None:
    assert not gw.check(off_by(0.5), x(3), only=QUICK, eps=1e-17)
    assert not gw.check(off_by(0.5), x(3), only=QUICK, eps=1e-6)


@pytest.mark.parametrize("target", [Exp, torch.relu, torch.prod, torch.linalg.norm])
def test_what_passes_without_passes_with(target: Any) -> None:
    at = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    assert gw.check(target, at, eps=1e-3, atol=1e-3, rtol=1e-2, nondet_tol=1e-3, level="quick").ok


def test_nondet_tol_allows_two_runs_to_differ() -> None:
    class Noisy(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            Noisy.calls += 1
            return g * (2 + 1e-6 * (Noisy.calls % 2))

    assert not gw.check(Noisy, x(3), only="deterministic")
    report = gw.check(Noisy, x(3), only="deterministic", nondet_tol=1e-5)
    assert report["deterministic"].verdict == "pass"
    assert "nondet_tol=1e-05" in report["deterministic"].message


def test_the_report_says_what_was_allowed() -> None:
    plain = gw.check(Exp, x(3), only=QUICK)
    assert not plain.allowances
    assert not any("allowances" in note for note in plain.notes)
    report = gw.check(Exp, x(3), only=QUICK, atol=1e-5, rtol=1e-3)
    assert report.allowances == {"atol": 1e-5, "rtol": 1e-3}
    assert any("atol=1e-05 and rtol=0.001" in note for note in report.notes)
    assert json.loads(report.to_json())["subjects"][0]["allowances"] == {"atol": 1e-5, "rtol": 1e-3}
    small, wide = plain["matches-differences"].sensitivity, report["matches-differences"].sensitivity
    assert small is not None
    assert wide is not None
    assert small < 1e-8
    assert wide >= 1e-3
    large = gw.check(Exp, x(2000), only=QUICK, rtol=1e-3)["matches-differences"].sensitivity
    assert large is not None
    assert large >= 1e-3


def test_words() -> None:
    assert NONE.describe() is None
    said = Allowances(eps=1e-6, nondet_tol=1e-8).describe()
    assert said is not None
    assert "eps=1e-06" in said
    assert "nondet_tol=1e-08" in said
