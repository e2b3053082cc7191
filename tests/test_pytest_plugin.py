from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from gradwright.checking.report import ContractResult, Finding, Report

def make(name, verdict="fail"):
    findings = (Finding(verdict, "The gradient has the wrong sign.", "Return `g * out`."),)
    result = ContractResult("matches-differences", "is the gradient right?", verdict, "", findings)
    return Report(name, "Function", None, None, "quick", 0, (), (result,))

@pytest.fixture
def check():
    return make
"""


@pytest.fixture
def outcome(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run a test file with the plugin given by name, whether or not gradwright is installed, and return its lines."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)

    def run(source: str, *options: str) -> str:
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess("-p", "_gradwright_pytest", *options).stdout.str()

    return run


def test_a_report_without_a_name_is_shown_beneath_the_assertion(outcome):
    text = outcome("def test_it(check):\n    assert check('BadExp')\n")
    assert "- gradwright -" in text
    assert "The gradient has the wrong sign." in text
    assert "What to do: Return `g * out`." in text
    assert text.index("assert <Report BadExp: FAIL matches-differences>") < text.index("- gradwright -")


def test_a_report_is_shown_once_however_many_frames_hold_it(outcome):
    text = outcome(
        """
        def verify(report, again):
            assert report.ok

        def test_it(check):
            report = check('BadExp')
            verify(report, report)
        """
    )
    assert text.count("- gradwright -") == 1


def test_every_failed_report_is_shown_and_no_other(outcome):
    text = outcome(
        """
        def test_it(check):
            first, second, third = check('BadExp'), check('BadLog'), check('GoodSin', 'unsupported')
            assert first and second and third
        """,
        "-rN",
    )
    assert text.count("- gradwright -") == 2
    assert "BadExp failed" in text
    assert "BadLog failed" in text
    assert "GoodSin passed" not in text


@pytest.mark.parametrize(
    "body",
    ["assert check('Exp', 'unsupported') is None", "check('BadExp'); raise ValueError('other')", "assert 1 == 2"],
    ids=["nothing failed", "not an assertion", "no report"],
)
def test_other_failures_are_left_alone(outcome, body):
    text = outcome(f"def test_it(check):\n    {body}\n")
    assert "1 failed" in text
    assert "- gradwright -" not in text


def test_objects_with_a_hostile_class_do_no_harm(outcome):
    text = outcome(
        """
        class Hostile:
            @property
            def __class__(self):
                raise RuntimeError('do not look')

        def test_it(check):
            hostile, report = Hostile(), check('BadExp')
            if not report:
                raise AssertionError('mine')
        """
    )
    assert "INTERNALERROR" not in text
    assert text.count("- gradwright -") == 1


def test_the_plugin_imports_neither_torch_nor_gradwright(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            heavy = {'torch', 'gradwright', 'rich'} & set(sys.modules)
            print('plugin', '_gradwright_pytest' in sys.modules, 'heavy', sorted(heavy))
        """
    )
    pytester.makepyfile("def test_it():\n    assert 1 == 2\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "_gradwright_pytest", str(pytester.path)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=pytester.path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "1 failed" in run.stdout, run.stdout + run.stderr
    assert "plugin True heavy []" in run.stdout
