from __future__ import annotations

import textwrap

import pytest

from gradwright.reporting.frame import frame
from gradwright.reporting.github import commands
from gradwright.reporting.machine import document
from gradwright.reporting.sarif import log
from gradwright.reporting.terminal import plain_text

SOURCE = """\
import torch


class Outer:
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            a = 1
            b = 2

            c = 3
            d = 4
            return g

        @staticmethod
        def jvp(ctx, t):
            return t


def rule(g):
    return g


class Child(Outer.Exp):
    pass
"""


@pytest.fixture
def ops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path / "ops.py"


def shown(report, contract="second-order"):
    found = frame(report, contract)
    return None if found is None else (found.marked, [text for _, text in found.lines])


def test_the_rule_is_shown_as_far_as_there_is_room(make, ops):
    expected = ["def backward(ctx, g):", "    a = 1", "    b = 2", "", "    c = 3"]
    assert shown(make.report(line=5)) == (11, expected)
    assert [number for number, _ in frame(make.report(line=5), "vmap").lines] == [11, 12, 13, 14, 15]


def test_the_contract_decides_which_method_is_shown(make, ops):
    assert shown(make.report(line=5), "modes-agree") == (20, ["def jvp(ctx, t):", "    return t"])
    assert shown(make.report(line=5), "inputs-untouched") == (7, ["def forward(ctx, x):", "    return x.exp()"])


def test_of_a_class_without_a_rule_of_its_own_the_head_is_shown(make, ops):
    assert shown(make.report(line=28)) == (28, ["class Child(Outer.Exp):", "    pass"])


def test_the_rule_of_a_decorated_function_is_found(make, ops, tmp_path):
    expected = (24, ["def rule(g):", "    return g"])
    assert shown(make.report(line=7, rule="rule in line 24")) == expected
    other = tmp_path / "other dir" / "rules.py"
    other.parent.mkdir()
    other.write_text(SOURCE, encoding="utf-8")
    assert shown(make.report(line=7, rule=f"rule in {other}:24")) == expected


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"file": None}, SOURCE),
        ({"line": None}, SOURCE),
        ({"line": 6}, SOURCE),
        ({"line": 10**9}, SOURCE),
        ({"file": "missing.py"}, SOURCE),
        ({"file": "\0"}, SOURCE),
        ({"line": 1}, "def broken(:\n"),
        ({"line": 1}, "(" * 5000),
    ],
)
def test_where_no_source_can_be_read_nothing_is_shown(make, ops, fields, text):
    ops.write_text(text, encoding="utf-8")
    assert shown(make.report(**{"line": 5, **fields})) is None


def test_the_source_is_that_of_now(make, ops):
    assert shown(make.report(line=24)) is not None
    ops.write_text("\n" + SOURCE, encoding="utf-8")
    assert shown(make.report(line=25)) == (25, ["def rule(g):", "    return g"])


def test_the_frame_stands_once_below_the_head_of_a_finding(make, ops):
    findings = (make.finding(), make.finding(message="another"))
    result = make.result("second-order", "fail", findings=findings)
    text = plain_text([make.report("Exp", result, make.result(verdict="fail"), line=5)])
    expected = """\
        ✗ FAIL Exp: second-order, output 0[3, 1] with respect to x[3, 1]  [ops.py:5]
          > 11 | def backward(ctx, g):
            12 |     a = 1
            13 |     b = 2
            14 |
            15 |     c = 3
          The gradient has the wrong sign.
        """
    assert textwrap.dedent(expected) in text
    assert text.count("def backward") == 1


def test_long_lines_are_cut_and_not_wrapped(make, ops):
    ops.write_text(f"def rule(g):\n    return {' + '.join('g' * 90)}\n", encoding="utf-8")
    text = plain_text([make.broken(), make.report("Rule", make.result(verdict="fail"), line=1)])
    lines = [line for line in text.splitlines() if "| " in line]
    assert len(lines) == 2
    assert max(map(len, lines)) <= 100


def test_machine_formats_point_to_the_rule_as_well(make, ops):
    data = document([make.report("Exp", make.result(verdict="fail"), make.result("vmap"), line=5)], "check")
    rows = data["subjects"][0]["contracts"]
    assert [row["source"] for row in rows] == [{"file": "ops.py", "line": 11}, None]
    (line,) = commands(data)
    assert line.startswith("::error file=ops.py,line=11,")
    (result,) = log(data)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 11}
