"""Softplus and the logarithms of the logistic function: what is special about them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import gradwright as gw
from gradwright.errors import OptionError

second = lambda f: torch.func.grad(torch.func.grad(f))  # noqa: E731
X = torch.linspace(-6, 6, 13, dtype=torch.float64)


def test_second_derivatives_where_those_of_pytorch_are_zero() -> None:
    x = torch.tensor(50.0, dtype=torch.float64)
    want = torch.exp(-x)
    assert second(functional.softplus)(x) == 0
    torch.testing.assert_close(second(gw.stable.softplus)(x), want, rtol=1e-14, atol=0)
    torch.testing.assert_close(second(gw.stable.logsigmoid)(x), -want, rtol=1e-14, atol=0)
    torch.testing.assert_close(second(gw.stable.log1msigmoid)(-x), -want, rtol=1e-14, atol=0)


def test_they_are_one_function_in_other_words() -> None:
    softplus = gw.stable.softplus(X)
    torch.testing.assert_close(gw.stable.logsigmoid(-X), -softplus, rtol=1e-15, atol=0)
    torch.testing.assert_close(gw.stable.log1msigmoid(X), -softplus, rtol=0, atol=0)
    torch.testing.assert_close(softplus - gw.stable.softplus(-X), X)


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0, -2.0])
def test_beta(beta: float) -> None:
    torch.testing.assert_close(gw.stable.softplus(X, beta), torch.log1p(torch.exp(beta * X)) / beta)
    assert torch.autograd.gradgradcheck(lambda x: gw.stable.softplus(x, beta), X.clone().requires_grad_())


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_the_inverse_of_softplus(beta: float) -> None:
    torch.testing.assert_close(gw.stable.inverse_softplus(gw.stable.softplus(X, beta), beta), X)
    assert gw.stable.inverse_softplus(torch.tensor(1e30), beta).item() == pytest.approx(1e30)
    assert gw.stable.inverse_softplus(torch.tensor(-1.0), beta).isnan()


@pytest.mark.parametrize("name", ["softplus", "inverse_softplus"])
def test_a_beta_of_zero_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"^{name}: beta is 0; expected another number; leave it away for 1."):
        getattr(gw.stable, name)(X, 0)
