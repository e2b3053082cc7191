"""What comparing a transform with eager mode lets pass: the rounding of large terms that cancel, and no more."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.func_probe import FuncProbe, by_forward_mode
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from gradwright.checking.transforms import Result, compare, observe, quiet
from tests.subjects import x


def parallel(a: Tensor) -> Tensor:
    """The cosine of the angle between two parallel vectors, whose gradient is zero but for rounding."""
    return torch.nn.functional.cosine_similarity(a, 2 * x(5), dim=0)


def test_gradients_are_compared_up_to_what_cancelling_terms_leave() -> None:
    case = Case(as_subject(parallel), Sample((x(5),)))
    want = observe(case, random_cotangent(case))
    still = Result(torch.zeros_like(want.value), [torch.zeros_like(g) for g in want.gradients])
    for shift, agrees in ((1e-15, True), (1e-12, False)):
        got = Result(want.value, [g + shift for g in want.gradients])
        assert (compare(case, got, want, lambda: still) is None) == agrees


def test_tangents_too() -> None:
    with quiet():
        scattered = by_forward_mode(FuncProbe(Case(as_subject(parallel), Sample((x(5),))))).scatter()
    assert 1e-15 < float(scattered.value.min()) < 1e-13
