"""Shrinking: the repro of a failing check is on a small sample with tidy values, and the finding stays what it was."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking import shrink
from gradwright.checking.report import Finding, Report, Where
from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, Gather, Linear, variant, x

SOURCE = """
import torch
from torch.autograd import Function

class LastZero(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.exp(x)
        ctx.save_for_backward(out)
        return out
    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        grad = g * out
        grad[-1] = 0
        return grad
"""
DIFFERENCES = "matches-differences"


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shrink.SECONDS, "standard", 60.0)  # what is found does not depend on how busy the machine is


def last_zero(ctx: Any, g: Tensor) -> Tensor:
    grad = g * ctx.saved_tensors[0]
    grad[-1] = 0
    return grad


LastZero = variant(Exp, "LastZero", backward=last_zero)


def only_script(report: Report, contract: str = DIFFERENCES) -> str:
    (finding,) = report[contract].findings
    assert finding.repro is not None
    return finding.repro


def literals(script: str) -> list[Tensor]:
    """Return the tensors that a script writes out."""
    return [eval(text) for text in re.findall(r"= (torch\.tensor\(.*?\))(?:\.requires_grad_\(\))?$", script, re.M)]


def test_a_wrong_element_of_many_is_shown_on_a_few_tidy_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy

    (tmp_path / "ops.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    subject = as_subject(runpy.run_path("ops.py", run_name="ops")["LastZero"])
    object.__setattr__(subject, "file", "ops.py")
    script = only_script(check_subject(subject, [Sample((x(200),))], only=DIFFERENCES))
    assert script.startswith("# shrunk from x: float64 (200,)\n")
    (small,) = literals(script)
    assert small.numel() == 2
    assert set(small.tolist()) <= set(shrink.SIMPLE)
    (tmp_path / "repro.py").write_text(script)
    result = subprocess.run([sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "backward:    0.0" in result.stdout
    printed = float(result.stdout.rpartition("differences: ")[2])
    assert printed == pytest.approx(float(small[-1].exp()), rel=1e-6)


def test_the_finding_is_still_about_the_sample() -> None:
    report = gw.check(LastZero, x(200), only=DIFFERENCES)
    plain = gw.check(LastZero, x(200), only=DIFFERENCES, level="quick")
    (finding,), (unshrunk,) = report[DIFFERENCES].findings, plain[DIFFERENCES].findings
    assert finding.where == unshrunk.where == Where("x", 0, (199,), (199,))
    assert finding.analytic == 0
    assert finding.numeric == pytest.approx(float(x(200)[199].exp()))


def test_quick_leaves_scripts_as_they_are() -> None:
    assert "torch.randn((200,)" in only_script(gw.check(LastZero, x(200), only=DIFFERENCES, level="quick"))


def test_a_small_tidy_sample_is_left_alone() -> None:
    tidy = torch.tensor([0.5, -1.25, 3.0], dtype=torch.float64)
    script = only_script(gw.check(LastZero, tidy, only=DIFFERENCES))
    assert script.startswith("import")
    assert torch.equal(literals(script)[0], tidy)


def test_ugly_values_become_short() -> None:
    script = only_script(gw.check(LastZero, x(2), only=DIFFERENCES))
    assert script.startswith("# the sample with simpler values\n")
    assert set(literals(script)[0].tolist()) <= set(shrink.SIMPLE)


def test_values_that_must_stay_are_rounded_only() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        out = ctx.saved_tensors[0]
        return torch.where((out > 3.2) & (out < 3.8), 0 * g, g * out)

    at = torch.tensor([1.2345678, -0.4], dtype=torch.float64)
    script = only_script(gw.check(variant(Exp, "Band", backward=backward), at, only=DIFFERENCES))
    assert 1.23 in literals(script)[0].tolist()


def test_what_shows_in_a_large_sample_only_is_left_large() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        grad = g * ctx.saved_tensors[0]
        grad[128:] = 0
        return grad

    script = only_script(gw.check(variant(Exp, "Block", backward=backward), x(200), only=DIFFERENCES))
    assert "torch.randn((200,)" in script
    assert "shrunk" not in script


def test_dimensions_that_belong_together_layout_dtype_and_constants() -> None:
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w, 2 * g.t() @ x, g.sum(0)

    wrong = variant(Linear, "Doubled", backward=backward)
    a, w, b = x(6, 5).float(), x(5, 4).float().t(), x(4).float()
    script = only_script(gw.check(wrong, a, w, b, only=DIFFERENCES))
    assert "strides" in script.splitlines()[0]
    small = literals(script)
    assert [tuple(t.shape) for t in small] == [(2, 2), (2, 2), (2,)]
    assert all(t.dtype == torch.float64 for t in small)
    assert [".requires_grad_()" in line for line in script.splitlines() if "torch.tensor" in line] == [
        False,
        True,
        False,
    ]


def test_indices_stay_in_range() -> None:
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.n).index_copy(0, index, g), None

    index = torch.tensor([11, 3, 11, 7, 3])
    script = only_script(gw.check(variant(Gather, "NoSum", backward=backward), x(12), index, only=DIFFERENCES))
    values, small = literals(script)
    assert small.numel() < 5
    assert int(small.max()) < values.numel() < 12


def test_the_budget_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shrink.SECONDS, "standard", 0.2)
    calls = 0

    def forward(ctx: Any, t: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        time.sleep(0.0005 if len(t) == 30 else 60)
        ctx.save_for_backward(t.exp())
        return t.exp()

    start = time.monotonic()
    report = gw.check(variant(LastZero, "Slow", forward=forward), x(30), only=DIFFERENCES)
    assert time.monotonic() - start < 30
    assert report[DIFFERENCES].verdict == "fail"
    assert "torch.tensor" in only_script(report)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_smaller_sample_that_fails_otherwise_is_not_taken(error: type[BaseException]) -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        if len(g) < 6:
            raise error("too short")
        return last_zero(ctx, g)

    script = only_script(gw.check(variant(Exp, "Picky", backward=backward), x(24), only=DIFFERENCES))
    assert literals(script)[0].numel() == 6


def test_several_contracts_share_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Both(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.t = t
            return t.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.t.exp() * 2

    report = gw.check(Both, x(50), only=(DIFFERENCES, "saved-through-hooks"))
    for contract in (DIFFERENCES, "saved-through-hooks"):
        assert literals(only_script(report, contract))[0].numel() == 2


@pytest.mark.parametrize(
    ("values", "tidy"),
    [([0.5, -1.25, 1e-7], True), ([0.1234], False), ([float("nan"), float("inf"), -0.0], True), ([1 + 0.5j], True)],
)
@pytest.mark.parametrize("single", [False, True])
def test_tidy_values(values: list[Any], tidy: bool, single: bool) -> None:
    tensor = torch.tensor(values, dtype=torch.complex128 if isinstance(values[0], complex) else torch.float64)
    tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32) if single else tensor
    assert shrink._is_tidy(tensor) is tidy


def test_a_guess_is_not_shrunk() -> None:
    report = check_subject(as_subject(LastZero), [Sample((x(30),), provenance="synthesised")], only=DIFFERENCES)
    assert report[DIFFERENCES].verdict == "suspect"
    assert "shrunk" not in only_script(report)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("the gradient of `x` is wrong in 1 of 200 elements: zero.", "the gradient of `x` is wrong: a random", True),
        ("backward raises ValueError: too short.", "backward raises ValueError: too long.", True),
        ("backward raises ValueError: too short.", "backward raises TypeError: too short.", False),
        ("B(v) is -3.5 times", "B(v) is 7 times", True),
    ],
)
def test_kinds(one: str, two: str, same: bool) -> None:
    assert (shrink._kind(Finding("fail", one)) == shrink._kind(Finding("fail", two))) is same
