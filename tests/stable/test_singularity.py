"""The template for removable singularities: what it measures, and what it refuses."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import DefinitionError
from gradwright.stable.singularity import find_switches, quotient, removable

EXPONENTIALS = (torch.expm1, torch.exp, torch.exp, torch.exp)


def taylor(n: int) -> Fraction:
    return Fraction(1, math.factorial(n + 1))


def test_a_function_of_ones_own() -> None:
    function = removable(quotient(EXPONENTIALS, 1), taylor, name="relative_growth")
    x = torch.tensor([-30.0, -0.5, -1e-9, 0.0, 1e-300, 0.3, 5.0], dtype=torch.float64)
    slope = torch.func.vmap(torch.func.grad(function))(x)
    with mpmath.workdps(700):
        want = [
            float((mpmath.exp(t) * (t - 1) + 1) / mpmath.mpf(t) ** 2) if t else 0.5 for t in map(mpmath.mpf, x.tolist())
        ]
    torch.testing.assert_close(slope, torch.tensor(want, dtype=torch.float64), rtol=3e-15, atol=0)
    assert torch.autograd.gradcheck(function, x.clone().requires_grad_())
    assert torch.autograd.gradgradcheck(function, x[1:6].clone().requires_grad_())


def test_around_another_point() -> None:
    logs = (torch.log, lambda x: 1 / x, lambda x: -(x**-2), lambda x: 2 * x**-3)
    function = removable(
        quotient(logs, 1, at=1.0), lambda n: Fraction((-1) ** n, n + 1), name="log_mean", at=1.0, radius=0.5, low=0.0
    )
    assert function(torch.tensor(1.0)) == 1
    assert torch.func.grad(function)(torch.tensor(1.0)).item() == pytest.approx(-0.5, rel=1e-6)
    assert function(torch.tensor(-1.0)).isnan()


def test_half_types_are_computed_in_float32() -> None:
    function = removable(quotient(EXPONENTIALS, 1), taylor, name="relative_growth")
    x = torch.tensor([-0.37, 0.0, 1e-3, 0.5], dtype=torch.bfloat16)
    assert function(x).dtype == torch.bfloat16
    assert torch.equal(function(x), function(x.float()).bfloat16())


def test_where_no_formula_cancels_it_is_used_down_to_where_one_term_suffices() -> None:
    (switch, *_) = find_switches(quotient(EXPONENTIALS, 1), taylor, torch.float64)
    assert switch.terms == 1
    assert switch.distance < 1e-15


def test_leibniz() -> None:
    forms = quotient((torch.sin, torch.cos, lambda x: -torch.sin(x), lambda x: -torch.cos(x)), 3, at=0.5)
    x = torch.tensor(1.7, dtype=torch.float64)

    def plain(x: Tensor) -> Tensor:
        return torch.sin(x) / (x - 0.5) ** 3

    for form in forms:
        torch.testing.assert_close(form(x), plain(x), rtol=1e-12, atol=0)
        plain = torch.func.grad(plain)


def test_series_and_closed_form_that_differ_are_refused() -> None:
    with pytest.raises(
        DefinitionError,
        match=r"removable: the series of wrong \(derivative 0\) and its closed form differ by more than 4 units in the "
        r"last place at a distance of 2; expected that they agree; correct one",
    ):
        removable(quotient(EXPONENTIALS, 1), lambda n: Fraction(1, math.factorial(n)), name="wrong")


def test_a_series_that_does_not_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwright.stable.singularity.MOST_TERMS", 8)
    with pytest.raises(
        DefinitionError, match=r"the series of slow \(derivative 1\) needs more than 8 terms at a distance"
    ):
        removable(quotient(EXPONENTIALS, 1), taylor, name="slow")


def test_the_wrong_number_of_forms_is_refused() -> None:
    with pytest.raises(DefinitionError, match="removable: short has 2 closed forms; expected 4"):
        removable(quotient(EXPONENTIALS[:2], 1), taylor, name="short")
    with pytest.raises(DefinitionError, match="has 4 closed forms and 1 tolerances; expected one for each"):
        find_switches(quotient(EXPONENTIALS, 1), taylor, torch.float32, tolerance=(4.0,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "power"), [("one_minus_cos_over_x2", 2), ("x_minus_sin_over_x3", 3)])
def test_no_power_of_a_large_number_is_out_of_range(name: str, power: int, dtype: torch.dtype) -> None:
    """The third power of 1e14 is beyond float32, and its reciprocal square far from it."""
    function = getattr(gw.stable, name)
    ends = [1e14, -1e14, 1e20, 1e30, 1e38] + ([1e104, 1e155, 1e300] if dtype == torch.float64 else [])
    x = torch.tensor(ends, dtype=dtype, requires_grad=True)
    out = function(x)
    if power == 3:
        torch.testing.assert_close(out.detach(), 1 / x.detach() / x.detach(), rtol=1e-6, atol=0)
    for _ in range(3):
        (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        assert out.isfinite().all()
