"""undefined-cotangents: None among the incoming gradients, handled, forgotten and mistaken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.right import EVERY, SparseNone, right
from tests.subjects import Exp, SinCos, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="undefined-cotangents", seed=0)["undefined-cotangents"]


def plain_none(ctx: Any, t: Tensor) -> Tensor:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(t)
    return t.sin()


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict in ("pass", "skipped")


def test_each_output_and_all_of_them() -> None:
    assert "each of 2 outputs in turn, and all of them" in result(SparseNone, x(3)).message


def test_none_that_is_not_expected_raises() -> None:
    wrong = variant(Exp, "Wrong", forward=plain_none, backward=lambda ctx, g: g * ctx.saved_tensors[0].cos())
    found = result(wrong, x(3))
    assert found.verdict == "fail"
    assert "TypeError" in found.message
    assert "at line" in found.message
    assert "when the incoming gradient is undefined" in found.message
    assert "set_materialize_grads(False)" in (found.findings[0].hint or "")
    assert "GivesNone" in (found.findings[0].repro or "")


@pytest.mark.parametrize("stand_in", [torch.ones_like, torch.zeros_like])
def test_none_that_counts_as_ones(stand_in: Any) -> None:
    def backward(ctx: Any, g: Tensor | None) -> Tensor:
        (t,) = ctx.saved_tensors
        return (stand_in(t) if g is None else g) * t.cos()

    found = result(variant(Exp, "Ones", forward=plain_none, backward=backward), x(3))
    assert found.verdict == ("fail" if stand_in is torch.ones_like else "pass")
    if found.verdict == "fail":
        assert "the gradient of `t` is wrong when the incoming gradient is undefined" in found.message
        assert found.findings[0].numeric == 0.0


def test_the_output_that_is_left_out_is_named() -> None:
    def forward(ctx: Any, t: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(t)
        return t.sin(), t.cos()

    def backward(ctx: Any, gs: Tensor | None, gc: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return (0 if gs is None else gs * t.cos()) - gc * t.sin()

    found = result(variant(SinCos, "Half", forward=forward, backward=backward), x(3))
    assert found.verdict == "fail"
    assert "when output 1 is not used by the loss" in found.message
    assert found.findings[0].where is not None
    assert found.findings[0].where.output == 1


def test_also_in_code_around_the_function() -> None:
    wrong = variant(Exp, "Wrong", forward=plain_none, backward=lambda ctx, g: g * ctx.saved_tensors[0].cos())
    found = result(lambda t: (wrong.apply(t), t * 2), x(3))
    assert found.verdict == "fail"
    assert "when no output receives a gradient" in found.message, "the engine leaves a node out that has none"


class Three(Function):
    """Expects that no two incoming gradients are undefined at once."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return t * 2, t * 3, t * 5

    @staticmethod
    def backward(ctx: Any, *gs: Tensor | None) -> Tensor | None:
        if all(g is None for g in gs):
            return None
        given = [k * g for k, g in zip((2, 3, 5), gs) if g is not None]
        return sum(given[1:], given[0]) if len(given) > 1 else given[0] * 0


def test_the_pattern_of_a_program_is_tried() -> None:
    def recorded(*cotangents: Tensor | None) -> ContractResult:
        sample = Sample((x(3),), provenance="recorded", cotangents=cotangents or None)
        report = check_subject(as_subject(Three), [sample], only="undefined-cotangents")
        return report["undefined-cotangents"]

    assert recorded().verdict == "pass"
    assert recorded(x(3), None, x(3)).verdict == "pass"
    assert recorded(None, None, None).verdict == "pass"
    failed = recorded(None, x(3), None)
    assert failed.verdict == "fail"
    assert "when output 0 and output 2 are not used by the loss, as in the program" in failed.message
    assert "loss = out[1].sum()" in (failed.findings[0].repro or "")
