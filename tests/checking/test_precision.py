"""The precision that forward computes in, where it is lower than that of its inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.precision import hidden_epsilon
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject


def seen(function: object, *inputs: Tensor) -> float:
    return hidden_epsilon(Case(as_subject(function), Sample(inputs)))


X = torch.linspace(-1.1, 1.3, 24, dtype=torch.float64)
STEP = torch.tensor(0.25, dtype=torch.float64)


def test_a_cast_of_all_inputs_or_of_one_is_seen() -> None:
    w = torch.tensor(0.3, dtype=torch.float64)
    assert seen(lambda x: (x.float() * 3).double(), X) == torch.finfo(torch.float32).eps
    assert seen(lambda x, w: (x.bfloat16() * w.bfloat16()).double(), X, w) == torch.finfo(torch.bfloat16).eps
    # A step that every dtype represents shows nothing about its own cast.
    assert seen(lambda x, w: (x.bfloat16() * w).double(), X, STEP) == torch.finfo(torch.bfloat16).eps


def test_rounding_to_steps_is_no_lower_precision() -> None:
    assert seen(lambda x: x.round(), X) == 0.0
    assert seen(lambda x, step: (x / step).round() * step, X, STEP) == 0.0
