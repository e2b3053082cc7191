"""The command: exit status, messages, and what is printed where."""

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import gradwright.cli
import gradwright.cli.progress
import gradwright.cli.tally
import gradwright.cli.work
import gradwright.reporting.terminal
from gradwright.checking.contracts import all_contracts
from gradwright.checking.report import NotChecked, Report
from gradwright.cli import main
from gradwright.cli.options import contract_ids
from gradwright.cli.outputs import FILES

SRC = Path(gradwright.__file__).parents[1]
pytestmark = pytest.mark.usefixtures("folder")

GOOD = """
import torch

class Good(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2
"""

WRONG = """
import torch

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g
"""

NEVER = """
import torch

class Never(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("not today")

    @staticmethod
    def backward(ctx, g):
        return g
"""

SAMPLE = "\ngradwright_samples = {'Good': torch.ones(3, dtype=torch.float64)}\n"
QUICK = ("--only", "gradient-count")


def write(name, *sources):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("\n".join(map(textwrap.dedent, sources)), encoding="utf-8")
    return name


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), **environment},
        timeout=120,
        check=False,
    )


# ---------------------------------------------------------------- exit status


def test_nothing_failed_is_0(run):
    write("ops.py", GOOD, SAMPLE)
    status, out, err = run("check", "ops.py", "--level", "quick")
    assert status == 0
    assert "Good" in out
    assert "declared" in out
    assert err == ""


def test_findings_are_1(run):
    write("ops.py", GOOD, WRONG)
    status, out, _ = run("check", "ops.py", *QUICK)
    assert status == 1
    assert "one gradient too few for `k`" in " ".join(out.split())


def test_nothing_to_check_is_5(run):
    write("ops.py", "x = 1\n")
    status, out, err = run("check", "ops.py")
    assert status == 5
    assert out == ""
    assert "ops.py: there is nothing to check" in err


@pytest.mark.parametrize(
    ("target", "source", "said"),
    [
        ("missing.py", None, "missing.py: there is no such file or directory"),
        ("bad.py", "def f(:\n", "bad.py: is not valid Python: SyntaxError"),
        ("bad.py", "raise ValueError('on purpose')\n", "ValueError: on purpose"),
        ("bad.py", "import sys; sys.exit('usage: bad')\n", "bad.py: called sys.exit"),
        ("bad.py", "class Odd(BaseException): pass\nraise Odd('not an Exception')\n", "Odd: not an Exception"),
        ("bad.py", "import pytest; pytest.skip('no GPU', allow_module_level=True)\n", "Skipped: no GPU"),
        ("good.py::Goood", None, "Did you mean 'Good'?"),
        ("no_such_module_at_all", None, "no_such_module_at_all: there is no module"),
    ],
)
def test_what_cannot_be_imported_is_2_and_the_rest_is_checked(run, target, source, said):
    write("good.py", GOOD, SAMPLE)
    if source is not None:
        write("bad.py", source)
    for targets in ((target, "good.py"), ("good.py", target)):
        status, out, err = run("check", *targets, *QUICK)
        assert status == 2
        assert err.count(said.partition(":")[0]) >= 1
        assert said in err
        assert "Good" in out
        assert "Good passed" in out
    status, out, err = run("check", target)
    assert status == 2
    assert said in err


def test_a_traceback_is_the_users_own(run):
    write("bad.py", "import torch\n\ndef f():\n    raise KeyError('deep')\n\nf()\n")
    _, _, err = run("check", "bad.py")
    assert 'bad.py", line 6, in <module>' in err
    assert "KeyError: 'deep'" in err
    assert "discovery.py" not in err
    assert "importlib" not in err


def test_the_same_traceback_is_shown_once(run):
    write("pkg/__init__.py", "")
    write("pkg/base.py", "raise RuntimeError('base is broken')")
    for name in "abc":
        write(f"pkg/{name}.py", "from . import base")
    status, _, err = run("check", "pkg")
    assert status == 2
    assert err.count("Traceback") == 1
    assert err.count("RuntimeError: base is broken") == 4 + 1


