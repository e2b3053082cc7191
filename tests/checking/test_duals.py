"""The second witness is exact where it is right, silent where it cannot be, and never decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking import duals
from gradwright.checking.case import Case
from gradwright.checking.duals import Witness, find_witness
from gradwright.checking.report import ContractResult
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, NewStyleScale, NumpySquare, RoundSTE, Scale, SinCos, variant, x


def case(target: Any, *inputs: Any) -> Case:
    return Case(as_subject(target), Sample(inputs))


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="matches-differences", seed=0)["matches-differences"]


def column(witness: Witness | None, n: int, i: int) -> Tensor:
    assert witness is not None
    u = torch.zeros(n, dtype=torch.float64)
    u[i] = 1.0
    exact = witness.along(u)
    assert exact is not None
    return exact


class ReadsContext(Function):
    """A forward that uses everything a ctx offers, and changes its input without saying so."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(t.clone())
        ctx.factor = 3.0 if ctx.needs_input_grad[0] else 2.0
        kept = t.clone()
        t.mul_(ctx.factor)
        out: Tensor = t * kept
        ctx.mark_non_differentiable(torch.zeros(1))
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return 6 * t * g


def body(name: str, forward: Any) -> Any:
    """Return ``Exp`` with another forward (and a backward that nobody asks here)."""
    return variant(Exp, name, forward=forward)


def within_no_grad(ctx: Any, t: Tensor) -> Tensor:
    with torch.no_grad():
        e = t.exp()
    ctx.save_for_backward(e)
    return e


RIGHT: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "old style": (Exp, (x(4),), torch.exp),
    "new style": (NewStyleScale, (x(4), 3), lambda t: torch.full_like(t, 3.0)),
    "python number": (Scale, (x(4), 2), lambda t: torch.full_like(t, 2.0)),
    "two outputs": (SinCos, (x(4),), torch.cos),
    "no_grad inside": (body("Quiet", within_no_grad), (x(4),), torch.exp),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_witness_is_exact(name: str) -> None:
    target, inputs, derivative = RIGHT[name]
    exact = column(find_witness(case(target, *inputs), 0, 0), 4, 2)
    assert torch.allclose(exact[2], derivative(inputs[0])[2], rtol=1e-14)
    assert float(exact[[0, 1, 3]].abs().sum()) == 0


def test_a_forward_that_mutates_leaves_the_case_alone() -> None:
    c = case(ReadsContext, x(4))
    before = c.value()
    exact = column(find_witness(c, 0, 0), 4, 1)
    assert float(exact[1]) == pytest.approx(6 * float(c.base[0][1]), rel=1e-14)
    assert torch.equal(c.value(), before)
    assert torch.equal(c.base[0], x(4))


def detached_norm(ctx: Any, t: Tensor) -> Tensor:
    ctx.save_for_backward(t)
    return t / t.detach().norm()


def through_data(ctx: Any, t: Tensor) -> Tensor:
    ctx.save_for_backward(t)
    return t * t.data.sin()


def outside_torch(ctx: Any, t: Tensor) -> Tensor:
    ctx.save_for_backward(t)
    return torch.from_numpy(t.detach().numpy() ** 2)


def another_path(ctx: Any, t: Tensor) -> Tensor:
    ctx.save_for_backward(t)
    return t.exp() if type(ctx).__module__.startswith("torch") or "Backward" in type(ctx).__name__ else 2 * t.exp()


@pytest.mark.parametrize(
    "forward",
    [detached_norm, through_data, outside_torch, another_path],
    ids=["detach", "data", "NumPy", "another path outside apply"],
)
def test_a_body_that_cuts_the_tangent_gives_no_witness(forward: Any) -> None:
    assert find_witness(case(body("Trap", forward), x(4)), 0, 0) is None


def test_numpy_and_rounding_give_no_witness() -> None:
    assert find_witness(case(NumpySquare, x(4)), 0, 0) is None
    assert find_witness(case(RoundSTE, x(4)), 0, 0) is None
    assert find_witness(case(torch.sin, x(4)), 0, 0) is None, "only a Function has a body of its own"


def test_a_body_that_agrees_with_its_own_backward_is_not_acquitted() -> None:
    # Under dual numbers the derivative is 1, as backward says; of the function it is 0 almost everywhere.
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t + (t.round() - t).detach()

    found = result(variant(RoundSTE, "Trick", forward=forward), 3 * x(5))
    assert found.verdict == "suspect"  # a straight-through estimator that is not declared
    assert "own body" not in found.message


@pytest.mark.parametrize("n", [4, 3000])
def test_a_finding_names_both_witnesses(n: int) -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        wrong = g * ctx.saved_tensors[0]
        wrong[1] *= 1.01
        return wrong

    found = result(variant(Exp, "Wrong", backward=backward), x(n))
    assert found.verdict == "fail"
    assert "Forward mode through forward's own body and the complex step agree with the differences." in found.message


def test_a_body_that_takes_no_complex_numbers_has_one_witness() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(torch.erf(t))
        return torch.erf(t)

    found = result(variant(Exp, "Wrong", forward=forward), x(4))
    assert found.verdict == "fail"
    assert "Forward mode through forward's own body agrees with the differences." in found.message


OFFSET = torch.tensor([0.0, 0.0, 1e13, 0.0], dtype=torch.float64)


class Buried(Function):
    """One output whose digits drown in an offset."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return torch.sin(t) + OFFSET

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return g * torch.cos(t)


WORDS = "as forward mode through forward's own body has them"


def test_what_is_undecided_gets_a_second_opinion_and_keeps_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    found = result(Buried, x(4))
    assert f"(1 of them are {WORDS}" in found.message
    monkeypatch.setattr(duals, "find_witness", lambda *_: None)
    alone = result(Buried, x(4))
    assert WORDS not in alone.message
    assert (alone.verdict, alone.sensitivity) == (found.verdict, found.sensitivity)


def test_a_gradient_that_is_wrong_where_nothing_shows_gets_no_support() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        gradient = Buried.backward(ctx, g)
        gradient[2] *= 1.0001
        return gradient

    assert WORDS not in result(variant(Buried, "Hidden", backward=backward), x(4)).message


def test_projections_get_a_second_opinion_from_a_few_elements() -> None:
    # Moving all elements crosses kinks at those that are zero; moving a few others does not.
    values = x(300)
    values[:6] = 0.0
    mixing = x(300, 300, seed=3) / 300

    class Kinks(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return mixing @ torch.relu(t)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            return (mixing.T @ g) * (t > 0)

    found = result(Kinks, values)
    assert found.verdict == "unresolved"
    assert f"(2 of them are {WORDS}" in found.message
