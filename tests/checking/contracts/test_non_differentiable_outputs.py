"""non-differentiable-outputs: floating outputs without a gradient that move, and those that do not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, LogSum, Masked, right
from tests.subjects import Exp, SinCos, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="non-differentiable-outputs", seed=0)["non-differentiable-outputs"]


def marking(second: Any) -> Any:
    def forward(ctx: Any, t: Tensor) -> Any:
        ctx.save_for_backward(t)
        other = second(t)
        ctx.mark_non_differentiable(other)
        return t.sin(), other

    return variant(SinCos, "Marks", forward=forward, backward=lambda ctx, g, _: g * ctx.saved_tensors[0].cos())


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict in ("pass", "skipped")


def test_marked_output_that_moves() -> None:
    for inputs in (x(3), x(3).float(), x(3) * 1e-6, x(3) * 1e8):
        found = result(marking(lambda t: t * t + t), inputs)
        assert found.verdict == "fail"
        assert "output 1 is marked as non-differentiable, but moves with `t`" in found.message
        assert found.findings[0].where is not None
        assert found.findings[0].where.output == 1
        assert "mark_non_differentiable" in (found.findings[0].hint or "")


def test_marked_output_that_only_jumps_or_stays() -> None:
    for second in (
        torch.round,
        torch.sign,
        lambda t: (t > 0).double(),
        torch.zeros_like,
        lambda t: t.argmax().double(),
    ):
        found = result(marking(second), x(5))
        assert found.verdict == "pass"
        assert "none of which moves" in found.message
    assert "an intermediate result" in result(LogSum, x(2, 3)).message
    assert result(Masked, x(5)).verdict == "pass"


def test_marked_output_that_is_saved_as_a_view_or_a_copy() -> None:
    for keep in (lambda s: s, lambda s: s.reshape(1, 1), lambda s: s.clone()):

        def forward(ctx: Any, t: Tensor, keep: Any = keep) -> Any:
            total = t.exp().sum(-1, keepdim=True)
            ctx.mark_non_differentiable(total)
            ctx.save_for_backward(t, keep(total))
            return t - total.log(), total

        def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
            t, total = ctx.saved_tensors
            return g - t.exp() / total.reshape(1) * g.sum(-1, keepdim=True)

        found = result(variant(SinCos, "Saves", forward=forward, backward=backward), x(4))
        assert found.verdict == "pass"
        assert "an intermediate result" in found.message


def test_a_marked_copy_of_a_saved_input_is_no_intermediate_result() -> None:
    assert result(marking(torch.clone), x(3)).verdict == "fail"


def test_a_statistic_is_declared_by_a_reference_that_detaches_it() -> None:
    subject = marking(lambda t: t.abs().max())

    def report(reference: Any) -> ContractResult:
        only = "non-differentiable-outputs"
        return gw.check(subject, x(3), reference=reference, only=only)["non-differentiable-outputs"]

    found = result(subject, x(3))
    assert found.verdict == "fail"
    assert "declare reference= with a plain version that returns output 1 with .detach()" in found.findings[0].hint  # type: ignore[operator]
    declared = report(lambda t: (t.sin(), t.abs().max().detach()))
    assert declared.verdict == "pass"
    assert "output 1 moves with `t`, but is detached in the declared reference too" in declared.message
    assert report(lambda t: (t.sin(), t.abs().max())).verdict == "fail"
    assert report(lambda t: t.sin()).verdict == "fail", "it says nothing of the other output"
    whole = gw.check(subject, x(3), reference=lambda t: (t.sin(), t.abs().max().detach()), skip="compile")
    assert whole.ok
    assert whole["matches-reference"].verdict == "pass"


def test_integer_output_is_fine() -> None:
    assert "every floating-point output requires grad" in result(marking(lambda t: t.long()), x(3)).message


def test_detached_in_plain_code() -> None:
    plain = result(lambda t: (t.sin(), t.cos().detach()), x(3))
    assert plain.verdict == "pass"
    assert "taken as meant" in plain.message
    near = result(lambda t: (Exp.apply(t), t.cos().detach()), x(3))
    assert near.verdict == "suspect"
    assert "output 1 carries no graph, but moves with `t`" in near.message


def test_no_graph_at_all_is_left_to_the_gradient() -> None:
    found = result(lambda t: t.detach() * 2, x(3))
    assert found.verdict == "skipped"
    assert "matches-differences" in found.message
