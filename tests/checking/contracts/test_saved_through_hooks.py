"""saved-through-hooks: tensors on ctx, each with the consequence that was tried."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, NewStyleScale, Scale, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="saved-through-hooks", seed=0)["saved-through-hooks"]


def keeping(what: Any, attribute: str = "kept") -> Any:
    """``exp`` that puts something on ctx and uses what it saved properly."""

    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = t.exp()
        setattr(ctx, attribute, what(t, out))
        ctx.save_for_backward(out)
        return out

    return variant(Exp, "Keeps", forward=forward)


def test_right_ones_pass() -> None:
    assert result(Exp, x(3)).verdict == "pass"
    assert result(Scale, x(3), 2).verdict == "pass"
    assert result(NewStyleScale, x(3)).verdict == "pass"


def test_input_on_ctx_gives_a_stale_gradient() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.t = t
        return t.sin()

    stale = variant(Exp, "Stale", forward=forward, backward=lambda ctx, g: g * ctx.t.cos())
    found = result(stale, x(3))
    assert found.verdict == "fail"
    (finding,) = found.findings
    assert "the input `t` is kept on ctx as ctx.t" in finding.message
    assert "gives a wrong gradient" in finding.message
    assert " instead of " in finding.message
    assert "save_for_backward" in (finding.hint or "")


def test_view_of_an_input_counts() -> None:
    assert "the input `t`" in result(keeping(lambda t, out: t.view(-1)), x(3)).message


def test_output_on_ctx_forms_a_cycle() -> None:
    found = result(keeping(lambda t, out: out), x(3))
    assert found.verdict == "fail"
    assert "output 0 is kept on ctx as ctx.kept" in found.message
    assert "garbage collector" in found.message


def test_intermediate_on_ctx_also_inside_a_container() -> None:
    for what in (lambda t, out: t * 2, lambda t, out: {"a": [t * 2]}):
        found = result(keeping(what), x(3))
        assert found.verdict == "fail"
        assert "a tensor that forward computed, (3,), is kept on ctx as ctx.kept" in found.message


def test_scalar_constant_costs_nothing() -> None:
    found = result(keeping(lambda t, out: torch.tensor(1.5, dtype=t.dtype).expand(3)), x(3))
    assert found.verdict == "pass"
    assert "ctx.kept" in found.message


def test_other_subjects_are_skipped_with_a_reason() -> None:
    assert result(torch.exp, x(3)).verdict == "skipped"
