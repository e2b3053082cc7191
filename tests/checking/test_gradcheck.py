"""Code that was written for gradcheck: its call shape and its flags."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, gradcheck

import gradwright as gw
from gradwright.checking.gradcheck import FLAGS
from gradwright.errors import ForwardError, OptionError, SampleError
from tests.subjects import Exp, Linear, Scale, variant, x

QUICK: dict[str, Any] = {"only": "matches-differences"}


@pytest.mark.parametrize(
    ("subject", "inputs"),
    [
        (Exp.apply, (x(3),)),
        (Exp, [x(3)]),
        (Linear.apply, (x(4, 3), x(2, 3, seed=1), x(2, seed=2))),
        (Scale.apply, (x(3), 2)),
        (torch.matmul, (x(2, 3), x(3, 2))),
        (lambda a, b: a * b, (x(3), x(3, seed=1))),
        (torch.nn.Linear(3, 2, dtype=torch.float64), (x(4, 3),)),
        (torch.exp, x(3)),
    ],
)
def test_one_tuple_of_inputs(subject: Any, inputs: Any) -> None:
    tensors = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    grown = tuple(t.clone().requires_grad_() if isinstance(t, Tensor) else t for t in tensors)
    assert gradcheck(subject if callable(subject) and subject is not Exp else Exp.apply, grown)
    report = gw.check(subject, inputs, eps=1e-6, atol=1e-5, **QUICK)
    assert report["matches-differences"].verdict == "pass"
    assert any("as gradcheck takes it" in note for note in report.notes) == (not isinstance(inputs, Tensor))
    apart = gw.check(subject, *tensors, **QUICK)
    assert [note.description for note in apart.samples] == [note.description for note in report.samples]


@pytest.mark.parametrize(
    ("subject", "inputs"),
    [
        (torch.stack, (x(3), x(3, seed=1))),
        (torch.cat, [x(3), x(2)]),
        (lambda pair: pair[0] * pair[1], (x(3), x(3, seed=1))),
    ],
)
def test_a_function_of_one_tuple_gets_it(subject: Any, inputs: Any) -> None:
    report = gw.check(subject, inputs, **QUICK)
    assert report["matches-differences"].verdict == "pass"
    assert not any("gradcheck" in note for note in report.notes)
    assert "[float64" in report.samples[0].description


def test_a_wrong_rule_is_caught_in_either_shape() -> None:
    wrong = variant(Exp, "Wrong", backward=lambda ctx, g: -g * ctx.saved_tensors[0])
    assert not gw.check(wrong.apply, (x(3),), eps=1e-6, atol=1e-5, rtol=1e-3, **QUICK)


def test_which_inputs_are_differentiated_is_kept() -> None:
    report = gw.check(torch.mul, (x(3).requires_grad_(), x(3, seed=1)), **QUICK)
    assert "9 entries" in report["matches-differences"].message  # not 18


def test_both_refusals_are_told() -> None:
    with pytest.raises(ForwardError, match=r"forward raised .* Taken for the arguments, as gradcheck takes a tuple: "):
        gw.check(torch.matmul, (x(3, 2), x(3, 2)))

    class Two(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            return a * b

    with pytest.raises(SampleError, match=r"forward takes \(a, b\)"):
        gw.check(Two, (x(3),))


def test_a_function_of_a_list_is_told_about_containers() -> None:
    class Cat(Function):
        @staticmethod
        def forward(ctx: Any, tensors: list[Tensor]) -> Tensor:
            return torch.cat(tensors)

    with pytest.raises(SampleError, match="autograd does not track tensors inside containers"):
        gw.check(Cat, [x(3), x(2)])


def test_flags_that_are_off_leave_their_contract_out() -> None:
    report = gw.check(Exp, (x(3),), check_undefined_grad=False, check_grad_dtypes=False, check_forward_ad=False)
    assert not {"undefined-cotangents", "gradient-shape-and-dtype", "modes-agree"} & {r.id for r in report.results}
    assert "undefined-cotangents was left out" in report.notes


def test_flags_that_are_on() -> None:
    flags = dict.fromkeys(set(FLAGS) - {"raise_exception", "masked", "check_forward_ad"}, True)
    report = gw.check(Exp, (x(3),), level="quick", **flags)
    assert report.ok
    assert any("contract vmap" in note for note in report.notes)
    assert any("level='quick'" in note for note in report.notes)


def test_forward_mode_is_required_when_asked_for() -> None:
    assert gw.check(Exp, x(3), only="modes-agree")["modes-agree"].verdict == "unsupported"
    assert gw.check(Exp, x(3), only="modes-agree", check_forward_ad=True)["modes-agree"].verdict == "fail"
    assert gw.check(torch.exp, x(3), only="modes-agree", check_forward_ad=True).ok


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"raise_exception": True}, r"raise_exception: got True.*write `assert check\(...\)`"),
        ({"check_backward_ad": False}, r"check_backward_ad: got False.*only=\('modes-agree'"),
        ({"masked": True}, "masked: got True.*function of the values"),
        ({"fast_mode": 1}, "fast_mode: got 1; expected True or False"),
        ({"levle": True}, "levle: unknown option.*Did you mean 'level'"),
        ({"check_undefined_grads": True}, "Did you mean 'check_undefined_grad'"),
    ],
)
def test_flags_that_are_refused(flags: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        gw.check(Exp, x(3), **flags)


@pytest.mark.parametrize("flags", [{"raise_exception": False}, {"check_backward_ad": True}, {"masked": False}])
def test_flags_that_say_what_is_done_anyway(flags: dict[str, bool]) -> None:
    assert gw.check(Exp, x(3), **QUICK, **flags).notes == ()


def test_every_flag_of_gradcheck_is_known() -> None:
    import inspect

    theirs = set(inspect.signature(gradcheck).parameters) - {"func", "inputs"}
    ours = set(inspect.signature(gw.check).parameters) | set(FLAGS)
    assert theirs <= ours


def test_the_inputs_of_gradcheck_are_positional_here() -> None:
    with pytest.raises(OptionError, match="inputs: pass them by position"):
        gw.check(Exp, inputs=(x(3),))
