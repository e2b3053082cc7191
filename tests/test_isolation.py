"""The command outlives what it checks: crashes, hangs and hunger end a worker process, and the run goes on."""

import argparse
import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import gradwright
from gradwright.checking.earlier import FORWARD
from gradwright.checking.report import ContractResult
from gradwright.cli import deaths, events, main, memory, supervisor, traces
from gradwright.cli.statuses import EXIT_BROKEN, EXIT_FINDINGS, EXIT_INTERRUPTED, EXIT_OK

SRC = Path(gradwright.__file__).parents[1]

HEAD = """
import ctypes, os, signal, sys, time
import torch

def double(ctx, x):
    return x * 2

def function(name, forward=double, backward=lambda ctx, g: g * 2):
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": __name__}
    return type(name, (torch.autograd.Function,), body)

gradwright_samples = {}
ONES = torch.ones(3, dtype=torch.float64)

def declared(name, **rules):
    gradwright_samples[name] = ONES
    return function(name, **rules)
"""
ONLY = ("--only", "gradient-count,second-order")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    return tmp_path


@pytest.fixture
def run(capfd):
    """Run the command with its worker; gives exit status, subjects of the JSON document, and what was printed."""

    def command(source, *arguments, only=ONLY, targets=("ops.py",)):
        write("ops.py", source)
        status = main(["check", *targets, *only, "--json", "out.json", *arguments])
        out, err = capfd.readouterr()
        document = Path("out.json")
        subjects = json.loads(document.read_text(encoding="utf-8"))["subjects"] if document.exists() else []
        return status, {subject["name"]: subject for subject in subjects}, out, err

    return command


def write(name, source):
    Path(name).write_text(HEAD + textwrap.dedent(source), encoding="utf-8")


def contract(subject, name):
    (row,) = (row for row in subject["contracts"] if row["id"] == name)
    return row


