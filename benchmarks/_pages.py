"""Tables of the docs that a benchmark writes: between ``<!-- name -->`` and ``<!-- end -->`` in a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace tables in a page of the docs."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text)
    page.write_text(text, encoding="utf-8")


def table_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows of figures as a table of the docs."""
    lines = ["| | | against | ratio | goal |", "|---|---|---|---|---|"]
    for row in rows:
        goal = "" if row["goal"] is None else f"{row['goal']}{'' if row['met'] else ' (missed)'}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
        lines.append(
            f"| {row['name']} | {row['value']:.3g} {row['unit']} | {row['against'] or ''} | {ratio} | {goal} |"
        )
    return "\n".join(lines)
