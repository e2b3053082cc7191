from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from gradwright.reporting.junit import junit
from gradwright.reporting.machine import document
from tests.reporting.nasty import NASTY


def parsed(*entries, **options) -> ET.Element:
    return ET.fromstring(junit(document(entries, "check"), **options))


def cases(root: ET.Element) -> dict[str, str]:
    """What became of each case: its child, or ``passed``."""
    return {case.get("name"): case[0].tag if len(case) else "passed" for case in root.iter("testcase")}


def test_a_subject_is_a_suite_and_a_contract_a_case(make):
    failing = make.broken(seconds=0.25)
    root = parsed(make.report(), failing)
    assert [suite.get("name") for suite in root] == ["Exp", "BadExp"]
    good, bad = root
    assert cases(good) == {"gradient-count": "passed", "matches-differences": "passed"}
    assert cases(bad) == {"gradient-count": "passed", "matches-differences": "failure"}
    assert [bad.get(name) for name in ("tests", "failures", "errors", "skipped", "time")] == [
        "2",
        "1",
        "0",
        "0",
        "0.250",
    ]
    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "0", "0"]
    case = bad[1]
    assert {name: case.get(name) for name in ("classname", "file", "line", "time")} == {
        "classname": "BadExp",
        "file": "ops.py",
        "line": "12",
        "time": "0.250",
    }
    failure = case.find("failure")
    assert failure.get("type") == "fail"
    assert failure.get("message") == "output 0[3, 1] with respect to x[3, 1]: The gradient has the wrong sign."
    for said in ("numeric: 1.6487212707 ± 3e-11", "What to do: Return `g * out`", make.script):
        assert said in failure.text


@pytest.mark.parametrize("verdict", ["suspect", "unresolved", "unsupported", "skipped"])
def test_what_fails_no_run_is_skipped_with_its_reason(make, verdict):
    root = parsed(make.report("Exp", make.result("vmap", verdict, message="the reason")))
    assert cases(root) == {"vmap": "skipped"}
    message = root.find(".//skipped").get("message")
    assert message == (
        f"{verdict}: the reason" if verdict != "suspect" else "suspect: The gradient has the wrong sign."
    )
    assert root.get("failures") == "0"


def test_what_fails_the_run_is_a_failure(make):
    entries = [
        make.report("Exp", make.result("vmap", "unresolved", message="too wide"), make.result(verdict="suspect"))
    ]
    assert set(cases(parsed(*entries, counted=("fail", "suspect", "unresolved"))).values()) == {"failure"}
    assert set(cases(parsed(make.broken(), counted=())).values()) == {"passed", "skipped"}


def test_the_gravest_finding_of_a_contract_decides_and_all_failing_ones_are_told(make):
    findings = (
        make.finding(verdict="unresolved", message="wide"),
        make.finding(message="one"),
        make.finding(message="two"),
    )
    root = parsed(make.report("Exp", make.result(verdict="fail", findings=findings)))
    (failure,) = root.iter("failure")
    assert "one" in failure.text
    assert "two" in failure.text
    assert "wide" not in failure.text


def test_a_subject_that_could_not_be_run_is_an_error_and_so_is_one_that_ended_its_process(make):
    root = parsed(make.not_run())
    assert cases(root) == {"could be run": "error"}
    assert root.get("errors") == "1"
    assert "gradwright_samples" in root.find(".//error").text
    lost = make.result("vmap", "unresolved", message="ended by SIGSEGV")
    root = parsed(make.report("Crashes", make.result(), lost, ended=("vmap",)))
    assert cases(root) == {"matches-differences": "passed", "vmap": "error"}


def test_what_is_known_is_skipped(make):
    result = make.result("vmap", "skipped", known=(make.finding(message="old"),))
    root = parsed(make.report("Exp", result))
    assert root.find(".//skipped").get("message") == "known: old"


def test_a_subject_of_which_nothing_was_examined_has_not_passed(make):
    assert cases(parsed(make.report(results=()))) == {"something was examined": "skipped"}
    assert parsed().get("tests") == "0"


def test_no_text_breaks_the_file(make):
    finding = make.finding(message=NASTY, hint=NASTY, repro=NASTY)
    report = make.report(NASTY, make.result(verdict="fail", findings=(finding,)), file=f"{NASTY}.py")
    text = junit(document([report, make.not_run(NASTY, reason=NASTY, remedy=NASTY)], "check"))
    root = ET.fromstring(text.encode("utf-8"))
    assert root.find(".//failure").text.count("]]><script>&amp;") == 3
    assert "\x1b" not in text
