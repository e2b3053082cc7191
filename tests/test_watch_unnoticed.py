"""A program under ``gradwright watch`` prints what it prints alone, and ends as it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

QUICK = ("--level", "quick", "--only", "matches-differences", "--time-limit", "300")
HEAD = "gradwright watch ---"
FUNCTION = """
import faulthandler, signal, sys, threading, time, traceback
from concurrent.futures import ThreadPoolExecutor
executor = ThreadPoolExecutor(2)
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

def use(function, *more):
    x = torch.ones(3, requires_grad=True)
    function.apply(x, *more).sum().backward()
    return x.grad.tolist()
"""


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    own: str
    report: str


def run(folder: Path, *command: str) -> Ran:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    own, _, report = done.stderr.partition(HEAD)
    return Ran(done.returncode, done.stdout, own.rstrip(), report)


def compare(folder: Path, program: str, *flags: str) -> Ran:
    """Run a program alone and watched, expect the same of both, and return the watched run."""
    (folder / "program.py").write_text(FUNCTION + program, encoding="utf-8")
    alone = run(folder, *flags, "program.py")
    watched = run(folder, "-m", "gradwright", "watch", *QUICK, "--", sys.executable, *flags, "program.py")
    assert (watched.status, watched.out, watched.own) == (alone.status, alone.out, alone.own)
    return watched


THREADS = """
def wait():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    print("the main thread is over")

threading.Thread(target=wait).start()
print(executor.submit(use, Square).result())
"""


def test_threads_that_end_when_the_program_does(tmp_path: Path) -> None:
    assert "Square passed" in compare(tmp_path, THREADS).report


EXECUTORS = """
class Parallel(Square):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with ThreadPoolExecutor(2) as own:
            return sum(own.map(lambda _: x * g, range(2)))

print(use(Parallel))
"""


def test_a_backward_with_an_executor_is_not_accused_of_the_end_of_the_program(tmp_path: Path) -> None:
    assert "Parallel passed" in compare(tmp_path, EXECUTORS).report


TRACEBACKS = """
class BadForward(Square):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("in forward")

class BadBackward(Square):
    @staticmethod
    def backward(ctx, g):
        raise ValueError("in backward")

for arguments in ((BadForward,), (BadBackward,), (Square, "one too many")):
    try:
        use(*arguments)
    except Exception:
        traceback.print_exc()
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise adds an entry to the traceback there")
def test_tracebacks_that_the_program_prints_itself(tmp_path: Path) -> None:
    compare(tmp_path, TRACEBACKS)


ODD_ARGUMENTS = """
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        print("class", function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})

class Odd(torch.Tensor):
    @property
    def dtype(self):
        raise AttributeError("no dtype")

class Word(str):
    __hash__ = None

class Number(int):
    def __hash__(self):
        raise RuntimeError("no hash")

class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        print("mode", function.__name__)
        return function(*args, **(kwargs or {}))

class WithOption(Square):
    @staticmethod
    def forward(ctx, x, option):
        return Square.forward(ctx, x)

    @staticmethod
    def backward(ctx, g):
        return Square.backward(ctx, g), None

print(type(Square.apply(torch.ones(3).as_subclass(Logged).requires_grad_())).__name__)
print(type(Square.apply(torch.ones(3).as_subclass(Odd))).__name__)
print(use(WithOption, Word("a")), use(WithOption, Number(3)))
with Mode():
    use(Square)
print(make_fx(Square.apply, tracing_mode="symbolic")(torch.ones(3)).code)
"""


def test_arguments_and_modes_that_notice_a_look(tmp_path: Path) -> None:
    assert "could not look" not in compare(tmp_path, ODD_ARGUMENTS).report


