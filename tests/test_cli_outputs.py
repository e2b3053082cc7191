"""The reports that a command writes, and what fails the run: exit status, baseline, files."""

import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.test_cli import GOOD, NEVER, QUICK, SAMPLE, SRC, WRONG, write

pytestmark = pytest.mark.usefixtures("folder")

GUESSED = """
import torch

class Guessed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3
"""
SPEAKING = ("COLUMNS", "FORCE_COLOR", "LANG", "LC_ALL", "NO_COLOR", "PYTHONIOENCODING", "PYTHONUTF8", "TERM")
"""What an environment says about terminals."""
VALUES = ("--only", "matches-differences")


def rewrite(name, *sources):
    """Write a file anew as if it was for another process: a target is imported once in each."""
    sys.modules.pop(Path(name).stem, None)
    write(name, *sources)


def test_every_report_is_written(run):
    write("ops.py", GOOD, WRONG)
    status, out, _ = run(
        "check", "ops.py", *QUICK, "--junit", "out.xml", "--sarif", "out.sarif", "--markdown", "out.md", "--json", "-"
    )
    assert status == 1
    assert json.loads(out)["subjects"][1]["status"] == "failed"
    root = ET.parse("out.xml").getroot()
    assert [root.get(name) for name in ("tests", "failures", "errors")] == ["2", "1", "0"]
    (result,) = json.loads(Path("out.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "ops.py"
    assert "### ✗ FAIL `Wrong`: gradient-count" in Path("out.md").read_text(encoding="utf-8")


def test_a_failure_is_one_in_every_file_also_where_it_does_not_fail_the_run(run):
    write("ops.py", WRONG)
    files = ("--junit", "out.xml", "--sarif", "out.sarif")
    status, _, err = run("check", "ops.py", *QUICK, *files, "--github", "--fail-on", "none")
    assert status == 0
    assert err.startswith("::error ")
    assert ET.parse("out.xml").getroot().get("failures") == "1"
    (result,) = json.loads(Path("out.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert result["level"] == "error"


def test_annotations_and_the_summary_for_github(run, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    write("ops.py", WRONG)
    status, _, err = run("check", "ops.py", *QUICK, "--github")
    assert status == 1
    assert err.startswith("::error file=ops.py,line=10,title=Wrong%3A gradient-count")
    assert "| `Wrong` |" in Path("summary.md").read_text(encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/summary.md")
    status, _, err = run("check", "ops.py", *QUICK, "--github")
    assert status == 2
    assert "--github: no/summary.md cannot be written: FileNotFoundError" in err


def test_an_old_project_fails_on_new_findings_only(run):
    write("ops.py", WRONG)
    options = ("check", "ops.py", *QUICK, "--baseline", "known.json")
    status, out, err = run(*options, "--update-baseline")
    assert status == 0
    assert err == "known.json: 1 known finding (1 new, 0 fixed)\n"
    first = Path("known.json").read_text(encoding="utf-8")
    assert json.loads(first)["findings"][0]["subject"] == "Wrong"

    rewrite("ops.py", "\n\n# moved\n", WRONG)
    status, out, err = run(*options, "--json", "out.json", "--junit", "out.xml")
    assert (status, err) == (0, "")
    assert "1 known finding is not counted" in out
    assert "one gradient too few" not in out
    assert "one gradient too few" in " ".join(run(*options, "--verbose")[1].split())
    (row,) = json.loads(Path("out.json").read_text(encoding="utf-8"))["subjects"][0]["contracts"]
    assert (row["verdict"], row["known"]) == ("fail", True)
    assert ET.parse("out.xml").getroot().get("failures") == "0"

    rewrite("ops.py", WRONG, WRONG.replace("Wrong", "Fresh"))
    status, out, _ = run(*options)
    assert status == 1
    assert "FAIL Fresh" in out
    assert "FAIL Wrong" not in out

    rewrite("ops.py", WRONG.replace("return g\n", "return g * 2, None\n"))
    status, _, err = run(*options)
    assert status == 0
    assert err == (
        "known.json: 1 known finding no longer occurs (Wrong: gradient-count, k); `--update-baseline` takes it out.\n"
    )
    status, _, err = run(*options, "--update-baseline")
    assert (status, err) == (0, "known.json: 0 known findings (0 new, 1 fixed)\n")


def test_a_subject_that_could_not_be_run_is_not_excused_by_the_baseline(run):
    write("ops.py", NEVER)
    assert run("check", "ops.py", *QUICK, "--baseline", "known.json", "--update-baseline")[0] == 2


def test_a_broken_baseline_is_2_before_anything_is_run(run):
    write("ops.py", "raise RuntimeError('imported')")
    write("known.json", "{")
    for more in ((), ("--update-baseline",)):
        status, out, err = run("check", "ops.py", "--baseline", "known.json", *more)
        assert (status, out) == (2, "")
        assert err.startswith("--baseline: known.json cannot be read: JSONDecodeError")
        assert "imported" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_baseline_that_cannot_be_written_is_2(run, monkeypatch):
    write("ops.py", WRONG)
    Path("known.json").symlink_to("/dev/full")
    monkeypatch.setattr("gradwright.reporting.baseline.read", lambda path: {})
    status, _, err = run("check", "ops.py", *QUICK, "--baseline", "known.json", "--update-baseline")
    assert status == 2
    assert "--baseline: known.json cannot be written: OSError" in err


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (WRONG, QUICK, {"none": 0, "fail": 1, "suspect": 1}),
        (GUESSED, VALUES, {"none": 0, "fail": 0, "suspect": 1, "unresolved": 1, "unsupported": 1}),
        (GOOD, ("--only", "vmap"), {"fail": 0, "unresolved": 0, "unsupported": 1}),
        (GOOD, QUICK, {"unsupported": 0}),
    ],
)
def test_what_fails_the_run_can_be_chosen(run, source, options, expected):
    write("ops.py", source)
    for level, status in expected.items():
        assert run("check", "ops.py", *options, "--fail-on", level)[0] == status
    assert run("check", "ops.py", *options)[0] == expected.get("fail", 0)


def test_unchecked_subjects_fail_the_run_when_asked(run):
    write("ops.py", GOOD, NEVER, SAMPLE)
    assert run("check", "ops.py", *QUICK)[0] == 0
    assert run("check", "ops.py", *QUICK, "--fail-on-unchecked")[0] == 2
    assert run("check", "ops.py", *QUICK, "--fail-on-unchecked", "--fail-on", "none")[0] == 2
    rewrite("ops.py", GOOD, SAMPLE)
    assert run("check", "ops.py", *QUICK, "--fail-on-unchecked")[0] == 0


# ---------------------------------------------------------------- what is printed, on what

ODD = """
import torch

class Größe(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2  # ×

    @staticmethod
    def backward(ctx, g):  # ∂
        return g * 3

gradwright_samples = {'Größe': torch.ones(3, dtype=torch.float64)}
"""


def printed(**environment):
    """Run the command with its output piped, in an environment that says nothing else about terminals."""
    kept = {name: value for name, value in os.environ.items() if name not in SPEAKING}
    result = subprocess.run(
        [sys.executable, "-m", "gradwright", "check", "ops.py", *VALUES],
        capture_output=True,
        env={**kept, "PYTHONPATH": str(SRC), **environment},
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    return result.stdout


@pytest.mark.parametrize("environment", [{"LANG": "C", "LC_ALL": "C", "TERM": "dumb"}, {}])
def test_what_is_piped_is_plain_ascii_without_colour(environment):
    write("ops.py", ODD)
    out = printed(**environment).decode("ascii")
    assert "\x1b" not in out
    assert "X FAIL Gr\\xf6\\xdfe: matches-differences" in out
    assert "  > 10 | def backward(ctx, g):" in out
    assert "+/-" in out


@pytest.mark.slow
def test_the_environment_may_ask_for_more():
    write("ops.py", ODD)
    assert "✗ FAIL Größe: matches-differences" in printed(PYTHONIOENCODING="utf-8").decode("utf-8")
    assert b"\x1b[" in printed(FORCE_COLOR="1", TERM="xterm")
    assert b"\x1b[" not in printed(FORCE_COLOR="1", TERM="dumb")


def test_the_width_can_be_set():
    write("ops.py", ODD)
    lines = printed(COLUMNS="60").decode("ascii").splitlines()
    prose = lines[: next(i for i, line in enumerate(lines) if line.startswith("# repro"))]
    long = [line for line in prose if len(line) > 60]
    assert [line.split(":")[0] for line in long] == ["  Check again"]
    assert max(map(len, prose)) > 50


def test_the_command_that_checks_again_is_shown_and_works(run):
    write("my ops.py", GUESSED)
    _, out, _ = run("check", "my ops.py", *VALUES, "--seed", "3", "--level", "quick")
    line = next(line for line in out.splitlines() if line.startswith("  Check again: "))
    command = line.removeprefix("  Check again: ")
    assert command == "gradwright check 'my ops.py::Guessed' --only matches-differences --seed 3 --level quick"
    _, again, _ = run(*shlex.split(command)[1:])
    assert "matches-differences" in again
    assert re.search("numeric.*", out)[0] == re.search("numeric.*", again)[0]
    write("samples.py", "import torch", "gradwright_samples = {'Guessed': torch.ones(3, dtype=torch.float64)}")
    _, out, _ = run("check", "my ops.py", *VALUES, "--samples", "samples.py", "--no-store")
    assert "--only matches-differences --seed 0 --samples samples.py --no-store\n" in out
