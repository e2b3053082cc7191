"""Functions nobody here wrote: check those of published packages, and write the tables of the docs page.

The packages (``_wild_packages.py``) are installed from PyPI, pinned and without their dependencies, into a folder of
their own (``build/packages``), so that no second torch comes along. Each is checked twice, in a process of its own: on
inputs that gradwright guesses, and on declared samples (``_wild_samples.py``). What is reported is compared with what
was found by hand (``_wild_findings.py``): a failure that is not explained there makes the script fail.

    python benchmarks/in_the_wild.py                 # prints the tables
    python benchmarks/in_the_wild.py --write         # puts them into docs/in-the-wild.md
    python benchmarks/in_the_wild.py --quick         # two packages, declared samples only, level quick
    python benchmarks/in_the_wild.py zuko timm       # these packages only
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _adopted_samples import COMMON
from _packages import HOME, ROOT, environment, install
from _pages import write_tables
from _wild_findings import FINDINGS, KINDS, Finding
from _wild_packages import PACKAGES

PAGE = ROOT / "docs" / "in-the-wild.md"
SAMPLES = Path(__file__).with_name("_wild_samples.py")
STAND_INS = ROOT / "build" / "stand-ins"
QUICK = ("entmax", "norse")
NOT_ASKED = ("compile", "func-transforms", "vmap")
"""Whether it composes is the subject of another page, on adopted packages."""

Documents = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One verdict on one Function."""

    package: str
    function: str
    contract: str
    verdict: str
    message: str