def test_problems_beat_findings(run):
    write("ops.py", WRONG)
    assert run("check", "ops.py", "missing.py", *QUICK)[0] == 2


def test_a_forward_that_always_raises(run):
    write("ops.py", GOOD, NEVER)
    status, out, _ = run("check", "ops.py", *QUICK)
    words = " ".join(out.split())
    assert status == 0  # listed, and the others ran
    assert "Never: could not be run" in words
    assert "forward raised ValueError: not today on each of the" in words
    assert 'gradwright_samples = {"Never": (torch.randn(3, 4, dtype=torch.float64),)}  # x' in out
    assert "1 passed" in words
    assert run("check", "ops.py::Never", *QUICK)[0] == 2  # it was asked for
    assert run("check", "ops.py::Good", "ops.py::Never", *QUICK)[0] == 2
    write("alone.py", NEVER)
    assert run("check", "alone.py")[0] == 2  # nothing at all could be run


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ("(torch.ones(2), 3)", "the sample has the arguments (..., ...), but forward takes (x)"),
        ("('text',)", "no floating-point or complex tensor"),
        ("{'args': (), 'kwarg': {}}", "unknown key 'kwarg'"),
        ("lambda: 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_bad_sample_is_one_message_and_2(run, sample, said):
    write("ops.py", GOOD, GOOD.replace("Good", "Other"), f"gradwright_samples = {{'Good': {sample}}}")
    status, out, _ = run("check", "ops.py", *QUICK)
    words = " ".join(out.split())
    assert status == 2
    assert said in words
    assert "Good: could not be run" in words
    assert "1 passed" in words


def test_a_sample_on_which_forward_raises(run):
    write("ops.py", NEVER, "gradwright_samples = {'Never': torch.ones(2)}")
    status, out, _ = run("check", "ops.py::Never")
    assert status == 2
    assert "forward raised ValueError: not today on the sample (x: float32 (2,))" in " ".join(out.split())
    assert 'raise ValueError("not today")' in out
    assert "case.py" not in out


def test_a_declaration_for_nothing_is_2(run):
    write("ops.py", GOOD, "gradwright_samples = {'Godo': torch.ones(2)}")
    status, out, err = run("check", "ops.py", *QUICK)
    assert status == 2
    assert "Did you mean 'Good'?" in err
    assert "Good passed" in out


def test_a_fault_in_gradwright_is_told_and_the_rest_is_checked(run, monkeypatch):
    real = gradwright.cli.work.check_subject

    def check_subject(subject, samples, **options):
        if subject.name == "Good":
            raise AssertionError("a bug")
        return real(subject, samples, **options)

    monkeypatch.setattr(gradwright.cli.work, "check_subject", check_subject)
    write("ops.py", GOOD, GOOD.replace("Good", "Other"))
    status, out, _ = run("check", "ops.py", *QUICK)
    assert status == 2
    assert "gradwright itself failed with AssertionError: a bug" in " ".join(out.split())
    assert "1 passed" in out


# ---------------------------------------------------------------- options


def test_options_reach_the_checker(run, monkeypatch):
    seen = {}

    def check_subject(subject, samples, **options):
        seen.update(options, samples=samples)
        return Report(subject.name, subject.kind, subject.file, subject.line, "quick", 0, (), ())

    monkeypatch.setattr(gradwright.cli.work, "check_subject", check_subject)
    write("ops.py", GOOD)
    write("mine.py", "import torch", "gradwright_samples = {'Good': torch.ones(7)}")
    status, _, _ = run(
        "check", "ops.py", "--level", "full", "--only", "gradient-count,second-order", "--only", "linear-in-cotangent",
        "--skip", "second-order", "--require", "gradient-count", "--seed", "5", "--samples", "mine.py",
        "--time-limit", "7.5",
    )  # fmt: skip
    assert status == 0
    assert seen["level"] == "full"
    assert seen["only"] == ("gradient-count", "second-order", "linear-in-cotangent")
    assert seen["skip"] == ("second-order",)
    assert seen["require"] == ("gradient-count",)
    assert seen["seed"] == 5
    assert seen["seconds"] == 7.5
    assert len(seen["samples"][0].args[0]) == 7


def test_the_seed_decides_guessed_inputs(run, monkeypatch):
    seen = []

    def check_subject(subject, samples, **options):
        seen.append(samples[0].args[0])
        return Report(subject.name, subject.kind, subject.file, subject.line, "quick", 0, (), ())

    monkeypatch.setattr(gradwright.cli.work, "check_subject", check_subject)
    write("ops.py", GOOD)
    for seed in (0, 0, 1):
        run("check", "ops.py", "--seed", seed)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "gradient-cuont"], "--only: got 'gradient-cuont'"),
        (["--only", "gradient-cuont"], "--only: got 'gradient-cuont'. Did you mean 'gradient-count'? Expected a name"),
        (["--only", "nosuch"], "--only: got 'nosuch'. Expected a name that `gradwright explain` lists."),
        (["--skip", "second-order,secondorder"], "--skip: got 'secondorder'"),
        (["--require", ""], "--require: got ''"),
        (["--level", "quik"], "quik"),
        (["--seed", "-1"], "not negative"),
        (["--seed", "x"], "invalid int value"),
        (["--time-limit", "0"], "--time-limit: got 0; expected a positive number"),
        (["--time-limit", "nan"], "--time-limit: got nan; expected a positive number"),
        (["--memory", "-1"], "--memory: got -1; expected a positive number"),
        (["--memory", "1"], "--memory: has no effect with --no-isolation"),
        (["--json", "."], "is a directory"),
        (["--html", "ops.py/page.html"], "cannot be written"),
        (["--json", "no/such/out.json"], "--json: no/such/out.json cannot be written: there is no directory no/such"),
        (["--junit", "no/out.xml"], "--junit: no/out.xml cannot be written: there is no directory no"),
        (["--sarif", "no/out.sarif"], "--sarif: no/out.sarif cannot be written: there is no directory no"),
        (["--update-baseline"], "--update-baseline: there is no --baseline; expected the file to write; give one."),
        (["--baseline", "no/b.json", "--update-baseline"], "--baseline: no/b.json cannot be written"),
        (["--baseline", "missing.json"], "--baseline: missing.json is not there; `--update-baseline` writes it."),
        (["--fail-on", "skipped"], "--fail-on"),
        (["--html", "no/page.html"], "--html: no/page.html cannot be written: there is no directory no; make it first"),
        (["--require", "vmap", "--skip", "export,vmap"], "--require: vmap is left out by --skip"),
        (["--nothing"], "--nothing"),
    ],
)
def test_bad_options_are_refused_before_anything_is_imported(run, arguments, said):
    write("ops.py", "raise RuntimeError('imported')")
    status, out, err = run("check", "ops.py", *arguments)
    assert status == 2
    assert said in err
    assert "imported" not in err
    assert out == ""
    assert [path.name for path in Path().iterdir()] == ["ops.py"]


