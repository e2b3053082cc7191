"""Running a probe: planted functions get the verdict they deserve, and nothing escapes."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch
from mpmath import mp

import gradwright.probing.run
import gradwright.stable
from gradwright.probing.row import Probe, looked_up
from gradwright.probing.run import run, run_one, sections, stable_function


class Planted(torch.autograd.Function):
    """The square, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(x: Any, factor: Any) -> Any:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2 * ctx.saved_tensors[0] * ctx.factor, None

    @staticmethod
    def jvp(ctx: Any, t: Any, _: Any) -> Any:
        return t * 2 * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, factor: Any) -> Any:
        return Planted.apply(x, factor), in_dims[0]


def planted(factor):
    return lambda x: Planted.apply(x, factor)


def made(call=torch.square, **fields):
    return Probe(**{"id": "1", "case": "made up", "at": (3.0,), "call": call, "scalar": lambda x: x * x, **fields})


def no_derivative(x):
    raise NotImplementedError("the derivative for 'it' is not implemented.\nmore")


@pytest.mark.parametrize(
    ("call", "kind", "forward"),
    [
        (torch.square, "right", "right"),
        (planted(1.0), "right", "right"),
        (planted(1.5), "wrong", "right"),
        (planted(0.0), "zero", "right"),
        (planted(float("nan")), "nan", "right"),
        (planted(float("inf")), "inf", "right"),
        (lambda x: x.detach() ** 2, "detached", "zero"),
        (no_derivative, "not implemented", "not implemented"),
        (looked_up(torch.special, "no_such_function"), "missing", "missing"),
        (lambda x: x @ x, "raises", "raises"),
    ],
)
def test_planted_functions_get_their_verdict(call, kind, forward):
    result = run_one(made(call))
    assert (result.torch.kind, result.forward.kind) == (kind, forward)
    assert result.ok == (kind == forward == "right")
    assert result.wanted == (6.0,)


def test_the_numbers_and_the_first_line_of_an_exception_are_kept():
    result = run_one(made(planted(1.5)))
    assert result.torch.got == (9.0,)
    assert result.torch.error == pytest.approx(0.5)
    assert run_one(made(no_derivative)).torch.message == (
        "NotImplementedError: the derivative for 'it' is not implemented"
    )


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (torch.square, "right"),
        (lambda x: x * x.detach() * 2, "detached"),
        (lambda x: x.square() - x.detach() * x, "right"),
        (planted(3.0), "wrong"),
    ],
)
def test_second_derivatives(call, kind):
    """The derivative of the gradient that is returned; a gradient that is a constant has none."""
    result = run_one(made(call, of="second derivative"))
    assert result.torch.kind == kind
    assert result.forward is None


def test_the_second_derivative_is_weighed():
    probe = made(torch.prod, at=([2.0, 3.0, 5.0],), of="second derivative", scalar=mp.fprod)
    result = run_one(probe)
    assert result.torch.kind == "right"
    assert result.wanted == pytest.approx((2 * 5 + 3 * 3, 1 * 5 + 3 * 2, 1 * 3 + 2 * 2))


def test_values_are_not_differentiated():
    result = run_one(made(lambda x: torch.stack([x, -x]).detach(), of="value", scalar=lambda x: [x, -x]))
    assert result.torch.kind == "right"
    assert result.forward is None
    assert run_one(made(no_derivative, of="value")).torch.kind == "missing"


def test_an_input_without_a_gradient_has_zeros():
    assert run_one(made(lambda x, y: x * x, at=(3.0, 1.0), scalar=lambda x, y: x * x)).torch.kind == "right"


def test_a_warning_is_no_verdict_and_random_numbers_are_the_same():
    def noisy(x):
        warnings.warn("beware", UserWarning, stacklevel=1)
        return x * torch.rand(())

    before = torch.get_rng_state()
    first, second = (next(run([("made-up", made(noisy))])) for _ in range(2))
    assert first.torch.got == second.torch.got
    assert first.torch.kind == "wrong"
    assert first.section == "made-up"
    assert torch.equal(torch.get_rng_state(), before)


def test_the_inputs_have_the_dtype():
    seen = []

    def look(x):
        seen.append(x.dtype)
        return x * x

    assert run_one(made(look, dtype=torch.bfloat16)).torch.kind == "right"
    assert set(seen) == {torch.bfloat16}


# ---------------------------------------------------------------- gw.stable


@pytest.fixture
def stable(monkeypatch):
    package = types.SimpleNamespace()
    monkeypatch.setattr(gradwright.probing.run, "stable", package)
    return package


def test_the_functions_are_those_of_the_package():
    assert stable_function("sigmoid") is gradwright.stable.sigmoid


def test_what_is_not_built_is_no_error(stable):
    result = run_one(made(remedy="square"))
    assert (result.stable, result.remedy) == (None, "not built yet")
    assert run_one(made()).remedy == ""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (torch.square, "right"),
        (planted(0.0), "zero"),
        (lambda x: x.detach() ** 2, "detached"),
        (lambda x: x @ x, "raises"),
    ],
)
def test_what_is_built_is_judged(stable, function, said):
    stable.square = function
    assert run_one(made(remedy="square")).remedy == said


def test_both_modes_of_what_is_built_are_judged(stable):
    class NoForward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    stable.square = NoForward.apply
    assert run_one(made(remedy="square")).remedy != "right"


def test_the_call_that_uses_it_may_be_another(stable):
    stable.power = lambda x, n: x**n
    assert run_one(made(remedy="power", remedied=lambda f, x: f(x, 2))).remedy == "right"


# ------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scalar": None}, "probe 1: there is no truth; expected `scalar` or `right`; give one."),
        ({"of": "third"}, "probe 1: got of='third'; expected one of value, gradient, second derivative."),
        ({"remedied": torch.square}, "probe 1: `remedied` calls no function; expected `remedy`; name it."),
    ],
)
def test_a_bad_declaration_is_refused(fields, said):
    with pytest.raises(ValueError, match="probe 1") as caught:
        made(**fields)
    assert str(caught.value) == said


def test_sections_come_in_the_order_of_their_numbers():
    assert [section.name for section in sections()] == [
        "singular-points",
        "log-space",
        "tails",
        "special",
        "linear-algebra",
        "indexing",
        "extra-functions",
        "extra-matrices",
        "extra-points",
        "extra-tails",
        "right",
    ]