def main() -> int:
    """Check the packages and print, or write, what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("packages", nargs="*", choices=[[], *PACKAGES], help="these packages only")
    parser.add_argument("--quick", action="store_true", help="two packages, declared samples only, level quick")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/in-the-wild.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    names = options.packages or (QUICK if options.quick else tuple(PACKAGES))
    level = "quick" if options.quick else "standard"
    guessed: Documents = {}
    declared: Documents = {}
    for name in names:
        install(name, (*COMMON, *PACKAGES[name].requirements))
        if not options.quick:
            guessed[name] = check(name, level, samples=False)
        declared[name] = check(name, level, samples=True)
    failures = [r for documents in (declared, guessed) for r in rows(documents) if r.verdict == "fail"]
    unexplained = [r for r in failures if explanation(r) is None]
    tables = {"packages": by_package(guessed, declared), "suspicions": by_suspicion(guessed, declared)}
    tables |= {kind: by_finding(kind) for kind in KINDS}
    tables |= {"not run": not_run(declared)}
    for table in tables.values():
        print(f"\n{table}")
    for row in unexplained:
        print(f"\nnot explained: {row.package} {row.function} {row.contract}: {row.message}", file=sys.stderr)
    if not options.quick and not options.packages:
        for finding in FINDINGS:
            if finding not in map(explanation, failures):
                print(f"\nnot seen any more: {finding.package} {finding.functions}", file=sys.stderr)
    if options.write:
        write_tables(PAGE, tables)
    if options.json:
        options.json.write_text(json.dumps(figures(guessed, declared, len(unexplained)), indent=2), encoding="utf-8")
    return 1 if unexplained else 0


def check(name: str, level: str, *, samples: bool) -> dict[str, Any]:
    """Run the command as a user would and return its JSON document."""
    package = PACKAGES[name]
    declared = ["--samples", str(SAMPLES)] if samples else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        options = [*declared, "--skip", ",".join(NOT_ASKED), "--level", level, "--seed", "1", "--json", str(path)]
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "gradwright", "check", *package.targets, *options],
            env=environment(stand_ins(name)) | {"GRADWRIGHT_WILD": name},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def stand_ins(name: str) -> Path:
    """Return a folder with an empty ``__init__`` for each package whose own is not run; its modules are found."""
    folder = STAND_INS / name
    for package in PACKAGES[name].bare:
        place = Path(*package.split("."))
        (folder / place).mkdir(parents=True, exist_ok=True)
        path = f"__path__ = [{str(folder / place)!r}, {str(HOME / place)!r}]\n"
        (folder / place / "__init__.py").write_text(path, encoding="utf-8")
    return folder


def rows(documents: Documents) -> Iterator[Row]:
    """Yield the verdicts on every Function that ran."""
    for name, document in documents.items():
        for subject in document["subjects"]:
            for row in subject["contracts"]:
                yield Row(name, subject["name"], row["id"], row["verdict"], row["message"])


def explanation(row: Row) -> Finding | None:
    """Return the finding that explains a failure, if one does."""
    for finding in FINDINGS:
        if row.package == finding.package and row.function in finding.functions and row.contract in finding.contracts:
            return finding
    return None


def by_package(guessed: Documents, declared: Documents) -> str:
    """Return a table of counts, a row for each package."""
    heads = ("package", "Functions", "run on guesses", "run on samples", "suspicions on guesses", "failures")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    totals = Counter[int]()
    for name, document in declared.items():
        guesses = guessed.get(name, {"subjects": []})
        failed = {(r.function, r.contract) for r in rows({name: document}) if r.verdict == "fail"}
        failed |= {(r.function, r.contract) for r in rows({name: guesses}) if r.verdict == "fail"}
        suspected = {(r.function, r.contract) for r in rows({name: guesses}) if r.verdict == "suspect"}
        counts = (_many(document), _run(guesses), _run(document), len(suspected), len(failed))
        totals.update(dict(enumerate(counts)))
        lines.append(f"| {name} {PACKAGES[name].version} | " + " | ".join(map(str, counts)) + " |")
    lines.append(f"| **{len(declared)} packages** | " + " | ".join(str(totals[i]) for i in range(5)) + " |")
    return "\n".join(lines)


def _many(document: dict[str, Any]) -> int:
    return len(document["subjects"])


def _run(document: dict[str, Any]) -> int:
    return sum(bool(subject["contracts"]) for subject in document["subjects"])


def by_suspicion(guessed: Documents, declared: Documents) -> str:
    """Return a table of the suspicions on guessed inputs, and what became of them when samples were declared."""
    judged: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows(declared):
        judged.setdefault((row.package, row.function), {})[row.contract] = row.verdict
    counts: dict[str, Counter[str]] = {}
    for package, function, contract in dict.fromkeys(
        (r.package, r.function, r.contract) for r in rows(guessed) if r.verdict == "suspect"
    ):
        counts.setdefault(contract, Counter())[_outcome(judged.get((package, function), {}), contract)] += 1
    heads = ("cleared", "confirmed", "still open")
    lines = ["| suspicion on guessed inputs | all | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for contract, found in sorted(counts.items(), key=lambda item: -item[1].total()):
        cells = (found.total(), *(found[head] for head in heads))
        lines.append(f"| `{contract}` | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _outcome(verdicts: dict[str, str], contract: str) -> str:
    """Tell what samples made of a suspicion; a surrogate that is declared is compared instead of the differences."""
    said = verdicts.get(contract)
    if contract == "matches-differences" and said == "skipped":
        said = verdicts.get("matches-surrogate")
    return {"pass": "cleared", "skipped": "cleared", "fail": "confirmed"}.get(said or "", "still open")


def by_finding(kind: str) -> str:
    """Return a table of what was found, of one kind."""
    lines = ["| Function | what happens | in practice |", "|---|---|---|"]
    for finding in FINDINGS:
        if finding.kind == kind:
            names = ", ".join(f"`{name}`" for name in finding.functions)
            where = ", ".join(f"`{contract}`" for contract in finding.contracts)
            lines.append(f"| {finding.package} {names}: {where} | {finding.what} | {finding.matters} |")
    return "\n".join(lines)


def not_run(declared: Documents) -> str:
    """Return a list of the Functions that ran neither on guesses nor on samples."""
    lines = []
    for name, document in declared.items():
        missing = [f"`{subject['name']}`" for subject in document["subjects"] if not subject["contracts"]]
        lines += [f"- {name}: {', '.join(missing)}"] if missing else []
    return "\n".join(lines)


def figures(guessed: Documents, declared: Documents, unexplained: int) -> list[dict[str, Any]]:
    """Return the counts as benchmark rows."""
    functions = sum(map(_many, declared.values()))
    found = [
        ("packages", len(declared), None),
        ("Functions", functions, None),
        ("Functions run on guessed inputs", sum(map(_run, guessed.values())), None),
        ("Functions run on declared samples", sum(map(_run, declared.values())), None),
        ("failures that are not explained", unexplained, 0),
    ]
    return [
        {"name": name, "value": value, "unit": "count", "against": None, "ratio": None}
        | {"goal": goal, "met": None if goal is None else value <= goal}
        for name, value, goal in found
    ]


if __name__ == "__main__":
    sys.exit(main())
