from __future__ import annotations

import re

import pytest

from gradwright.checking.report import Usage
from gradwright.reporting.machine import document
from gradwright.reporting.markdown import markdown
from tests.reporting.nasty import NASTY


def written(*entries, usage=(), limit=None) -> str:
    return markdown(document(entries, "check", usage), limit=limit)


def cells(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_a_row_for_each_subject_worst_first(make):
    refuses = make.report("Refuses", make.result("gradient-count"), make.result("vmap", "unsupported", message="no"))
    text = written(make.report(), refuses, make.not_run(), make.broken())
    assert text.startswith("## gradwright check\n\n4 subjects: 1 failed, 1 could not be run, 2 passed\n")
    names = re.findall(r"^\| `(\w+)` ", text, re.MULTILINE)
    assert names == ["BadExp", "Opaque", "Exp", "Refuses"]
    bad = ["`BadExp`", "`ops.py:12`", "failed", "✓ 1", "✗ matches-differences", "", "", "", "declared", "0.12 s"]
    assert cells(text, "BadExp") == bad
    assert cells(text, "Refuses")[3:8] == ["✓ 1", "", "", "", "– vmap"]
    assert cells(text, "Opaque")[2:] == ["could not be run", *[""] * 7]


def test_a_finding_says_what_where_both_values_and_what_to_do(make):
    text = written(make.broken())
    for said in (
        "### ✗ FAIL `BadExp`: matches-differences, `output 0[3, 1] with respect to x[3, 1]`\n",
        "\nThe gradient has the wrong sign.\n",
        "| numeric | `1.6487212707 ± 3e-11` |\n",
        "**What to do:** Return `g * out`, not `-g * out`.\n",
        f"<details><summary>repro</summary>\n\n```python\n{make.script}\n```\n\n</details>\n",
    ):
        assert said in text


def test_what_was_refused_known_and_not_exercised_is_listed(make):
    refuses = make.report(
        "Refuses",
        make.result("vmap", "unsupported", message="no rule"),
        make.result("compile", "skipped", known=(make.finding(message="old"),)),
    )
    usage = [Usage("Idle", "ops.py", 3), Usage("Plain", None, None, calls=2, note="in torch.func")]
    text = written(refuses, make.not_run(), usage=usage)
    assert "### Not decided, or refused aloud\n\n- – `Refuses`: vmap: no rule\n" in text
    assert "2 subjects: 1 could not be run, 1 passed (1 with known findings)\n" in text
    assert "### 1 known finding, not counted\n\n- `Refuses`: compile: old\n" in text
    assert "### `Opaque` could not be run\n\nno inputs were found on which forward runs\n\nWhat to do:\n\n```\n" in text
    assert "### 1 of 2 Functions was called, 1 never differentiated\n" in text
    assert "Defined and never called:\n\n- `Idle` (`ops.py:3`)\n" in text
    assert "Called and never differentiated:\n\n- `Plain`: in torch.func\n" in text
    assert "known" not in written(make.report())


def test_nothing_at_all():
    assert written() == "## gradwright check\n\n0 subjects\n"


@pytest.mark.parametrize("limit", [0, 10, 100, 300, 700, 1500, 10**6])
def test_what_is_cut_stays_within_the_limit_and_says_so(make, limit):
    entries = [make.broken(f"Bad{i}ä") for i in range(3)]
    text, whole = written(*entries, limit=limit), written(*entries)
    assert len(text.encode()) <= limit
    if len(text) < len(whole):
        assert text == "" or text.endswith("longer than what may be shown here.*\n")
        assert text.count("```") % 2 == 0
    else:
        assert text == whole


def test_no_text_becomes_markup(make):
    finding = make.finding(message=NASTY, hint=NASTY, repro=NASTY)
    report = make.report(NASTY, make.result(verdict="fail", findings=(finding,)), file=f"{NASTY}.py")
    text = written(report, make.not_run(NASTY, reason=NASTY, remedy=NASTY), usage=[Usage(NASTY, NASTY, 1, note=NASTY)])
    fenced = re.compile(r"^(`{4,})\w*\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
    assert len(fenced.findall(text)) == 2
    outside = fenced.sub("", text)
    assert "<script" not in outside
    assert "\n# heading" not in outside
    assert outside.count("</details>") == 1
    assert re.search(r"(?<!\\)\*\*b", outside) is None
    head = next(line for line in text.splitlines() if line.startswith("| subject"))
    for line in outside.splitlines():
        if line.startswith("| <code>"):
            assert len(re.findall(r"(?<!\\)\|", line)) == head.count("|")
    text.encode()
