"""saved-through-hooks: tensors on ctx, each with the consequence that was tried."""

from __future__ import annotations

import collections
import functools
import types
from typing import Any

import pytest
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


class Slots:
    """Holds something without a ``__dict__``."""

    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a

    def first(self) -> Any:
        return self.a


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
    for what, path in ((lambda t, out: t * 2, "kept"), (lambda t, out: {"a": [t * 2]}, "kept['a'][0]")):
        found = result(keeping(what), x(3))
        assert found.verdict == "fail"
        assert f"a tensor that forward computed, (3,), is kept on ctx as ctx.{path} instead" in found.message


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda t: types.SimpleNamespace(a=t), "ctx.kept.a"),
        (Slots, "ctx.kept.a"),
        (lambda t: [{"b": Slots(t)}], "ctx.kept[0]['b'].a"),
        (lambda t: lambda: t, "ctx.kept (its variable `t`)"),
        (lambda t: functools.partial(torch.add, t), "ctx.kept.args[0]"),
        (lambda t: collections.deque([t]), "ctx.kept[0]"),
        (lambda t: {t}, "ctx.kept (a member)"),
        (lambda t: t.mul, "ctx.kept.__self__"),
        (lambda t: Slots(t).first, "ctx.kept.__self__.a"),
    ],
)
def test_inside_objects_and_closures(wrap: Any, path: str) -> None:
    def holding(t: Tensor, out: Tensor) -> Any:
        return wrap(t * 2)

    assert f"is kept on ctx as {path} instead" in result(keeping(holding), x(3)).message
    of_input = result(keeping(lambda t, out: wrap(t)), x(3))
    assert f"the input `t` is kept on ctx as {path} instead" in of_input.message
    assert "output 0 is kept on ctx" in result(keeping(lambda t, out: wrap(out)), x(3)).message


def test_what_forward_did_not_compute_is_left_alone() -> None:
    table, module = x(5), torch.nn.Linear(2, 2)
    settings = types.SimpleNamespace(table=table, module=module)
    for what in (table, settings, module, lambda: table.sum()):
        found = result(keeping(lambda t, out, what=what: what), x(3))
        assert found.verdict == "pass", found.message


def test_objects_that_hold_each_other_end() -> None:
    first, second = types.SimpleNamespace(), types.SimpleNamespace()
    first.other, second.other = second, first
    assert result(keeping(lambda t, out: first), x(3)).verdict == "pass"


def test_scalar_constant_costs_nothing() -> None:
    found = result(keeping(lambda t, out: torch.tensor(1.5, dtype=t.dtype).expand(3)), x(3))
    assert found.verdict == "pass"
    assert "ctx.kept" in found.message


def test_other_subjects_are_skipped_with_a_reason() -> None:
    assert result(torch.exp, x(3)).verdict == "skipped"
