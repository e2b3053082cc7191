"""Functions nobody here wrote: check every one that entmax and snntorch define, and write the tables of the docs page.

The packages are installed from PyPI without their dependencies into a folder of their own (``build/in-the-wild``), so
that no second torch comes along. Each is checked twice: on inputs that gradwright guesses, and on declared samples
(``_wild_samples.py``).

    python benchmarks/in_the_wild.py                 # prints both tables
    python benchmarks/in_the_wild.py --write         # puts them into docs/in-the-wild.md
    python benchmarks/in_the_wild.py --quick         # declared samples only, level quick
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _pages import write_tables

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "in-the-wild"
PAGE = ROOT / "docs" / "in-the-wild.md"
SAMPLES = Path(__file__).with_name("_wild_samples.py")
PACKAGES = ("entmax==1.3", "snntorch==1.0.0")
TARGETS = ("entmax", "snntorch.surrogate", "snntorch.functional", "snntorch._neurons")
CONTRACTS = (
    "gradient-count",
    "gradient-shape-and-dtype",
    "linear-in-cotangent",
    "matches-differences",
    "matches-surrogate",
    "second-order",
    "cotangent-untouched",
    "inputs-untouched",
    "saved-through-hooks",
)
"""Those whose every finding on these packages has been examined by hand; see the docs page."""
TABLES = {"guessed": "Inputs guessed", "declared": "Inputs and surrogates declared"}
SIGNS = {"pass": "✓", "fail": "✗", "suspect": "!", "unresolved": "?", "unsupported": "–", "skipped": "·"}


def main() -> int:
    """Check the packages and print, or write, what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="declared samples only, level quick")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/in-the-wild.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    install()
    names = ["declared"] if options.quick else list(TABLES)
    documents = {name: check(name, "quick" if options.quick else "standard") for name in names}
    for name, document in documents.items():
        print(f"\n{TABLES[name]}\n\n{table(document)}")
    if options.write:
        write_tables(PAGE, {name: table(document) for name, document in documents.items()})
    if options.json:
        options.json.write_text(json.dumps(figures(documents), indent=2), encoding="utf-8")
    return 0


def install() -> None:
    """Put the packages into their folder, once."""
    if (HOME / "snntorch").is_dir() and (HOME / "entmax").is_dir():
        return
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--target", str(HOME), *PACKAGES], check=True)


def check(name: str, level: str) -> dict[str, Any]:
    """Run the command as a user would and return its JSON document."""
    samples = ["--samples", str(SAMPLES)] if name == "declared" else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        options = [*samples, "--only", ",".join(CONTRACTS), "--level", level, "--seed", "1", "--json", str(path)]
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "gradwright", "check", *TARGETS, *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HOME), str(ROOT / "src")])},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def table(document: dict[str, Any]) -> str:
    """Return a Markdown table, a row for each Function and a column for each contract."""
    ids = list(dict.fromkeys(row["id"] for subject in document["subjects"] for row in subject["contracts"]))
    lines = ["| Function | " + " | ".join(f"`{i}`" for i in ids) + " |", "|---" * (len(ids) + 1) + "|"]
    for subject in sorted(document["subjects"], key=lambda s: (s["file"], s["line"])):
        verdicts = {}
        for row in subject["contracts"]:
            verdicts.setdefault(row["id"], SIGNS[row["verdict"]])
        cells = [verdicts.get(i, "") for i in ids] if verdicts else ["could not be run", *[""] * (len(ids) - 1)]
        source = subject["file"].removeprefix(f"{HOME.relative_to(ROOT)}/").removesuffix(".py").replace("/", ".")
        lines.append(f"| `{source}` {subject['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figures(documents: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the counts as benchmark rows."""
    rows = []
    for name, document in documents.items():
        subjects = document["subjects"]
        run = [s for s in subjects if s["contracts"]]
        for what, value in (("Functions", len(subjects)), ("Functions that could be run", len(run))):
            rows.append(
                {"name": f"{name}: {what}", "value": value, "unit": "count", "against": None}
                | {"ratio": None, "goal": None, "met": None}
            )
    return rows


if __name__ == "__main__":
    sys.exit(main())
