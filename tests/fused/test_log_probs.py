"""Log-probabilities of a layer beside a distribution's, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from tests.fused.heads import layer


def test_the_entropy_comes_with_the_log_probabilities() -> None:
    x, w, target = layer()
    logs, entropy = gw.fused.linear_log_probs(x, w, target, entropy=True)
    probabilities = torch.distributions.Categorical(logits=functional.linear(x, w))
    torch.testing.assert_close(logs, probabilities.log_prob(target))
    torch.testing.assert_close(entropy, probabilities.entropy())
    ours = torch.autograd.grad((2 * logs - entropy).sum(), (x, w))
    theirs = torch.autograd.grad((2 * probabilities.log_prob(target) - probabilities.entropy()).sum(), (x, w))
    torch.testing.assert_close(ours, theirs)


def test_no_index_that_is_ignored_is_the_default_one() -> None:
    x, w, target = layer()
    target[0] = -100
    logs = gw.fused.linear_log_probs(x, w, target, ignore_index=None)
    torch.testing.assert_close(logs, gw.fused.linear_log_probs(x, w, target))


X, W, T = torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, dtype=torch.int64)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "temperature": (lambda: gw.fused.linear_log_probs(X, W, T, temperature=-1.0), OptionError, "temperature is -1.0"),
    "index": (lambda: gw.fused.linear_log_probs(X, W, T[:1]), ArgumentError, "one class for each row of x"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input_is_refused_with_what_to_do(name: str) -> None:
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("followed", [False, True], ids=["blocks", "formula"])
def test_a_shift_of_all_logits_changes_nothing(followed: bool) -> None:
    """As in PyTorch: large logits leave no digits for the logarithm of the sum of exponentials."""
    x, w, index = layer(dtype=torch.float32)
    x, w = ((8 * tensor.detach()).round() / 8 for tensor in (x, w))

    def logs(bias: float) -> torch.Tensor:
        found: torch.Tensor = gw.fused.linear_log_probs(x, w, index, linear_bias=torch.full((9,), bias))
        return found

    found = torch.func.vmap(lambda _: logs(2.0**16))(torch.zeros(1))[0] if followed else logs(2.0**16)
    torch.testing.assert_close(found, logs(0.0), rtol=1e-5, atol=1e-6)