def test_without_arguments_the_usage_is_shown(run):
    status, _, err = run()
    assert status == 2
    assert "usage: gradwright" in err
    assert run("--help")[0] == 0
    assert run("check")[0] == 2


def test_the_ids_are_those_of_the_contracts():
    assert contract_ids() == sorted(all_contracts())


# ---------------------------------------------------------------- files


def test_json_and_html_are_written(run):
    write("ops.py", GOOD, WRONG)
    Path("new").mkdir()
    status, _, _ = run("check", "ops.py", *QUICK, "--json", "new/out.json", "--html", "new/out.html")
    assert status == 1
    document = json.loads(Path("new/out.json").read_text())
    assert document["schema"] == 1
    assert document["command"] == "check"
    assert [(s["name"], s["file"], s["ok"]) for s in document["subjects"]] == [
        ("Good", "ops.py", True),
        ("Wrong", "ops.py", False),
    ]
    page = Path("new/out.html").read_text()
    assert "<html" in page
    assert "Wrong" in page


def test_json_on_standard_output_is_nothing_but_json(run):
    noisy = GOOD.replace("return x * 2", "print('noise from forward'); return x * 2")
    write("ops.py", "print('noise from import')", noisy, SAMPLE)
    status, out, err = run("check", "ops.py", *QUICK, "--json", "-")
    assert status == 0
    assert json.loads(out)["subjects"][0]["name"] == "Good"
    assert "noise from import" in err
    assert "Good passed" in err


