from __future__ import annotations

import json

import jsonschema
import pytest

from gradwright.checking.contracts import all_contracts
from gradwright.checking.report import Where
from gradwright.reporting import sarif as module
from gradwright.reporting.machine import document
from gradwright.reporting.sarif import sarif
from tests.reporting.nasty import NASTY

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
LOCATION = {
    "type": "object",
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {
                    "required": ["uri"],
                    "properties": {
                        "uri": {"type": "string", "pattern": "^[A-Za-z0-9_.~!$&'()*+,;=:@/%-]+$"},
                        "uriBaseId": {"const": "%SRCROOT%"},
                    },
                },
                "region": {"required": ["startLine"], "properties": {"startLine": {"type": "integer", "minimum": 1}}},
            },
        },
        "logicalLocations": {"type": "array", "items": {"required": ["fullyQualifiedName"]}},
    },
    "additionalProperties": False,
}
REQUIRED = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name", "rules"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "required": ["id", "shortDescription", "help"],
                                            "properties": {"shortDescription": TEXT, "help": TEXT},
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "invocations": {
                        "items": {
                            "required": ["executionSuccessful"],
                            "properties": {
                                "toolExecutionNotifications": {
                                    "items": {"required": ["message"], "properties": {"message": TEXT}}
                                }
                            },
                        }
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "required": ["message", "ruleId", "ruleIndex", "level", "partialFingerprints"],
                            "properties": {
                                "message": TEXT,
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "locations": {"type": "array", "items": LOCATION, "minItems": 1},
                                "partialFingerprints": {
                                    "type": "object",
                                    "additionalProperties": {"type": "string", "minLength": 1},
                                },
                                "suppressions": {
                                    "items": {
                                        "required": ["kind"],
                                        "properties": {"kind": {"enum": ["inSource", "external"]}},
                                    }
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""What section 3 of the specification demands of the objects that are written."""


def run_of(*entries, **options) -> dict:
    data = json.loads(sarif(document(entries, "check"), **options))
    jsonschema.Draft202012Validator(REQUIRED).validate(data)
    (run,) = data["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    return run


def test_a_finding_is_a_result_at_its_line_with_the_values(make):
    run = run_of(make.report(), make.report("BadExp", make.result(verdict="fail"), file="pkg/my ops.py"))
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("matches-differences", "error")
    assert result["message"]["text"].startswith("BadExp, output 0[3, 1] with respect to x[3, 1]: The gradient has the")
    assert "What to do: Return `g * out`" in result["message"]["text"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"].endswith("pkg/my%20ops.py")
    assert location["physicalLocation"]["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
    assert location["physicalLocation"]["region"] == {"startLine": 12}
    assert location["logicalLocations"] == [{"fullyQualifiedName": "BadExp"}]
    assert result["properties"]["numeric"] == 1.6487212707
    assert result["properties"]["repro"] == make.script
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]


def test_every_contract_is_a_rule_with_its_documentation(make):
    rules = run_of(make.report())["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["gradient-count", "matches-differences"]
    contract = all_contracts()["gradient-count"]
    assert rules[0]["shortDescription"]["text"] == contract.summary
    assert "## If it fails" in rules[0]["help"]["markdown"]
    assert "helpUri" not in rules[0]


def test_the_page_of_a_rule_is_named_where_the_package_has_a_site(make, monkeypatch):
    class Metadata:
        def get_all(self, name):
            return ["Source, https://example.org/src", "Documentation, https://example.org/docs/"]

    monkeypatch.setattr(module.metadata, "metadata", lambda name: Metadata())
    rules = run_of(make.report())["tool"]["driver"]["rules"]
    assert rules[0]["helpUri"] == "https://example.org/docs/contracts/gradient-count/"


def test_levels_follow_what_fails_the_run(make):
    report = make.report("Exp", make.result(verdict="suspect"), make.result("vmap", "unresolved", message="too wide"))
    assert [(r["ruleId"], r["level"]) for r in run_of(report)["results"]] == [("matches-differences", "warning")]
    results = run_of(report, counted=("fail", "suspect", "unresolved"))["results"]
    assert [(r["ruleId"], r["level"]) for r in results] == [("matches-differences", "error"), ("vmap", "error")]


def test_a_fingerprint_stays_while_lines_values_and_words_change(make):
    def fingerprint(name="Exp", **fields):
        line = fields.pop("line", 12)
        report = make.report(name, make.result(verdict="fail", findings=(make.finding(**fields),)), line=line)
        (result,) = run_of(report)["results"]
        return result["partialFingerprints"]["gradwright/v1"]

    assert fingerprint() == fingerprint(line=99, message="other words", analytic=7.0, where=Where("x", 0, (0, 0)))
    others = [fingerprint("Other"), fingerprint(where=Where("k", 0)), fingerprint(where=Where("x", 1)), fingerprint()]
    assert len(set(others)) == 4


def test_a_subject_that_could_not_be_run_is_a_notification(make):
    lost = make.result("vmap", "unresolved", message="ended by SIGSEGV")
    run = run_of(make.not_run(file=None, line=None), make.report("Crashes", lost, ended=("vmap",)))
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    said = [note["message"]["text"] for note in invocation["toolExecutionNotifications"]]
    assert said == [
        "Opaque could not be run: no inputs were found on which forward runs",
        "Crashes, vmap: ended by SIGSEGV",
    ]
    assert run["results"] == []


def test_what_is_known_is_suppressed_and_not_lost(make):
    (result,) = run_of(make.report("Exp", make.result("vmap", "skipped", known=(make.finding(),))))["results"]
    assert result["suppressions"][0]["kind"] == "external"


def test_a_file_elsewhere_has_its_whole_address(make, tmp_path, monkeypatch):
    (tmp_path / "here" / ".git").mkdir(parents=True)
    (tmp_path / "here" / "src").mkdir()
    monkeypatch.chdir(tmp_path / "here" / "src")

    def uri(file):
        (result,) = run_of(make.report("Exp", make.result(verdict="fail"), file=str(file)))["results"]
        return result["locations"][0]["physicalLocation"]["artifactLocation"]

    assert uri("ops.py") == {"uri": "src/ops.py", "uriBaseId": "%SRCROOT%"}
    assert uri(tmp_path / "here" / "ä.py") == {"uri": "%C3%A4.py", "uriBaseId": "%SRCROOT%"}
    assert uri("../../ops.py") == {"uri": (tmp_path / "ops.py").as_uri()}


@pytest.mark.parametrize("counted", [("fail",), ()])
def test_no_text_breaks_the_log(make, counted):
    finding = make.finding(message=NASTY, hint=NASTY, repro=NASTY)
    report = make.report(NASTY, make.result(verdict="fail", findings=(finding,)), file="a\ud800\n'.py")
    run = run_of(report, make.not_run(NASTY, reason=NASTY), counted=counted)
    assert NASTY in run["results"][0]["message"]["text"]
