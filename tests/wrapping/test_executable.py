"""``executable``: programs as functions of tensors, and nothing of them left behind."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jvp, vmap

import gradwright as gw
from gradwright.errors import ArgumentError, DefinitionError, ExternalError, OptionError, RuleError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the programs are shell scripts")

PYTHON = [sys.executable, "-S", "-E", "-c"]
SQUARE = (
    "import json, sys; x = json.load(open(sys.argv[1]))['x']; json.dump([v * v for v in x], open(sys.argv[2], 'w'))"
)
SLOPE = """
import json, sys
given = json.load(open(sys.argv[1]))
json.dump([2 * g * x for g, x in zip(given['g'], given['x'])], open(sys.argv[2], 'w'))
"""


@pytest.fixture
def x() -> torch.Tensor:
    return torch.tensor([1.5, -2.0, 1 / 3], dtype=torch.float64)


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch) -> Path:
    """Where directories are made; it is empty after each test that keeps none."""
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def shell(script: str, **options: Any) -> Any:
    options = {"write": "json", "read": "json", **options}
    return gw.executable(["sh", "-c", script, "sh", "{in}", "{out}"], **options)


def square(**options: Any) -> Any:
    options = {"write": "json", "read": "json", "out": gw.like("x"), **options}
    return gw.executable([*PYTHON, SQUARE, "{in}", "{out}"], **options)


def ended(pid: int) -> bool:
    """Tell whether a process has ended; what nobody has asked for its exit code has."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


# -------------------------------------------------------------------- formats and places

NUMPY = "import sys, numpy as np; "


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("npy", "np.save(sys.argv[2], np.load(sys.argv[1]) ** 2)"),
        ("npz", "np.savez(sys.argv[2], np.load(sys.argv[1])['x'] ** 2)"),
        ("txt", "np.savetxt(sys.argv[2], np.loadtxt(sys.argv[1]) ** 2, fmt='%.17g')"),
    ],
)
def test_formats_keep_every_digit(form, code, x, directory) -> None:
    program = gw.executable([sys.executable, "-c", NUMPY + code, "{in}", "{out}"], write=form, read=form)
    assert torch.equal(program(x), x**2)
    matrix = torch.randn(2, 3, dtype=torch.float64)
    assert torch.equal(program(matrix), matrix**2)
    assert not list(directory.iterdir())


def test_standard_input_and_output_where_there_are_no_places(x) -> None:
    code = "a, b = np.load(sys.stdin.buffer), np.load(sys.stdin.buffer); "
    code += "np.save(sys.stdout.buffer, a * b); np.save(sys.stdout.buffer, a.sum())"
    program = gw.executable([sys.executable, "-c", NUMPY + code], arguments=("a", "b"))
    product, total = program(x, 2 * x)
    assert torch.equal(product, 2 * x * x)
    assert torch.equal(total, x.sum())
    assert total.shape == ()


def test_a_program_that_prints_numbers(x) -> None:
    program = gw.executable("awk '{{ print $1 * {n} }}'", write="txt", read="txt", arguments=("x", "n"), argnums="x")
    torch.testing.assert_close(program(torch.tensor([1.0, 2.5]), 3), torch.tensor([3.0, 7.5]))


def test_arguments_with_places_of_their_own_and_constants(x) -> None:
    code = "import sys, json; a, b, n, out = sys.argv[1:]; a, b = (json.load(open(f)) for f in (a, b)); "
    code += "json.dump([p + int(n) * q for p, q in zip(a['a'], b['b'])], open(out, 'w'))"
    program = gw.executable(
        [*PYTHON, code, "{a}", "{b}", "{n}", "{out}"], write="json", read="json", argnums=("a", "b")
    )
    torch.testing.assert_close(program(x, 2 * x, 3), 7 * x)
    assert torch.equal(program(a=x, b=2 * x, n=0), x)


def test_files_by_functions_of_the_user(x) -> None:
    def write(directory: Path, x: Any, n: int = 2) -> None:
        (directory / "deck.inp").write_text(f"{n}\n" + "\n".join(map(repr, x.tolist())))

    def read(directory: Path) -> Any:
        assert "read 3 values" in (directory / "stdout.txt").read_text()
        values = (directory / "result.dat").read_text().split()
        return np.array(values, dtype=float), len(values)

    code = "n, *x = open('deck.inp').read().split(); print('read', len(x), 'values'); "
    code += "open('result.dat', 'w').write(' '.join(repr(float(v) ** int(n)) for v in x))"
    program = gw.executable([*PYTHON, code], write=write, read=read)
    powers, number = program(x, n=3)
    torch.testing.assert_close(powers, x**3)
    assert number == 3
    torch.testing.assert_close(program(x)[0], x**2)


