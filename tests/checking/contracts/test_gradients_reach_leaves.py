"""gradients-reach-leaves: containers and captured tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.right import EVERY, LEARNT, Listed, right
from tests.subjects import Exp, variant, x

WEIGHT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)


class Holder:
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="gradients-reach-leaves", seed=0)["gradients-reach-leaves"]


def scaled_by(read: Any) -> type[Function]:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(read().clone())
        return t * read()

    return variant(Exp, "Scaled", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])


@EVERY
def test_right_ones_are_not_accused(name: str) -> None:
    assert result(*right(name)).verdict in ("pass", "skipped")


def test_tensor_in_a_list_that_requires_grad() -> None:
    weight = x(3, seed=1).requires_grad_()
    found = result(Listed, x(3).requires_grad_(), [x(3), weight])
    assert found.verdict == "fail"
    (finding,) = found.findings
    assert "`weights[1]` requires grad" in finding.message
    assert "inside a list" in finding.message
    assert "apply(*tensors)" in (finding.hint or "")


def test_tensor_in_a_list_that_does_not_matter() -> None:
    def forward(ctx: Any, t: Tensor, unused: list[Tensor]) -> Tensor:
        return t * 2

    target = variant(Listed, "Unused", forward=forward, backward=lambda ctx, g: (g * 2, None))
    assert result(target, x(3).requires_grad_(), [x(3).requires_grad_()]).verdict == "pass"


def test_outputs_in_containers() -> None:
    for pack, words in (
        (lambda a, b: (a, [b]), "inside a list (out[1][0])"),
        (lambda a, b: (a, {"b": b}), "inside a dict (out[1]['b'])"),
        (lambda a, b: [a, b], "inside a list (out[0])"),
        (lambda a, b: {"a": a, "b": b}, "inside a dict (out['a'])"),
    ):

        def forward(ctx: Any, t: Tensor, pack: Any = pack) -> Any:
            return pack(t * 2, t * 3)

        found = result(variant(Exp, "Packs", forward=forward, backward=lambda ctx, *g: 2 * g[0]), x(3))
        assert found.verdict == "fail"
        assert words in found.message
        assert "moves with `t`, but carries no graph" in found.message


def test_container_of_what_does_not_move() -> None:
    def forward(ctx: Any, t: Tensor) -> Any:
        return t * 2, {"shape": torch.tensor([1.0, 2.0]), "index": t.argmax()}

    target = variant(Exp, "Packs", forward=forward, backward=lambda ctx, g, _: 2 * g)
    assert result(target, x(3)).verdict == "pass"


def test_captured_tensor_loses_its_gradient() -> None:
    closed = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    for read, words in (
        (lambda: WEIGHT, "the global `WEIGHT`"),
        (lambda: closed, "`closed` of the enclosing function"),
        (lambda: Holder.weight, "attribute `weight`"),
    ):
        before = read().detach().clone()
        found = result(scaled_by(read), x(3))
        assert found.verdict == "fail"
        assert words in found.message
        assert "Scaled uses it without receiving it" in found.message
        assert torch.equal(read().detach(), before), "moved for a moment only"
        assert read().grad is None


def test_captured_by_a_function_inside_plain_code_or_a_module() -> None:
    target = scaled_by(lambda: WEIGHT)
    assert result(lambda t: target.apply(t) + 1, x(3)).verdict == "fail"

    class Layer(torch.nn.Module):
        def forward(self, t: Tensor) -> Any:
            return target.apply(t)

    assert result(Layer(), x(3)).verdict == "fail"


def test_captured_constants_are_fine() -> None:
    frozen = torch.ones(3, dtype=torch.float64)
    assert result(scaled_by(lambda: frozen), x(3)).verdict == "pass"
    found = result(scaled_by(lambda: WEIGHT.detach()), x(3))
    assert found.verdict == "pass"
    assert "the global `WEIGHT` is read as a constant" in found.message
    assert result(lambda t: t * LEARNT, x(3)).verdict == "pass"


def test_gradient_that_the_rule_delivers_itself_is_fine() -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t * weight

    def backward(ctx: Any, g: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        weight.grad = g * t if weight.grad is None else weight.grad + g * t
        return g * weight

    assert result(variant(Exp, "Fused", forward=forward, backward=backward), x(3)).verdict == "pass"
    # What the rule itself put there during other evaluations stays its own affair.


def test_captured_tensor_that_is_changed() -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def forward(ctx: Any, t: Tensor) -> Tensor:
        weight.data.mul_(0.5)
        return t * 2

    found = result(variant(Exp, "Changes", forward=forward, backward=lambda ctx, g: 2 * g), x(3))
    assert found.verdict == "fail"
    assert "`weight` of the enclosing function, which requires grad, is changed in place" in found.message
