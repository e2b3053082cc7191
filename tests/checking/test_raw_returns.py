"""What Functions inside plain code returned from backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking.case import Case
from gradwright.checking.raw_returns import returned_in_graph
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import ClassMethods, Exp, NewStyleScale, Scale, variant, x


def case(target: Any, *args: Any) -> Case:
    return Case(as_subject(target), Sample(args))


def test_names_gradients_and_what_is_expected() -> None:
    class Product(Function):
        @staticmethod
        def forward(ctx: Any, k: float, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return k * a * b * c

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None, g.float(), g, None

    constant = torch.ones(3, dtype=torch.float64)
    found = returned_in_graph(case(lambda a, b: Product.apply(2.0, a * 1, b, constant).sin(), x(3), x(1)))
    assert [(item.function, item.argument) for item in found] == [(Product, "a"), (Product, "b")]
    assert [item.gradient.dtype for item in found] == [torch.float32, torch.float64]
    assert [tuple(item.expected.shape) for item in found] == [(3,), (1,)]
    assert {item.expected.dtype for item in found} == {torch.float64}


def test_both_styles_and_class_methods() -> None:
    found = returned_in_graph(
        case(lambda t: NewStyleScale.apply(t, 2.0) + Scale.apply(t, 2) + ClassMethods.apply(t), x(3))
    )
    assert {item.function for item in found} == {NewStyleScale, Scale, ClassMethods}


def test_classes_are_put_back_also_after_an_error() -> None:
    child = variant(Exp, "Child", backward=lambda ctx, g: g * ctx.saved_tensors[0])
    heir = type("Heir", (child,), {})
    before = [dict(vars(f)) for f in (Exp, child, heir)]
    found = returned_in_graph(case(lambda t: heir.apply(child.apply(t)), x(3)))  # type: ignore[attr-defined]
    assert sorted(item.function.__name__ for item in found) == ["Child", "Heir"]

    def raising(ctx: Any, g: Tensor) -> Any:
        raise ValueError("no")

    broken = variant(Exp, "Raising", backward=raising)
    with pytest.raises(ValueError, match="no"):
        returned_in_graph(case(lambda t: broken.apply(t).sin(), x(3)))
    assert [dict(vars(f)) for f in (Exp, child, heir)] == before
    assert broken.backward is raising


def test_pytorchs_own_functions_are_not_looked_at() -> None:
    own = variant(Exp, "Own", backward=lambda ctx, g: g.float())
    assert len(returned_in_graph(case(lambda t: own.apply(t), x(3)))) == 1
    own.__module__ = "torch.utils.checkpoint"
    assert returned_in_graph(case(lambda t: own.apply(t), x(3))) == []
    assert returned_in_graph(case(torch.sin, x(3))) == []
