"""``gradwright check`` checks on recorded calls, where there are any and no samples are declared."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwright.cli import main
from gradwright.watching.calls import Call, FunctionKey, Unkept
from gradwright.watching.store import HEAD, write_call

SOURCE = """
import torch

class Picky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, table, mode):
        if x.shape != (3, 7) or mode != "seven":
            raise ValueError("nobody guesses this")
        ctx.save_for_backward(table)
        return x * table

    @staticmethod
    def backward(ctx, g):
        (table,) = ctx.saved_tensors
        return g * table * FACTOR, None, None
"""
EASY = """
import torch

class Picky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        if k == 6:
            raise ValueError("not six")
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 3, None
"""
CONTRACT = "matches-differences"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, dict[str, Any], str]:
        given = ["check", "ops.py", "--only", CONTRACT, "--no-isolation", "--json", "-", *arguments]
        status = main(given)
        out, err = capsys.readouterr()
        return status, json.loads(out) if out else {}, err

    return command


def write(factor: float = 1.0, more: str = "") -> FunctionKey:
    path = Path("ops.py")
    path.write_text(SOURCE.replace("FACTOR", str(factor)) + more)
    return FunctionKey("__main__", "Picky", "Picky", str(path.absolute()), 4)


def call(*shape: int, mode: str = "seven") -> Call:
    torch.manual_seed(0)
    return Call((torch.randn(shape or (3, 7), requires_grad=True), torch.randn(3, 7), mode), {})


def test_without_a_store_nothing_fits(run: Run) -> None:
    write()
    status, document, _ = run()
    assert status == 2
    assert "nobody guesses" in json.dumps(document)


@pytest.mark.parametrize("store", [".gradwright", "elsewhere"])
def test_recorded_calls_are_used(run: Run, store: str) -> None:
    write_call(Path(store), write(), call())
    status, document, _ = run(*([] if store == ".gradwright" else ["--store", store]))
    assert status == 0
    (subject,) = document["subjects"]
    assert [sample["provenance"] for sample in subject["samples"]] == ["recorded"]


def test_a_failure_on_a_recorded_call_is_a_failure(run: Run) -> None:
    write_call(Path(".gradwright"), write(1.001), call())
    status, document, _ = run()
    assert status == 1
    assert document["subjects"][0]["contracts"][0]["verdict"] == "fail"


def test_declared_samples_come_first(run: Run) -> None:
    more = "gradwright_samples = {'Picky': (torch.ones(3, 7), torch.ones(3, 7), 'seven')}\n"
    write_call(Path(".gradwright"), write(more=more), call())
    _, document, _ = run()
    assert [sample["provenance"] for sample in document["subjects"][0]["samples"]] == ["declared"]


def test_a_store_can_be_left_out(run: Run) -> None:
    write_call(Path(".gradwright"), write(), call())
    assert run("--no-store")[0] == 2
    status, _, err = run("--no-store", "--store", ".gradwright")
    assert status == 2
    assert "--store: has no effect with --no-store" in err


def test_calls_of_others_are_not_used(run: Run) -> None:
    key = write()
    write_call(Path(".gradwright"), FunctionKey("__main__", "Picky", "Picky", "/other/ops.py", 4), call())
    write_call(Path(".gradwright"), FunctionKey("ops", "Other", "Other", key.file, 4), call())
    assert run()[0] == 2
    write_call(Path(".gradwright"), FunctionKey("ops", "Picky", "Picky", "/moved/ops.py", 4), call())
    assert run()[0] == 0


def test_what_cannot_be_used_is_told(run: Run) -> None:
    key, store = write(), Path(".gradwright")
    write_call(store, key, Call((torch.ones(3, 7), [Unkept("Thing", "it is odd")]), {}))
    write_call(store, key, call(mode="six"))
    write_call(store, key, call())
    status, document, _ = run()
    assert status == 0
    notes = " ".join(document["subjects"][0]["notes"])
    assert "a recorded call is not used" in notes
    assert "it is odd" in notes
    assert "a recorded call was left out" in notes


def test_when_no_recorded_call_runs_inputs_are_guessed(run: Run) -> None:
    key = write()
    Path("ops.py").write_text(EASY)
    write_call(Path(".gradwright"), key, Call((torch.ones(3), 6), {}))
    status, document, _ = run()
    assert status == 0
    (subject,) = document["subjects"]
    assert subject["samples"][0]["provenance"] == "synthesised"
    assert any("its recorded calls are not used" in note and "not six" in note for note in subject["notes"])


def test_a_store_of_another_version(run: Run) -> None:
    write()
    Path(".gradwright").mkdir()
    Path(".gradwright", HEAD).write_text('{"format": 2, "gradwright": "9"}')
    _, _, err = run()
    assert "recorded calls are not used: .gradwright: written in format 2" in err
    status = run("--store", ".gradwright")
    assert status[0] == 2
    assert "written in format 2" in status[2]
    status = run("--store", "nowhere")
    assert status[0] == 2
    assert "there is no such directory" in status[2]
