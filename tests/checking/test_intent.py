"""Markers in the source, the words of a sample and of ``check``, and what each declared intent is judged by."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import gradwright as gw
from gradwright.checking.intent import Marker, marker_of, read_marker
from gradwright.checking.report import Stated
from gradwright.checking.samples import declared_samples
from gradwright.checking.subject import as_subject
from gradwright.errors import OptionError, SampleError
from tests.defects.entries import rule
from tests.subjects import Exp, x

NUMBERS = itertools.count()
HEAD = "import torch\nimport gradwright as gw\nfrom torch.autograd import Function\n\n\n"
BODY = (
    "    @staticmethod\n    def forward(ctx, x):\n        return x.round()\n\n"
    "    @staticmethod\n    def backward(ctx, g):\n        return g\n"
)


def module(path: Path, text: str) -> ModuleType:
    """Import a file of this text, which follows the imports of :data:`HEAD`."""
    name = f"marked_{next(NUMBERS)}"
    file = path / f"{name}.py"
    file.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def marker(path: Path, text: str, name: str = "A") -> Marker | None:
    return read_marker(as_subject(getattr(module(path, text), name)))


MARKED = {
    "above": "# gradwright: surrogate\nclass A(Function):\n" + BODY,
    "above, under another comment": "# Rounds.\n# gradwright: surrogate\n# So.\nclass A(Function):\n" + BODY,
    "on the line": "class A(Function):  # gradwright: surrogate\n" + BODY,
    "on a line of the head": "class A(\n    Function,  # gradwright: surrogate\n):\n" + BODY,
    "in the body": "class A(Function):\n    # gradwright: surrogate\n\n" + BODY,
    "after a docstring": 'class A(Function):\n    """Round.\n\n    It."""\n    # gradwright: surrogate\n' + BODY,
    "above a decorator": "def same(c):\n    return c\n\n\n# gradwright: surrogate\n@same\nclass A(Function):\n" + BODY,
    "beside a decorator": "def same(c):\n    return c\n\n\n@same  # gradwright: surrogate\nclass A(Function):\n" + BODY,
    "below a decorator": "def same(c):\n    return c\n\n\n@same\n# gradwright: surrogate\nclass A(Function):\n" + BODY,
    "without spaces": "#gradwright:surrogate\nclass A(Function):\n" + BODY,
    "after another comment": "class A(Function):  # noqa: N801  # gradwright: surrogate\n" + BODY,
    "before another comment": "class A(Function):  # gradwright: surrogate  # straight through\n" + BODY,
    "with two signs": "## gradwright: surrogate\nclass A(Function):\n" + BODY,
    "in capitals": "# gradwright: Surrogate\nclass A(Function):\n" + BODY,
    "behind tabs": "if True:\n\t# gradwright: surrogate\n\tclass A(Function):\n"
    + textwrap.indent(BODY.replace("    ", "\t"), "\t"),
    "of the second of two": "class A(Function):\n" + BODY + "\n\n# gradwright: surrogate\nclass A(Function):\n" + BODY,
    "of a function": "# gradwright: surrogate\ndef A(x):\n    return x\n",
    "on the line of a function": "def A(\n    x,\n):  # gradwright: surrogate\n    return x\n",
    "of a custom gradient": "# gradwright: surrogate\n@gw.custom_gradient\ndef A(x):\n    return x.round()\n",
    "of an operator": (
        '@torch.library.custom_op("marked_words::rounded", mutates_args=())\n# gradwright: surrogate\n'
        "def A(x: torch.Tensor) -> torch.Tensor:\n    return x.round()\n"
    ),
    "of a base": "# gradwright: surrogate\nclass B(Function):\n" + BODY + "\n\nclass A(B):\n    pass\n",
}  # fmt: skip
UNMARKED = {
    "an empty line between": "# gradwright: surrogate\n\nclass A(Function):\n" + BODY,
    "in a method": "class A(Function):\n" + BODY + "        # gradwright: surrogate\n",
    "after the first method": "class A(Function):\n" + BODY + "\n    # gradwright: surrogate\n    k = 2\n",
    "above a method": "class A(Function):\n" + BODY + "    # gradwright: surrogate\n    def other(self): pass\n",
    "in a text": 'class A(Function):\n    """# gradwright: surrogate"""\n\n' + BODY,
    "at the end of a text": 's = """\n# gradwright: surrogate\n#"""\nclass A(Function):\n' + BODY,
    "of the first of two": "# gradwright: surrogate\nclass A(Function):\n" + BODY + "\n\nclass A(Function):\n" + BODY,
    "of the other branch": "if True:\n    class A(Function):\n" + textwrap.indent(BODY, "    ")
    + "else:\n    # gradwright: surrogate\n    class A(Function):\n" + textwrap.indent(BODY, "    "),
    "in a quotation": "# write `# gradwright: surrogate` here\nclass A(Function):\n" + BODY,
    "in the body of a function": "def A(x):\n    # gradwright: surrogate\n    return x\n",
    "of another class": "class A(Function):\n" + BODY + "\n\n# gradwright: surrogate\nclass B(Function):\n" + BODY,
    "of a subclass": "class A(Function):\n" + BODY + "\n\n# gradwright: surrogate\nclass B(A):\n    pass\n",
    "of what ends above": "def f():\n    pass\n    # gradwright: surrogate\nclass A(Function):\n" + BODY,
}  # fmt: skip