def started(*arguments, **options):
    """Start the command as a user would."""
    return subprocess.Popen(
        [sys.executable, "-m", "gradwright", "check", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        preexec_fn=None if sys.platform == "win32" else listen_to_interrupts,
        **options,
    )


def listen_to_interrupts():
    """Undo what a shell does to a command that it runs in the background, as it may run these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def line_of(words):
    lines = Path("ops.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


# ---------------------------------------------------------------- subjects


CRASHES = """
def crash(ctx, g):
    ctypes.string_at(0)

def leave(ctx, g):
    print("leaving")
    os._exit(3)

First = declared("First")
Crashes = declared("Crashes", backward=crash)
Leaves = declared("Leaves", backward=leave)
Last = declared("Last")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a crash has no signal there")
def test_crashes_are_reported_and_the_rest_is_checked(run):
    status, subjects, out, err = run(CRASHES, "--html", "out.html", only=("--only", "gradient-count"))
    assert status == EXIT_BROKEN
    assert list(subjects) == ["First", "Crashes", "Leaves", "Last"]
    assert [subject["ok"] for subject in subjects.values()] == [True, False, False, True]
    for name, how in (
        ("Crashes", f"SIGSEGV (a crash in compiled code) at ops.py:{line_of('string_at')}, in crash"),
        ("Leaves", "exit status 3"),
    ):
        row = contract(subjects[name], "gradient-count")
        assert row["verdict"] == "unresolved"
        assert row["message"].startswith("the process ")
        assert how in row["message"]
        assert row["message"].endswith(" while this was examined.")
        assert "--no-isolation" in row["hint"]
        assert subjects[name]["ended"] == ["gradient-count"]
    words = " ".join(out.split())
    assert "2 passed, 0 failed, 0 suspect, 0 could not be run, 2 ended early" in words
    assert "? Crashes: gradient-count (hung, or ended the process)" in words
    assert out.startswith("leaving\n")  # what was printed last is not lost
    assert "Traceback" not in err
    page = Path("out.html").read_text(encoding="utf-8")
    assert "ended early" in page
    assert "SIGSEGV" in page


def test_what_was_examined_before_is_kept(run):
    status, subjects, _, _ = run(
        """
        def wrong(ctx, g):
            if torch.is_grad_enabled():  # as for a second derivative
                os._exit(7)
            return g * 3

        Wrong = declared("Wrong", backward=wrong)
        """,
        only=("--only", "matches-differences,second-order"),
    )
    assert status == EXIT_FINDINGS  # a contract that failed weighs more than a process that ended
    assert contract(subjects["Wrong"], "matches-differences")["verdict"] == "fail"
    assert "exit status 7" in contract(subjects["Wrong"], "second-order")["message"]


def test_a_subject_is_given_up_in_the_end(run, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_DEATHS", 2)
    status, subjects, _, _ = run(
        """
        def leave(ctx, g):
            os._exit(9)

        Leaves = declared("Leaves", backward=leave)
        Last = declared("Last")
        """,
        "--only",
        "no-shared-state",
    )
    assert status == EXIT_BROKEN
    messages = [row["message"] for row in subjects["Leaves"]["contracts"]]
    assert "exit status 9" in messages[0]
    assert messages[1] == messages[0]  # after the first death the next contract had its turn
    assert messages[2:] == ["not examined: 2 processes ended while this subject was examined"]
    assert subjects["Leaves"]["ended"] == ["gradient-count", "second-order"]
    assert subjects["Last"]["ok"]


def test_results_on_other_samples_are_not_kept(tmp_path):
    """When the checker refuses guessed inputs, it begins again with fewer: forward runs anew."""
    options = argparse.Namespace(memory=None)
    one = supervisor._Supervisor(options, lambda event: None, tmp_path / "traces")
    watched = supervisor._Watched()
    result = ContractResult("gradient-count", "is the interface kept?", "pass", "")
    one._heard(events.Began(0, FORWARD, 9.0), watched)
    one._heard(events.Delivered(0, result), watched)
    assert one.start.earlier.results == {"gradient-count": result}
    one._heard(events.Began(0, FORWARD, 9.0), watched)
    assert one.start.earlier.results == {}


def test_a_hang_that_no_signal_ends_is_stopped(run, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 1.0)
    status, subjects, _, _ = run(
        """
        def hang(ctx, g):
            if hasattr(signal, "pthread_sigmask"):
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            time.sleep(1000)

        Hangs = declared("Hangs", backward=hang)
        Last = declared("Last")
        """,
        "--time-limit",
        "2",
        only=("--only", "gradient-count"),
    )
    assert status == EXIT_BROKEN
    message = contract(subjects["Hangs"], "gradient-count")["message"]
    assert f"did not come back within 2 s and was stopped at ops.py:{line_of('sleep(1000)')}, in hang" in message
    assert subjects["Last"]["ok"]


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="memory is watched on Linux only")
def test_a_subject_that_takes_all_memory_is_stopped(run):
    status, subjects, _, _ = run(
        """
        def take(ctx, g):
            taken = []
            for _ in range(100):  # 3 GB at most
                taken.append(torch.ones(30_000_000, dtype=torch.uint8))
                time.sleep(0.03)
            return g * 2

        Hungry = declared("Hungry", backward=take)
        Last = declared("Last")
        """,
        "--memory",
        "0.9",
        only=("--only", "gradient-count"),
    )
    assert status == EXIT_BROKEN
    message = contract(subjects["Hungry"], "gradient-count")["message"]
    assert "stopped because it took more than 0.9 GB of memory" in message
    assert subjects["Last"]["ok"]


def test_a_forward_that_crashes(run):
    status, subjects, _, _ = run(
        """
        def crash(ctx, x):
            os._exit(4)

        Guessed = function("Guessed", forward=crash)
        Declared = declared("Declared", forward=crash)
        Last = declared("Last")
        """
    )
    assert status == EXIT_BROKEN
    assert list(subjects) == ["Guessed", "Declared", "Last"]
    assert subjects["Guessed"]["error"].startswith(
        "Guessed: the process ended itself with exit status 4 while looking for inputs; "
    )
    assert subjects["Declared"]["error"].startswith(
        "Declared: the process ended itself with exit status 4 while running forward; "
    )
    assert subjects["Last"]["ok"]


# ---------------------------------------------------------------- what comes before the subjects


def test_an_import_that_crashes_is_a_problem_and_the_rest_is_checked(run):
    write("bad.py", "os._exit(5)")
    status, subjects, _, err = run(
        """
        def samples_Good():
            return ONES

        def samples_Other():
            os._exit(6)

        Good, Other = function("Good"), function("Other")
        """,
        targets=("bad.py", "ops.py"),
    )
    assert status == EXIT_BROKEN
    assert err.startswith("bad.py: the process ended itself with exit status 5 while this ran; ")
    assert subjects["Good"]["ok"]
    assert subjects["Other"]["error"].startswith(
        "ops.py: samples_Other: the process ended itself with exit status 6 while this ran; "
    )


def test_targets_that_change_are_not_taken_for_what_they_were(run):
    status, subjects, _, _ = run(
        """
        def leave(ctx, g):
            os._exit(4)

        A = declared("A", backward=leave)
        B = declared("B")
        if os.path.exists("seen"):
            C = declared("C")
        open("seen", "w").close()
        """
    )
    assert status == EXIT_BROKEN
    assert list(subjects) == ["A", "B"]
    assert all("a second import of the targets gave other subjects" in s["error"] for s in subjects.values())


def test_a_worker_that_does_not_start_is_told(run, monkeypatch):
    monkeypatch.setattr(supervisor, "serve", os.getcwd)  # does not take what a worker is given
    status, _, out, err = run("")
    assert status == EXIT_BROKEN
    assert out == ""
    assert "the process that runs your code ended itself with exit status 1 before it began" in err
    assert "--no-isolation" in err


# ---------------------------------------------------------------- the process itself


def test_the_command_itself_does_not_import_torch(folder):
    write("ops.py", "Good = declared('Good')")
    program = """
import sys
from gradwright.cli import main
status = main(["check", "ops.py", "--only", "gradient-count", "--json", "out.json", "--html", "out.html"])
assert "torch" not in sys.modules
sys.exit(status)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert "Good passed" in done.stdout


def test_code_is_run_as_it_would_be_here(run):
    """The code sees little of how the worker is started: only that Ctrl-C ends it without a traceback."""
    status, _, out, err = run(
        """
        import multiprocessing
        print(multiprocessing.get_start_method(allow_none=True), multiprocessing.current_process().name, sys.argv)
        print(signal.getsignal(signal.SIGINT).name)
        print("to stderr", file=sys.stderr)
        Good = declared("Good")
        """
    )
    assert status == EXIT_OK
    assert out.startswith("None MainProcess ['ops.py']\nSIG_DFL\n")  # before the table
    assert err == "to stderr\n"


def test_json_on_standard_output_is_nothing_but_json_whatever_writes(folder):
    write("ops.py", "os.write(1, b'written past Python')\nprint('printed')\nGood = declared('Good')")
    process = started("ops.py", *ONLY, "--json", "-")
    out, err = process.communicate(timeout=120)
    assert process.returncode == EXIT_OK
    assert json.loads(out)["subjects"][0]["name"] == "Good"
    assert "written past Python" in err
    assert "printed" in err


def test_what_is_printed_under_a_bar_is_handed_over(capsys, monkeypatch):
    monkeypatch.setattr(supervisor, "bar_is_shown", lambda: True)
    write("ops.py", "print('x' * 2000)\nprint('to stderr', file=sys.stderr)\nGood = declared('Good')")
    assert main(["check", "ops.py", *ONLY]) == EXIT_OK
    out, err = capsys.readouterr()  # does not see what another process writes
    assert out.startswith("x" * 2000 + "\n")
    assert err == "to stderr\n"


def test_an_interrupt_of_the_users_own(run):
    status, _, out, err = run("raise KeyboardInterrupt")
    assert (status, out, err) == (EXIT_INTERRUPTED, "", "interrupted\n")


SLEEPS = """
def sleep(ctx, g):
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid", "worker")
    time.sleep(1000)

First = declared("First")
Sleeps = declared("Sleeps", backward=sleep)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGINT, EXIT_INTERRUPTED, "interrupted: 1 of 2 subjects were not checked\n"),
        (signal.SIGTERM, 128 + signal.SIGTERM, ""),
    ],
)
def test_a_signal_ends_both_processes(folder, number, status, said):
    write("ops.py", SLEEPS)
    process = started("ops.py", "--only", "gradient-count", start_new_session=True)
    try:
        until(Path("worker").exists)
        worker = int(Path("worker").read_text(encoding="utf-8"))
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == status
    assert err == said
    assert ("First passed" in out) == (number == signal.SIGINT)
    until(lambda: not alive(worker))


