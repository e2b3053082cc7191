from __future__ import annotations

import textwrap

import pytest

from gradwright.checking.shown import Part, Source
from gradwright.reporting.frame import frame
from gradwright.reporting.github import commands
from gradwright.reporting.machine import document
from gradwright.reporting.sarif import log
from gradwright.reporting.terminal import plain_text

SOURCE = """\
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
\t\treturn t
"""
PARTS = (Part("forward", "forward", 7, 8), Part("backward", "backward", 11, 17), Part("jvp", "jvp", 20, 21))


def source(text=SOURCE, parts=PARTS, file="ops.py"):
    return Source(file, tuple(enumerate(text.splitlines(), 5)), parts)


def shown(report, contract="second-order"):
    found = frame(report, contract)
    return None if found is None else (found.file, found.marked, [text for _, text in found.lines])


def test_the_rule_is_shown_as_far_as_there_is_room(make):
    expected = ["def backward(ctx, g):", "    a = 1", "    b = 2", "", "    c = 3"]
    report = make.report(source=(source(),))
    assert shown(report) == ("ops.py", 11, expected)
    assert [number for number, _ in frame(report, "vmap").lines] == [11, 12, 13, 14, 15]


def test_the_contract_decides_what_is_shown(make):
    report = make.report(source=(source(),))
    assert shown(report, "modes-agree") == ("ops.py", 20, ["def jvp(ctx, t):", "            return t"])
    assert shown(report, "inputs-untouched") == ("ops.py", 7, ["def forward(ctx, x):", "    return x.exp()"])


def test_a_rule_in_another_file_is_found(make):
    rule = source("def rule(g):\n    return g\n", (Part("backward", "rule", 5, 6),), file="rules.py")
    forward = source(parts=PARTS[:1])
    assert shown(make.report(source=(forward, rule))) == ("rules.py", 5, ["def rule(g):", "    return g"])
    assert shown(make.report(source=(forward,)))[1] == 7


@pytest.mark.parametrize("sources", [(), (source(parts=()),), (source("", PARTS),), (source("\n" * 30),)])
def test_where_no_source_was_read_nothing_is_shown(make, sources):
    assert shown(make.report(source=sources)) is None


def test_the_frame_stands_once_below_the_head_of_a_finding(make):
    findings = (make.finding(), make.finding(message="another"))
    result = make.result("second-order", "fail", findings=findings)
    text = plain_text([make.report("Exp", result, make.result(verdict="fail"), source=(source(),))])
    expected = """\
        ✗ FAIL Exp: second-order, output 0[3, 1] with respect to x[3, 1]  [ops.py:12]
          > 11 | def backward(ctx, g):
            12 |     a = 1
            13 |     b = 2
            14 |
            15 |     c = 3
          The gradient has the wrong sign.
        """
    assert textwrap.dedent(expected) in text
    assert text.count("def backward") == 1


def test_long_lines_are_cut_and_not_wrapped(make):
    long = source(f"def rule(g):\n    return {' + '.join('g' * 90)}\n", (Part("backward", "rule", 5, 6),))
    text = plain_text([make.broken(), make.report("Rule", make.result(verdict="fail"), source=(long,))])
    lines = [line for line in text.splitlines() if "| " in line]
    assert len(lines) == 2
    assert max(map(len, lines)) == 100


def test_machine_formats_point_to_the_rule_as_well(make):
    results = make.result(verdict="fail"), make.result("vmap")
    data = document([make.report("Exp", *results, source=(source(),))], "check")
    rows = data["subjects"][0]["contracts"]
    assert [row["source"] for row in rows] == [{"file": "ops.py", "line": 11}, None]
    (line,) = commands(data)
    assert line.startswith("::error file=ops.py,line=11,")
    (result,) = log(data)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 11}
