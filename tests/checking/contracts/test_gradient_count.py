"""gradient-count: what is counted, in words, and what is legal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, Linear, NewStyleScale, Scale, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="gradient-count", seed=0)["gradient-count"]


def returning(base: type[Function], value: Any) -> type[Function]:
    return variant(base, "Wrong", backward=lambda ctx, g, *_: value(g))


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Exp, (x(3),)),
        (Scale, (x(3), 2)),
        (NewStyleScale, (x(3),)),
        (Linear, (x(2, 3), x(4, 3))),
        (returning(Scale, lambda g: (g, None, None, None)), (x(3), 2)),
        (returning(Scale, lambda g: (None, None)), (x(3), 2)),
    ],
)
def test_right_count(target: Any, inputs: tuple[Any, ...]) -> None:
    assert result(target, *inputs).verdict == "pass"


def test_extra_none_is_noted() -> None:
    assert "extra None" in result(returning(Exp, lambda g: (g, None)), x(3)).message


@pytest.mark.parametrize(
    ("value", "words", "hint"),
    [
        (
            lambda g: g,
            "1 gradient, but forward has 2 arguments (`x`, `k`): one gradient too few for `k`",
            "`return grad_x, None`",
        ),
        (lambda g: (), "2 gradients too few, for `x`, `k`", "`return grad_x, None`"),
        (lambda g: [g, None], "a list of 2, which PyTorch counts as one", "tuple"),
        (lambda g: (g, None, g), "the extra ones are not None", "one gradient for each"),
        (lambda g: (g, g), "a tensor as the gradient of `k`, which is not a tensor", "return None in its place"),
    ],
)
def test_wrong_count_is_named(value: Any, words: str, hint: str) -> None:
    found = result(returning(Scale, value), x(3), 2)
    assert found.verdict == "fail"
    (finding,) = found.findings
    assert words in finding.message
    assert hint in (finding.hint or "")


def test_setup_context_counts_the_whole_signature() -> None:
    wrong = variant(NewStyleScale, "Wrong", backward=lambda ctx, g: g * ctx.k)
    assert result(wrong, x(3)).verdict == "fail", "k has a default, but still needs a None"
    assert result(variant(Scale, "Right", backward=lambda ctx, g: g * ctx.k), x(3)).verdict == "pass"


def test_other_subjects_are_skipped_with_a_reason_unless_the_engine_complains() -> None:
    assert result(torch.exp, x(3)).verdict == "skipped"
    wrong = returning(Scale, lambda g: g)
    inside = result(lambda t: wrong.apply(t, 2), x(3))
    assert inside.verdict == "fail"
    assert "incorrect number of gradients" in inside.message


def test_no_backward_is_unsupported() -> None:
    class ForwardOnly(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 2

    assert result(ForwardOnly, x(3)).verdict == "unsupported"


def test_backward_that_raises_is_not_counted() -> None:
    def raising(ctx: Any, g: Tensor) -> Any:
        raise ValueError("no")

    assert result(variant(Exp, "Raising", backward=raising), x(3)).verdict == "skipped"
