"""The Gaussian error linear unit: what is special about it."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import gradwright as gw
from gradwright.errors import OptionError
from gradwright.stable.gaussian_gate import CUBIC_DIGITS, LINEAR_DIGITS, ROOT_DIGITS

X = torch.linspace(-5, 5, 41, dtype=torch.float64)
FORMS = pytest.mark.parametrize("approximate", ["none", "tanh"])


@FORMS
def test_it_is_the_function_of_pytorch(approximate: str) -> None:
    ours, theirs = gw.stable.gelu(X, approximate), functional.gelu(X, approximate=approximate)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-14)


def test_it_is_right_where_pytorch_is_not() -> None:
    x = torch.tensor(-9.0, dtype=torch.float64)
    assert functional.gelu(x) == 0
    assert gw.stable.gelu(x).item() == pytest.approx(float(-9 * mpmath.ncdf(-9)), rel=1e-15)


@FORMS
def test_two_halves_make_a_whole(approximate: str) -> None:
    """``gelu(x) - gelu(-x) = x``, and the slopes add up to one."""

    def gelu(x: Tensor) -> Tensor:
        return gw.stable.gelu(x, approximate)  # type: ignore[arg-type]

    slope = torch.func.vmap(torch.func.grad(gelu))
    torch.testing.assert_close(gelu(X) - gelu(-X), X)
    torch.testing.assert_close(slope(X) + slope(-X), torch.ones_like(X))


@FORMS
def test_the_limits_at_infinity(approximate: str) -> None:
    x = torch.tensor([-torch.inf, torch.inf], requires_grad=True)
    out = gw.stable.gelu(x, approximate)  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert out.tolist() == [0, torch.inf]
    assert slope.tolist() == [0, 1]


def test_the_constants() -> None:
    with mpmath.workdps(40):
        for digits, value in ((ROOT_DIGITS, 1 / mpmath.sqrt(2)), (LINEAR_DIGITS, 2 * mpmath.sqrt(2 / mpmath.pi))):
            assert abs(mpmath.mpf(digits.numerator) / digits.denominator - value) < 1e-35
        assert CUBIC_DIGITS / LINEAR_DIGITS * 1_000_000 == 44715


def test_another_approximation_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^gelu: approximate: got 'erf'; expected one of none, tanh"):
        gw.stable.gelu(X, "erf")  # type: ignore[arg-type]
