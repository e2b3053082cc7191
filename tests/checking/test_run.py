"""check: options, verdicts over several samples, required and presupposed contracts, guessed inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.contracts import all_contracts
from gradwright.checking.earlier import FORWARD, SHRINKING, Earlier
from gradwright.checking.report import ContractResult, Report, Support
from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from gradwright.errors import ForwardError, OptionError, SampleError, SubjectTypeError
from tests.subjects import Exp, NumpySquare, RoundSTE, Scale, SinCos, variant, x

WrongSign = variant(Exp, "WrongSign", backward=lambda ctx, g: -g * ctx.saved_tensors[0])


def test_assert_reads_as_it_should() -> None:
    assert gw.check(Exp, x(3))
    assert not gw.check(WrongSign, x(3))
    assert repr(gw.check(WrongSign, x(3))) == "<Report WrongSign: FAIL matches-differences>"


@pytest.mark.parametrize("target", [Exp, Exp.apply, lambda t: Exp.apply(t), torch.exp])
def test_every_way_to_name_the_same_function(target: Any) -> None:
    report = gw.check(target, x(3))
    assert report.ok
    assert report["matches-differences"].verdict == "pass"


def test_module_by_parameter_name() -> None:
    class Bad(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, t: Tensor) -> Tensor:
            return t * self.scale.detach() + 0 * self.scale

    (finding,) = gw.check(Bad(), x(3)).findings
    assert finding.where is not None
    assert finding.where.input == "scale"


def test_custom_op_with_a_registered_gradient() -> None:
    @torch.library.custom_op("gradwright_test::half", mutates_args=())
    def half(t: Tensor) -> Tensor:
        return t / 2

    half.register_autograd(lambda ctx, g: g / 2)
    assert gw.check(half, x(3))["matches-differences"].verdict == "pass"

    @torch.library.custom_op("gradwright_test::third", mutates_args=())
    def third(t: Tensor) -> Tensor:
        return t / 3

    third.register_autograd(lambda ctx, g: g / 2)
    assert gw.check(third, x(3))["matches-differences"].verdict == "fail"


def test_keyword_arguments() -> None:
    assert gw.check(Scale, x(3), kwargs={"k": 3})["gradient-count"].verdict == "pass"
    assert gw.check(torch.nn.functional.softmax, x(3, 4), kwargs={"dim": 1}).ok


def test_surrogate_replaces_differences() -> None:
    report = gw.check(RoundSTE, x(3), surrogate=lambda t: t)
    assert report["matches-surrogate"].verdict == "pass"
    assert report["matches-differences"].verdict == "skipped"
    undeclared = gw.check(RoundSTE, x(3))
    assert undeclared["matches-differences"].verdict == "suspect"
    assert "surrogate=" in (undeclared.findings[0].hint or "")


def test_only_skip_and_levels() -> None:
    assert [r.id for r in gw.check(Exp, x(3), only="gradient-count").results] == ["gradient-count"]
    assert "gradient-count" not in [r.id for r in gw.check(Exp, x(3), skip=["gradient-count"]).results]
    assert gw.check(Exp, x(3), level="quick").level == "quick"


def test_require_turns_unsupported_into_a_failure() -> None:
    assert gw.check(NumpySquare, x(3))["second-order"].verdict == "unsupported"
    assert gw.check(NumpySquare, x(3)).ok
    required = gw.check(NumpySquare, x(3), require="second-order")
    assert required["second-order"].verdict == "fail"
    assert not required


def test_what_is_required_is_examined_at_any_level() -> None:
    report = gw.check(Exp, x(3), level="quick", only="gradient-count", require="checkpoint")
    assert [r.id for r in report.results] == ["gradient-count", "checkpoint"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"level": "thorough"}, OptionError, "level: got 'thorough'; expected one of quick, standard, full"),
        (
            {"only": "gradient-cuont"},
            OptionError,
            "^only: got 'gradient-cuont'. Did you mean 'gradient-count'. Expected",
        ),
        ({"skip": ["nothing"]}, OptionError, "^skip: got 'nothing'. Expected a name that `gradwright explain` lists.$"),
        ({"require": ["nothing"]}, OptionError, "require: got 'nothing'"),
        ({"seed": -1}, OptionError, "seed: got -1"),
        ({"seed": 1.5}, OptionError, "seed: got 1.5"),
        ({"require": "vmap", "skip": ["vmap"]}, OptionError, "require: vmap is left out by skip"),
        ({"surrogate": 3}, OptionError, "surrogate: got an object of type int"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        gw.check(Exp, x(3), **options)


def test_bad_subjects_and_inputs() -> None:
    with pytest.raises(SubjectTypeError):
        gw.check("Exp", x(3))
    with pytest.raises(SampleError, match="forward takes"):
        gw.check(Exp, x(3), x(3))
    with pytest.raises(ForwardError, match="forward raised"):
        gw.check(torch.matmul, x(3, 2), x(3, 2))
    with pytest.raises(gw.GradwrightError):
        gw.check(Exp, 3.0)


def test_same_seed_same_report() -> None:
    a, b = (gw.check(WrongSign, x(3), seed=5) for _ in range(2))
    assert [f.analytic for f in a.findings] == [f.analytic for f in b.findings]
    assert [f.numeric for f in a.findings] == [f.numeric for f in b.findings]


def test_the_global_random_stream_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    gw.check(lambda t: torch.nn.functional.dropout(t, 0.5), x(10))
    assert torch.equal(torch.rand(2), expected)


def test_every_global_random_state_is_put_back() -> None:
    import random

    import numpy as np

    before = random.getstate(), np.random.get_state()[1].tolist()
    gw.check(lambda t: t * random.random() * float(np.random.rand()), x(3), only="matches-differences")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_backward_that_exits_is_reported() -> None:
    def exits(ctx: Any, g: Tensor) -> Any:
        raise SystemExit(0)

    report = gw.check(variant(Exp, "Exits", backward=exits), x(3), level="quick")
    assert "SystemExit" in report["matches-differences"].message
    assert not report


class Odd(BaseException):
    """Not an Exception, as pytest's skip and asyncio's cancellation are not."""


@pytest.mark.parametrize("error", [Odd, SystemExit, GeneratorExit])
def test_whatever_user_code_raises_is_its_failure(error: type[BaseException]) -> None:
    def raises(ctx: Any, g: Tensor) -> Any:
        raise error("odd")

    with pytest.raises(ForwardError, match=f"forward raised {error.__name__}: odd"):
        gw.check(variant(Exp, "Raises", forward=raises), x(3))
    report = gw.check(variant(Exp, "Raises", backward=raises), x(3), level="quick")
    assert report["matches-differences"].verdict == "fail"
    assert error.__name__ in report["matches-differences"].message


def test_an_interrupt_stops_the_check() -> None:
    def raises(ctx: Any, g: Tensor) -> Any:
        raise KeyboardInterrupt

    for method in ("forward", "backward"):
        with pytest.raises(KeyboardInterrupt):
            gw.check(variant(Exp, "Interrupted", **{method: raises}), x(3), level="quick")


def test_an_error_that_comes_late_does_not_end_the_check() -> None:
    calls = 0

    def forward(ctx: Any, t: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise Odd("late")
        ctx.save_for_backward(t.exp())
        return t.exp()

    report = gw.check(variant(Exp, "Late", forward=forward), x(3), level="quick")
    assert report.unresolved


def test_a_backward_that_hangs_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from gradwright.checking import run

    def hangs(ctx: Any, g: Tensor) -> Any:
        while True:
            time.sleep(0.01)

    monkeypatch.setitem(run.SECONDS_PER_CONTRACT, "quick", 0.2)
    start = time.monotonic()
    report = gw.check(variant(Exp, "Hangs", backward=hangs), x(3), level="quick")
    assert time.monotonic() - start < 5
    assert any("not tried" in result.message for result in report.unresolved)
    assert not report, "what hangs has not passed"
    assert len(report.ended) == 1
    assert str(report).startswith("? Hangs: ended early")


def test_a_forward_that_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from gradwright.checking import run

    def hangs(ctx: Any, t: Tensor) -> Any:
        while True:
            time.sleep(0.01)

    monkeypatch.setitem(run.SECONDS_PER_CONTRACT, "quick", 0.2)
    monkeypatch.setattr(run, "SECONDS_TO_BEGIN", 0.2)
    with pytest.raises(ForwardError, match=r"Hangs: forward did not return within 0.2 s"):
        gw.check(variant(Exp, "Hangs", forward=hangs), x(3), level="quick")


def test_outputs_that_cannot_be_found_are_an_error() -> None:
    import types

    with pytest.raises(SampleError, match="returned no tensor that can be found"):
        gw.check(lambda t: types.SimpleNamespace(a=t * 2), x(3))


def several(target: Any, *samples: Sample) -> Report:
    return check_subject(as_subject(target), samples, seed=0)


def test_one_bad_sample_fails_the_subject() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0] * (1 if g.dim() == 1 else 2)

    report = several(variant(Exp, "Shape", backward=backward), Sample((x(3),)), Sample((x(2, 2),)))
    assert report["matches-differences"].verdict == "fail"
    assert len(report["matches-differences"].findings) == 1
    assert len(report.samples) == 2


def test_pass_on_one_sample_outweighs_skip_on_another() -> None:
    report = several(RoundSTE, Sample((x(3),), surrogate=lambda t: t), Sample((x(4),), surrogate=lambda t: t))
    assert report["matches-surrogate"].verdict == "pass"


@pytest.mark.parametrize("provenance", ["typed", "synthesised"])
def test_guessed_inputs_make_suspicions_only(provenance: Any) -> None:
    report = several(WrongSign, Sample((x(3),), provenance=provenance))
    assert report["matches-differences"].verdict == "suspect"
    assert report.ok
    assert "guessed" in (report.findings[0].hint or "")
    few = variant(Scale, "Few", backward=lambda ctx, g: g)
    assert several(few, Sample((x(3), 2), provenance=provenance))["gradient-count"].verdict == "fail"


def test_consequences_are_not_accused_twice() -> None:
    report = gw.check(WrongSign, x(3))
    assert report["second-order"].verdict == "skipped"
    assert "matches-differences" in report["second-order"].message


def tanh_with_jvp(jvp: Any) -> Any:
    """A tangent hyperbolic in the two-part style whose forward mode is given."""

    class Tanh(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(t: Tensor) -> Tensor:
            return t.tanh()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (t,) = ctx.saved_tensors
            return g / t.cosh() ** 2

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            (t,) = ctx.saved_tensors
            result: Tensor = jvp(tangent) / t.cosh() ** 2
            return result

    return Tanh


def overwriting(ctx: Any, g: Tensor) -> Tensor:
    return g.mul_(ctx.saved_tensors[0])


def clobbering(ctx: Any, g: Tensor) -> Tensor:
    (out,) = ctx.saved_tensors
    grad = g * out
    out.data.mul_(2)
    return grad


@pytest.mark.parametrize(
    ("subject", "reported"),
    [
        (variant(Exp, "TooMany", backward=lambda ctx, g: [g * ctx.saved_tensors[0], None]), "gradient-count"),
        (variant(Exp, "Factor", backward=lambda ctx, g: ctx.saved_tensors[0]), "linear-in-cotangent"),
        (variant(Exp, "Added", backward=lambda ctx, g: g + ctx.saved_tensors[0]), "linear-in-cotangent"),
        (variant(Exp, "Half", backward=lambda ctx, g: g.half().double() * ctx.saved_tensors[0]), "linear-in-cotangent"),
        (variant(Exp, "Cast", backward=lambda ctx, g: (g * ctx.saved_tensors[0]).float()), "gradient-shape-and-dtype"),
        (
            variant(Exp, "Wider", backward=lambda ctx, g: (g * ctx.saved_tensors[0]).expand(4, 3)),
            "gradient-shape-and-dtype",
        ),
        (variant(Exp, "Overwrites", backward=overwriting), "cotangent-untouched"),
        (variant(Exp, "Clobbers", backward=clobbering), "saved-untouched"),
        (tanh_with_jvp(lambda t: 2 * t), "modes-agree"),
        (tanh_with_jvp(torch.abs), "modes-agree"),
        (variant(Exp, "Sign", backward=lambda ctx, g: -g * ctx.saved_tensors[0]), "matches-differences"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_one_mistake_is_reported_by_one_contract(subject: Any, reported: str) -> None:
    report = gw.check(subject, x(3), skip=["compile"])
    accused = [r.id for r in report.results if r.verdict in ("fail", "suspect")]
    assert accused == [reported]
    for row in report.results:
        if "not judged while" in row.message:
            assert f"not judged while {reported} fails" in row.message, "the root of the failures is named"


def test_a_wrong_derivative_does_not_excuse_what_cannot_follow_from_it() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -g.mul_(ctx.saved_tensors[0])

    report = gw.check(variant(Exp, "Twice", backward=backward), x(3), skip=["compile"])
    assert report["cotangent-untouched"].verdict == "fail"
    assert report["matches-differences"].message.startswith("not judged while cotangent-untouched fails")
    backward_alone = variant(Exp, "Once", backward=lambda ctx, g: -g * ctx.saved_tensors[0])
    assert gw.check(backward_alone, x(3), skip=["compile"])["matches-differences"].verdict == "fail"


def test_no_contract_presupposes_itself_by_a_detour() -> None:
    contracts = all_contracts()

    def above(i: str, seen: tuple[str, ...] = ()) -> None:
        assert i not in seen, f"{' -> '.join([*seen, i])}: both could be excused, and nothing reported"
        assert i in contracts
        for other in contracts[i].presupposes:
            above(other, (*seen, i))

    for i in contracts:
        above(i)


def test_observer_hears_of_every_contract() -> None:
    heard: list[tuple[str, float]] = []
    delivered: list[ContractResult] = []
    report = check_subject(
        as_subject(Exp),
        [Sample((x(3),)), Sample((x(2),))],
        only=("gradient-count", "second-order"),
        seconds=9.0,
        observe=lambda what, seconds: heard.append((what, seconds)),
        deliver=delivered.append,
    )
    assert heard == [(what, 9.0) for what in (FORWARD, FORWARD, *sorted(["gradient-count", "second-order"] * 2))]
    assert tuple(delivered) == report.results


def test_what_is_known_from_earlier_is_not_examined_again() -> None:
    heard: list[str] = []
    known = gw.check(Exp, x(3), only="gradient-count")["gradient-count"]
    report = check_subject(
        as_subject(Exp),
        [Sample((x(3),))],
        only=("gradient-count", "second-order", "matches-differences"),
        observe=lambda what, seconds: heard.append(what),
        earlier=Earlier({"gradient-count": known}, {"second-order": "the process was ended"}),
    )
    assert heard == [FORWARD, "matches-differences"]
    assert report["gradient-count"] is known
    assert report["second-order"].verdict == "unresolved"
    assert report["second-order"].message == "the process was ended"
    assert report.ended == ("second-order",)
    assert not report
    assert not report.failed
    assert repr(report) == "<Report Exp: ENDED second-order>"


@pytest.mark.parametrize(("lost", "tried"), [({}, True), ({SHRINKING: "ended"}, False)])
def test_findings_are_not_made_smaller_where_that_ended_a_process(lost: dict[str, str], tried: bool) -> None:
    heard: list[str] = []
    report = check_subject(
        as_subject(WrongSign),
        [Sample((x(3, 4),))],
        only="matches-differences",
        observe=lambda what, seconds: heard.append(what),
        earlier=Earlier(lost=lost),
    )
    assert (SHRINKING in heard) == tried
    assert [result.id for result in report.failed] == ["matches-differences"]
    assert report.ended == ()


def test_what_is_given_up_is_not_examined() -> None:
    report = check_subject(
        as_subject(Exp),
        [Sample((x(3),))],
        only=("gradient-count", "second-order"),
        earlier=Earlier(lost={"gradient-count": "ended"}, given_up="no more"),
    )
    assert [result.message for result in report.results] == ["ended", "no more"]


def test_a_time_limit_may_be_given() -> None:
    import time

    def hangs(t: Tensor) -> Tensor:
        while True:
            time.sleep(0.01)

    with pytest.raises(ForwardError, match=r"hangs: forward did not return within 0\.1 s"):
        check_subject(as_subject(hangs), [Sample((x(3),))], seconds=0.1)


def test_remarks() -> None:
    report = gw.check(lambda t: torch.nn.functional.dropout(Exp.apply(t), 0.5), x(5))
    assert any("random numbers" in note for note in report.notes)
    assert any("Exp" in note for note in report.notes)


def test_crash_inside_a_contract_is_said_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwright.checking.contracts import all_contracts

    def crash(case: Any) -> Any:
        raise RuntimeError("unforeseen")

    contracts = all_contracts()
    monkeypatch.setitem(contracts["second-order"].__dict__, "examine", crash)
    report = gw.check(Exp, x(3))
    assert report["second-order"].verdict == "unresolved"
    assert "unforeseen" in report["second-order"].message
    assert report["matches-differences"].verdict == "pass"


def test_time_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from gradwright.checking import run

    def slow(t: Tensor) -> Tensor:
        time.sleep(0.02)
        return t * 2

    monkeypatch.setitem(run.SECONDS_PER_CONTRACT, "standard", 0.1)
    report = gw.check(slow, x(20), only="matches-differences")
    assert report["matches-differences"].verdict == "unresolved"
    assert "stopped after 0.1 s" in report["matches-differences"].message


def test_two_outputs() -> None:
    report = gw.check(SinCos, x(4), skip=("vmap", "func-transforms", "compile", "modes-agree"))
    assert {r.verdict for r in report.results} <= {"pass", "skipped"}


def test_support_is_put_together_from_all_samples() -> None:
    report = check_subject(as_subject(Exp), [Sample((x(3),)), Sample((x(2, 2),))], only=("vmap", "checkpoint"), seed=0)
    rows = {row.transform: row for row in report.support}
    assert list(rows) == ["checkpoint", "checkpoint (reentrant)", "vmap", "batched gradients"]
    assert rows["vmap"].verdict == "unsupported"
    assert "setup_context" in rows["vmap"].reason
    assert rows["batched gradients"] == Support("batched gradients", "pass", "")


def test_support_names_contracts_that_are_a_transform_by_themselves() -> None:
    report = gw.check(NumpySquare, x(3), only=("second-order", "gradient-count"), seed=0)
    (row,) = report.support
    assert (row.transform, row.verdict) == ("double backward", "unsupported")
    assert "once_differentiable" in row.reason


def test_support_follows_a_verdict_that_was_softened_or_set_aside() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 7 * g * (2 if torch._C._functorch.is_legacy_batchedtensor(g) else 1) + 1

    wrong = variant(Exp, "Wrong", backward=backward)
    report = gw.check(wrong, x(3), only=("linear-in-cotangent", "vmap"), seed=0)
    assert report["vmap"].verdict == "skipped"
    rows = {row.transform: row for row in report.support}
    assert rows["batched gradients"].verdict == "skipped"
    assert "linear-in-cotangent" in rows["batched gradients"].reason
