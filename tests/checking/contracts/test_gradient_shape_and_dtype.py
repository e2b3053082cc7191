"""gradient-shape-and-dtype: what the engine would repair in silence is seen before it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import Exp, Linear, RoundSTE, variant, x


def result(target: Any, *inputs: Any, **kwargs: Any) -> ContractResult:
    name = "gradient-shape-and-dtype"
    return gw.check(target, *inputs, only=name, seed=0, **kwargs)[name]


def returning(value: Any, base: type[Function] = Exp) -> type[Function]:
    return variant(base, "Wrong", backward=lambda ctx, g: value(g))


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Exp, (x(3),)),
        (Exp, (x(2, 3).float(),)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (RoundSTE, (x(0, 3),)),
        (returning(lambda g: None), (x(3),)),
    ],
)
def test_right(target: Any, inputs: tuple[Any, ...]) -> None:
    assert result(target, *inputs).verdict == "pass"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda g: g.expand(5, 3), "has the shape (5, 3), the input (3,); PyTorch sums it"),
        (lambda g: g.unsqueeze(0), "has the shape (1, 3), the input (3,); PyTorch sums it"),
        (lambda g: g[:2], "has the shape (2,), the input (3,); PyTorch refuses it"),
        (lambda g: g.float(), "is float32, the input float64; PyTorch casts it without a word, after digits were lost"),
        (lambda g: g.to(torch.complex128), "and the imaginary part is lost"),
        (lambda g: g.numpy(), "returned a numpy.ndarray"),
        (lambda g: 1.0, "returned a float"),
    ],
)
def test_wrong_is_named(value: Any, words: str) -> None:
    found = result(returning(value), x(3))
    assert found.verdict == "fail"
    (finding,) = found.findings
    assert words in finding.message
    assert finding.where is not None
    assert finding.where.input == "x"
    assert finding.hint


def test_wider_dtype_is_named_without_the_loss() -> None:
    found = result(returning(lambda g: g.double()), torch.randn(3))
    assert found.verdict == "fail"
    assert "digits were lost" not in found.message


def test_unreduced_broadcast_gets_the_line_that_reduces_it() -> None:
    def backward(ctx: Any, g: Any) -> Any:
        xx, w = ctx.saved_tensors
        return g @ w, g.t() @ xx, g

    found = result(variant(Linear, "Wrong", backward=backward), x(2, 3), x(4, 3), x(4))
    assert "sum_to_size(b.shape)" in (found.findings[0].hint or "")


def test_every_wrong_input_has_its_finding() -> None:
    wrong = variant(Linear, "Wrong", backward=lambda ctx, g: (g, g, g.sum(0)))
    assert len(result(wrong, x(2, 3), x(4, 3), x(4)).findings) == 2


def test_other_subjects_are_skipped_with_a_reason() -> None:
    assert result(torch.exp, x(3)).verdict == "skipped"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda g: g.float(), "is float32, the input float64"),
        (lambda g: g.expand(4, 3), "has the shape (4, 3), the input (3,); PyTorch sums it"),
        (lambda g: g.unsqueeze(0), "has the shape (1, 3), the input (3,)"),
    ],
)
def test_functions_inside_plain_code_and_modules(value: Any, words: str) -> None:
    wrong = returning(value)

    class Layer(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> Any:
            return wrong.apply(t * 2).sin()

    for subject in (lambda t: wrong.apply(t * 2).sin(), Layer()):
        found = result(subject, x(3))
        assert found.verdict == "fail"
        assert "Wrong in the graph: the gradient of `x`" in found.message
        assert words in found.message
        assert found.findings[0].hint


def test_right_ones_inside_plain_code() -> None:
    assert (
        result(lambda t: Exp.apply(t * 2) + Exp.apply(t), x(3)).message
        == "2 returned gradients of Exp in the graph looked at"
    )
    assert result(torch.sin, x(3)).verdict == "skipped"
