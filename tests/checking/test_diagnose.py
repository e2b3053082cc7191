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
from tests.subjects import ComplexSquare, Exp, Linear, RoundSTE, SinCos, variant, x


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


class Rows(Function):
    """Softmax of each row, with a backward to be replaced."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t.softmax(-1))
        return t.softmax(-1)


class LogRows(Function):
    """Log-softmax of each row; each element gets gradient from its own output alone."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.log_softmax(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g - ctx.saved_tensors[0].softmax(-1) * g


class Reversed(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t.flip(0) * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class Clamp(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * (ctx.saved_tensors[0].abs() > 1)


class Channels(Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, t: Tensor) -> Tensor:
        ctx.save_for_backward(w, t)
        return t * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        w, t = ctx.saved_tensors
        return (g * t).sum(0, keepdim=True)[:, :, :1], g * w


class Absolute(Function):
    """The square of a complex number's size, with the gradient that other conventions have."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return (z * z.conj()).real

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g * ctx.saved_tensors[0].conj()


class Squares(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return torch.sin(3 * t * t)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * torch.cos(3 * ctx.saved_tensors[0] ** 2)


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


def over_columns(ctx: Any, g: Tensor) -> Tensor:
    (out,) = ctx.saved_tensors
    return out * (g - (g * out).sum(0, keepdim=True))


def without_sum(ctx: Any, g: Tensor) -> Tensor:
    return g * ctx.saved_tensors[0]


def divided(ctx: Any, g: Tensor) -> Any:
    a, b = ctx.saved_tensors
    return g / b, g * a


def same_for_both(ctx: Any, g: Tensor) -> Any:
    grad = g * ctx.saved_tensors[0]
    return grad, grad


def without_row(ctx: Any, g: Tensor) -> Any:
    t, _ = ctx.saved_tensors
    return g * 1, (g * t).sum(0)


def conjugated_g(ctx: Any, g: Tensor) -> Tensor:
    return g.conj() * 2 * ctx.saved_tensors[0].conj()


def positive_only(ctx: Any, g: Tensor) -> Tensor:
    (out,) = ctx.saved_tensors
    return g * torch.where(out > 1, out, out**2)


def one_twice(ctx: Any, g: Tensor) -> Tensor:
    grad = g * ctx.saved_tensors[0]
    return torch.cat([grad[:2], 2 * grad[2:4], grad[4:]])


SIGNS = torch.tensor([0.5, -0.3, 1.2, -1.1, 0.1, -0.7], dtype=torch.float64)
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
    (
        "missing-factor",
        Squares,
        (x(5),),
        "the factor `t` is missing, and besides every entry is off by the factor 0.16",
    ),
    ("missing-factor", variant(Product, "W", backward=divided), (x(3), x(3, seed=1)), "`b` is missing twice"),
    ("missing-factor", variant(ScaledRows, "W", backward=without_row), (x(2, 3), x(3, seed=1)), "`b` is missing"),
    ("copied", variant(Product, "W", backward=same_for_both), (x(3), x(3, seed=1)), "the gradient of `b`"),
    ("crossing", variant(Rows, "W", backward=over_columns), (x(3, 4),), "along dimension 0 of the output"),
    ("low-rank", variant(Rows, "W", backward=without_sum), (x(3, 4),), "treated as a constant"),
    ("own-output-only", LogRows, (x(3, 4),), "from its own output alone"),
    ("flipped", Reversed, (x(5),), "in reverse order along dimension 0"),
    ("inverted-mask", Clamp, (torch.tensor([0.3, -2.0, 1.7, -0.2], dtype=torch.float64),), "the mask is inverted"),
    ("partial-sum", Channels, (x(1, 4, 1), x(3, 4, 5)), "48 of 60 elements of grad_output"),
    ("conjugated", Absolute, (Z,), "the conjugate of the right one"),
    ("conjugate-missing", variant(ComplexSquare, "W", backward=conjugated_g), (Z,), "conjugate of grad_output"),
    (
        "wrong-region",
        exp_with(positive_only),
        (SIGNS,),
        "the first at index [1] (all those where `x` is negative); the others are right",
    ),
    ("wrong-region", exp_with(one_twice), (SIGNS,), "the factor 2 (they count twice), the first at index [2]"),
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


def test_one_wrong_element_is_not_called_rounding_and_has_no_rank() -> None:
    def off_by_a_percent(ctx: Any, g: Tensor) -> Tensor:
        grad = g * ctx.saved_tensors[0]
        return torch.cat([grad[:1] * 1.005, grad[1:]])

    (block,) = blocks_of(Case(as_subject(exp_with(off_by_a_percent)), Sample((x(12),))))
    found = diagnose(block, [block])
    assert found is not None
    assert found.label == "wrong-region"
    assert "1 of 12 elements of `x` are wrong, at index [0]" in found.meaning


def test_a_quotient_by_zero_explains_nothing() -> None:
    """An infinite prediction would have an infinite allowance."""
    at_zero = torch.tensor([0.0, 1.0, 2.0, -1.0], dtype=torch.float64)
    (block,) = blocks_of(Case(as_subject(exp_with(lambda ctx, g: g * 3.3)), Sample((at_zero,))))
    assert not block.explains(block.numeric / at_zero)


def test_swapped_cotangents() -> None:
    def exchanged(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return h * t.cos() - g * t.sin()

    case = Case(as_subject(variant(SinCos, "W", backward=exchanged)), Sample((x(4),)))
    comparisons = [compare(case, 0, o) for o in range(2)]
    blocks = [block_of(case, comparison) for comparison in comparisons if comparison is not None]
    found = diagnose(blocks[0], blocks)
    assert found is not None
    assert found.label == "swapped-cotangents"