def test_json_is_written_when_there_is_nothing(run):
    write("ops.py", "x = 1")
    assert run("check", "ops.py", "--json", "out.json")[0] == 5
    assert json.loads(Path("out.json").read_text())["subjects"] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("option", ["--json", "--html", "--junit", "--sarif", "--markdown"])
def test_a_file_that_cannot_be_written_is_told_and_the_others_are_written(run, option):
    write("ops.py", GOOD, SAMPLE)
    others = [part for name in FILES if f"--{name}" != option for part in (f"--{name}", f"out.{name}")]
    status, out, err = run("check", "ops.py", *QUICK, option, "/dev/full", *others)
    assert status == 2
    assert err.startswith(f"{option}: /dev/full cannot be written: OSError: [Errno 28]")
    assert "Good passed" in out
    assert {path.name for path in Path().glob("out.*")} == set(others[1::2])


# ---------------------------------------------------------------- what else is printed


def test_notes_say_what_was_passed_over(run):
    write("pkg/__init__.py", GOOD)
    write("pkg/test_it.py", "raise RuntimeError")
    status, _, err = run("check", "pkg", *QUICK)
    assert status == 0
    assert err == "pkg: passed over a test or script (pkg.test_it); name one to check it.\n"


def test_what_a_module_prints_is_not_swallowed(run):
    write("ops.py", "print('hello from the module')", GOOD, SAMPLE)
    assert "hello from the module" in run("check", "ops.py", *QUICK)[1]


def test_the_search_path_is_left_as_it_was(run):
    before = list(sys.path)
    write("ops.py", GOOD, SAMPLE)
    run("check", "ops.py", *QUICK)
    assert sys.path == before


def test_an_interrupt_shows_what_was_finished(run, monkeypatch):
    real = gradwright.cli.work.check_subject

    def check_subject(subject, samples, **options):
        if subject.name == "Second":
            raise KeyboardInterrupt
        return real(subject, samples, **options)

    monkeypatch.setattr(gradwright.cli.work, "check_subject", check_subject)
    write("ops.py", GOOD, GOOD.replace("Good", "Second"), GOOD.replace("Good", "Third"))
    status, out, err = run("check", "ops.py", *QUICK, "--json", "out.json")
    assert status == 130
    assert "Good" in out
    assert "interrupted: 2 of 3 subjects were not checked" in err
    assert not Path("out.json").exists()


def test_a_subject_that_raises_no_exception_is_not_checked_and_the_rest_is(run):
    odd = """
    class Odd(BaseException): pass
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): raise Odd("deep")
        @staticmethod
        def backward(ctx, g): return g
    samples_Raises = lambda: torch.ones(3, dtype=torch.float64)
    """
    write("ops.py", GOOD, odd)
    status, out, err = run("check", "ops.py", *QUICK)
    assert status == 2, err
    assert err == ""
    assert "forward raised Odd: deep" in " ".join(out.split())
    assert "1 passed, 0 failed, 0 suspect, 1 could not be run" in out


