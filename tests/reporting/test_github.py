from __future__ import annotations

import re

from gradwright.reporting.github import MAX_SUMMARY, commands, write_summary
from gradwright.reporting.machine import document
from tests.reporting.nasty import NASTY


def lines(*entries, **options) -> list[str]:
    return commands(document(entries, "check"), **options)


def test_a_finding_is_an_error_at_its_line(make):
    (line,) = lines(make.broken(), make.report())
    title = "BadExp%3A matches-differences%2C output 0[3%2C 1] with respect to x[3%2C 1]"
    assert line.startswith(
        f"::error file=ops.py,line=12,title={title}::The gradient has the wrong sign.%0Aanalytic: -1"
    )


def test_the_worst_come_first_and_what_is_only_suspected_is_a_warning(make):
    suspect = make.report("Guessed", make.result(verdict="suspect"))
    refuses = make.report("Refuses", make.result("vmap", "unsupported", message="no rule"))
    found = lines(refuses, suspect, make.not_run(), make.broken())
    assert [re.match(r"::(\w+) .*title=(\w+)", line).groups() for line in found] == [
        ("error", "BadExp"),
        ("warning", "Guessed"),
        ("warning", "Opaque"),
    ]
    every = lines(refuses, suspect, counted=("fail", "suspect", "unresolved", "unsupported"))
    assert [line.partition(" ")[0] for line in every] == ["::error", "::error"]
    assert lines(make.broken(), counted=())[0].startswith("::warning ")


def test_a_subject_that_ended_its_process_is_an_error(make):
    lost = make.result("vmap", "unresolved", message="ended by SIGSEGV")
    (line,) = lines(make.report("Crashes", make.result(), lost, ended=("vmap",)))
    assert line.startswith("::error ")


def test_of_each_kind_ten_are_shown_and_the_others_counted(make):
    entries = [make.broken(f"Bad{i}") for i in range(23)] + [
        make.report(f"Guessed{i}", make.result(verdict="suspect")) for i in range(11)
    ]
    found = lines(*entries)
    assert [line.partition(" ")[0] for line in found] == ["::error"] * 10 + ["::warning"] * 10 + ["::notice"]
    assert found[-1] == "::notice title=gradwright::13 more errors and 1 more warning not shown"


def test_what_is_known_is_not_annotated(make):
    assert lines(make.report("Exp", make.result("vmap", "skipped", known=(make.finding(),)))) == []


def test_the_path_is_that_in_the_workspace(make, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert "file=sub/ops.py,line" in lines(make.broken())[0]
    assert (
        "file=/elsewhere/ops.py,line"
        in lines(make.report("Exp", make.result(verdict="fail"), file="/elsewhere/ops.py"))[0]
    )


def test_no_text_is_taken_for_a_command(make):
    finding = make.finding(message=NASTY, hint=NASTY)
    report = make.report(NASTY, make.result(verdict="fail", findings=(finding,)), file=f"{NASTY}.py")
    for line in lines(report, make.not_run(NASTY, reason=NASTY)):
        assert len(line.splitlines()) == 1
        head, _, message = line[2:].partition("::")
        properties = dict(part.split("=", 1) for part in head.partition(" ")[2].split(","))
        assert set(properties) == {"file", "line", "title"}
        assert "%250A" in message
        line.encode()


def test_the_summary_is_appended_and_capped(make, tmp_path, monkeypatch):
    path = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    path.write_text("before\n", encoding="utf-8")
    write_summary(document([make.broken()], "check"))
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n## gradwright check\n")
    assert "| `BadExp` |" in text
    write_summary(document([make.broken(f"Bad{i}") for i in range(2500)], "check"))
    size = path.stat().st_size
    assert MAX_SUMMARY - 2000 < size <= MAX_SUMMARY
    assert path.read_text(encoding="utf-8").endswith("longer than what may be shown here.*\n")
    path.write_bytes(b"x" * MAX_SUMMARY)
    write_summary(document([make.broken()], "check"))
    assert path.stat().st_size == MAX_SUMMARY


def test_without_a_summary_file_none_is_written(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    write_summary(document([make.broken()], "check"))
    assert list(tmp_path.iterdir()) == []
