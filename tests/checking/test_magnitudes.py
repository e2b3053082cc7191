"""The largest number of a backward is seen, and what cancels is judged by its rounding, in every contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.case import Case
from gradwright.checking.magnitudes import largest_in_backward
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, variant, x

F = torch.nn.functional


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def largest(target: Any, values: Tensor, v: Tensor) -> float:
    return largest_in_backward(Case(as_subject(target), Sample((values,))), v)


def test_intermediates_count_and_infinities_do_not() -> None:
    class Detour(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return a * 1.0

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            nothing = g / torch.zeros_like(g)
            return (g * 1e6 + 0 * nothing.nan_to_num(0.0, 0.0, 0.0)) / 1e6

    assert largest(Detour, x(3), torch.ones(3, dtype=torch.float64)) == pytest.approx(1e6)


def test_the_cotangent_counts_and_the_forward_does_not() -> None:
    assert largest(lambda a: a + 1e9, x(3), t(7, 1, 1)) == pytest.approx(7)


class Lookup(Function):
    """Rows of a table, with a sparse gradient of twice the right size."""

    @staticmethod
    def forward(ctx: Any, table: Tensor) -> Tensor:
        ctx.shape = table.shape
        return table[[1, 3]]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.sparse_coo_tensor(torch.tensor([[1, 3]]), 2 * g, ctx.shape, check_invariants=False)


class ComplexSquare(Function):
    """A square whose backward goes through complex numbers."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (a,) = ctx.saved_tensors
        return (3 * g * torch.complex(a, a)).real


def test_sparse_and_complex_gradients_are_looked_through() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    assert largest(Lookup, x(5, 2), ones) == pytest.approx(2)
    assert largest(ComplexSquare, t(1, 1, 1, 1), ones) == pytest.approx(3 * 2**0.5)
    for wrong, values in ((Lookup, x(5, 2)), (ComplexSquare, x(4))):
        assert not gw.check(wrong, values, only="matches-differences").ok


CANCELLING: dict[str, tuple[Any, Tensor]] = {
    "softmax": (lambda a: torch.softmax(a, 0), t(28, 0, 3.5)),
    "steep softmax": (lambda a: torch.softmax(a, 0), t(60, 0, 1)),
    "what a softmax leaves": (lambda a: (1 - torch.softmax(a, 0)).log(), t(28, 0, 3.5)),
    "cross entropy": (lambda a: F.cross_entropy(a.unsqueeze(0), torch.tensor([0])), t(200, 0, 3.5)),
    "binary cross entropy": (lambda a: F.binary_cross_entropy_with_logits(a, t(1, 0, 1)), t(40, -40, 37)),
    "sigmoid": (torch.sigmoid, t(36, 37, 20)),
    "gelu": (F.gelu, t(-8)),
    "difference of squares": (lambda a: a**2 - (a - 1e-8) ** 2, t(1, 2)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CANCELLING)
def test_what_cancels_is_not_accused(name: str, seed: int) -> None:
    f, values = CANCELLING[name]
    only = ("matches-differences", "linear-in-cotangent", "modes-agree", "nested-forward")
    report = gw.check(f, values, only=only, seed=seed)
    assert not [r.id for r in report.results if r.verdict in ("fail", "suspect")], str(report)


def test_a_small_error_that_is_no_rounding_is_still_found() -> None:
    wrong = variant(Exp, "Wrong", backward=lambda ctx, g: g * ctx.saved_tensors[0] * (1 + 1e-8))
    assert not gw.check(wrong, x(5), only="matches-differences").ok