@pytest.mark.parametrize("text", MARKED.values(), ids=MARKED)
def test_a_marker_is_found(text: str, tmp_path: Path) -> None:
    found = marker(tmp_path, text)
    line = next(n for n, t in enumerate((HEAD + text).splitlines(), 1) if "gradwright:" in t)
    assert found == Marker(("surrogate",), line)


@pytest.mark.parametrize("text", UNMARKED.values(), ids=UNMARKED)
def test_what_is_no_marker_of_a_subject_is_not_taken_for_one(text: str, tmp_path: Path) -> None:
    assert marker(tmp_path, text) is None


def test_a_class_has_its_own_marker_rather_than_that_of_its_base(tmp_path: Path) -> None:
    text = "# gradwright: surrogate\nclass B(Function):\n" + BODY + "\n\n# gradwright: exact\nclass A(B):\n    pass\n"
    found = marker(tmp_path, text)
    assert found is not None
    assert found.words == ("exact",)


def test_several_words(tmp_path: Path) -> None:
    found = marker(tmp_path, "# gradwright: first-order-only, surrogate\nclass A(Function):\n" + BODY)
    assert found == Marker(("surrogate", "first-order-only"), 6)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            "surogate",
            r"line 6: got 'surogate'; expected one or several of exact, surrogate,.* Did you mean 'surrogate'\?",
        ),
        ("surrogate first-order-only", r"got 'surrogate first-order-only'.*with commas between them"),
        ("", r"line 6: got ''; expected"),
        ("exact, surrogate", r"exact and surrogate exclude each other; keep one of them\."),
    ],
)
def test_a_marker_that_is_not_understood_is_said(words: str, problem: str, tmp_path: Path) -> None:
    made = module(tmp_path, f"# gradwright: {words}\nclass A(Function):\n{BODY}")
    report = gw.check(made.A, x(3), only=["gradient-count"])
    assert len(report.notes) == 1
    assert re.search(problem, report.notes[0]), report.notes[0]
    assert report.intent is None


