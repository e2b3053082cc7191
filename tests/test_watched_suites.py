"""``pytest --gradwright``: what a suite uses is found and checked, and the suite itself does not change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest
import torch

import gradwright
from gradwright.cli import pytest_session
from gradwright.watching.store import read_store

pytest_plugins = ["pytester"]

OPS = """
import torch

class Good(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.numel() == 0:
            raise ValueError("nothing to square")
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x

class Broken(Good):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * x

class NeverDifferentiated(Good):
    pass

class NeverCalled(Good):
    pass
"""

SUITE = """
import sys
import threading
import unittest
import warnings

import pytest
import torch

import ops

@pytest.fixture(scope="module")
def made_by_a_fixture():
    x = torch.ones(2, requires_grad=True)
    return x, ops.Good.apply(x)

def test_of_a_fixture(made_by_a_fixture):
    x, out = made_by_a_fixture
    out.sum().backward()
    assert x.grad.tolist() == [2, 2]

def test_of_what_is_printed(capsys):
    print(ops.NeverDifferentiated.apply(torch.ones(1)).item())
    assert capsys.readouterr().out == "1.0\\n"

def test_that_patches(monkeypatch):
    monkeypatch.setattr(torch.autograd.Function, "apply", lambda *args: "patched")
    assert ops.Good.apply(torch.ones(1)) == "patched"

def test_that_warns():
    with pytest.warns(UserWarning, match="mine"):
        warnings.warn("mine")

def test_that_is_refused():
    with pytest.raises(ValueError, match="nothing to square"):
        ops.Good.apply(torch.ones(0))

def test_that_fails():
    ops.Good.apply(torch.ones(0))

def test_of_random_numbers():
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    assert torch.equal(ops.Broken.apply(torch.randn(3, requires_grad=True)), expected * expected)

class TestOfUnittest(unittest.TestCase):
    def setUp(self):
        self.x = torch.ones(3, requires_grad=True)

    def test_in_a_thread(self):
        thread = threading.Thread(target=lambda: ops.Broken.apply(self.x).sum().backward())
        thread.start()
        thread.join()
        self.assertEqual(self.x.grad.tolist(), [1, 1, 1])

@pytest.mark.skip
def test_that_is_skipped():
    pass
"""


FEW = """
from gradwright.cli import pytest_session

def few(config, options_of=pytest_session.options_of):
    options = options_of(config)
    options.only = ("matches-differences",)  # it is not about the contracts here
    return options

pytest_session.options_of = few
"""


class Imported:
    """Keeps what runs in this process import: ``pytester`` forgets it, and torch cannot be imported twice."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}

    def pytest_unconfigure(self) -> None:
        self.modules |= sys.modules

    def keep(self) -> None:
        """Keep all but the modules of the suites."""
        for name, module in self.modules.items():
            if name not in ("ops", "other", "test_suite"):
                sys.modules.setdefault(name, module)


@pytest.fixture
def imported():
    """Comes before ``pytester``, so that it has the last word."""
    kept = Imported()
    yield kept
    kept.keep()


@pytest.fixture
def suite(imported: Imported, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run a suite with the plugin given by name, whether or not gradwright is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "100")
    pytester.makepyfile(ops=OPS)
    monkeypatch.syspath_prepend(pytester.path)
    monkeypatch.setattr(pytest_session, "options_of", pytest_session.options_of)  # put back what FEW changes
    exec(FEW)

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_suite=source)
        plugins = ("-p", "_gradwright_pytest", "-p", "no:cacheprovider")
        result = pytester.runpytest_inprocess(*plugins, *options, plugins=[imported], no_reraise_ctrlc=True)
        imported.keep()
        return result

    return run


