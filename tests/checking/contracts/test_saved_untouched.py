"""saved-untouched: writes to saved tensors, and edits that nobody notices."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, right
from tests.subjects import Exp, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="saved-untouched", seed=0)["saved-untouched"]


def sine(keep: Any, read: Any) -> Any:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        keep(ctx, t)
        return t.sin()

    return variant(Exp, "Sine", forward=forward, backward=lambda ctx, g: g * read(ctx).cos())


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict in ("pass", "skipped")


def test_written_input_output_and_intermediate() -> None:
    def writing(ctx: Any, g: Tensor) -> Tensor:
        t, out, middle = ctx.saved_tensors
        grad = g * middle * 0 + g * out
        (t, out, middle)[ctx.which].data.mul_(0.5)
        return grad

    for which, words in enumerate(("the input `t`", "output 0", "saved_tensors[2]")):

        def forward(ctx: Any, t: Tensor, which: int = which) -> Tensor:
            out = t.exp()
            ctx.which = which
            ctx.save_for_backward(t, out, t * 2)
            return out

        found = result(variant(Exp, "Writes", forward=forward, backward=writing), x(3))
        assert found.verdict == "fail"
        assert "backward writes to a saved tensor" in found.message
        assert words in found.message
        assert "3 of 3 elements" in found.message


def test_written_also_inside_plain_code_and_by_numpy() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        grad = g * out
        out.detach().numpy().fill(0.0)
        return grad

    writes = variant(Exp, "Writes", backward=backward)
    assert "saved_tensors[0] of Writes" in result(lambda t: writes.apply(t * 2) + 1, x(3)).message


def test_restored_is_fine() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        out.data.mul_(2)
        grad = g * out / 2
        out.data.div_(2)
        return grad

    assert result(variant(Exp, "Restores", backward=backward), x(3)).verdict == "pass"


def test_edited_input_that_is_noticed_or_does_not_matter() -> None:
    def save(ctx: Any, t: Tensor) -> None:
        ctx.save_for_backward(t)

    def copy(ctx: Any, t: Tensor) -> None:
        ctx.array = t.detach().numpy().copy()

    assert result(sine(save, lambda ctx: ctx.saved_tensors[0]), x(3)).verdict == "pass"
    assert result(sine(copy, lambda ctx: torch.from_numpy(ctx.array)), x(3)).verdict == "pass"


def test_edited_input_that_is_not_noticed() -> None:
    def data(ctx: Any, t: Tensor) -> None:
        ctx.save_for_backward(t.data)

    def array(ctx: Any, t: Tensor) -> None:
        ctx.array = t.detach().numpy()

    for subject in (sine(data, lambda ctx: ctx.saved_tensors[0]), sine(array, lambda ctx: torch.from_numpy(ctx.array))):
        found = result(subject, x(3))
        assert found.verdict == "fail"
        assert "the input `t` was edited in place between forward and backward, and nobody noticed" in found.message
        assert " instead of " in found.message
        assert "mul_(2).add_(1)" in (found.findings[0].repro or "")


def product(keep: Any, read: Any) -> Any:
    """``t`` times a constant, which need not be a float."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor, constant: Tensor) -> Tensor:
            keep(ctx, constant)
            return t * constant

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * read(ctx), None

    return Product


CONSTANTS = {
    "float": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
    "integer": torch.tensor([1, 2, 3]),
    "equal integers": torch.tensor([2, 2, 2]),
    "bool": torch.tensor([True, False, True]),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_edited_constant(name: str) -> None:
    constant = CONSTANTS[name]
    inputs = x(3).requires_grad_(), constant
    state: dict[str, Tensor] = {}

    def saved(ctx: Any, c: Tensor) -> None:
        ctx.save_for_backward(c)

    def in_object(ctx: Any, c: Tensor) -> None:
        ctx.kept = types.SimpleNamespace(c=c)

    def array(ctx: Any, c: Tensor) -> None:
        ctx.kept = c.numpy()

    def in_closure(ctx: Any, c: Tensor) -> None:
        ctx.kept = lambda: c

    def in_a_global(ctx: Any, c: Tensor) -> None:
        state["c"] = c

    assert result(product(saved, lambda ctx: ctx.saved_tensors[0]), *inputs).verdict == "pass"
    for subject in (
        product(in_object, lambda ctx: ctx.kept.c),
        product(array, lambda ctx: torch.from_numpy(ctx.kept)),
        product(in_closure, lambda ctx: ctx.kept()),
        product(in_a_global, lambda ctx: state["c"]),
    ):
        found = result(subject, *inputs)
        assert found.verdict == "fail"
        assert "the input `constant` was edited in place" in found.message
        assert constant.equal(CONSTANTS[name]), "the caller's tensor is not touched"


def test_a_whole_number_that_cannot_change_is_left_alone() -> None:
    def in_object(ctx: Any, c: Tensor) -> None:
        ctx.kept = types.SimpleNamespace(c=c)

    zeros = torch.zeros(3, dtype=torch.int64)
    assert result(product(in_object, lambda ctx: ctx.kept.c), x(3).requires_grad_(), zeros).verdict == "pass"


def test_edited_output_that_is_not_noticed() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = t.exp()
        ctx.save_for_backward(out.data)
        return out

    found = result(variant(Exp, "Alias", forward=forward), x(3))
    assert found.verdict == "fail"
    assert "the output was edited in place" in found.message
    assert result(Exp, x(3)).verdict == "pass"


def test_kept_on_ctx_is_not_accused_twice() -> None:
    def on_ctx(ctx: Any, t: Tensor) -> None:
        ctx.t = t

    report = gw.check(sine(on_ctx, lambda ctx: ctx.t), x(3), seed=0)
    assert report["saved-through-hooks"].verdict == "fail"
    assert report["saved-untouched"].verdict == "skipped"