REST = """
class Slow(Square):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.1)
        return Square.forward(ctx, x)

def beat():
    while True:
        time.sleep(0.4)
        print("beat", flush=True)

print(use(Slow))
signal.signal(signal.SIGCHLD, lambda *_: print("a child is over"))
signal.alarm(3)
faulthandler.dump_traceback_later(3, exit=True)
threading.Thread(target=beat, daemon=True).start()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the checks run in the program itself there")
def test_what_would_be_cut_off_by_the_end_of_the_program(tmp_path: Path) -> None:
    assert "Slow passed" in compare(tmp_path, REST).report


STRICT = """
import warnings
warnings.simplefilter("error")
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print(use(Square))
"""


def test_a_program_for_which_warnings_are_errors(tmp_path: Path) -> None:
    assert "Square passed" in compare(tmp_path, STRICT, "-X", "dev", "-W", "error").report


SURROUNDINGS = """
import os, shutil, tempfile

class Nameless(Square):
    pass

Nameless.__module__ = None
gone = tempfile.mkdtemp()
os.chdir(gone)
shutil.rmtree(gone)
print(use(Square))
tempfile.tempdir = os.environ["TMPDIR"] = gone
"""


def test_directories_that_are_gone_and_classes_without_a_module(tmp_path: Path) -> None:
    report = compare(tmp_path, SURROUNDINGS).report
    assert "Square passed" in report
    assert "itself failed" not in report


DEEP = """
def deeper(left):
    return deeper(left - 1) if left else Square.apply(torch.ones(2))

for depth in range(900, 1000):
    try:
        deeper(depth)
    except RecursionError:
        break
print(use(Square))
"""


def test_calls_near_the_limit_of_recursion(tmp_path: Path) -> None:
    report = compare(tmp_path, DEEP).report
    assert "Square passed" in report
    assert "could not look" not in report


@pytest.mark.skipif(sys.platform == "win32", reason="these signals are not there")
def test_signals_that_are_ignored_from_the_start_stay_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import signal; print([signal.getsignal(s).name for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])",
        encoding="utf-8",
    )
    ignoring = (
        "import signal, subprocess, sys; "
        "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]; "
        "sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
    )
    ran = run(tmp_path, "-c", ignoring, "-m", "gradwright", "watch", "program.py")
    assert ran.out == "['SIG_IGN', 'SIG_IGN', 'SIG_IGN']\n"


SLOW = """
class Slow(Square):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.3)
        return Square.forward(ctx, x)

signal.signal(signal.SIGINT, lambda *_: print("the program was interrupted", flush=True))
print(use(Slow), flush=True)
sys.exit(5)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the checks run in the program itself there")
@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        pytest.param(
            signal.SIGINT, 5, "interrupted: not everything that the program used was checked", marks=pytest.mark.slow
        ),
        (signal.SIGTERM, -signal.SIGTERM, "before what it used could be checked"),
    ],
)
def test_a_signal_ends_the_checks_of_a_program_that_is_over(
    tmp_path: Path, number: signal.Signals, status: int, words: str
) -> None:
    (tmp_path / "program.py").write_text(FUNCTION + SLOW, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "gradwright", "watch", "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(4.0)  # the program is over, and its checks take a minute
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=40)
    assert (process.returncode, out) == (status, "")
    assert words in err


def test_a_directory_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FUNCTION + "print(use(Square))", encoding="utf-8")
    (tmp_path / ".gitignore").write_text("build\n", encoding="utf-8")
    for store in (".", "program.py"):
        ran = run(tmp_path, "-m", "gradwright", "watch", "--store", store, "program.py")
        assert (ran.status, ran.out) == (2, "")
        assert f"--store: {store} is there and no store" in ran.own
    assert (tmp_path / ".gitignore").read_text(encoding="utf-8") == "build\n"


def test_a_store_that_cannot_be_written_does_not_lose_the_verdicts(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FUNCTION + "print(use(Square))", encoding="utf-8")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").write_text('{"format": 99, "gradwright": "9"}', encoding="utf-8")
    ran = run(tmp_path, "-m", "gradwright", "watch", *QUICK, "--store", "store", "program.py")
    assert "Square passed" in ran.report
    assert "written in format 99" in ran.report