def until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ---------------------------------------------------------------- words and numbers


def test_how_a_process_ended():
    assert deaths.by_itself(0) == "ended itself with exit status 0"
    assert deaths.by_itself(0xC0000005) == "ended itself with exit status 0xc0000005"
    if sys.platform != "win32":
        assert deaths.by_itself(-signal.SIGKILL) == "was ended by SIGKILL (probably because memory ran out)"
        assert deaths.by_itself(-signal.SIGHUP) == "was ended by SIGHUP"
    assert deaths.by_itself(-999) == "was ended by signal 999"
    assert "more than 128.0 GB of memory" in deaths.too_large(128_000_000_000)


def test_the_place_is_the_users(folder):
    trace = f"""Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "{os.__file__}", line 1 in string_at
  File "{folder}/site-packages/mine/ops.py", line 12 in backward
  File "{gradwright.__file__}", line 3 in check
  File "{folder}/other.py", line 5 in <module>
"""
    assert traces.place(trace) == f"{Path('site-packages/mine/ops.py')}:12, in backward"
    assert (
        traces.place(trace.replace(str(folder), "/elsewhere")) == "/elsewhere/site-packages/mine/ops.py:12, in backward"
    )
    assert traces.place("") is None
    assert traces.place(f'  File "{gradwright.__file__}", line 3 in check\n  File "<string>", line 1 in f\n') is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="memory is watched on Linux only")
def test_memory_is_known():
    assert memory.allowance(2) == 2_000_000_000
    assert memory.allowance(None) > 100_000_000
    before = memory.taken(os.getpid())
    # memory of its own, where the allocator may have some that is free
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 50_000_000, flags=private) as block:
        block.write(b"x" * 50_000_000)
        assert memory.taken(os.getpid()) > before + 40_000_000
    assert memory.taken(2**22 + 1) == 0
