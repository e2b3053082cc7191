from __future__ import annotations

import json

import pytest

from gradwright.checking.report import Where
from gradwright.errors import OptionError
from gradwright.reporting.baseline import apply, fixed, known, read, updated, write
from gradwright.reporting.summary import counts_text
from tests.reporting.nasty import NASTY

FAIL = ("fail",)


def words(records) -> list[str]:
    return [str(record) for record in records]


def test_what_passes_with_known_findings_is_said_to(make):
    report = make.report("Exp", make.result("shapes"), make.result("vmap", "skipped", known=(make.finding(),)))
    assert counts_text([report, make.report()]).startswith("2 subjects: 2 passed (1 with known findings), 0 failed")


def test_a_known_finding_counts_for_nothing_and_is_kept_apart(make):
    before = make.broken()
    (after,) = apply(updated({}, [before], FAIL), [before])
    assert before.ok is False
    assert after.ok is True
    result = after["matches-differences"]
    assert (result.verdict, result.findings) == ("skipped", ())
    assert result.known == before.findings
    assert result.message == "what was found is known: the baseline lists it"
    assert [(report.name, contract.id) for report, contract, _ in known([after])] == [("BadExp", "matches-differences")]


def test_a_finding_elsewhere_still_counts(make):
    baseline = updated({}, [make.broken()], FAIL)
    new = make.finding(where=Where("k", 0), message="new")
    both = make.report("BadExp", make.result(verdict="fail", findings=(make.finding(), new)))
    (after,) = apply(baseline, [both])
    assert after.ok is False
    assert after.findings == (new,)
    assert len(after["matches-differences"].known) == 1
    for other in (make.broken("Other"), make.report("BadExp", make.result("second-order", "fail"))):
        assert apply(baseline, [other]) == [other]


def test_what_has_become_graver_is_new(make):
    suspect, failing = (
        make.report("Exp", make.result(verdict="suspect")),
        make.report("Exp", make.result(verdict="fail")),
    )
    assert apply(updated({}, [suspect], FAIL), [failing]) == [failing]
    (after,) = apply(updated({}, [failing], FAIL), [suspect])
    assert after.verdict == "skipped"


def test_a_verdict_without_a_finding_is_written_when_it_fails_the_run(make):
    report = make.report("Exp", make.result("vmap", "unsupported", message="no rule"))
    assert updated({}, [report], FAIL) == {}
    baseline = updated({}, [report], ("fail", "suspect", "unresolved", "unsupported"))
    (after,) = apply(baseline, [report])
    assert after["vmap"].verdict == "skipped"
    assert after["vmap"].known[0].message == "no rule"


def test_what_hung_or_could_not_be_run_is_never_known(make):
    lost = make.report("Crashes", make.result("vmap", "unresolved", message="ended"), ended=("vmap",))
    entries = [lost, make.not_run()]
    assert apply(updated({}, entries, ("fail", "suspect", "unresolved")), entries) == entries


def test_what_was_examined_again_and_not_found_is_fixed(make):
    baseline = updated({}, [make.broken(), make.broken("Other")], FAIL)
    repaired = make.report("BadExp", make.result())
    assert words(fixed(baseline, [repaired])) == ["BadExp: matches-differences, x"]
    assert words(updated(baseline, [repaired], FAIL).values()) == ["Other: matches-differences, x"]
    for silent in (
        make.report("BadExp", make.result(verdict="skipped")),
        make.report("BadExp", make.result(verdict="unresolved")),
        make.report("BadExp", make.result("vmap")),
        make.report("BadExp", make.result(), file="elsewhere.py"),
        make.not_run("BadExp"),
    ):
        assert fixed(baseline, [silent]) == []
        assert updated(baseline, [silent], FAIL) == baseline


def test_an_update_changes_nothing_that_is_as_it_was(make):
    baseline = updated({}, [make.broken()], FAIL)
    again = make.report("BadExp", make.result(verdict="fail", findings=(make.finding(message="other numbers"),)))
    assert updated(baseline, [again], FAIL) == baseline
    worse = updated(updated({}, [make.report("Exp", make.result(verdict="suspect"))], FAIL), [make.broken("Exp")], FAIL)
    assert [record.verdict for record in worse.values()] == ["fail"]


def test_of_several_findings_at_one_place_the_gravest_is_recorded(make):
    findings = (make.finding(verdict="suspect"), make.finding(message="certain"), make.finding(verdict="suspect"))
    baseline = updated({}, [make.report("Exp", make.result(verdict="fail", findings=findings))], FAIL)
    assert [(record.verdict, record.message) for record in baseline.values()] == [("fail", "certain")]


def test_the_file_is_sorted_and_can_be_read(make, tmp_path):
    path = tmp_path / "baseline.json"
    nasty = make.report(NASTY, make.result(verdict="fail", findings=(make.finding(message=NASTY, where=None),)))
    baseline = updated({}, [make.broken("Zeta"), nasty, make.broken("Alpha")], FAIL)
    write(baseline, path)
    assert read(path) == baseline
    text = path.read_text(encoding="utf-8")
    assert text.index("Alpha") < text.index("Zeta")
    (record,) = [row for row in json.loads(text)["findings"] if row["subject"] == "Alpha"]
    assert {name: record[name] for name in record if name not in ("fingerprint", "file")} == {
        "subject": "Alpha",
        "contract": "matches-differences",
        "input": "x",
        "output": 0,
        "verdict": "fail",
        "message": "The gradient has the wrong sign.",
    }
    write(dict(reversed(baseline.items())), path)
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not there"),
        ("", "cannot be read: JSONDecodeError"),
        ("[" * 100000, "cannot be read: RecursionError"),
        ("\xff", "cannot be read: UnicodeDecodeError"),
        ("[]", "is no baseline"),
        ('{"schema": 1, "subjects": []}', "is no baseline"),
        ('{"version": 2, "findings": []}', "has version 2, and this gradwright knows 1"),
        ('{"version": 1}', "has a finding that is damaged"),
        ('{"version": 1, "findings": [3]}', "has a finding that is damaged"),
        ('{"version": 1, "findings": [{"verdict": "fail", "fingerprint": "a"}]}', "has a finding that is damaged"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused_with_what_to_do(tmp_path, text, said):
    path = tmp_path / "baseline.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(OptionError, match=r"^--baseline: .*baseline\.json ") as caught:
        read(path)
    assert said in str(caught.value)
    assert "--update-baseline" in str(caught.value)
