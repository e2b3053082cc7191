"""The code in the documentation runs as it stands, from the top of a page to its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ["writing-gradients.md"]
"""Pages whose every block of Python is run."""


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_on_a_page_runs(page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) > 3
    scope: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], str(DOCS / page), "exec"), scope)