class Wrong(torch.autograd.Function):
    """Of the kind that is checked below."""

    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import all that is needed once, here, and not in each process that is forked from this one."""
    assert not gradwright.check(Wrong, torch.ones(2), only="matches-differences")


@pytest.fixture
def alone(pytester: pytest.Pytester):
    """Run a suite in a Python of its own, in which nothing is imported yet."""
    pytester.makepyfile(ops=OPS, few=FEW)

    def run(source: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        pytester.makepyfile(test_suite=source)
        plugins = ("-p", "_gradwright_pytest", "-p", "few", "-p", "no:cacheprovider")
        path = os.pathsep.join([str(pytester.path), *sys.path])
        return subprocess.run(
            [sys.executable, "-m", "pytest", *plugins, "--gradwright", *options],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=pytester.path,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path, **environment},
        )

    return run


SECTION = re.compile(r"^=+ gradwright =+\n(.*?)(?=^=+ .* =+$|^\d+ passed|\Z)", re.MULTILINE | re.DOTALL)


def section(result: pytest.RunResult) -> str:
    """Return the section of gradwright, empty if there is none."""
    found = SECTION.search(result.stdout.str())
    return found[1] if found else ""


def without_section(result: pytest.RunResult) -> str:
    """Return everything else, without what differs from run to run."""
    text = SECTION.sub("", result.stdout.str())
    return re.sub(r"in \d+\.\d+s|=+$|^=+|0x[0-9a-f]+", "", text, flags=re.MULTILINE)


def test_what_a_suite_uses_is_checked_and_the_suite_is_the_same(suite):
    plain = suite(SUITE, "-v")
    watched = suite(SUITE, "-v", "--gradwright")
    assert plain.ret == watched.ret == 1
    assert without_section(watched) == without_section(plain)
    text = section(watched)
    assert "FAIL Broken: matches-differences" in text
    assert "3 of 4 Functions were called, 1 never differentiated" in text
    assert re.search(r"Defined and never called:\n +NeverCalled +ops.py:\d+\n", text)
    assert re.search(r"Called and never differentiated:\n +NeverDifferentiated +ops.py:\d+ +1 call\n", text)
    assert "recorded: x: float32 (2,)" in text
    assert not section(plain)


@pytest.mark.parametrize("style", ["long", "short", "native", "line"])
def test_errors_look_as_they_do_without_the_recorder(suite, style):
    source = """
        import torch, ops

        class BadBackward(ops.Good):
            @staticmethod
            def backward(ctx, g):
                raise RuntimeError("mine")

        def test_forward():
            ops.Good.apply(torch.ones(0))

        def test_backward():
            BadBackward.apply(torch.ones(1, requires_grad=True)).sum().backward()
        """
    plain = suite(source, f"--tb={style}")
    watched = suite(source, f"--tb={style}", "--gradwright")
    assert without_section(watched) == without_section(plain)


USES = "import ops, torch\ndef test_it():\n    ops.{}.apply(torch.ones(3, requires_grad=True)).sum().backward()\n"


@pytest.mark.parametrize(("name", "options", "status"), [
    ("Broken", ["--gradwright-fail"], 1),
    ("Good", ["--gradwright-fail"], 0),
    ("Broken", ["--gradwright-fail", "--gradwright-exclude=Bro*"], 0),
    ("Broken", ["--gradwright-fail", "-p", "no:terminal"], 1),
])  # fmt: skip
def test_findings_fail_the_run_if_asked(suite, name, options, status):
    assert suite(USES.format(name), "--gradwright", *options).ret == status


def test_a_quiet_run_has_a_line(suite):
    text = section(suite(USES.format("Good"), "--gradwright", "-q"))
    assert text.splitlines()[0].startswith("1 subject: 1 passed")
    assert "1 of 4 Functions was called" in text
    assert len(text.splitlines()) <= 3
    broken = suite(USES.format("Broken"), "--gradwright", "-q")
    assert broken.ret == 0
    assert "FAIL Broken" in section(broken)


def test_nothing_is_said_where_nothing_is_run(suite):
    assert not section(suite(USES.format("Good"), "--gradwright", "--collect-only"))
    assert "the tests called no custom gradient" in section(suite("def test_it(): pass", "--gradwright"))


def test_an_interrupted_run_is_checked(suite):
    result = suite(USES.format("Broken") + "    raise KeyboardInterrupt\n", "--gradwright", "--gradwright-fail")
    assert result.ret == 2
    assert "FAIL Broken" in section(result)


def test_interrupted_checks_are_no_success(suite, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradwright.cli.finish.finish", interrupt)
    result = suite(USES.format("Good"), "--gradwright")
    assert result.ret == 0
    assert "interrupted: not everything that was used was checked" in section(result)
    assert suite(USES.format("Good"), "--gradwright", "--gradwright-fail").ret == pytest.ExitCode.INTERRUPTED


def test_reports_are_written_where_pytest_was_started(suite, pytester):
    pytester.makepyfile(other="import torch\nclass Other(torch.autograd.Function): pass\n")
    source = "import other\n" + USES.format("Broken") + "    import os; os.mkdir('sub'); os.chdir('sub')\n"
    suite(source, "--gradwright", "--gradwright-json=r.json", "--gradwright-html=r.html", "--gradwright-junit=r.xml")
    document = json.loads((pytester.path / "r.json").read_text())
    assert document["command"] == "pytest"
    assert [(subject["name"], subject["file"]) for subject in document["subjects"]] == [("Broken", "ops.py")]
    calls = {usage["name"]: usage["calls"] for usage in document["usage"]}
    assert (calls["Broken"], calls["NeverCalled"], calls["Other"]) == (1, 0, 0)
    assert "Broken" in (pytester.path / "r.html").read_text()
    assert "Broken" in (pytester.path / "r.xml").read_text()


@pytest.mark.parametrize(("option", "message"), [
    ("--gradwright-json=no/r.json", "--gradwright-json: *no/r.json cannot be written"),
    ("--gradwright-json=-", "--gradwright-json: standard output belongs to pytest"),
    ("--gradwright-baseline=none.json", "--gradwright-baseline*none.json"),
])  # fmt: skip
def test_options_that_cannot_be_right_are_refused(suite, option, message):
    result = suite(USES.format("Good"), "--gradwright", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])


def test_checks_in_tests_are_no_use_of_a_function(suite):
    source = """
        import gradwright as gw, ops, torch

        def test_it():
            assert not gw.check(ops.Broken, torch.ones(3), level="quick")
            assert gw.check(ops.Good, torch.ones(3), level="quick")
            ops.Good.apply(torch.full((2,), 3.0, requires_grad=True)).sum().backward()
        """
    text = section(suite(source, "--gradwright"))
    assert "FAIL Broken" not in text
    assert "2 of 4 Functions were called, 0 never differentiated" in text
    assert "recorded: x: float32 (2,)" in text
    assert "float32 (3,)" not in text


def test_known_findings_do_not_fail_the_run(suite):
    known = ("--gradwright", "--gradwright-fail", "--gradwright-baseline=known.json")
    assert suite(USES.format("Broken"), *known, "--gradwright-update-baseline").ret == 0
    result = suite(USES.format("Broken"), *known)
    assert result.ret == 0
    assert "1 known finding" in section(result)


def test_a_store_is_written(suite, pytester):
    suite(USES.format("Broken"), "--gradwright", "--gradwright-store=calls")
    (stored,) = read_store(pytester.path / "calls").functions
    assert (stored.key.name, stored.calls, stored.backwards) == ("Broken", 1, 1)
    calls, problems = stored.read()
    assert [call.args[0].shape for call in calls] == [(3,)]
    assert not problems


def test_a_fault_of_gradwright_is_told_and_changes_nothing(suite, monkeypatch):
    def fail(*_):
        raise RuntimeError("a fault")

    monkeypatch.setattr("gradwright.cli.finish.finish", fail)
    result = suite(USES.format("Broken"), "--gradwright")
    assert result.ret == 0
    assert "RuntimeError: a fault" in section(result)
    assert suite(USES.format("Broken"), "--gradwright", "--gradwright-fail").ret == pytest.ExitCode.INTERNAL_ERROR


# --- the marker -----------------------------------------------------------------------------------


def test_the_marker_says_what_is_not_watched(suite):
    source = """
        import pytest, torch, ops

        @pytest.mark.gradwright(watch=False)
        class TestOnPurpose:
            def test_it(self):
                ops.Broken.apply(torch.ones(3, requires_grad=True)).sum().backward()

            @pytest.mark.gradwright(watch=True)
            def test_another(self):
                ops.Good.apply(torch.ones(3, requires_grad=True)).sum().backward()
        """
    text = section(suite(source, "--gradwright", "--strict-markers"))
    assert "FAIL" not in text
    assert "1 of 4 Functions was called" in text


def test_the_marker_says_how_a_test_checks(suite):
    source = """
        import gradwright as gw, pytest, torch, ops

        pytestmark = pytest.mark.gradwright(level="quick", seed=3)

        @pytest.fixture
        def report():
            return gw.check(ops.Good, torch.ones(2))

        def test_of_a_fixture(report):
            assert (report.level, report.seed) == ("quick", 3)

        @pytest.mark.gradwright(only="gradient-count", seed=4)
        def test_the_closest_wins():
            report = gw.check(ops.Good, torch.ones(2))
            assert (report.level, report.seed) == ("quick", 4)
            assert [result.id for result in report.results] == ["gradient-count"]

        @pytest.mark.gradwright(only="gradient-count", skip=["matches-differences"], require=["vmap"])
        def test_the_call_wins():
            report = gw.check(ops.Good, torch.ones(2), level="standard", seed=0, only="vmap", require=(), skip=())
            assert (report.level, report.seed) == ("standard", 0)
            assert [result.id for result in report.results] == ["vmap"]
            assert not report.failed

        @pytest.mark.gradwright(only="vmap", require="vmap")
        def test_required():
            assert gw.check(ops.Good, torch.ones(2)).failed
        """
    suite(source, "--strict-markers").assert_outcomes(passed=4)
    # Afterwards, everything is as it was.
    suite("import gradwright as gw, ops, torch\n"
          "def test_it():\n    assert gw.check(ops.Good, torch.ones(2), only='vmap').level == 'standard'\n"
          ).assert_outcomes(passed=1)  # fmt: skip


@pytest.mark.parametrize(("given", "named"), [("levels='quick'", "levels"), ("'quick'", "'quick'")])
def test_a_marker_that_says_nothing_is_an_error(suite, given, named):
    result = suite(f"import pytest\n@pytest.mark.gradwright({given})\ndef test_it(): pass\n")
    result.assert_outcomes(errors=1)
    assert f"@pytest.mark.gradwright: got {named}; expected some of level=, only=" in result.stdout.str()


# --- processes ------------------------------------------------------------------------------------


def test_what_is_used_in_a_forked_process_is_not_seen_and_that_is_said(suite):
    source = USES.format("Good") + (
        "    import os\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        ops.Broken.apply(torch.ones(1))\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
    )
    text = section(suite(source, "--gradwright", "-W", "ignore::DeprecationWarning"))
    assert "1 of 4 Functions was called" in text
    assert "the tests forked processes" in text


def test_torch_may_be_imported_late_or_never(alone):
    never = alone("import sys\ndef test_it():\n    assert not {'torch', 'rich'} & set(sys.modules)\n")
    assert never.returncode == 0, never.stdout
    assert "torch was not imported, so there was nothing to watch" in never.stdout
    late = alone(
        """
        import importlib.util

        def test_it():
            assert importlib.util.find_spec("torch") is not None  # many ask for it and do not import it
            import torch
            assert type(torch.__spec__.loader).__module__ == type(torch.__loader__).__module__ != "gradwright"
            import ops
            ops.Broken.apply(torch.ones(3, requires_grad=True)).sum().backward()
        """
    )
    assert late.returncode == 0, late.stdout
    assert "FAIL Broken" in late.stdout


def test_without_torch_only_a_watched_run_is_refused(alone, pytester):
    pytester.makepyfile(no_torch="import sys\nsys.modules['torch'] = None\n")
    run = alone("def test_it(): pass\n", "-p", "no_torch")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--gradwright: PyTorch is not installed" in run.stderr


def test_workers_check_together(alone):
    source = """
        import pytest, torch, ops

        @pytest.mark.parametrize("size", range(1, 9))
        @pytest.mark.parametrize("name", ["Good", "Broken"])
        def test_it(name, size, worker_id):
            assert worker_id.startswith("gw")
            getattr(ops, name).apply(torch.ones(size, requires_grad=True)).sum().backward()
        """
    run = alone(source, "-p", "xdist", "-n", "2", "--gradwright-fail", "--gradwright-json=r.json")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "16 passed" in run.stdout
    assert "FAIL Broken" in run.stdout
    assert "2 of 4 Functions were called, 0 never differentiated" in run.stdout
    assert run.stdout.count("matches-differences, output") == 1


@pytest.mark.slow
def test_a_worker_that_ends_is_named(alone):
    source = """
        import os, torch, ops

        def test_it():
            ops.Good.apply(torch.ones(1, requires_grad=True)).sum().backward()

        def test_crash():
            os._exit(3)
        """
    run = alone(source, "-p", "xdist", "-n", "1")
    assert re.search(r"worker gw\d ended before what it used could be checked", run.stdout), run.stdout
