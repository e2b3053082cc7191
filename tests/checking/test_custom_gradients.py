"""Functions with a custom gradient as subjects: recognised, found in files, checked like Functions."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.discovery import discover
from gradwright.checking.subject import as_subject
from tests.authoring.examples import EXAMPLES, Example, exp, x

sign = gw.surrogate(torch.sign, through=torch.tanh)
tanh = gw.elementwise(torch.tanh, derivative=lambda x, out: 1 - out * out)


@gw.custom_gradient
def off_by_two(x: Tensor) -> Tensor:
    return torch.exp(x)


@off_by_two.vjp
def off_by_two_vjp(g: Tensor, out: Tensor) -> Tensor:
    return 2 * g * out


CAPTURED = x(3).requires_grad_()


@gw.custom_gradient
def capturing(x: Tensor) -> Tensor:
    return x * CAPTURED


@capturing.vjp
def capturing_vjp(g: Tensor) -> Tensor:
    return g * CAPTURED


def test_it_is_a_kind_of_its_own() -> None:
    subject = as_subject(exp)
    assert (subject.kind, subject.name, subject.signature) == ("custom gradient", "exp", "(x)")
    assert subject.hand_written
    assert Path(subject.file or "").name == "examples.py"
    assert as_subject(torch.exp).kind == "callable"
    assert as_subject(tanh).signature == "(x)"


def test_a_wrong_rule_fails() -> None:
    report = gw.check(off_by_two, x(3), level="quick")
    assert not report
    assert "off by the factor 2" in report["matches-differences"].message
    assert not [note for note in report.notes if "check the class itself" in note]


def test_a_captured_tensor_is_seen() -> None:
    with pytest.warns(UserWarning, match="capturing: it uses `CAPTURED`, which requires grad, without receiving it"):
        report = gw.check(capturing, x(3), level="quick")
    assert report["gradients-reach-leaves"].verdict == "fail"


def test_the_surrogate_that_a_function_declares_is_known() -> None:
    report = gw.check(sign, x(3))
    assert report
    assert report["matches-surrogate"].verdict == "pass"
    assert report["matches-differences"].verdict == "skipped"
    assert gw.check(sign, x(3), surrogate=torch.atan, level="quick")["matches-surrogate"].verdict == "fail"


def arguments_of(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    seen: list[Any] = []
    example.call(lambda *args, **kwargs: seen.append((args, kwargs)), *example.inputs)
    return seen[0]  # type: ignore[no-any-return]


each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.name}{len(e.inputs)}")
SURROGATES = {"ste_round": lambda x: x, "reverse": lambda x, by: -by * x}


@each_example
def test_every_example_passes(example: Example) -> None:
    args, kwargs = arguments_of(example)
    report = gw.check(example.function, *args, kwargs=kwargs, surrogate=SURROGATES.get(example.name))
    assert report
    assert not report.unresolved
    assert bool(report.unsupported) == bool(example.refuses)


@pytest.mark.slow
@pytest.mark.compile
@each_example
def test_every_example_passes_in_full(example: Example) -> None:
    args, kwargs = arguments_of(example)
    surrogate = SURROGATES.get(example.name)
    # PyTorch does not export rules: trained, the exported function has the derivative of its operations. Ours warns.
    skip = ("export",) if surrogate is not None else ()
    assert gw.check(example.function, *args, kwargs=kwargs, surrogate=surrogate, level="full", skip=skip)


def test_they_are_found_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "decorated_ops.py").write_text(
        textwrap.dedent("""
            import torch
            import gradwright as gw
            from tests.authoring.examples import exp  # not defined here

            @gw.custom_gradient
            def double(x: torch.Tensor) -> torch.Tensor:
                return x * 2

            @double.vjp
            def double_vjp(g):
                return g * 2

            class Layer:
                @gw.custom_gradient
                def triple(self, x):
                    return x * 3

                @triple.vjp
                def triple_vjp(g):
                    return g * 3

            tanh = gw.elementwise(torch.tanh, derivative=lambda x, out: 1 - out * out)
            step = gw.surrogate(torch.sign, through=torch.tanh)

            def samples_double():
                yield torch.ones(3, dtype=torch.float64)
        """)
    )
    result = discover([str(tmp_path / "decorated_ops.py")])
    assert not result.problems
    assert {f.subject.name: len(f.samples) for f in result.found} == {
        "double": 1,
        "Layer.triple": 0,
        "tanh": 0,
        "step": 0,
    }


# -------------------------------------------------------------------- the user's own places and words


def edits(v: Tensor, out: Tensor) -> Tensor:
    v.mul_(2)
    return v * out


def with_rule(rule: Any) -> Any:
    function = gw.custom_gradient(lambda x: torch.exp(x))
    function.vjp(rule)
    return function


@gw.adopt
class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy + 1


def line_of(text: str) -> int:
    return 1 + Path(__file__).read_text(encoding="utf-8").splitlines().index(text)


@pytest.mark.parametrize(
    ("subject", "head", "rule"),
    [
        (off_by_two, "def off_by_two(x: Tensor) -> Tensor:", "off_by_two_vjp in line"),
        (Added, "class Added(torch.autograd.Function):", "backward in line"),
        (with_rule(edits), "    function = gw.custom_gradient(lambda x: torch.exp(x))", "edits in line"),
    ],
)
def test_where_it_is_and_where_its_rule_is(subject: Any, head: str, rule: str) -> None:
    found = as_subject(subject)
    assert (Path(found.file or "").name, found.line) == (Path(__file__).name, line_of(head))
    assert found.rule.startswith(rule)


def test_a_finding_cites_the_rule() -> None:
    rule = line_of("def off_by_two_vjp(g: Tensor, out: Tensor) -> Tensor:")
    text = str(gw.check(off_by_two, x(3), only="matches-differences"))
    assert f"; off_by_two_vjp in line {rule}]" in " ".join(text.split())
    assert as_subject(tanh).rule == as_subject(sign).rule == ""


@pytest.mark.parametrize(
    ("subject", "contract", "words"),
    [
        (with_rule(edits), "cotangent-untouched", ("writes to v of the output", "`g = v.clone()`")),
        (Added, "linear-in-cotangent", ("does not contain dy", "multiplied by dy")),
    ],
)
def test_the_cotangent_has_the_name_that_the_user_gave_it(subject: Any, contract: str, words: tuple[str, ...]) -> None:
    (finding,) = gw.check(subject, x(3, 4), only=contract).findings
    said = f"{finding.message} {finding.hint}"
    assert all(word in said for word in words), said
    assert "grad_output" not in said
    assert "# shrunk from x" in (finding.repro or "")


def test_the_cotangent_without_a_name() -> None:
    text = "multiply by grad_output: `return grad_output * derivative`."
    words = as_subject(tanh).in_own_words(text)
    assert words == "multiply by the cotangent: `return g * derivative`."
