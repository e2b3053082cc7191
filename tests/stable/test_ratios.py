"""Functions with a removable singularity: what is common to the three families, and special about the sines."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.authoring.catalogue import entries
from gradwright.authoring.exact import ExactEntry
from gradwright.errors import ArgumentError
from gradwright.stable.closed_forms import FORMS, cos_pi, sin_pi
from gradwright.stable.singularity import find_switches
from gradwright.stable.switch_points import SWITCHES

ENTRIES = [
    e
    for e in entries(gw.stable)
    if isinstance(e, ExactEntry) and e.family in ("arc_squares", "growth_ratios", "ratios")
]
EACH = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
grad = torch.func.grad


def derivative(function: object, x: Tensor, order: int) -> Tensor:
    for _ in range(order):
        function = grad(function)  # type: ignore[arg-type]
    return torch.func.vmap(function)(x)  # type: ignore[arg-type]


@EACH
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_three_derivatives_on_both_sides_of_every_switch(entry: ExactEntry, order: int) -> None:
    form = FORMS[entry.name.rpartition(".")[2]]
    distances = [s.distance * (1 + side * 1e-9) for s in SWITCHES[form_name(entry)][torch.float64] for side in (-1, 1)]
    x = torch.tensor([form.at + sign * d for d in distances for sign in (1, -1)], dtype=torch.float64)
    x = x[(x > form.low) & (x < form.high)]
    got = derivative(entry.function, x, order)
    with mpmath.workdps(60):
        row = [fraction(form.coefficient(n + order)) * mpmath.ff(n + order, order) for n in range(160)]
        want = [float(mpmath.polyval(row[::-1], mpmath.mpf(t) - mpmath.mpf(form.at))) for t in x.tolist()]
    rtol = 3e-15 if order < 2 else 1e-13
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=rtol, atol=1e-300)


def fraction(number: Fraction | float) -> Any:
    return mpmath.mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else mpmath.mpf(number)


def form_name(entry: ExactEntry) -> str:
    return entry.name.rpartition(".")[2]


def test_the_table_of_switches_is_what_is_measured() -> None:
    """One function, since they take seconds; another build of PyTorch may be off by a neighbouring distance."""
    form = FORMS["sin_over_x"]
    for dtype, switches in SWITCHES["sin_over_x"].items():
        found = find_switches(form.closed, form.coefficient, dtype, radius=form.radius)
        for new, old in zip(found, switches):
            assert old.distance / 2 <= new.distance <= 2 * old.distance
            assert abs(new.terms - old.terms) <= 2
    assert SWITCHES.keys() == FORMS.keys()


def test_sinc_is_zero_at_the_integers_and_precise_beside_them() -> None:
    x = torch.tensor([1.0, -2.0, 1e9, 1 + 1e-12], dtype=torch.float64)
    assert gw.stable.sinc(x)[:3].tolist() == [0, 0, 0]
    with mpmath.workdps(40):
        exact = mpmath.sinpi(mpmath.mpf(x[3].item())) / (mpmath.pi * mpmath.mpf(x[3].item()))
    assert gw.stable.sinc(x)[3].item() == pytest.approx(float(exact), rel=1e-14)


def test_sines_of_multiples_of_pi() -> None:
    x = torch.tensor([-2.5, -1.75, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 1e15 + 0.5], dtype=torch.float64)
    with mpmath.workdps(40):
        sines = torch.tensor([float(mpmath.sinpi(mpmath.mpf(t))) for t in x.tolist()], dtype=torch.float64)
        cosines = torch.tensor([float(mpmath.cospi(mpmath.mpf(t))) for t in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(sin_pi(x), sines, rtol=1e-15, atol=0)
    torch.testing.assert_close(cos_pi(x), cosines, rtol=1e-15, atol=0)


@EACH
def test_zero_dimensions_no_elements_and_no_integers(entry: ExactEntry) -> None:
    assert entry.function(torch.tensor(0.5)).shape == ()
    assert entry.function(torch.empty(0, 3)).shape == (0, 3)
    with pytest.raises(ArgumentError, match=f"{form_name(entry)}: x is torch.int64; expected a floating-point tensor"):
        entry.function(torch.arange(3))