def test_other_dtypes_are_computed_in_float64(x) -> None:
    single = x.float().requires_grad_()
    out = square(vjp=lambda g, x: 2 * g * x)(single)
    assert out.dtype is torch.float32
    assert torch.autograd.grad(out.sum(), single)[0].dtype is torch.float32


def test_texts_hold_one_matrix_of_real_numbers(x) -> None:
    program = gw.executable("cat", write="txt", read="txt")
    assert torch.equal(program(x), x)
    with pytest.raises(ArgumentError, match=r"cannot be written as txt .a text holds a number, a vector or a matrix"):
        program(x.reshape(3, 1, 1))
    with pytest.raises(ArgumentError, match=r"a text holds one array, and there are 2 \(a, b\)"):
        gw.executable("cat", write="txt", read="txt", arguments=("a", "b"))(x, x)


# -------------------------------------------------------------------- derivatives


def test_rules_on_arrays_and_other_programs(x) -> None:
    by_rule = square(vjp=lambda g, x: 2 * g * x, hvp=lambda g, t, x: 2 * g * t)
    by_program = square(vjp=[*PYTHON, SLOPE, "{in}", "{out}"])
    by_differences = square(derivative=gw.fd())
    x.requires_grad_()
    for program in (by_rule, by_program, by_differences):
        torch.testing.assert_close(torch.autograd.grad(program(x).sum(), x)[0], 2 * x.detach(), rtol=1e-6, atol=1e-7)
    assert torch.autograd.gradcheck(by_rule, x)
    torch.testing.assert_close(hessian(lambda v: by_rule(v).sum())(x.detach()), 2 * torch.eye(3, dtype=torch.float64))
    with pytest.raises(RuleError, match="first derivatives only"):
        hessian(lambda v: by_program(v).sum())(x.detach())
    torch.testing.assert_close(vmap(grad(lambda v: by_program(v).sum()))(x.detach().expand(2, 3))[1], 2 * x.detach())


def test_the_tangent_by_another_program(x) -> None:
    program = square(jvp=[*PYTHON, SLOPE.replace("'g'", "'t'"), "{in}", "{out}"])
    torch.testing.assert_close(jacfwd(program)(x), torch.diag(2 * x))


def test_a_program_for_a_derivative_may_have_places(x) -> None:
    code = SLOPE.replace(
        "given = json.load(open(sys.argv[1]))",
        "given = {**json.load(open(sys.argv[1])), **json.load(open(sys.argv[3]))}",
    )
    program = square(vjp=[*PYTHON, code, "{g}", "{out}", "{x}"])
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(program(x).sum(), x)[0], 2 * x.detach())


@pytest.mark.parametrize(("form", "save"), [("npz", "np.savez"), ("json", "")])
def test_gradients_by_name(form, save, x) -> None:
    """A program that names the gradients may write them in any order, and leave out what is zero."""
    read = "d = np.load(sys.argv[1]); " if save else "import json; d = json.load(open(sys.argv[1])); "
    read += "y, x, *g = (np.asarray(d[n]) for n in ('y', 'x', 'g') if n in d); "
    put = ("np.savez(sys.argv[2], %s)" if save else "json.dump(dict(%s), open(sys.argv[2], 'w'))").__mod__
    back = "" if save else ".tolist()"
    forward = put(f"out=(y * x**2){back}")
    both, one = put(f"x=(2 * g[0] * x * y){back}, y=(g[0] * x**2){back}"), put(f"x=(2 * g[0] * x * y){back}")
    command = [sys.executable, "-c", NUMPY + read + forward, "{in}", "{out}"]
    y = x.flip(0).clone().requires_grad_()
    x.requires_grad_()
    for written, slope in ((both, x.detach() ** 2), (one, torch.zeros(3, dtype=torch.float64))):
        vjp = [sys.executable, "-c", NUMPY + read + written, "{in}", "{out}"]
        program = gw.executable(command, write=form, read=form, arguments=("y", "x"), vjp=vjp)
        found = torch.autograd.grad(program(y, x).sum(), (y, x), materialize_grads=True)
        torch.testing.assert_close(found, (slope, 2 * (x * y).detach()))


