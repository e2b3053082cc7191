"""erfcx and Mills' ratio: where they grow, and how they are related."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

import gradwright as gw
from gradwright.errors import GradwrightError
from gradwright.stable.scaled_erfc import square_exp


def test_the_growing_side_loses_no_digits() -> None:
    x = torch.tensor([-26.3, -20.1, -11.7], dtype=torch.float64)
    with mpmath.workdps(40):
        want = [float(mpmath.exp(mpmath.mpf(t) ** 2) * mpmath.erfc(mpmath.mpf(t))) for t in x.tolist()]
    torch.testing.assert_close(gw.stable.erfcx(x), torch.tensor(want, dtype=torch.float64), rtol=1e-15, atol=0)


def test_the_square_is_not_rounded() -> None:
    x = torch.tensor([26.637, -20.1, 100.0, 0.0, torch.inf], dtype=torch.float64)
    with mpmath.workdps(40):
        want = [float(mpmath.exp(-(mpmath.mpf(t) ** 2) / 2)) for t in x[:4].tolist()]
    torch.testing.assert_close(square_exp(x, -0.5), torch.tensor([*want, 0.0], dtype=torch.float64), rtol=5e-16, atol=0)


def test_mills_ratio_is_erfcx() -> None:
    x = torch.linspace(-5, 50, 60, dtype=torch.float64)
    torch.testing.assert_close(
        gw.stable.mills_ratio(x), math.sqrt(math.pi / 2) * torch.special.erfcx(x / math.sqrt(2)), rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("function", [gw.stable.erfcx, gw.stable.mills_ratio], ids=lambda f: f.__name__)
def test_ends_and_orders(function: object) -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=torch.float64, requires_grad=True)
    out = function(x)  # type: ignore[operator]
    assert out[:2].tolist() == [0, torch.inf]
    assert out[2].isnan()
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert first[0] == 0
    assert first[1] == -torch.inf
    f = function
    for _ in range(3):
        f = torch.func.grad(f)  # type: ignore[arg-type]
        assert f(torch.tensor(2.0)).isfinite()
    with pytest.raises(GradwrightError, match="differentiated again"):
        torch.func.grad(f)(torch.tensor(2.0))
