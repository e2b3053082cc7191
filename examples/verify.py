"""The main job, end to end: the tour passes, and every mistake in the broken file is caught and named.

``make check`` runs this. It exits with status 0 only if both hold, and writes ``build/report.html`` about both files.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
TOUR = "examples/tour.py"
BROKEN = "examples/broken.py"

EXPECTED = {
    "GradientMissing": ("gradient-count", r"one gradient too few for `k`"),
    "FactorMissing": ("linear-in-cotangent", r"factor grad_output is missing"),
    "SignWrong": ("matches-differences", r"sign is wrong"),
    "KeptOnContext": ("saved-through-hooks", r"kept on ctx"),
    "CotangentOverwritten": ("cotangent-untouched", r"writes to grad_output .* in place"),
    "SecondDerivativeSilent": ("second-order", r"second derivative is silently wrong"),
}
"""For each Function in the broken file: the contract that must fail, and words its message or advice must contain."""


def main() -> int:
    """Run the three commands and report in plain words; return the exit status."""
    BUILD.mkdir(exist_ok=True)
    print(f"1. {TOUR}: right gradients; everything should pass.\n", flush=True)
    tour_status, tour = check(TOUR)
    print(f"\n2. {BROKEN}: one classic mistake in each; the findings below are intended.\n", flush=True)
    broken_status, broken = check(BROKEN)
    page = "build/report.html"
    run(TOUR, BROKEN, "--html", page, quiet=True)

    problems = [
        *expect_status(TOUR, tour_status, 0),
        *expect_status(BROKEN, broken_status, 1),
        *problems_of_tour(tour),
        *problems_of_broken(broken),
    ]
    if not (ROOT / page).is_file():
        problems.append(f"{page} was not written")
    print()
    for problem in problems:
        print(f"NOT AS EXPECTED: {problem}")
    if problems:
        return 1
    print(f"All as it should be: {len(tour)} right Functions pass, {len(broken)} mistakes are caught and named:")
    for name, (contract, _) in EXPECTED.items():
        print(f"  {name}: {contract}")
    print(f"Both files in one page: {page}")
    return 0


def check(path: str) -> tuple[int, list[dict[str, Any]]]:
    """Run ``gradwright check`` as a user would; return the exit status and the subjects of its JSON document."""
    document = BUILD / f"{Path(path).stem}.json"
    document.unlink(missing_ok=True)
    status = run(path, "--json", str(document.relative_to(ROOT)))
    if not document.is_file():
        return status, []
    subjects: list[dict[str, Any]] = json.loads(document.read_text(encoding="utf-8"))["subjects"]
    return status, subjects


def run(*arguments: str, quiet: bool = False) -> int:
    """Run ``gradwright check`` in the root of the repository and return its exit status."""
    command = [sys.executable, "-m", "gradwright", "check", *arguments]
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, cwd=ROOT, stdout=output, check=False).returncode


def expect_status(path: str, status: int, expected: int) -> list[str]:
    """Return a complaint if the exit status of a command is another than expected."""
    return [] if status == expected else [f"gradwright check {path} exited with {status} instead of {expected}"]


def problems_of_tour(subjects: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the verdicts on the right file."""
    problems = [f"{TOUR}: {subject['name']} did not pass" for subject in subjects if not subject["ok"]]
    for subject in subjects:
        if subject["name"] == "RoundSTE" and verdict(subject, "matches-surrogate") != "pass":
            problems.append(f"{TOUR}: RoundSTE was not verified against its declared surrogate")
    return problems


def problems_of_broken(subjects: list[dict[str, Any]]) -> list[str]:
    """Return which mistakes were not caught, or caught but not named."""
    found = {subject["name"]: subject for subject in subjects}
    problems = [f"{BROKEN}: {name} is not in the expected list" for name in found.keys() - EXPECTED.keys()]
    for name, (contract, words) in EXPECTED.items():
        if name not in found:
            problems.append(f"{BROKEN}: {name} was not checked")
        elif verdict(found[name], contract) != "fail":
            problems.append(f"{BROKEN}: {name}: {contract} should fail, but is {verdict(found[name], contract)}")
        elif not re.search(words, text_of(found[name], contract), re.IGNORECASE | re.DOTALL):
            problems.append(f"{BROKEN}: {name}: the text of {contract} does not name the mistake ({words})")
    return problems


def verdict(subject: dict[str, Any], contract: str) -> str:
    """Return the gravest verdict that the rows of one contract have, or ``missing``."""
    verdicts = [row["verdict"] for row in subject["contracts"] if row["id"] == contract]
    return "fail" if "fail" in verdicts else verdicts[0] if verdicts else "missing"


def text_of(subject: dict[str, Any], contract: str) -> str:
    """Return everything the rows of one contract say in words."""
    rows = [row for row in subject["contracts"] if row["id"] == contract]
    return "\n".join(f"{row['message']}\n{row['hint'] or ''}" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