def test_a_default_dtype_that_a_file_sets_is_for_its_own_subjects(run):
    sum_of_ones = """
    class {name}(Function):
        @staticmethod
        def forward(ctx, x):
            assert torch.ones(1).dtype == torch.{dtype}
            return x * 2
        @staticmethod
        def backward(ctx, g): return g * 2
    samples_{name} = lambda: torch.ones(3, dtype=torch.float64)
    """
    head = "import torch\nfrom torch.autograd import Function\n"
    double = sum_of_ones.format(name="Double", dtype="float64")
    write("sets.py", head + "torch.set_default_dtype(torch.float64)\n", double)
    write("sets_not.py", head, sum_of_ones.format(name="Single", dtype="float32"))
    for targets in (("sets.py", "sets_not.py"), ("sets_not.py", "sets.py")):
        status, out, err = run("check", *targets, *QUICK)
        assert status == 0, out + err
    assert torch.get_default_dtype() == torch.float32


def test_an_interrupt_while_importing(run):
    write("ops.py", "raise KeyboardInterrupt")
    status, out, err = run("check", "ops.py")
    assert (status, out, err) == (130, "", "interrupted\n")


def test_a_guess_that_the_checker_refuses_is_tried_without_the_second_sample(run, monkeypatch):
    real = gradwright.cli.work.check_subject
    sizes = []

    def check_subject(subject, samples, **options):
        sizes.append(len(samples))
        if len(samples) > 1:
            raise gradwright.errors.SampleError("no")
        return real(subject, samples, **options)

    monkeypatch.setattr(gradwright.cli.work, "check_subject", check_subject)
    write("ops.py", GOOD)
    assert run("check", "ops.py", *QUICK)[0] == 0
    assert sizes == [2, 1]


def test_not_checked_entries_carry_all_a_reader_needs(monkeypatch, run):
    entries = []
    monkeypatch.setattr(gradwright.reporting.terminal, "render", lambda given, console, **_: entries.extend(given))
    write("ops.py", NEVER)
    run("check", "ops.py::Never")
    (entry,) = entries
    assert isinstance(entry, NotChecked)
    assert (entry.name, entry.file, entry.line, entry.named) == ("Never", "ops.py", 4, True)
    assert entry.remedy.startswith("# in ops.py, or in a file given by --samples\ngradwright_samples = ")


# ---------------------------------------------------------------- progress


class Terminal:
    """A stream that says it is a terminal."""

    def __init__(self, stream):
        self.stream = stream

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self.stream, name)


def test_a_bar_on_a_terminal_names_subject_and_contract(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("CI", raising=False)
    write("ops.py", GOOD, SAMPLE)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal(sys.stdout))
        patch.setattr(sys, "stderr", Terminal(sys.stderr))
        seen = []
        progress = gradwright.cli.progress.progress

        @contextlib.contextmanager
        def recorded(total):
            with progress(total) as show:
                yield lambda done, text: (seen.append((done, text)), show(done, text))

        patch.setattr(gradwright.cli.tally, "progress", recorded)
        assert main(["check", "ops.py", *QUICK, "--no-isolation"]) == 0
    assert seen == [(0, "Good: running forward"), (0, "Good: gradient-count")]