def test_it_is_checked_like_any_other(x) -> None:
    program = square(vjp=lambda g, x: 2 * g * x, cache=1000)
    report = gw.check(program, x, level="quick")
    assert report, str(report)
    assert "declared: x: float64 (3,)" in str(report)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_keeps_it_whole(x) -> None:
    torch._dynamo.reset()
    program = square(vjp=lambda g, x: 2 * g * x)
    compiled = torch.compile(lambda v: program(v).sum(), backend="aot_eager", fullgraph=True)
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], 2 * x.detach())


# -------------------------------------------------------------------- what goes wrong in a program


def test_an_exit_code_comes_with_what_the_program_complained_of(x, directory) -> None:
    program = shell("echo first >&2; echo the mesh is broken >&2; exit 3")
    with pytest.raises(
        ExternalError, match="`sh` ended with exit code 3; expected 0; it complained: the mesh is b"
    ) as caught:
        program(x)
    assert "with x=float64 (3,)" in str(caught.value)
    assert "first\nthe mesh is broken" in caught.value.traceback
    assert not list(directory.iterdir())


def test_exit_codes_that_are_no_failure(x) -> None:
    script = 'printf "[1, 2]" > "$2"; exit 2'
    assert shell(script, allowed_return_codes=(0, 2))(x).tolist() == [1.0, 2.0]
    assert shell(script, check=False)(x).tolist() == [1.0, 2.0]
    with pytest.raises(ExternalError, match=r"exit code 2; expected 0, 1"):
        shell(script, allowed_return_codes=(0, 1))(x)


def test_a_crash_names_the_signal(x) -> None:
    with pytest.raises(ExternalError, match="`sh` was ended by SIGSEGV; expected 0"):
        shell("kill -SEGV $$")(x)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("true", "left no output that can be read .FileNotFoundError"),
        ('printf "no json" > "$2"', "left no output that can be read .JSONDecodeError"),
        ('printf "[[1, 2], [3]]" > "$2"', "left no output that can be read .ValueError"),
        ('printf "{}" > "$2"', "there is no array in it"),
        ('printf "[1, 2]" > "$2"', r"it returned float64 \(2,\); out declares float64 \(3,\)"),
    ],
)
def test_output_that_is_none(script, message, x) -> None:
    with pytest.raises(ExternalError, match=message):
        shell(script, out=gw.like("x"))(x)


def test_arrays_of_objects_are_not_read(x, tmp_path) -> None:
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(
        ExternalError, match=r"left no output that can be read .ValueError: Object arrays cannot be loaded"
    ):
        gw.executable(["cat", str(tmp_path / "evil.npy")])(x)


def test_retries_begin_afresh(x, tmp_path, directory) -> None:
    count = tmp_path / "count"
    script = (
        f'echo x >> {count}; test -e mark && exit 9; touch mark; test $(wc -l < {count}) -ge 3 || exit 1; cp "$1" "$2"'
    )
    out = shell(script, retries=2, pure=False)(x)
    assert torch.equal(out, x)
    assert count.read_text() == "x\n" * 3
    count.write_text("")
    with pytest.raises(ExternalError, match="exit code 1; expected 0; it was tried 2 times"):
        shell(script, retries=1)(x)
    assert not list(directory.iterdir())


def test_what_the_user_wrote_is_not_tried_again(x, directory) -> None:
    tried = []

    def write(directory: Path, x: Any) -> None:
        tried.append(directory)
        raise KeyError("no such part")

    with pytest.raises(ExternalError, match="it raised KeyError: 'no such part'"):
        gw.executable("true", write=write, read="npy", retries=3)(x)
    assert len(tried) == 1
    assert not list(directory.iterdir())


def test_directories_of_failed_calls_are_kept_where_asked_for(x, tmp_path, directory) -> None:
    with pytest.raises(ExternalError, match="its directory was kept") as caught:
        shell("echo hello; exit 1", keep_failed=True)(x)
    (kept,) = directory.iterdir()
    assert str(kept) in str(caught.value)
    assert (kept / "stdout.txt").read_text() == "hello\n"
    assert (kept / "in.json").exists()
    with pytest.raises(ExternalError, match=str(tmp_path / "failed")):
        shell("exit 1", keep_failed=tmp_path / "failed", retries=1)(x)
    assert len(list((tmp_path / "failed").iterdir())) == 2
    assert torch.equal(shell('cp "$1" "$2"', keep_failed=tmp_path / "fine")(x), x)
    assert not list((tmp_path / "fine").iterdir())


