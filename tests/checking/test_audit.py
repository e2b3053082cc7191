"""Watching a backward: what it returned, where it raised, and what the graph contains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking.audit import audit, functions_in_graph, random_cotangent, user_location
from gradwright.checking.case import Case
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import ClassMethods, Exp, Linear, NewStyleScale, Scale, variant, x


def case(target: Any, *args: Any) -> Case:
    return Case(as_subject(target), Sample(args))


def test_raw_return_and_expected_count() -> None:
    watched = audit(case(Linear, x(2, 3), x(4, 3)))
    assert watched.called
    assert watched.usable
    assert (len(watched.gradients), watched.expected) == (3, 2)
    watched = audit(case(NewStyleScale, x(3)))
    assert watched.expected == 2, "with setup_context the whole signature counts"
    assert audit(case(Scale, x(3))).expected == 1


def test_class_methods_are_watched_too() -> None:
    assert audit(case(ClassMethods, x(3))).called


def test_the_users_class_is_not_changed() -> None:
    before = dict(vars(Exp))
    audit(case(Exp, x(3)))
    assert dict(vars(Exp)) == before


def test_errors_of_the_user_and_of_the_engine_are_told_apart() -> None:
    def raising(ctx: Any, g: Tensor) -> Any:
        raise ValueError("no")

    watched = audit(case(variant(Exp, "Raising", backward=raising), x(3)))
    assert isinstance(watched.user_error, ValueError)
    assert "test_audit.py" in user_location(watched.user_error)
    assert "backward raises ValueError: no" in watched.obstacle
    watched = audit(case(variant(Exp, "Two", backward=lambda ctx, g: (g, g)), x(3)))
    assert watched.user_error is None
    assert watched.engine_error is not None


def test_no_backward_and_no_graph() -> None:
    class ForwardOnly(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 2

    assert audit(case(ForwardOnly, x(3))).no_backward
    assert audit(case(lambda t: t.detach(), x(3))).no_graph


def test_vjp_is_an_accepted_name() -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 2

        @staticmethod
        def vjp(ctx: Any, g: Tensor) -> Any:
            return g * 2

    assert audit(case(Double, x(3))).called


def test_functions_in_the_graph_of_a_callable() -> None:
    assert functions_in_graph(case(lambda t: Exp.apply(t).sum() + Scale.apply(t, 2).sum(), x(3))) in (
        [Exp, Scale],
        [Scale, Exp],
    )
    assert functions_in_graph(case(torch.sin, x(3))) == []


def test_random_cotangent_is_signed_reproducible_and_away_from_zero() -> None:
    c = case(torch.sin, x(200))
    v = random_cotangent(c)
    assert torch.equal(v, random_cotangent(c))
    assert not torch.equal(v, random_cotangent(c, "other"))
    assert float(v.abs().min()) >= 0.5
    assert bool((v < 0).any())
