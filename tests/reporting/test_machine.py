from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import gradwright
from gradwright.checking.report import Support, Usage, Where
from gradwright.reporting.fingerprints import fingerprint
from gradwright.reporting.machine import document, to_json

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text(encoding="utf-8"))


def validate(data) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(data)


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_document_of_a_failing_subject(make):
    report = make.broken(sensitivity=3e-10, seconds=0.5)
    data = document([report], command="check")
    validate(data)
    assert {key: data[key] for key in ("schema", "gradwright", "torch", "command")} == {
        "schema": 1,
        "gradwright": gradwright.__version__,
        "torch": "2.13.0",
        "command": "check",
    }
    (subject,) = data["subjects"]
    contracts = subject.pop("contracts")
    assert subject == {
        "name": "BadExp",
        "kind": "Function",
        "file": "ops.py",
        "line": 12,
        "ok": False,
        "verdict": "fail",
        "status": "failed",
        "ended": [],
        "seconds": 0.123,
        "seed": 7,
        "level": "standard",
        "samples": [{"provenance": "declared", "description": "x: float64 (4, 2), k=2"}],
        "notes": [],
        "intent": None,
        "allowances": {},
        "support": [],
    }
    assert contracts[1] == {
        "id": "matches-differences",
        "question": "is the gradient right?",
        "verdict": "fail",
        "message": "The gradient has the wrong sign.",
        "hint": "Return `g * out`, not `-g * out`.",
        "where": {"input": "x", "output": 0, "index": [3, 1]},
        "output_index": [3, 1],
        "analytic": -1.6487212707,
        "numeric": 1.6487212707,
        "error_bar": 3e-11,
        "sensitivity": 3e-10,
        "repro": make.script,
        "source": None,
        "seconds": 0.5,
        "fingerprint": fingerprint(report, report.results[1], report.findings[0]),
        "known": False,
    }


def test_a_contract_without_findings_has_one_row_of_nulls(make):
    report = make.report("Exp", make.result("second-order", "skipped", message="first-order only"))
    data = document([report], command="check")
    validate(data)
    (row,) = data["subjects"][0]["contracts"]
    assert row["verdict"] == "skipped"
    assert row["message"] == "first-order only"
    nothing = ("hint", "where", "output_index", "analytic", "numeric", "error_bar", "sensitivity", "repro")
    assert [row[key] for key in nothing] == [None] * 8


def test_each_finding_has_a_row(make):
    findings = (make.finding(), make.finding(verdict="suspect", where=Where(input="k")))
    data = document([make.broken(findings=findings)], command="check")
    validate(data)
    rows = [(row["id"], row["verdict"], row["where"]) for row in data["subjects"][0]["contracts"][1:]]
    assert rows == [
        ("matches-differences", "fail", {"input": "x", "output": 0, "index": [3, 1]}),
        ("matches-differences", "suspect", {"input": "k", "output": None, "index": None}),
    ]


def test_a_subject_that_could_not_be_run_is_not_ok(make):
    data = document([make.not_run()], command="check")
    validate(data)
    (subject,) = data["subjects"]
    assert subject["ok"] is False
    assert subject["contracts"] == []
    assert subject["error"] == "no inputs were found on which forward runs"
    assert subject["remedy"].startswith("gradwright_samples")
    assert data["torch"]


def test_numbers_that_json_lacks(make):
    finding = make.finding(analytic=complex(1, float("inf")), numeric=float("nan"), error_bar=float("-inf"))
    text = to_json([make.broken(findings=(finding,), sensitivity=float("inf"))], command="check")
    data = json.loads(text, parse_constant=refuse)
    validate(data)
    row = data["subjects"][0]["contracts"][1]
    assert row["analytic"] == {"re": 1.0, "im": "inf"}
    assert (row["numeric"], row["error_bar"], row["sensitivity"]) == ("nan", "-inf", "inf")


def test_the_text_is_written_as_utf_8_and_folders_are_made(make, tmp_path):
    path = tmp_path / "new" / "report.json"
    report = make.report("Größe", file="ops/größe.py")
    text = to_json([report], command="check", path=path)
    assert path.read_text(encoding="utf-8") == text
    assert json.loads(text)["subjects"][0]["file"] == "ops/größe.py"
    assert json.loads(report.to_json()) == json.loads(text) == report.to_dict()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.update(schema=2),
        lambda data: data["subjects"][0].pop("seed"),
        lambda data: data["subjects"][0]["contracts"][0].update(verdict="maybe"),
        lambda data: data["subjects"][0]["contracts"][0].update(analytic="NaN"),
        lambda data: data["subjects"][0]["contracts"][0].pop("where"),
        lambda data: data["subjects"][1].update(ok=True),
    ],
)
def test_the_schema_refuses_what_is_wrong(make, damage):
    data = document([make.broken(), make.not_run()], command="check")
    validate(data)
    damage(data)
    with pytest.raises(jsonschema.ValidationError):
        validate(data)


def test_the_table_of_transforms(make):
    rows = (Support("vmap", "unsupported", "there is no vmap rule"), Support("grad", "pass"))
    data = document([make.report("Exp", make.result("vmap", "unsupported", support=rows))], command="check")
    validate(data)
    assert data["subjects"][0]["support"] == [
        {"transform": "vmap", "verdict": "unsupported", "reason": "there is no vmap rule"},
        {"transform": "grad", "verdict": "pass", "reason": None},
    ]


def test_the_usage_of_a_program_that_was_watched(make):
    rows = [Usage("Exp", "ops.py", 12, calls=9, backwards=8), Usage("Idle", None, None, note="made at run time")]
    data = json.loads(to_json([make.report()], command="watch", usage=rows))
    validate(data)
    assert data["usage"] == [
        {"name": "Exp", "file": "ops.py", "line": 12, "calls": 9, "backwards": 8, "note": None},
        {"name": "Idle", "file": None, "line": None, "calls": 0, "backwards": 0, "note": "made at run time"},
    ]
    assert document([make.report()], command="check")["usage"] == []


def test_a_known_finding_is_a_row_that_does_not_count(make):
    result = make.result("second-order", "skipped", known=(make.finding(),), message="it is known")
    data = document([make.report("Exp", make.result(), result)], command="check")
    validate(data)
    (subject,) = data["subjects"]
    assert (subject["ok"], subject["status"]) == (True, "passed")
    assert [(row["id"], row["verdict"], row["known"]) for row in subject["contracts"]] == [
        ("matches-differences", "pass", False),
        ("second-order", "fail", True),
    ]