def test_a_sample_that_fails_may_be_nan(x) -> None:
    program = shell('grep -q "1.5" "$1" && exit 1; cp "$1" "$2"', out=gw.like("x"), on_error="nan")
    found = vmap(program)(torch.stack([x, 2 * x]))
    assert found[0].isnan().all()
    assert torch.equal(found[1], 2 * x)


# -------------------------------------------------------------------- nothing is left


def test_a_program_that_hangs_is_ended_with_what_it_started(x, tmp_path, directory) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self; sleep 60"
    start = time.monotonic()
    with pytest.raises(ExternalError, match=r"`sh` did not end within 0\.5 seconds, and was ended"):
        shell(script, timeout=0.5)(x)
    assert time.monotonic() - start < 5
    assert ended(int((tmp_path / "child").read_text()))
    assert ended(int((tmp_path / "self").read_text()))
    assert not list(directory.iterdir())


def test_a_program_that_will_not_end_is_killed(x, tmp_path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path}/self; while true; do sleep 0.05; done"
    with pytest.raises(ExternalError, match="did not end within"):
        shell(script, timeout=0.3)(x)
    assert ended(int((tmp_path / "self").read_text()))


def test_a_program_may_tidy_up(x, tmp_path) -> None:
    script = f"trap 'touch {tmp_path}/tidy; exit' TERM; while true; do sleep 0.02; done"
    with pytest.raises(ExternalError, match="did not end within"):
        shell(script, timeout=0.3)(x)
    assert (tmp_path / "tidy").exists()


def test_what_a_program_leaves_running_is_ended(x, tmp_path) -> None:
    program = shell(f'sleep 60 & echo $! > {tmp_path}/child; cp "$1" "$2"')
    start = time.monotonic()
    assert torch.equal(program(x), x)
    assert time.monotonic() - start < 10
    assert ended(int((tmp_path / "child").read_text()))


def _interrupted(call: Any, pids: list[Path]) -> None:
    """Interrupt a call once programs have said who they are."""

    def interrupt() -> None:
        while not all(pid.exists() and pid.read_text() for pid in pids):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call()
    thread.join()
    assert time.monotonic() - start < 20


def test_an_interrupt_ends_the_program(x, tmp_path, directory) -> None:
    program = shell(f"echo $$ > {tmp_path}/self; sleep 60")
    _interrupted(lambda: program(x), [tmp_path / "self"])
    assert ended(int((tmp_path / "self").read_text()))
    assert not list(directory.iterdir())


def test_an_interrupt_while_a_program_is_started(x, tmp_path, directory, monkeypatch) -> None:
    popen, started = subprocess.Popen, []

    def interrupted(*words: Any, **options: Any) -> Any:
        started.append(popen(*words, **options))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        return started[0]

    program = shell("sleep 60")
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program(x)
    assert ended(started[0].pid)
    assert not list(directory.iterdir())


def test_an_interrupt_ends_all_programs_of_a_batch(x, tmp_path, directory) -> None:
    program = shell(f"echo $$ > {tmp_path}/$(wc -c < $1); sleep 60", out=gw.like("x"), workers=2)
    batch = torch.tensor([[1.0], [1.25]], dtype=torch.float64)
    pids = [tmp_path / str(len(f'{{"x": [{v}]}}')) for v in (1.0, 1.25)]
    _interrupted(lambda: vmap(program)(batch), pids)
    for pid in pids:
        assert ended(int(pid.read_text()))
    program.close()
    for _ in range(100):  # by threads that nobody waits for
        if not list(directory.iterdir()):
            return
        time.sleep(0.02)
    assert not list(directory.iterdir())


# -------------------------------------------------------------------- surroundings


def test_several_run_at_once(x) -> None:
    program = shell('sleep 0.5; cp "$1" "$2"', out=gw.like("x"), workers=4, pure=True)
    batch = torch.stack([x * i for i in range(4)])
    start = time.monotonic()
    assert torch.equal(vmap(program)(batch), batch)
    assert time.monotonic() - start < 1.9, "one after the other they take 2 s"
    program.close()


