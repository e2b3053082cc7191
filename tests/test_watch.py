"""``gradwright watch``: the program is what it is without the command, and what it used is checked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os, sys
import torch
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Broken(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.tanh(x) @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.T * (1 - torch.tanh(x)), torch.tanh(x).T @ g


class RoundSTE(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class NeverCalled(Function):
    pass


class NeverDifferentiated(Square):
    pass


def main(how):
    torch.manual_seed(0)
    w = torch.randn(4, 2, requires_grad=True)
    v = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([w, v], lr=0.1)
    for _ in range(3):
        loss = Square.apply(Broken.apply(RoundSTE.apply(torch.randn(3, 4) * v), w)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        NeverDifferentiated.apply(w)
    print("loss", loss.item(), w.tolist(), torch.rand(1).item(), sys.argv[1:])
    print("to stderr", file=sys.stderr, flush=True)
    if how == "raise":
        raise ValueError("the end")
    if how == "in forward":
        Broken.apply(torch.ones(2), w)
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        sys.stdout.flush()
        os._exit(7)
    if how == "kill":
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
    if how == "wait":
        import time
        print("waiting", flush=True)
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
"""
QUICK = ("--level", "quick", "--only", "matches-differences", "--time-limit", "300")
HEAD = "gradwright watch ---"


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def own_err(self) -> str:
        """What the program wrote itself."""
        return self.err.partition(HEAD)[0].rstrip("\n")

    @property
    def report(self) -> str:
        return self.err.partition(HEAD)[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    return tmp_path


def run(folder: Path, *command: str, **environment: str) -> Ran:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def watch(folder: Path, *arguments: str) -> Ran:
    return run(folder, "-m", "gradwright", "watch", *arguments)


@pytest.mark.parametrize(
    "how",
    [
        "",
        pytest.param("raise", marks=pytest.mark.slow),
        pytest.param("in forward", marks=pytest.mark.slow),
        pytest.param("exit", marks=pytest.mark.slow),
        "_exit",
    ],
)
def test_the_program_is_what_it_is_without_the_command(folder: Path, how: str) -> None:
    arguments = ["train.py", how, "--level", "x"]
    plain, watched = run(folder, *arguments), watch(folder, *QUICK, *arguments)
    assert (watched.out, watched.status, watched.own_err) == (plain.out, plain.status, plain.err.rstrip("\n"))
    report = watched.report
    assert "FAIL Broken: matches-differences" in report
    assert "SUSPECT RoundSTE: matches-differences" in report
    assert "recorded: x: float32 (3, 4), w: float32 (4, 2)" in report
    assert "4 of 5 Functions were called, 1 never differentiated" in report
    assert "NeverCalled" in report
    assert f"train.py:{PROGRAM.splitlines().index('class Broken(Function):') + 1}" in report


def test_findings_are_written_and_fail_the_run_where_that_is_asked_for(folder: Path) -> None:
    watched = watch(folder, *QUICK, "--json", "r.json", "--html", "r.html", "--fail-on", "fail", "train.py")
    assert watched.status == 1
    document: dict[str, Any] = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    assert document["command"] == "watch"
    verdicts = {subject["name"]: subject["verdict"] for subject in document["subjects"]}
    assert verdicts == {"Square": "pass", "Broken": "fail", "RoundSTE": "suspect", "NeverDifferentiated": "pass"}
    used = {usage["name"]: (usage["calls"], usage["backwards"]) for usage in document["usage"]}
    assert used["Square"] == (3, 3)
    assert used["NeverDifferentiated"] == (1, 0)
    assert used["NeverCalled"] == (0, 0)
    assert "NeverCalled" in (folder / "r.html").read_text(encoding="utf-8")


def test_what_registers_its_own_end_can_be_imported_when_the_program_is_over(folder: Path) -> None:
    """Torch.compile imports concurrent.futures.process the first time."""
    options = ("--only", "compile", "--include", "Square", "--time-limit", "300")
    assert "Square passed (1 pass)" in watch(folder, *options, "train.py").report


def test_what_is_required_is_required(folder: Path) -> None:
    watched = watch(folder, *QUICK, "--require", "modes-agree", "--include", "Square", "--fail-on", "fail", "train.py")
    assert "Square failed: modes-agree" in watched.report
    assert watched.status == 1


def test_a_store_is_for_later_and_is_picked_up(folder: Path) -> None:
    watched = watch(folder, "--store", ".gradwright", "--no-check", "train.py")
    assert watched.status == 0
    assert "FAIL" not in watched.report
    assert "the calls are kept in .gradwright; check them by `gradwright check FILE`" in watched.report
    checked = run(folder, "-m", "gradwright", "check", *QUICK, "train.py")
    assert checked.status == 1
    assert "recorded: x: float32 (3, 4), w: float32 (4, 2)" in checked.out
    assert "FAIL Broken: matches-differences" in checked.out


def test_only_what_values_are_like_is_kept_when_that_is_asked_for(folder: Path) -> None:
    watched = watch(folder, *QUICK, "--spec-only", "--store", "kept", "train.py")
    assert "values drawn: x: float32 (3, 4)" in watched.report
    assert "Broken: matches-differences" in watched.report
    stored = b"".join(file.read_bytes() for file in (folder / "kept").iterdir())
    assert b"low" in stored


def test_a_program_that_is_killed_loses_nothing_that_was_kept(folder: Path) -> None:
    watched = watch(folder, *QUICK, "--store", "kept", "train.py", "kill")
    assert watched.status in (-9, 137)
    assert "ended, or was ended, before what it used could be checked" in watched.report
    assert "gradwright check FILE --store kept" in watched.report
    checked = run(folder, "-m", "gradwright", "check", *QUICK, "train.py", "--store", "kept")
    assert "FAIL Broken: matches-differences" in checked.out


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_an_interrupt_is_the_programs(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gradwright", "watch", *QUICK, "train.py", "wait"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "waiting\n":
            break
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert "KeyboardInterrupt" in err
    assert "FAIL Broken: matches-differences" in err


def test_children_are_watched(folder: Path) -> None:
    (folder / "children.py").write_text(
        """
import subprocess, sys
import torch
import torch.multiprocessing as mp
from train import Broken, RoundSTE, Square


def work(which):
    which.apply(torch.ones(3, requires_grad=True)).sum().backward()


if __name__ == "__main__":
    for method, which in (("fork", Square), ("spawn", RoundSTE)):
        process = mp.get_context(method).Process(target=work, args=(which,))
        process.start()
        process.join()
        print(process.exitcode, flush=True)
    subprocess.run([sys.executable, "train.py"], check=True)
""",
        encoding="utf-8",
    )
    watched = watch(folder, *QUICK, "--json", "r.json", "--", sys.executable, "children.py")
    assert watched.status == 0
    assert watched.out.startswith("0\n0\nloss")
    document = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    assert {s["name"] for s in document["subjects"]} == {"Square", "Broken", "RoundSTE", "NeverDifferentiated"}
    used = {usage["name"]: usage["calls"] for usage in document["usage"]}
    assert (used["Square"], used["RoundSTE"]) == (4, 4)


def test_ranks_of_a_distributed_program_are_watched(folder: Path) -> None:
    (folder / "ranks.py").write_text(
        """
import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.nn.parallel import DistributedDataParallel
from train import Broken, Square


class AllReduce(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
w = torch.randn(4, 2, requires_grad=True)
AllReduce.apply(Square.apply(Broken.apply(model(torch.randn(3, 4)), w))).sum().backward()
print(f"rank {dist.get_rank()}", flush=True)
""",
        encoding="utf-8",
    )
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29517", "ranks.py")
    watched = watch(folder, *QUICK, "--json", "r.json", *launch)
    assert watched.status == 0
    assert sorted(re.findall(r"rank \d", watched.out)) == ["rank 0", "rank 1"]  # perhaps on one line
    document = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    subjects = {subject["name"]: subject for subject in document["subjects"]}
    assert subjects.keys() == {"Square", "Broken", "AllReduce"}
    assert subjects["Broken"]["verdict"] == "fail"
    assert "a collective needs all processes" in subjects["AllReduce"]["error"]
    assert {u["name"]: u["calls"] for u in document["usage"]}["Square"] == 2


def test_a_program_without_torch_is_left_alone(folder: Path) -> None:
    (folder / "plain.py").write_text("import sys; print('torch' in sys.modules, sys.path[0] != '')", encoding="utf-8")
    watched = watch(folder, "plain.py")
    assert (watched.out, watched.status) == ("False True\n", 0)
    assert "no process of the program imported torch" in watched.report


def test_another_sitecustomize_runs_as_well(folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("print('own sitecustomize')", encoding="utf-8")
    (folder / "plain.py").write_text("import sitecustomize; print(sitecustomize.__file__)", encoding="utf-8")
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    watched = run(folder, "-m", "gradwright", "watch", "plain.py", PYTHONPATH=path)
    # The command prints it as well, when its own output is flushed.
    assert f"own sitecustomize\n{folder / 'site' / 'sitecustomize.py'}\n" in watched.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian.py"], "watch: there is no script trian.py; expected a Python file; correct the path. Did you mean"),
        (["-m", "no_such_module"], "watch: there is no module 'no_such_module'"),
        (["--", "no-such-command", "x"], "watch: there is no command 'no-such-command'"),
        ([], "there is nothing to watch; expected a script, -m MODULE, or -- COMMAND."),
        (["-m"], "-m: there is no module"),
        (["--json", "-", "train.py"], "--json: standard output belongs to the program"),
        (["--no-check", "train.py"], "--no-check: nothing would come of it"),
        (["--level", "high", "train.py"], "--level"),
        (["--baseline", "missing.json", "train.py"], "missing.json"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(folder: Path, arguments: list[str], words: str) -> None:
    watched = watch(folder, *arguments)
    assert watched.status == 2
    assert watched.out == ""
    assert words in watched.err