def test_a_bar_appears_by_itself_after_a_while_and_goes_away(capsys, monkeypatch):
    monkeypatch.setattr(gradwright.cli.progress, "bar_is_shown", lambda: True)
    monkeypatch.setattr(gradwright.cli.progress, "SECONDS_BEFORE", 0.2)
    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
    monkeypatch.setenv("TERM", "xterm-256color")
    err = ""

    def wait_for(words):
        nonlocal err
        end = time.monotonic() + 30
        while words not in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", err) and time.monotonic() < end:
            time.sleep(0.05)
            err += capsys.readouterr().err
        assert words in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", err)

    with gradwright.cli.progress.progress(3) as show:
        show(1, "Slow: second-order")
        assert capsys.readouterr().err == ""
        wait_for("1/3 Slow: second-order")
        show(2, "Next: vmap")
        wait_for("2/3 Next: vmap")
    err += capsys.readouterr().err
    assert err.endswith("\x1b[2K")  # the line is empty again
    with gradwright.cli.progress.progress(3) as show:
        show(1, "Quick: vmap")
    time.sleep(0.4)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("environment", "shown"), [({}, True), ({"CI": "true"}, False), ({"TERM": "dumb"}, False), ({"CI": ""}, True)]
)
def test_no_bar_where_nobody_looks(monkeypatch, environment, shown):
    monkeypatch.setattr(sys, "stdout", Terminal(sys.stdout))
    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("CI", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert gradwright.cli.progress.bar_is_shown() is shown


def test_no_bar_when_piped(capsys):
    write("ops.py", GOOD, SAMPLE)
    assert main(["check", "ops.py", *QUICK, "--no-isolation"]) == 0
    out, err = capsys.readouterr()
    assert "0/1" not in out + err
    assert "\x1b" not in out + err


# ---------------------------------------------------------------- explain, version, the process


def test_explain_lists_every_contract_under_its_question(run):
    status, out, _ = run("explain")
    assert status == 0
    for contract in all_contracts().values():
        assert f"  {contract.id} " in out
        assert contract.summary in out
        assert out.index(contract.asks[1:]) < out.index(f"  {contract.id} ")


def test_explain_prints_the_documentation(run):
    status, out, _ = run("explain", "gradient-count")
    assert status == 0
    assert out.startswith("gradient-count\n")
    for heading in ("What it checks", "Why it matters", "If it fails", "References"):
        assert heading in out
    assert run("explain", "gradient_count")[1] == out


def test_explain_of_an_intent(run):
    status, out, _ = run("explain", "surrogate")
    assert status == 0
    assert out.startswith(
        "surrogate\nAn intent, declared with `# gradwright: surrogate` above a rule: the rule is another"
    )
    assert "\nWhat a rule means to be\n  exact " in run("explain")[1]
    assert "Did you mean 'reversed'?" in run("explain", "revers")[2]


def test_explain_of_an_unknown_id(run):
    status, out, err = run("explain", "gradient-cuont")
    assert status == 2
    assert out == ""
    assert "'. Did you mean 'gradient-count'? Expected a name that `gradwright explain` lists." in err


def test_version_names_both(run):
    status, out, _ = run("--version")
    assert status == 0
    assert out.startswith(f"gradwright {gradwright.__version__} (torch 2.")


def test_nothing_imports_torch_before_it_is_needed():
    program = """
import sys
from gradwright.cli import main
assert main(["--version"]) == 0
assert main(["check", "--help"]) == 0
assert main(["check", "ops.py", "--only", "nonsense"]) == 2
assert "torch" not in sys.modules
assert "rich" not in sys.modules
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["check", "ops.py"], ["explain"]])
def test_without_torch_there_is_a_clear_message(arguments):
    write("ops.py", GOOD)
    program = f"import sys; sys.modules['torch'] = None; from gradwright.cli import main; sys.exit(main({arguments}))"
    done = python("-c", program)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gradwright: PyTorch is not installed;")
    assert len(done.stderr.splitlines()) == 1


def test_python_m_is_the_same_command():
    write("ops.py", GOOD, SAMPLE, WRONG)
    done = python("-m", "gradwright", "check", "ops.py::Good", *QUICK)
    assert done.returncode == 0
    assert "Good passed" in done.stdout
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    done = python("-m", "gradwright", "check", "ops.py", "nothere.py", *QUICK, "--json", "-")
    assert done.returncode == 2
    assert len(json.loads(done.stdout)["subjects"]) == 2
    assert "nothere.py: there is no such file" in done.stderr


def test_a_reader_that_stops_reading_is_no_error():
    program = f"{sys.executable} -m gradwright explain | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)}, check=False
    )
    assert done.stdout.strip() in ("0", "141")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
