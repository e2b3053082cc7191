"""released: cycles, leaks, and caches that are kept on purpose."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, CachedTable, recursive, right
from tests.subjects import Exp, variant, x

KEPT: list[Any] = []


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="released", seed=0)["released"]


def keeping(keep: Any) -> Any:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = t.exp()
        ctx.save_for_backward(out)
        keep(ctx, t, out)
        return out

    return variant(Exp, "Keeps", forward=forward)


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict == "pass"


def test_what_was_freed_is_said_and_the_collector_is_left_as_it_was() -> None:
    for enable, enabled in ((gc.enable, True), (gc.disable, False)):
        enable()
        try:
            assert "freed at once after forward and backward" in result(Exp, x(3)).message
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


def test_output_on_ctx_is_a_cycle() -> None:
    def keep(ctx: Any, t: Tensor, out: Tensor) -> None:
        ctx.out = out

    found = result(keeping(keep), x(3))
    assert found.verdict == "fail"
    assert "a reference cycle keeps" in found.message
    assert "until the garbage collector runs" in found.message
    assert "held by ctx.out" in found.message
    whole = gw.check(keeping(keep), x(3), seed=0)
    assert whole["saved-through-hooks"].verdict == "fail"
    assert whole["released"].verdict == "skipped", "one mistake, one finding"


def test_ctx_that_holds_itself_is_a_cycle() -> None:
    def itself(ctx: Any, t: Tensor, out: Tensor) -> None:
        ctx.me = ctx

    def closure(ctx: Any, t: Tensor, out: Tensor) -> None:
        ctx.again = lambda: out.sum()

    for keep in (itself, closure):
        found = result(keeping(keep), x(3))
        assert found.verdict == "fail"
        assert "a reference cycle keeps" in found.message


def test_growing_list_is_a_leak() -> None:
    def keep(ctx: Any, t: Tensor, out: Tensor) -> None:
        KEPT.append(out)

    try:
        found = result(keeping(keep), x(3))
    finally:
        KEPT.clear()
    assert found.verdict == "fail"
    assert "of every call, which runs out of memory in time" in found.message
    assert "the global `KEPT`" in found.message


def test_last_call_and_constants_are_named_and_pass() -> None:
    last: dict[str, Tensor] = {}

    def keep(ctx: Any, t: Tensor, out: Tensor) -> None:
        last["t"] = t.detach()

    assert result(keeping(keep), x(3)).verdict == "pass"
    found = result(CachedTable, x(3))
    assert found.verdict == "pass"
    assert "held by" in found.message
    assert "CACHE" in found.message


def test_cycle_in_plain_code_is_not_accused() -> None:
    assert result(recursive, x(3)).verdict == "pass"


def test_intermediate_that_outlives_backward() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        middle = t * 2
        ctx.save_for_backward(middle)
        ctx.box = Box(middle)
        return middle.sin()

    target = variant(Exp, "Boxes", forward=forward, backward=lambda ctx, g: 2 * g * ctx.saved_tensors[0].cos())
    found = result(target, x(3))
    assert found.verdict == "fail"
    assert "stays alive after backward while the output lives" in found.message


class Box:
    def __init__(self, content: Tensor) -> None:
        self.content = content


def test_empty_and_detached() -> None:
    assert result(Exp, x(0)).verdict == "pass"
    assert result(lambda t: t.detach(), x(3)).verdict == "pass"
    assert result(lambda t: torch.zeros(3), x(3)).verdict == "pass"


def test_list_of_what_backward_computed_is_a_leak() -> None:
    log: list[Tensor] = []

    def backward(ctx: Any, g: Tensor) -> Tensor:
        log.append(g.norm())
        return g * ctx.saved_tensors[0]

    found = result(variant(Exp, "Logs", backward=backward), x(3))
    assert found.verdict == "fail"
    assert "each call leaves 1 more of the tensors alive that it computes" in found.message


def test_what_backward_computed_once_or_last_is_a_cache() -> None:
    kept: dict[str, Tensor] = {}

    def backward(ctx: Any, g: Tensor) -> Tensor:
        kept.setdefault("first", g * 2)
        kept["last"] = g * 3
        return g * ctx.saved_tensors[0]

    assert result(variant(Exp, "Keeps", backward=backward), x(3)).verdict == "pass"
