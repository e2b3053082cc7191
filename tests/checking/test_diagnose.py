"""Each hypothesis is recognised on a Function that has exactly that mistake."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking.blocks import Block, block_of
from gradwright.checking.case import Case
from gradwright.checking.diagnose import diagnose
from gradwright.checking.jacobian import compare
from gradwright.checking.judge import State
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import ComplexSquare, Exp, Linear, RoundSTE, variant, x


class Product(Function):
    """``a * b`` with a backward to be replaced."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return g * b, g * a


class Mean(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.shape = t.shape
        return t.mean()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.expand(ctx.shape)


class Softmax(Function):
    """A backward without the sum over the row: the normaliser taken for a constant."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = t.softmax(0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return g * out


class Bias(Function):
    @staticmethod
    def forward(ctx: Any, b: Tensor, t: Tensor) -> Tensor:
        return t * 0 + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.sum(1), g * 0


class ScaledRows(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(t, b)
        return t * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        t, b = ctx.saved_tensors
        return g * b, (g * t).sum(1)


class Scatter(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t[[3, 0, 4, 1, 2]]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g[[3, 0, 4, 1, 2]]


class Swap(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (g * 2).permute(1, 0, 2)


def exp_with(backward: Any) -> type[Function]:
    return variant(Exp, "Wrong", backward=backward)


def rounded(dtype: torch.dtype) -> Any:
    return lambda ctx, g: (g * ctx.saved_tensors[0]).to(dtype).to(g.dtype)


def with_hole(ctx: Any, g: Tensor) -> Tensor:
    grad = g * ctx.saved_tensors[0]
    grad[4:] = 0
    return grad


def swapped(ctx: Any, g: Tensor) -> Any:
    a, b = ctx.saved_tensors
    return g * a, g * b


def transposed(ctx: Any, g: Tensor) -> Any:
    xx, w = ctx.saved_tensors
    return g @ w, (g.t() @ xx).t(), None


def drop_b(ctx: Any, g: Tensor) -> Any:
    return g * ctx.saved_tensors[1], None


def without_b(ctx: Any, g: Tensor) -> Any:
    return g, g * ctx.saved_tensors[0]


def zero_by_zero(ctx: Any, g: Tensor) -> Tensor:
    return g * ctx.saved_tensors[0] * 0 / 0


def noisy(ctx: Any, g: Tensor) -> Tensor:
    return g * ctx.saved_tensors[0] * (1 + 1e-3 * torch.rand_like(g))


def late(ctx: Any, g: Tensor) -> Tensor:
    grad = g * ctx.saved_tensors[0]
    return torch.cat([grad[:1] * 0, grad[:-1]])


def untransposed(ctx: Any, g: Tensor) -> Any:
    xx, w = ctx.saved_tensors
    return g @ w.t(), g.t() @ xx, None


def unconjugated(ctx: Any, g: Tensor) -> Tensor:
    return g * 2 * ctx.saved_tensors[0]


def real_only(ctx: Any, g: Tensor) -> Tensor:
    return (g * 2 * ctx.saved_tensors[0].conj()).real + 0j


Z = torch.randn(3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))

CASES: list[tuple[str, Any, tuple[Any, ...], str]] = [
    ("wrong-sign", exp_with(lambda ctx, g: -g * ctx.saved_tensors[0]), (x(4),), "minus the right one"),
    ("scalar-factor", exp_with(lambda ctx, g: 2 * g * ctx.saved_tensors[0]), (x(4),), "factor 2"),
    ("scalar-factor", Mean, (x(3, 5),), "which is the number of elements of `t`"),
    ("cotangent-ignored", exp_with(lambda ctx, g: ctx.saved_tensors[0]), (x(4),), "grad_output is missing"),
    ("dropped", variant(Product, "W", backward=drop_b), (x(3), x(3)), "None for `b`"),
    ("surrogate", RoundSTE, (x(4) * 3,), "straight-through"),
    ("swapped-inputs", variant(Product, "W", backward=swapped), (x(3), x(3, seed=1)), "`a` and `b` are swapped"),
    (
        "missing-factor",
        variant(Product, "W", backward=without_b),
        (x(3), x(3, seed=1)),
        "`b` is missing",
    ),
    ("missing-factor", exp_with(lambda ctx, g: g), (x(4),), "the output is missing"),
    ("low-precision", exp_with(rounded(torch.float32)), (x(20),), "float32"),
    ("low-precision", exp_with(rounded(torch.bfloat16)), (x(20),), "bfloat16"),
    ("transposed", variant(Linear, "W", backward=transposed), (x(3, 3), x(3, 3, seed=1)), "transpose"),
    ("transposed", variant(Linear, "W", backward=untransposed), (x(2, 3), x(3, 3, seed=1)), "transpose"),
    ("permuted", Swap, (x(3, 3, 2),), "dimensions 0, 1"),
    ("wrong-dimension", Bias, (x(3), x(3, 3)), "wrong one of its equal dimensions (0, 1)"),
    ("shifted", exp_with(lambda ctx, g: (g * ctx.saved_tensors[0]).roll(1)), (x(6),), "off by 1 along dimension 0"),
    ("shifted", exp_with(late), (x(6),), "off by 1 along dimension 0"),
    ("conjugate-missing", variant(ComplexSquare, "W", backward=unconjugated), (Z,), "conjugate"),
    ("imaginary-part-dropped", variant(ComplexSquare, "W", backward=real_only), (Z,), "imaginary"),
    ("low-rank", Softmax, (x(6),), "treated as a constant"),
    ("zero-region", exp_with(with_hole), (x(6),), "from index [4] on"),
    ("not-a-number", exp_with(zero_by_zero), (x(3),), "NaN"),
    ("wrong-dimension", ScaledRows, (x(4, 4), x(4, seed=1)), "follows dimension 0 of the output"),
    ("misplaced", Scatter, (x(5),), "wrong elements of `t`"),
    ("random", exp_with(noisy), (x(3),), "draws random numbers"),
]


def blocks_of(case: Case) -> list[Block]:
    comparisons = [compare(case, k, 0) for k in range(len(case.inputs))]
    return [block_of(case, comparison) for comparison in comparisons if comparison is not None]


@pytest.mark.parametrize(
    ("label", "target", "inputs", "words"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_label_and_words(label: str, target: Any, inputs: tuple[Any, ...], words: str) -> None:
    case = Case(as_subject(target), Sample(inputs))
    assert case.backward_randomness in ("none", "seeded")  # contracts ask first, and it is seeded from then on
    blocks = blocks_of(case)
    wrong = [b for b in blocks if bool((b.comparison.state == State.WRONG).any())]
    assert wrong, "the mistake itself must be seen"
    found = diagnose(wrong[0], blocks)
    assert found is not None
    assert found.label == label
    assert words in found.meaning
    assert found.remedy


def test_no_hypothesis_is_better_than_a_wrong_one() -> None:
    case = Case(as_subject(exp_with(lambda ctx, g: g * torch.tensor([1.3, -7.1, 0.2, 11.0]).double())), Sample((x(4),)))
    (block,) = blocks_of(case)
    assert diagnose(block, [block]) is None


def test_a_single_wrong_element_is_no_missing_normaliser() -> None:
    wrong_in_one = lambda ctx, g: g * ctx.saved_tensors[0] + g * torch.tensor([0.0, 0.7, 0.0, 0.0]).double()  # noqa: E731
    (block,) = blocks_of(Case(as_subject(exp_with(wrong_in_one)), Sample((x(4),))))
    found = diagnose(block, [block])
    assert found is None or found.label != "low-rank"


@pytest.mark.parametrize(
    ("label", "backward"),
    [
        ("wrong-sign", lambda ctx, g: -g * ctx.saved_tensors[0]),
        ("missing-factor", lambda ctx, g: g),
        ("zero-region", with_hole),
    ],
)
def test_labels_of_a_large_input_with_a_pattern(label: str, backward: Any) -> None:
    (block,) = blocks_of(Case(as_subject(exp_with(backward)), Sample((x(500),))))
    assert not block.whole
    found = diagnose(block, [block])
    assert found is not None
    assert found.label == label
