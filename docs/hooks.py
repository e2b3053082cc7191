"""What MkDocs does not do by itself: pages made from the code, so that nothing is copied by hand.

* One page a contract, from the docstring of its module, and an index of them grouped by the question they answer.
* ``<!-- run: gradwright ... -->`` in a page becomes the real output of that command.
* ``<!-- schema: NAME -->`` becomes a table of the fields of that part of ``report.schema.json``.
* ``<!-- catalogue: PACKAGE -->`` becomes a table of the entries of that package of the catalogue.
"""

from __future__ import annotations

import functools
import html
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from gradwright.authoring.catalogue import Entry, entries
from gradwright.checking.contracts import QUESTIONS, Contract, all_contracts

DOCS = Path(__file__).resolve().parent
OPTIONAL_PAGES = {"In the wild": "in-the-wild.md"}
"""Pages that are shown when they are there."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation."""
    entries: list[Any] = config.nav or []
    for entry in entries:
        if isinstance(entry, dict) and "Contracts" in entry:
            entry["Contracts"] = ["contracts/index.md", *(f"contracts/{name}.md" for name in all_contracts())]
    entries += [{title: page} for title, page in OPTIONAL_PAGES.items() if (DOCS / page).is_file()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the contracts."""
    pages = {"index": contracts_index(), **{name: contract_page(item) for name, item in all_contracts().items()}}
    for name, text in pages.items():
        files.append(File.generated(config, f"contracts/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks in a page by what they stand for."""
    markdown = re.sub(r"^<!-- run: (gradwright .+) -->$", lambda m: run(m[1]), markdown, flags=re.MULTILINE)
    markdown = re.sub(r"^<!-- schema: (\S+) -->$", lambda m: schema_table(m[1]), markdown, flags=re.MULTILINE)
    return re.sub(r"^<!-- catalogue: (\w+) -->$", lambda m: catalogue_table(m[1]), markdown, flags=re.MULTILINE)


def contract_page(contract: Contract) -> str:
    """Return the page of one contract; the headings of its docstring are those of the page."""
    facts = [f"Asks: {contract.asks}", f"Examined from level: `{contract.level}`"]
    if contract.depends_on_meaning:
        facts.append("A failure on inputs that were guessed is reported as `suspect`")
    summary, _, rest = contract.documentation.strip().partition("\n")
    bullets = "\n".join(f"- {fact}" for fact in facts)
    return f"# {contract.id}\n\n{links(summary)}\n\n{bullets}\n{links(rest)}\n"


def contracts_index() -> str:
    """Return the page that lists all contracts, grouped by the question they answer."""
    lines = [
        "# Contracts",
        "",
        "A contract is one property that a custom gradient must have. `gradwright check` examines all that the level",
        "allows; `--only` and `--skip` choose by id.",
    ]
    for question in QUESTIONS:
        chosen = [contract for contract in all_contracts().values() if contract.asks == question]
        if chosen:
            lines += ["", f"## {question[0].upper()}{question[1:]}", "", "| contract | property | from level |"]
            lines += ["|---|---|---|"]
            lines += [f"| [{c.id}]({c.id}.md) | {links(c.summary)} | `{c.level}` |" for c in chosen]
    return "\n".join(lines) + "\n"


def links(text: str) -> str:
    """Turn what docstrings write for Python into Markdown: ``code`` and :role:`name`."""
    text = re.sub(r":[a-z:]+:`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


@functools.cache
def run(command: str) -> str:
    """Run a gradwright command in the root of the repository and return it with its output as a block of text."""
    arguments = [sys.executable, "-m", *shlex.split(command)]
    environment = {**os.environ, "COLUMNS": "92", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run(
        arguments, cwd=DOCS.parent, env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if result.returncode not in (0, 1):
        raise RuntimeError(f"{command} exited with {result.returncode}:\n{result.stdout}{result.stderr}")
    lines = [line.rstrip() for line in result.stdout.strip("\n").splitlines()]
    return "\n".join(["```console", f"$ {command}", *lines, "```"])


def schema_table(part: str) -> str:
    """Return a table of the fields of one part of the schema; ``document`` is the whole."""
    schema = json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))
    fields = (schema if part == "document" else schema["$defs"][part])["properties"]
    rows = [f"| `{name}` | {type_of(f)} | {f.get('description', '')} |" for name, f in fields.items() if f]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])


def catalogue_table(package: str) -> str:
    """Return a table for each family of a package of the catalogue."""
    families: dict[str, list[Entry]] = {}
    for entry in entries(importlib.import_module(f"gradwright.{package}")):
        families.setdefault(entry.function.__module__, []).append(entry)
    lines = []
    for module, chosen in families.items():
        about = links((sys.modules[module].__doc__ or "").strip().splitlines()[0])
        lines += [f"### {module.removeprefix('gradwright.')}", "", about, ""]
        lines += ["| function | values | gradient | from |", "|---|---|---|---|"]
        for entry in chosen:
            gradient = "<br>".join(f"{formula(name)}: {formula(text)}" for name, text in entry.gradient.items())
            lines.append(f"| `gw.{entry.name}` | {formula(entry.forward)} | {gradient} | {formula(entry.paper)} |")
        lines.append("")
    return "\n".join(lines)


def formula(text: str) -> str:
    """Return a text for a cell of a table, in which no character has a meaning in Markdown."""
    escaped = html.escape(text)
    return "".join(f"&#{ord(character)};" if character in "|*_`[]\\" else character for character in escaped)


def type_of(field: dict[str, Any]) -> str:
    """Say in a few words which values a field of the schema may have."""
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return " or ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if "$ref" in field:
        return {"verdict": "a verdict", "index": "list of integers or null", "value": "number, text, pair or null"}.get(
            field["$ref"].rpartition("/")[2], "number, text or null"
        )
    kinds = field.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
