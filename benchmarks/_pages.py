"""Tables of the docs that a benchmark writes: between ``<!-- name -->`` and ``<!-- end -->`` in a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace tables in a page of the docs."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text)
    page.write_text(text, encoding="utf-8")
