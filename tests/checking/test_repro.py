"""Repro scripts run by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.case import Case
from gradwright.checking.run import check, check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, Gather, x

SOURCE = """
import torch
from torch.autograd import Function

class Outer:
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            return x * k, x + k
        @staticmethod
        def backward(ctx, g, h):
            return -g * ctx.k + h, None
"""


def run(script: str, folder: Path) -> str:
    (folder / "repro.py").write_text(script)
    result = subprocess.run(
        [sys.executable, "repro.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_script_of_a_wrong_gradient_prints_both_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy

    (tmp_path / "ops.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    wrong = runpy.run_path("ops.py", run_name="ops")["Outer"].Wrong
    subject = as_subject(wrong)
    object.__setattr__(subject, "file", "ops.py")
    report = check_subject(subject, [Sample((x(3), 2))], seed=0)
    (finding,) = report["matches-differences"].findings
    assert finding.repro is not None
    assert len(finding.repro.splitlines()) <= 20
    printed = run(finding.repro, tmp_path)
    assert "backward:    -2.0" in printed
    assert "differences: 2.0" in printed or "differences: 1.99999" in printed


def test_inputs_are_written_out_or_stood_in_for() -> None:
    small = repro.script(Case(as_subject(Gather), Sample((x(3), torch.tensor([0, 2])))), [])
    assert "index = torch.tensor([0, 2], dtype=torch.int64)" in small
    assert ".requires_grad_()" in small
    large = repro.script(Case(as_subject(Exp), Sample((x(1000),))), [])
    assert "x = torch.randn((1000,), dtype=torch.float64).requires_grad_()  # stands for yours" in large


def test_what_cannot_be_imported_is_said() -> None:
    script = repro.script(Case(as_subject(lambda t: t * 2), Sample((x(2),))), [])
    assert "f = ...  # the lambda that was checked" in script
    assert "out = f(t)" in script
    compile(script, "repro", "exec")

    def double(t: Tensor) -> Tensor:
        return t * 2

    assert "run this below the definition of" in repro.script(Case(as_subject(double), Sample((x(2),))), [])


@pytest.mark.parametrize(
    ("name", "variable"), [("x", "x"), ("layer.weight", "layer_weight"), ("xs['a'][0]", "xs__a___0")]
)
def test_variable_names(name: str, variable: str) -> None:
    assert repro.variable(name) == variable


def test_special_values_are_valid_python() -> None:
    text = repro.script(Case(as_subject(torch.relu), Sample((torch.tensor([float("nan"), float("inf"), 1.0]),))), [])
    namespace: dict[str, Any] = {}
    exec("import torch\n" + next(line for line in text.splitlines() if "torch.tensor" in line), namespace)


def test_every_repro_of_a_check_compiles() -> None:
    report = check(torch.round, x(3), seed=0)
    for finding in report.findings:
        compile(finding.repro or "", "repro", "exec")
