"""What user code does to the process reaches nobody else, and what the caller did to it does not reach a check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.checking.discovery import discover
from gradwright.checking.settings import as_in, preserved_settings
from gradwright.checking.subject import as_subject
from gradwright.checking.synthesis import synthesise
from tests.subjects import Exp, variant, x

SUBJECT = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * torch.ones(3).sum()
    @staticmethod
    def backward(ctx, g):
        return g * 3
"""


def state() -> tuple[bool, torch.dtype, str]:
    return torch.is_grad_enabled(), torch.get_default_dtype(), str(Path.cwd())


def meddling(t: Tensor) -> None:
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.bfloat16)
    os.chdir("/")


def test_what_forward_changes_is_put_back() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        meddling(t)
        out = t.exp()
        ctx.save_for_backward(out)
        return out

    before = state()
    report = gw.check(variant(Exp, "Meddling", forward=forward), x(3), skip=("compile", "compile-with-func", "export"))
    assert state() == before
    assert report.ok, str(report)
    assert report["matches-differences"].verdict == "pass"


def test_what_a_try_changes_is_put_back() -> None:
    def forward(ctx: Any, t: Tensor) -> Tensor:
        meddling(t)
        return t * 2

    before = state()
    assert synthesise(as_subject(variant(Exp, "Meddling", forward=forward, backward=lambda ctx, g: g * 2))).samples
    assert state() == before


def test_what_an_import_changes_is_put_back_and_given_back_to_its_own_subjects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    meddles = "import os, torch\ntorch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)\nos.chdir('/')\n"
    samples = "def samples_Own():\n    yield torch.randn(3)\n"
    (tmp_path / "meddles_with_dtype.py").write_text(meddles + SUBJECT.format(name="Own") + samples)
    (tmp_path / "innocent_of_dtype.py").write_text("import torch\n" + SUBJECT.format(name="Other"))
    before = state()
    own, other = discover(["meddles_with_dtype.py", "innocent_of_dtype.py"]).found
    assert state() == before
    assert own.samples[0].args[0].dtype == torch.float64
    with as_in(own.source.module):
        assert torch.get_default_dtype() == torch.float64
        assert torch.is_grad_enabled()
    with as_in(other.source.module):
        assert torch.get_default_dtype() == torch.float32
    assert state() == before


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_the_caller_does_not_matter(mode: Any) -> None:
    with mode():
        report = gw.check(Exp, x(3), level="standard", skip=("compile", "compile-with-func", "export"))
        assert not torch.is_grad_enabled()
    assert report.ok, str(report)
    assert report["matches-differences"].verdict == "pass"
    assert report["gradient-penalty"].verdict == "pass"


def test_a_tensor_from_inference_mode_is_an_input_like_any_other() -> None:
    with torch.inference_mode():
        made = x(3)
    assert gw.check(Exp, made, level="quick")["matches-differences"].verdict == "pass"
    assert gw.check(torch.mul, x(3).requires_grad_(), made, level="quick")["matches-differences"].verdict == "pass"


def test_a_working_directory_that_is_gone_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with preserved_settings():
        os.chdir(tmp_path)


def test_small_tensors_are_checked_with_one_thread_and_the_caller_keeps_his() -> None:
    before, seen = torch.get_num_threads(), set[int]()

    def forward(ctx: Any, t: Tensor) -> Tensor:
        seen.add(torch.get_num_threads())
        out = t.exp()
        ctx.save_for_backward(out)
        return out

    torch.set_num_threads(2)
    try:
        for elements, threads in ((3, 1), (100_000, 2)):
            seen.clear()
            gw.check(variant(Exp, "Watched", forward=forward), torch.ones(elements), only="inputs-untouched")
            assert seen == {threads}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
