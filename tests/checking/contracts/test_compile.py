"""compile: compiled values and gradients against eager mode."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, InPlaceDouble, Linear, NumpySquare, SinCos, variant, x

pytestmark = [pytest.mark.compile]


def result(target: Any, *inputs: Any, **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="compile", seed=0, **options)["compile"]


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Exp, (x(3),)),
        (SinCos, (x(2, 3),)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (InPlaceDouble, (x(3),)),
        (NumpySquare, (x(3),)),
        (torch.nn.Linear(3, 2), (torch.randn(2, 3),)),
        (lambda pair, k: pair["a"] * pair["b"] * k, ({"a": x(3), "b": x(3, seed=1)}, 2)),
        (lambda t, single: t * single[0].sum() * len(single), (x(3), (x(3, seed=1),))),
    ],
)
def test_right_ones_pass(target: Any, inputs: tuple[Any, ...]) -> None:
    found = result(target, *inputs)
    assert found.verdict == "pass", found.message


def test_graph_breaks_are_reported_and_not_failures() -> None:
    found = result(lambda t: t * (1.0 if float(t.detach().sum()) > 0 else 2.0), x(3))
    assert found.verdict == "pass"
    assert "not as a whole graph" in found.message


def test_a_rule_that_is_another_while_compiling() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.k = 1.0 if torch.compiler.is_compiling() else 7.0
        return t * 2

    found = result(variant(Exp, "Other", forward=forward, backward=lambda ctx, g: g * ctx.k), x(3))
    assert found.verdict == "fail"
    assert "where eager mode gives" in found.message
    assert "is_compiling" in (found.findings[0].hint or "")


def test_a_dropped_rule_is_said_to_be_replaced() -> None:
    def both(t: Tensor) -> Tensor:
        return (
            t.sin() if torch.compiler.is_compiling() else variant(Exp, "Seven", backward=lambda ctx, g: 7 * g).apply(t)
        )

    assert result(both, x(3)).verdict == "fail"

    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        ctx.own = torch.compiler.is_compiling()
        return t.sin()

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].cos() if ctx.own else 7 * g

    found = result(variant(Exp, "Marked", forward=forward, backward=backward), x(3))
    assert found.verdict == "fail"
    assert "replaced by autograd's own derivative" in found.message


def test_the_state_of_the_compiler_and_of_logging_is_left_alone() -> None:
    before = logging.root.manager.disable
    result(Exp, x(3))
    assert logging.root.manager.disable == before


def test_the_structured_trace_of_torch_stays_quiet() -> None:
    trace, seen = logging.getLogger("torch.__trace"), _Records()
    trace.addHandler(seen)  # as pytest does with each logger that does not propagate
    try:
        assert result(Exp, x(3)).verdict == "pass"
        assert seen in trace.handlers
    finally:
        trace.removeHandler(seen)
    assert not seen.records


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_quick_never_compiles() -> None:
    report = gw.check(Exp, x(3), level="quick", seed=0)
    assert not {"compile", "compile-with-func", "export"} & {r.id for r in report.results}


@pytest.mark.slow
def test_inductor_at_full() -> None:
    found = result(Exp, x(3), level="full")
    assert found.verdict == "pass", found.message
    assert {row.transform for row in found.support} == {"compile (aot_eager)", "compile (inductor)"}