def test_the_rules_on_the_page_are_what_they_declare(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "intent.md").read_text(encoding="utf-8")
    made = module(tmp_path, "\n\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)))
    inputs = {"RoundSTE": (3 * x(4),), "Reverse": (x(4), 0.3), "AddLoss": (x(4), x(1)), "Histogram": (x(4),)}
    subjects = {name: each for name, each in vars(made).items() if isinstance(each, type) and each is not Function}
    assert len(subjects) == 5
    for name, subject in subjects.items():
        report = gw.check(subject, *inputs.get(name, (x(3),)), level="quick")
        assert report, str(report)
        assert report.intent is not None
        assert report.intent.origin == "declared"


def test_what_cannot_be_read_has_no_marker() -> None:
    assert marker_of(rule(lambda x: x, lambda g, x: g)) is None
    assert read_marker(as_subject(functools.partial(torch.add, torch.ones(3)))) is None


class Round(Function):
    # gradwright: surrogate

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


def test_a_report_says_who_declares_it() -> None:
    report = gw.check(Round, 3 * x(4), level="quick")
    assert report
    assert report.intent is not None
    assert (report.intent.value, report.intent.origin) == (("surrogate",), "declared")
    assert re.fullmatch(r"the marker in line \d+", report.intent.evidence)
    assert not report.notes
    row = report.to_dict()["subjects"][0]
    assert row["intent"] == {"value": ["surrogate"], "origin": "declared", "evidence": report.intent.evidence}


def test_the_sample_and_the_option_are_heard_before_the_marker() -> None:
    report = gw.check(Round, 3 * x(4), intent="exact", level="quick")
    assert [r.id for r in report.failed] == ["matches-differences"]
    assert report.intent == Stated(("exact",), "declared", "the sample")


def test_nothing_is_declared_of_most_functions() -> None:
    report = gw.check(Exp, x(3), level="quick")
    assert report.intent is None
    assert report.to_dict()["subjects"][0]["intent"] is None
    exp = gw.check(Exp, x(3), surrogate=torch.exp, level="quick")
    assert exp.intent == Stated(("surrogate",), "declared", "surrogate=")


def test_the_key_of_a_sample() -> None:
    (sample,) = declared_samples({"args": (x(3),), "intent": "surrogate, first-order-only"}, "Round")
    assert sample.intent == ("surrogate", "first-order-only")
    (sample,) = declared_samples({"args": (x(3),), "intent": ["scaled"]}, "Round")
    assert sample.intent == ("scaled",)


@pytest.mark.parametrize(
    ("intent", "words"),
    [
        ("reverse", r"^Round: sample 1: `intent`: got 'reverse'; expected one or several.* Did you mean 'reversed'\?$"),
        (3, r"`intent`: is of type int; expected one or several of exact"),
        (["exact", "scaled"], r"`intent`: exact and scaled exclude each other"),
    ],
)
def test_a_sample_with_an_intent_that_does_not_exist(intent: Any, words: str) -> None:
    with pytest.raises(SampleError, match=words):
        declared_samples({"args": (x(3),), "intent": intent}, "Round")


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(OptionError, match=r"^intent: got 'reverse'; expected one or several of exact"):
        gw.check(Exp, x(3), intent="reverse")  # type: ignore[arg-type]


# ---------------------------------------------------------------- surrogate


def test_all_but_differences_is_asked_of_a_surrogate() -> None:
    broken = rule(lambda x: x.round(), lambda g, x: g.mul_(2), name="Round")
    report = gw.check(broken, 3 * x(4), intent="surrogate", level="standard", skip=("compile", "compile-with-func"))
    assert [r.id for r in report.failed] == ["cotangent-untouched"]
    assert report["matches-differences"].verdict == "skipped"
    assert "declared a surrogate" in report["matches-differences"].message


def test_a_surrogate_whose_backward_raises() -> None:
    def backward(g: Tensor, x: Tensor) -> Tensor:
        raise ValueError("not so")

    report = gw.check(rule(lambda x: x.round(), backward), x(3), intent="surrogate", level="quick")
    assert [r.id for r in report.failed] == ["matches-differences"]
    assert "backward raises ValueError: not so" in report["matches-differences"].message


def test_a_second_derivative_of_a_surrogate_is_that_of_the_rule() -> None:
    spike = rule(lambda v: (v > 0).to(v), lambda g, v: g / (1 + v.detach().square()), name="Spike")
    report = gw.check(spike, x(4), intent="surrogate", level="quick")
    assert [r.id for r in report.failed] == ["second-order"]


def test_a_reference_of_a_surrogate_is_compared_by_value() -> None:
    report = gw.check(Round, 3 * x(4), reference=torch.round, only=["matches-reference"])
    assert report["matches-reference"].verdict == "pass"
    assert report["matches-reference"].message.startswith("value agrees with the reference")


def test_other_shapes_and_values_of_a_surrogate() -> None:
    assert gw.check(Round, 3 * x(4), only=["shapes", "extreme-values", "low-precision"]).verdict == "pass"
    short = rule(lambda x: x.round(), lambda g, x: g[:64] if x.ndim == 1 else g, name="Short")
    report = gw.check(short, 3 * x(4), intent="surrogate", only=["shapes"])
    assert [r.id for r in report.failed] == ["shapes"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        return Round.apply(3 * self.first(x))  # type: ignore[no-untyped-call]


def test_a_module_that_goes_through_a_marked_function() -> None:
    torch.manual_seed(0)
    result = gw.check(Net(), x(2, 3), level="quick")["matches-differences"]
    assert result.verdict == "skipped"
    assert "on purpose: Round takes part, which declares that" in result.message


class Penalised(Function):
    # gradwright: side-loss

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g + x.sign()


def test_a_function_that_goes_through_a_marked_side_loss() -> None:
    report = gw.check(lambda x: Penalised.apply(x.sin()), x(4), level="quick")  # type: ignore[no-untyped-call]
    assert report, str(report)
    for contract in ("linear-in-cotangent", "matches-differences"):
        assert report[contract].verdict == "skipped"
        assert "Penalised takes part, which declares" in report[contract].message


# ---------------------------------------------------------------- scaled, reversed


def test_a_scaled_gradient() -> None:
    scaled = rule(lambda x, y: (x * y).relu(), lambda g, x, y: (0.5 * g * y * (x * y > 0), 3 * g * x * (x * y > 0)))
    result = gw.check(scaled, x(5), x(5) + 0.3, intent="scaled", level="quick")["matches-differences"]
    assert result.verdict == "pass"
    assert result.message.startswith("scaled by 0.5 for `x`, 3 for `y`; apart from that: 50 entries")


def test_a_scaled_gradient_at_a_kink() -> None:
    scaled = rule(lambda x: x.abs(), lambda g, x: 0.5 * g * torch.where(x < 0, -1.0, 1.0).to(x), name="Scaled")
    kinked = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
    assert gw.check(scaled, kinked, intent="scaled", only=["matches-differences"]).verdict == "pass"
    more = rule(lambda x: x.abs(), lambda g, x: 0.5 * g * torch.where(x == 0, 3.0, x.sign()).to(x), name="Scaled")
    assert not gw.check(more, kinked, intent="scaled", only=["matches-differences"])


def test_a_large_scaled_gradient_is_compared_by_projections() -> None:
    scaled = rule(lambda x: x @ x.mT, lambda g, x: 0.5 * (g + g.mT) @ x, name="Scaled")
    result = gw.check(scaled, x(24, 24), intent="scaled", only=["matches-differences"])["matches-differences"]
    assert result.verdict == "pass"
    assert re.search("scaled by 0.5 for `x`.*projections", result.message)
    wrong = rule(lambda x: x @ x.mT, lambda g, x: 0.5 * (g + g.mT) @ x + 1e-3 * g * (x > 1), name="Scaled")
    assert not gw.check(wrong, x(24, 24), intent="scaled", only=["matches-differences"])


def test_a_factor_that_is_not_constant() -> None:
    one = rule(lambda x: x.exp(), lambda g, x: torch.cat([g[:1], 0.5 * g[1:]]) * x.exp(), name="Scaled")
    result = gw.check(one, x(6), intent="scaled", level="quick")["matches-differences"]
    assert result.verdict == "fail"
    assert "declared scaled, but not by one constant factor for each input (mostly 0.5 for `x`)" in result.message
    assert "wrong in 1 of 6 elements" in result.message


def test_an_input_that_the_output_does_not_move_with_has_no_factor() -> None:
    odd = rule(lambda x, y: x.exp() + 0 * y, lambda g, x, y: (0.5 * g * x.exp(), g), name="Scaled")
    assert not gw.check(odd, x(4), x(4), intent="scaled", only=["matches-differences"])


@pytest.mark.parametrize(
    ("factor", "intent", "verdict", "words"),
    [
        (-0.5, "reversed", "pass", "reversed by -0.5 for `x`; apart from that"),
        (0.5, "scaled", "pass", "scaled by 0.5 for `x`; apart from that"),
        (0.5, "reversed", "fail", "declared reversed, but the factor is positive: 0.5 for `x`."),
        (-0.5, "scaled", "fail", "declared scaled, but the factor is negative: -0.5 for `x`."),
        (-0.5, "scaled, reversed", "pass", "reversed and scaled by -0.5 for `x`"),
        (1.0, "scaled", "pass", "scaled by 1 for `x`"),
        (0.0, "reversed", "unresolved", "where it is 0, nothing is told; give another sample"),
    ],
)
def test_the_sign_of_a_factor(factor: float, intent: Any, verdict: str, words: str) -> None:
    reverse = rule(lambda x, a: x.sin(), lambda g, x, a: (a * g * x.cos(), None), name="Reverse")
    result = gw.check(reverse, x(4), factor, intent=intent, level="quick")["matches-differences"]
    assert result.verdict == verdict
    assert words in result.message


# ---------------------------------------------------------------- side-loss

SIDE = rule(lambda x, loss: x * 1, lambda g, x, loss: (g, torch.full_like(loss, 0.7)), name="Side")
PENALTY = rule(lambda x: x.exp(), lambda g, x: g * x.exp() + 100 * x.sign(), name="Penalty")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_loss_that_is_added_by_its_gradient(dtype: torch.dtype) -> None:
    checked = {"intent": "side-loss", "skip": ("compile", "compile-with-func", "export")}
    for subject, inputs in ((SIDE, (x(4).to(dtype), x(1).to(dtype))), (PENALTY, (x(4).to(dtype),))):
        report = gw.check(subject, *inputs, **checked)  # type: ignore[arg-type]
        assert report.verdict in ("pass", "unsupported"), str(report)
        assert report["matches-differences"].message.startswith("apart from what is added whatever comes in: ")
        assert report["linear-in-cotangent"].message.startswith("apart from what is declared to be added")


@pytest.mark.parametrize(
    ("backward", "contract"),
    [
        (lambda g, x, loss: (2 * g, torch.ones_like(loss)), "matches-differences"),
        (lambda g, x, loss: (g.abs(), torch.ones_like(loss)), "linear-in-cotangent"),
        (lambda g, x, loss: (g, torch.ones_like(loss) + g.sum()), "matches-differences"),
        (lambda g, x, loss: (g, torch.ones_like(loss) + g.square().sum()), "linear-in-cotangent"),
    ],
)
def test_what_a_side_loss_may_not_do(backward: Any, contract: str) -> None:
    report = gw.check(rule(lambda x, loss: x * 1, backward), x(4), x(1), intent="side-loss", level="quick")
    assert contract in [r.id for r in report.failed]


# ---------------------------------------------------------------- forward-only


def raising(g: Tensor, x: Tensor) -> Tensor:
    raise NotImplementedError("there is none")


class NoBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.exp()


class Marked(NoBackward):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        ctx.mark_non_differentiable(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None


@pytest.mark.parametrize(
    "subject", [NoBackward, Marked, rule(lambda x: x.exp(), raising), rule(lambda x: x.exp(), lambda g, x: None)]
)
def test_a_rule_without_a_gradient(subject: Any) -> None:
    report = gw.check(subject, x(3), intent="forward-only", skip=("compile", "compile-with-func"))
    assert not report.failed, str(report)
    assert report["matches-differences"].verdict == "skipped"
    assert "declared forward-only" in report["matches-differences"].message
    assert report["second-order"].verdict in ("skipped", "pass")
    required = gw.check(NoBackward, x(3), intent="forward-only", require=("second-order",), level="quick")
    assert [r.id for r in required.failed] == ["second-order"]


def test_a_gradient_that_comes_is_checked_all_the_same() -> None:
    wrong = rule(lambda x: x.exp(), lambda g, x: g, name="Forward")
    assert [r.id for r in gw.check(wrong, x(3), intent="forward-only", level="quick").failed] == ["matches-differences"]


# ---------------------------------------------------------------- first-order-only


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.exp()


ASKED = ("second-order", "gradient-penalty", "matches-differences")
SILENT = rule(lambda x: x.exp(), lambda g, x: g * x.detach().exp(), name="Silent")


def test_a_second_derivative_that_raises_is_as_declared() -> None:
    assert gw.check(Once, x(3), level="quick")["second-order"].verdict == "unsupported"
    report = gw.check(Once, x(3), intent="first-order-only", only=ASKED)
    for contract in ASKED[:2]:
        assert report[contract].verdict == "skipped"
        assert report[contract].message.startswith("declared first-order-only: ")
    assert report["matches-differences"].verdict == "pass"


def test_a_second_derivative_that_is_silently_wrong_is_a_finding() -> None:
    (failed,) = gw.check(SILENT, x(3), intent="first-order-only", level="quick").failed
    assert failed.id == "second-order"
    assert "@once_differentiable" in str(failed.findings[0].hint)
    assert 'double_backward="once"' in str(failed.findings[0].hint)


def test_second_derivatives_under_func_are_not_asked_for() -> None:
    once = gw.define(torch.exp, vjp=lambda g, out: g * out, double_backward="once")
    rows = {row.transform: row for row in gw.check(once, x(3), only=["func-transforms"]).support}
    assert rows["hessian"].verdict == "unsupported"
    report = gw.check(once, x(3), intent="first-order-only", only=["func-transforms"])
    rows = {row.transform: row for row in report.support}
    assert rows["hessian"].verdict == rows["grad of grad"].verdict == "skipped"
    assert rows["hessian"].reason.startswith("declared first-order-only: ")
    assert rows["vjp"].verdict == "pass"
    assert report["func-transforms"].verdict == "pass"