def test_environment_and_directory(x, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GW_GONE", "here")
    (tmp_path / "data.json").write_text("[4]")
    script = 'test "$GW_A" = "b c" && test -z "$GW_GONE" && cp data.json "$2"'
    assert shell(script, env={"GW_A": "b c", "GW_GONE": None}, cwd=tmp_path)(x).tolist() == [4.0]


def test_names_with_spaces_are_one_word(x, tmp_path) -> None:
    script = tmp_path / "my solver.sh"
    script.write_text('#!/bin/sh\ntest "$1" = "two words" || exit 5\ncp "$2" "$3"\n')
    script.chmod(0o755)
    program = gw.executable(f"'{script}' 'two words' {{in}} {{out}}", write="json", read="json")
    assert torch.equal(program(x), x)


def test_a_path_is_that_of_where_it_was_declared(x, tmp_path, monkeypatch) -> None:
    script = tmp_path / "solver"
    script.write_text('#!/bin/sh\ncp "$1" "$2"\n')
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    program = gw.executable("./solver {in} {out}", write="json", read="json")
    monkeypatch.chdir("/")
    assert torch.equal(program(x), x)


def test_it_is_sent_to_other_processes(x) -> None:
    program = square(timeout=30).host
    copy = pickle.loads(pickle.dumps(program))
    assert np.array_equal(copy(x.numpy()), program(x.numpy()))


# -------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("command", "options", "error", "message"),
    [
        ("", {}, DefinitionError, "command is empty"),
        (3, {}, DefinitionError, "command is 3"),
        ("gw-no-such-program {in}", {}, DefinitionError, "there is no program 'gw-no-such-program'"),
        ("./gw-no-such-program", {}, DefinitionError, r"there is no program '/.*/gw-no-such-program'"),
        (
            "cat {imn}",
            {"arguments": ("x",)},
            DefinitionError,
            r"the command has a place \{imn\}; expected x, in, out, dir",
        ),
        ("cat {in}", {"arguments": "x"}, DefinitionError, "arguments is 'x'"),
        ("cat", {"arguments": ("out",)}, DefinitionError, "an argument is called 'out'"),
        ("cat", {"write": "xml"}, OptionError, "cat: write: got 'xml'; expected one of npy, npz, txt, json"),
        ("cat", {"read": 3}, OptionError, "cat: read: got 3"),
        ("cat", {"timeout": 0}, OptionError, "timeout is 0"),
        ("cat", {"retries": -1}, OptionError, "retries is -1"),
        ("cat", {"check": 1}, OptionError, "check is an int"),
        ("cat", {"allowed_return_codes": ()}, OptionError, r"allowed_return_codes is \(\)"),
        ("cat", {"keep_failed": 3}, OptionError, "keep_failed is 3"),
        ("cat", {"write": lambda d, x: None, "arguments": ("x",)}, DefinitionError, "write and arguments were given"),
        ("cat", {"write": lambda d, x: None, "vjp": "cat"}, DefinitionError, "which may call adjoint.host"),
        ("cat", {"vjp": "cat {y}"}, DefinitionError, r"cat_vjp: the command has a place \{y\}"),
    ],
)
def test_declarations_that_cannot_be_used(command, options, error, message) -> None:
    with pytest.raises(error, match=message):
        gw.executable(command, **options)


def test_the_tangents_of_several_arguments_by_another_program(x) -> None:
    code = NUMPY + "f = open(sys.argv[1], 'rb'); a, b, x, y = (np.load(f) for _ in range(4)); "
    forward = NUMPY + "f = open(sys.argv[1], 'rb'); x, y = (np.load(f) for _ in range(2)); np.save(sys.argv[2], x * y)"
    tangent = code + "np.save(sys.argv[2], a * y + x * b)"
    program = gw.executable(
        [sys.executable, "-c", forward, "{in}", "{out}"],
        arguments=("x", "y"),
        jvp=[sys.executable, "-c", tangent, "{in}", "{out}"],
    )
    y = x.flip(0) + 1
    t = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    assert torch.equal(jvp(program, (x, y), (t, 3 * t))[1], t * y + x * 3 * t)
    assert torch.equal(jvp(lambda y: program(x, y), (y,), (t,))[1], x * t)
