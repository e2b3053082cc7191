"""vmap: batching by value, over in_dims, in both orders, and batched gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, Linear, NewStyleScale, NumpySquare, SinCos, variant, x


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="vmap", seed=0)["vmap"]


def verdicts(found: ContractResult) -> dict[str, str]:
    return {row.transform: row.verdict for row in found.support}


class Weighted(Function):
    """Two inputs with a rule for vmap that is right for every choice of in_dims."""

    @staticmethod
    def forward(a: Tensor, w: Tensor) -> Tensor:
        return a * w.sum(-1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, w = ctx.saved_tensors
        gw = (g * a).sum(-1, keepdim=True).expand_as(w) if w.dim() == a.dim() else (g * a).sum().expand_as(w)
        return (g * w.sum(-1, keepdim=True)).sum_to_size(a.shape), gw

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor, w: Tensor) -> Any:
        a, w = (
            t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape) for t, d in zip((a, w), in_dims)
        )
        return Weighted.apply(a, w), 0


class Centred(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        return a - a.mean()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g - g.mean()


class Seven(Function):
    """A rule that nothing else gives, with a vmap rule in plain operations."""

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        return a.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 7 * g

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor) -> Any:
        return a.sin(), in_dims[0]


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Centred, (x(4),)),
        (Centred, (x(3, 3),)),
        (variant(NewStyleScale, "Generated", vmap=Function.vmap), (x(2, 3),)),
        (Weighted, (x(3), x(4))),
        (torch.sin, (torch.tensor(0.5, dtype=torch.float64),)),
        (torch.sin, (x(0),)),
        (torch.nn.functional.linear, (x(2, 3), x(4, 3), x(4))),
        (torch.nn.Linear(3, 2), (torch.randn(2, 3),)),
        (torch.nn.Dropout(0.5), (x(5),)),
        (torch.nn.functional.embedding, (torch.tensor([0, 2, 2]), x(3, 2))),
        (lambda z: z * z.conj(), (torch.randn(3, dtype=torch.complex128),)),
        (lambda pair: pair[0] * pair[1], ((x(3), x(3, seed=1)),)),
        (torch.log, (x(3).abs(),)),
        (torch.relu, (torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64),)),
    ],
)
def test_right_ones_are_not_accused(target: Any, inputs: tuple[Any, ...]) -> None:
    found = result(target, *inputs)
    expected = "unsupported" if getattr(target, "__name__", "") == "Generated" else "pass"
    assert found.verdict == expected, found.message


def test_wrong_out_dims() -> None:
    wrong = variant(Seven, "WrongOut", vmap=lambda info, in_dims, a: (wrong.apply(a), 1))
    found = result(wrong, x(3))
    assert found.verdict == "fail"
    assert "outputs of the shapes" in found.message


def test_in_dims_ignored() -> None:
    wrong = variant(Weighted, "Ignores", vmap=lambda info, in_dims, a, w: (wrong.apply(a, w), 0))
    found = result(wrong, x(3), x(3))
    assert found.verdict == "fail"
    assert "in_dims=" in found.message
    assert "in_dims" in (found.findings[0].hint or "")


def test_examples_mixed() -> None:
    mixed = variant(Centred, "Mixed", vmap=lambda info, in_dims, a: (mixed.apply(a.movedim(in_dims[0], 0)), 0))
    mixed.generate_vmap_rule = False
    found = result(mixed, x(4))
    assert found.verdict == "fail"
    assert "where a loop gives" in found.message


def test_a_vmap_rule_in_plain_operations_loses_the_backward() -> None:
    found = result(Seven, x(3))
    assert found.verdict == "fail"
    assert "differentiated as a whole" in found.message
    assert "calling apply again" in (found.findings[0].hint or "")


def test_a_refusal_of_ones_own_is_unsupported_and_an_accident_is_not() -> None:
    def only_first(info: Any, in_dims: Any, a: Tensor, w: Tensor) -> Any:
        if in_dims != (0, 0):
            raise ValueError("batch both at 0")
        return careful.apply(a, w), 0

    careful = variant(Weighted, "Careful", vmap=only_first)
    found = result(careful, x(3), x(4))
    assert found.verdict == "unsupported"
    assert "batch both at 0" in found.message

    careless = variant(Weighted, "Careless", vmap=lambda info, in_dims, a, w: (a * w.sum(1, keepdim=True), 0))
    found = result(careless, x(3), x(4))
    assert found.verdict == "fail"


@pytest.mark.parametrize(("target", "n"), [(Exp, 1), (SinCos, 1), (Linear, 3)])
def test_old_style_is_refused_but_batched_gradients_are_compared(target: Any, n: int) -> None:
    found = result(target, *(x(2, 3), x(4, 3), x(4))[:n])
    assert found.verdict == "unsupported"
    assert verdicts(found) == {"vmap": "unsupported", "batched gradients": "pass"}
    assert "setup_context" in found.message


def test_no_rule_is_said_in_words() -> None:
    assert "generate_vmap_rule = True" in result(NewStyleScale, x(3)).message


def test_batched_gradients() -> None:
    assert verdicts(result(NumpySquare, x(3)))["batched gradients"] == "unsupported"
    item = variant(Exp, "Item", backward=lambda ctx, g: g * ctx.saved_tensors[0] * (1.0 if g.sum().item() else 0.0))
    found = result(item, x(3))
    assert verdicts(found)["batched gradients"] == "unsupported"
    assert ".item()" in found.message

    def stateful(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0] * (2 if torch._C._functorch.is_legacy_batchedtensor(g) else 1)

    found = result(variant(Exp, "OtherWhenBatched", backward=stateful), x(3))
    assert found.verdict == "fail"
    assert "is_grads_batched" in found.message


def test_require_turns_a_refusal_into_a_failure() -> None:
    assert not gw.check(Exp, x(3), only="vmap", require="vmap", seed=0)


def test_data_of_grad_output_does_not_end_the_process() -> None:
    """PyTorch crashes on ``.data`` of what ``is_grads_batched=True`` hands out, though the rule is right elsewhere."""

    def through_data(ctx: Any, g: Tensor) -> Tensor:
        return g.data * ctx.saved_tensors[0]

    found = result(variant(Exp, "ThroughData", backward=through_data), x(3))
    (reason,) = [row.reason for row in found.support if row.transform == "batched gradients"]
    assert verdicts(found)["batched gradients"] == "unsupported"
    assert "`.data` of a batched tensor" in reason
    assert "data" not in vars(torch.Tensor)  # as it was
