"""The code in the documentation runs as it stands, from the top of a page to its end."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.authoring.catalogue import entries
from gradwright.typing import has_custom_gradient

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ["external.md", "fused.md", "implicit.md", "intent.md", "writing-gradients.md", "ste.md"]
"""Pages whose every block of Python is run; that for newcomers has a test of its own."""


@pytest.mark.parametrize("page", PAGES)
def test_the_code_on_a_page_runs(page: str) -> None:
    usual = torch.get_default_dtype()
    try:
        run(page)
    finally:
        torch.set_default_dtype(usual)


def test_the_code_for_newcomers_runs_and_checks_every_function(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []

    def check(subject: Any, *args: Any, **options: Any) -> gw.Report:
        checked.append(subject)
        return gradwright_check(subject, *args, **options)

    gradwright_check = gw.check
    monkeypatch.setattr(gw, "check", check)
    functions = [value for value in run("coming-from.md").values() if has_custom_gradient(value)]
    assert len(functions) > 10
    assert [f.__name__ for f in functions if f not in checked] == []


def run(page: str) -> dict[str, Any]:
    """Run every block of Python on a page, one after the other, and return what they defined."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) > 3
    scope: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], str(DOCS / page), "exec"), scope)
    return scope


def test_what_the_page_on_estimators_prints_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run("ste.md")
    text = (DOCS / "ste.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert capsys.readouterr().out == "".join(shown)


def test_the_table_of_the_catalogue_has_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(DOCS))
    hooks = importlib.import_module("hooks")
    table = hooks.on_page_markdown("<!-- catalogue: ste -->")
    for entry in entries(gw.ste):
        (row,) = [line for line in table.splitlines() if line.startswith(f"| `gw.{entry.name}` |")]
        assert row.count("|") == 5
    assert hooks.formula("|x| <= a_b * c") == "&#124;x&#124; &lt;= a&#95;b &#42; c"
